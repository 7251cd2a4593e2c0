//! Answers that a JSON schema or a regular expression describes.
use forerun::{GenerationOptions, GrammarSource, Messages, Model};
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = Model::open(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tales-28m"))?;
    let schema = json!({
        "type": "object",
        "properties": {
            "city": {"enum": ["Berkeley", "Oakland", "San Jose"]},
            "seats": {"type": "integer", "minimum": 1, "maximum": 12},
        },
        "required": ["city", "seats"],
        "additionalProperties": false,
    });
    let request = || Messages::new().user("I want to book a table for two in Oakland.");
    let options = GenerationOptions::new().temperature(0.0).json_schema(schema);
    let booking: Value = serde_json::from_str(&model.complete(request(), options)?.answer()?.text)?;
    println!("{} in {}", booking["seats"], booking["city"]);

    let time = GrammarSource::Regex("[1-9]:[0-5][0-9] (am|pm)".to_owned());
    let options = GenerationOptions::new().temperature(0.0).constraint(time);
    println!("at {}", model.complete(request(), options)?.answer()?.text);
    Ok(())
}
