//! Encodes a text with the vocabulary of a GGUF file, to compare with other engines.
//!
//! ```text
//! encode vocabulary.json text.txt > ids.txt
//! ```
//!
//! The vocabulary is a JSON object with the keys of `tokenizer.ggml` (`model`, `pre`, `tokens`,
//! `token_type`, `scores`, `merges`, `bos_token_id`, ...). One id per line goes to the standard
//! output, times to the standard error.

use forerun_text::{Tokenizer, Vocabulary};
use serde_json::Value;
use std::error::Error;
use std::io::Write;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [vocabulary, text] = &arguments[..] else {
        return Err("usage: encode vocabulary.json text.txt".into());
    };
    let vocabulary = read(&serde_json::from_slice(&std::fs::read(vocabulary)?)?);
    let text = std::fs::read_to_string(text)?;
    let start = Instant::now();
    let tokenizer = Tokenizer::from_vocabulary(&vocabulary)?;
    eprintln!("{} tokens built in {:?}", tokenizer.vocab_size(), start.elapsed());
    let start = Instant::now();
    let tokens = tokenizer.encode(&text, false)?;
    let seconds = start.elapsed().as_secs_f64();
    eprintln!("{} tokens, {:.2} MB/s", tokens.len(), text.len() as f64 / 1e6 / seconds);
    let same = tokenizer.decode(&tokens, false)? == text;
    eprintln!("decoded to {} text", if same { "the same" } else { "another" });
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for token in tokens {
        writeln!(out, "{token}")?;
    }
    Ok(())
}

fn read(json: &Value) -> Vocabulary {
    let list = |key: &str| json[key].as_array().map(Vec::as_slice).unwrap_or_default();
    let texts = |key| list(key).iter().filter_map(|v| v.as_str().map(str::to_owned)).collect();
    let id = |key: &str| json[key].as_u64().and_then(|id| u32::try_from(id).ok());
    let flag = |key: &str| json[key].as_bool();
    Vocabulary {
        model: json["model"].as_str().unwrap_or_default().to_owned(),
        pre: json["pre"].as_str().map(str::to_owned),
        tokens: texts("tokens"),
        kinds: list("token_type").iter().filter_map(|v| v.as_i64().map(|n| n as i32)).collect(),
        scores: list("scores").iter().filter_map(|v| v.as_f64().map(|x| x as f32)).collect(),
        merges: texts("merges"),
        bos: id("bos_token_id"),
        eos: id("eos_token_id"),
        eot: id("eot_token_id"),
        eom: id("eom_token_id"),
        unknown: id("unknown_token_id"),
        padding: id("padding_token_id"),
        separator: id("seperator_token_id"),
        mask: id("mask_token_id"),
        add_bos: flag("add_bos_token"),
        add_eos: flag("add_eos_token"),
        add_space_prefix: flag("add_space_prefix"),
    }
}
