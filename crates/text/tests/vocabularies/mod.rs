//! Small vocabularies as GGUF files would carry them.

use forerun_text::Vocabulary;
use serde_json::Value;

/// The tables of a byte-level `tokenizer.json`.
pub(crate) fn of_tokenizer_json(file: &str, pre: &str) -> Vocabulary {
    let file: Value = serde_json::from_str(file).unwrap();
    let mut tokens = Vec::new();
    let mut kinds = Vec::new();
    let mut put = |id: &Value, text: &str, kind: i32| {
        let id = id.as_u64().unwrap() as usize;
        if tokens.len() <= id {
            tokens.resize(id + 1, String::new());
            kinds.resize(id + 1, 5);
        }
        (tokens[id], kinds[id]) = (text.to_owned(), kind);
    };
    for (text, id) in file["model"]["vocab"].as_object().unwrap() {
        put(id, text, 1);
    }
    for added in file["added_tokens"].as_array().unwrap() {
        let kind = if added["special"] == true { 3 } else { 4 };
        put(&added["id"], added["content"].as_str().unwrap(), kind);
    }
    let merges = file["model"]["merges"].as_array().unwrap().iter().map(|merge| match merge {
        Value::String(merge) => merge.clone(),
        pair => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
    });
    Vocabulary {
        model: "gpt2".to_owned(),
        pre: Some(pre.to_owned()),
        merges: merges.collect(),
        tokens,
        kinds,
        ..Vocabulary::default()
    }
}

fn with_bytes(model: &str, specials: [(&str, i32); 3]) -> Vocabulary {
    let bytes = (0..256).map(|b| (format!("<0x{b:02X}>"), 6));
    let specials = specials.into_iter().map(|(text, kind)| (text.to_owned(), kind));
    let (tokens, kinds) = specials.chain(bytes).unzip();
    Vocabulary { model: model.to_owned(), tokens, kinds, ..Vocabulary::default() }
}

/// A SentencePiece vocabulary: `<unk>`, `<s>`, `</s>`, the bytes, then `words` with scores.
pub(crate) fn scored(words: &[(&str, f32)]) -> Vocabulary {
    let mut made = with_bytes("llama", [("<unk>", 2), ("<s>", 3), ("</s>", 3)]);
    made.scores = vec![0.0; made.tokens.len()];
    for (text, score) in words {
        made.tokens.push((*text).to_owned());
        made.kinds.push(1);
        made.scores.push(*score);
    }
    made
}

/// A Gemma 4 vocabulary: `<pad>`, `<eos>`, `<bos>`, the bytes, then `words`.
pub(crate) fn spaced(words: &[&str], merges: &[&str]) -> Vocabulary {
    let mut made = with_bytes("gemma4", [("<pad>", 3), ("<eos>", 3), ("<bos>", 3)]);
    made.tokens.extend(words.iter().map(|text| (*text).to_owned()));
    made.kinds.resize(made.tokens.len(), 1);
    made.merges = merges.iter().map(|text| (*text).to_owned()).collect();
    (made.bos, made.eos) = (Some(2), Some(1));
    made
}
