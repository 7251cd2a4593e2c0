//! Several stories at once: they share the device, and each is the one it would be alone.
use forerun::{GenerationOptions, Model, Options};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tales-28m");
    let options = Options { sequences: 4, context: Some(512), ..Options::default() };
    let model = Model::open_with(folder, &options)?;
    let beginnings = ["The king said", "The fox said", "The miller said", "The old woman said"];
    let options = || GenerationOptions::new().max_tokens(40).seed(5).stop("\n");
    let answers = model.batch(beginnings.map(|beginning| (beginning, options())))?.answers();
    for (beginning, answer) in beginnings.iter().zip(answers) {
        let answer = answer?;
        let receipt = &answer.finish.receipt;
        println!("{beginning}{}", answer.text);
        println!(
            "  {:?}, {} of {} drafts accepted",
            answer.finish.ending, receipt.accepted, receipt.drafted
        );
    }
    Ok(())
}
