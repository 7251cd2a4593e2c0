//! A chat of three turns that shows what each of them had to read.
use forerun::{GenerationOptions, Model};
use std::io::Write;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = Model::open("models/tales-28m")?;
    let mut chat = model.chat().with_options(GenerationOptions::new().max_tokens(60).seed(1));
    for message in ["I want to book a table for two.", "In Berkeley, please.", "At seven."] {
        println!("> {message}");
        let mut reply = chat.send(message)?;
        for event in reply.by_ref() {
            print!("{}", event?.text());
            std::io::stdout().flush()?;
        }
        let finish = reply.answer()?.finish;
        println!("\n  {} of {} prompt tokens were read", finish.read_tokens, finish.prompt_tokens);
    }
    println!("{} messages", chat.messages().len());
    Ok(())
}
