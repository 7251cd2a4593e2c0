//! Any small tables as the vocabulary of a GGUF file: build, encode, decode, stream.
#![no_main]

use forerun_text::{Detokenizer, Tokenizer, Vocabulary};
use libfuzzer_sys::fuzz_target;

/// Four bytes of settings, then the text, the tokens and, after U+0002, the merges, with U+0001
/// between them.
fn parse(bytes: &[u8]) -> Option<(Vocabulary, &str)> {
    let (settings, rest) = bytes.split_first_chunk::<4>()?;
    let rest = std::str::from_utf8(rest).ok()?;
    let (text, tables) = rest.split_once('\u{1}')?;
    let (tokens, merges) = tables.split_once('\u{2}').unwrap_or((tables, ""));
    let model = ["gpt2", "llama", "gemma4"][usize::from(settings[0]) % 3];
    let pre = ["qwen2", "llama-bpe", "superbpe", "gpt-4o", "default", "deepseek-llm"];
    let mut vocabulary = Vocabulary {
        model: model.to_owned(),
        pre: Some(pre[usize::from(settings[1]) % pre.len()].to_owned()),
        merges: merges.split('\u{1}').filter(|m| !m.is_empty()).map(str::to_owned).collect(),
        add_bos: (settings[2] & 1 == 0).then_some(settings[2] & 2 == 0),
        add_space_prefix: (settings[2] & 4 == 0).then_some(settings[2] & 8 == 0),
        bos: (settings[3] & 128 == 0).then_some(u32::from(settings[3])),
        ..Vocabulary::default()
    };
    // Half of the inputs start from a whole set of bytes.
    if settings[2] & 16 == 0 {
        vocabulary.tokens.extend((0..256).map(|b| format!("<0x{b:02X}>")));
        vocabulary.kinds.resize(256, 6);
    }
    for token in tokens.split('\u{1}') {
        let kind = token.bytes().last().map_or(1, |b| 1 + i32::from(b % 6));
        vocabulary.tokens.push(token.to_owned());
        vocabulary.kinds.push(kind);
    }
    let scores = (0..vocabulary.tokens.len()).map(|id| (id % 5) as f32);
    vocabulary.scores = scores.collect();
    Some((vocabulary, text))
}

fuzz_target!(|bytes: &[u8]| {
    let Some((vocabulary, text)) = parse(bytes) else { return };
    let _ = (vocabulary.special_tokens(), vocabulary.generation_defaults());
    let Ok(tokenizer) = Tokenizer::from_vocabulary(&vocabulary) else { return };
    let mut tokens = tokenizer.encode(text, true).expect("any text can be encoded");
    assert!(tokens.iter().all(|&id| (id as usize) < vocabulary.tokens.len()));
    tokens.extend([0, 1, u32::MAX]);
    let whole = tokenizer.decode(&tokens, false).expect("any tokens can be decoded");
    let mut stream = Detokenizer::new(&tokenizer, false);
    let mut streamed = String::new();
    for &token in &tokens {
        streamed.push_str(&stream.push(token).expect("streams what decodes"));
    }
    streamed.push_str(&stream.finish().expect("streams what decodes"));
    assert_eq!(streamed, whole);
});
