//! Tables that contradict themselves, and what the rest of a GGUF file's text says.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod vocabularies;

use forerun_text::{ChatInput, ChatTemplate, Detokenizer, Tokenizer, Vocabulary};
use serde_json::{Map, json};
use vocabularies::{of_tokenizer_json, scored, spaced};

fn bytes() -> Vocabulary {
    of_tokenizer_json(include_str!("data/tokenizer.json"), "qwen2")
}

fn refusal(vocabulary: &Vocabulary) -> String {
    Tokenizer::from_vocabulary(vocabulary).unwrap_err().to_string()
}

#[test]
fn broken_tables_are_refused_with_the_reason() {
    let base = bytes();
    let spm = scored(&[("a", -1.0), ("b", -2.0)]);
    let with = |change: fn(&mut Vocabulary), base: &Vocabulary| {
        let mut changed = base.clone();
        change(&mut changed);
        refusal(&changed)
    };
    let cases = [
        (with(|v| v.tokens.clear(), &base), "no tokens"),
        (with(|v| v.kinds.truncate(7), &base), "`token_type` has 7 entries for 384 tokens"),
        (with(|v| v.kinds.push(1), &base), "`token_type` has 385 entries"),
        (with(|v| v.scores = vec![0.0; 3], &base), "`scores` has 3 entries"),
        (with(|v| v.tokens[9] = v.tokens[4].clone(), &base), "tokens 4 and 9 are both `%`"),
        (with(|v| v.tokens[9] = "x".repeat(70_000), &base), "token 9 has 70000 bytes"),
        (with(|v| v.bos = Some(384), &base), "`bos_token_id` is 384, but there are 384 tokens"),
        (with(|v| v.eot = Some(u32::MAX), &base), "`eot_token_id` is 4294967295"),
        (with(|v| v.add_bos = Some(true), &base), "`bos_token_id` is missing"),
        (with(|v| v.add_eos = Some(true), &base), "`eos_token_id` is missing"),
        (with(|v| v.merges.clear(), &base), "no merges"),
        (with(|v| v.merges[1] = "he".to_owned(), &base), "the merge `he` is not two tokens"),
        (with(|v| v.merges[1] = String::new(), &base), "the merge `` is not two tokens"),
        (with(|v| v.merges[1] = "h QQ".to_owned(), &base), "`QQ` of the merge `h QQ`"),
        (with(|v| v.merges[1] = "Q Z".to_owned(), &base), "`QZ` of the merge `Q Z`"),
        (with(|v| v.merges[1] = "h ".to_owned(), &base), "`` of the merge `h `"),
        (with(|v| v.pre = None, &base), "`pre` is missing"),
        (with(|v| v.pre = Some("qwen9".into()), &base), "`pre` is `qwen9`, which is not known"),
        (with(|v| v.pre = Some("qwen9".into()), &base), "llama-bpe, "),
        (with(|v| v.model = "bert".into(), &base), "`model` is `bert`"),
        (with(|v| v.model = String::new(), &base), "`model` is ``"),
        (with(|v| v.model = "llama".into(), &base), "no scores"),
        (with(|v| v.scores[5] = f32::NAN, &spm), "the score of token 5 is not a number"),
        (with(|v| v.kinds[0] = 1, &no_bytes(&spm)), "neither all 256 byte tokens"),
        (with(|_| (), &many(&base)), "control and user-defined tokens"),
    ];
    for (message, expected) in cases {
        assert!(message.starts_with("GGUF vocabulary: "), "{message}");
        assert!(message.contains(expected), "{expected:?} is not in {message:?}");
    }
}

fn no_bytes(base: &Vocabulary) -> Vocabulary {
    let mut changed = base.clone();
    changed.tokens[100] = "no byte".to_owned();
    changed
}

/// Far more tokens than a text could be searched for.
fn many(base: &Vocabulary) -> Vocabulary {
    let tokens: Vec<String> = (0..200_000).map(|n| format!("<{n}>")).collect();
    Vocabulary { kinds: vec![3; tokens.len()], tokens, ..base.clone() }
}

#[test]
fn a_million_tokens_are_fine() {
    let words: Vec<String> = (0..1_000_000).map(|n| format!("w{n}")).collect();
    let mut vocabulary = scored(&[("▁", 0.0)]);
    vocabulary.kinds.extend(vec![1; words.len()]);
    vocabulary.scores.extend((0..words.len()).map(|n| -(n as f32)));
    vocabulary.tokens.extend(words);
    let tokenizer = Tokenizer::from_vocabulary(&vocabulary).unwrap();
    let tokens = tokenizer.encode("w12 w999999", false).unwrap();
    assert_eq!(tokenizer.decode(&tokens, false).unwrap(), "w12 w999999");
}

#[test]
fn empty_and_strange_tokens_do_not_break_out() {
    let mut strange = bytes();
    strange.tokens[3] = String::new();
    strange.tokens[5] = String::new();
    strange.kinds[7] = -1;
    strange.kinds[8] = i32::MAX;
    // The merges that need these two are gone with them.
    let gone: Vec<String> = ["$", "&"].map(str::to_owned).to_vec();
    strange.merges.retain(|m| !gone.iter().any(|g| m.contains(g.as_str())));
    let tokenizer = Tokenizer::from_vocabulary(&strange).unwrap();
    assert_eq!(tokenizer.token_text(3).as_deref(), Some("[EMPTY_3]"));
    let everything: Vec<u32> = (0..500).collect();
    let whole = tokenizer.decode(&everything, true).unwrap();
    let mut stream = Detokenizer::new(&tokenizer, true);
    let mut text: String = everything.iter().map(|&id| stream.push(id).unwrap()).collect();
    text.push_str(&stream.finish().unwrap());
    assert_eq!(text, whole);
    let mut stand_in = bytes();
    stand_in.tokens[3] = String::new();
    stand_in.tokens[4] = "[EMPTY_3]".to_owned();
    assert!(refusal(&stand_in).contains("token 3 is empty"));
}

fn ends(vocabulary: &Vocabulary) -> Vec<u32> {
    vocabulary.generation_defaults().unwrap().eos_token_ids
}

/// A vocabulary of control tokens only.
fn controls(texts: &[&str]) -> Vocabulary {
    let tokens: Vec<String> = texts.iter().map(|t| (*t).to_owned()).collect();
    Vocabulary { kinds: vec![3; tokens.len()], tokens, ..Vocabulary::default() }
}

#[test]
fn end_tokens_are_those_named_and_those_spelled_so() {
    let named = Vocabulary { eos: Some(381), padding: Some(379), ..bytes() };
    let defaults = named.generation_defaults().unwrap();
    assert_eq!(defaults.eos_token_ids, [381, 379]);
    assert_eq!((defaults.bos_token_id, defaults.pad_token_id), (None, Some(379)));
    let texts = ["x", "<|eot_id|>", "<end_of_turn>", "<turn|>", "<|end|>", "<|im_end|>", "y"];
    assert_eq!(ends(&controls(&texts)), [1, 2, 3, 4, 5]);
    let more = Vocabulary { eos: Some(6), eot: Some(3), eom: Some(0), ..controls(&texts) };
    assert_eq!(ends(&more), [6, 3, 0, 1, 2, 4, 5]);
    // In these, `<|end|>` ends a part of the answer only.
    assert_eq!(ends(&controls(&["<|return|>", "<|call|>", "<|end|>"])), [0, 1]);
    assert_eq!(ends(&controls(&["<|flush|>", "<|calls|>", "<|end|>"])), [0, 1]);
    // The end of a text, or a piece of HTML.
    assert_eq!(ends(&controls(&["</s>"])), [0]);
    assert_eq!(ends(&Vocabulary { kinds: vec![1], ..controls(&["</s>"]) }), [0; 0]);
    assert_eq!(ends(&controls(&["</s>", "<|tool_response>"])), [1]);
    assert_eq!(ends(&scored(&[("a", 0.0)])), [2]);
    let error = Vocabulary { eos: Some(9), ..controls(&texts) }.generation_defaults();
    assert!(error.unwrap_err().to_string().contains("`eos_token_id` is 9"));
}

#[test]
fn an_end_of_turn_listed_as_ordinary_is_still_found_in_text() {
    let mut vocabulary = bytes();
    vocabulary.kinds[381] = 1;
    let tokenizer = Tokenizer::from_vocabulary(&vocabulary).unwrap();
    assert_eq!(tokenizer.encode("<|im_end|>", false).unwrap(), [381]);
    assert!(tokenizer.is_special(381));
}

#[test]
fn a_template_sees_the_special_tokens_of_the_file() {
    let vocabulary = Vocabulary { unknown: Some(0), ..spaced(&["a", "aa"], &["a a"]) };
    let special = vocabulary.special_tokens().unwrap();
    assert_eq!(
        (special.get("bos_token"), special.get("eos_token")),
        (Some("<bos>"), Some("<eos>"))
    );
    assert_eq!((special.get("unk_token"), special.get("pad_token")), (Some("<pad>"), None));
    let template = ChatTemplate::from_source("{{ bos_token }}{{ messages[0].content }}", special);
    let messages = [json!({"role": "user", "content": "aa"})];
    let extra = Map::new();
    let input =
        ChatInput { messages: &messages, tools: &[], add_generation_prompt: true, extra: &extra };
    let prompt = template.unwrap().render(&input).unwrap();
    let tokenizer = Tokenizer::from_vocabulary(&vocabulary).unwrap();
    assert_eq!(tokenizer.encode(&prompt, false).unwrap(), [2, 3 + 256 + 1]);
    assert!(Vocabulary { mask: Some(9_999), ..vocabulary }.special_tokens().is_err());
}
