//! Continues a text with the bundled model.
use forerun::{GenerationOptions, Model};
use std::io::Write;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = Model::open("models/tales-28m")?;
    let prompt = "Once upon a time there was a little fox";
    print!("{prompt}");
    let options = GenerationOptions::new().max_tokens(100).seed(1);
    for event in model.complete(prompt, options)? {
        print!("{}", event?.text());
        std::io::stdout().flush()?;
    }
    println!();
    Ok(())
}
