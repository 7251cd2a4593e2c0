//! Any bytes as a tokenizer.json: load, encode, decode, stream.
#![no_main]

use forerun_text::{Detokenizer, Tokenizer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(tokenizer) = Tokenizer::from_bytes(bytes) else { return };
    let text = "The quick brown fox\n<|im_end|> é猫 \u{1f642}";
    let mut tokens = tokenizer.encode(text, true).unwrap_or_default();
    tokens.truncate(1_000);
    tokens.extend([0, 1, 2, u32::MAX]);
    let mut stream = Detokenizer::new(&tokenizer, false);
    for &token in &tokens {
        let _ = stream.push(token);
    }
    let _ = stream.finish();
    let _ = tokenizer.decode(&tokens, true);
});
