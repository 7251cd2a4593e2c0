//! Generation defaults: where they come from and what is refused.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use forerun_text::{GenerationDefaults, SpecialTokens, Tokenizer};

fn parse(generation: &str, config: &str) -> Result<GenerationDefaults, String> {
    let optional = |text: &str| (!text.is_empty()).then(|| text.as_bytes().to_vec());
    let (generation, config) = (optional(generation), optional(config));
    GenerationDefaults::from_bytes(generation.as_deref(), config.as_deref())
        .map_err(|e| e.to_string())
}

#[test]
fn no_files_say_nothing() {
    assert_eq!(parse("", "").unwrap(), GenerationDefaults::default());
}

#[test]
fn every_key_is_read() {
    let all = r#"{"eos_token_id": [3, 5, 3], "bos_token_id": 1, "pad_token_id": 0,
        "do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0,
        "repetition_penalty": 1.05, "max_new_tokens": 2048, "transformers_version": "5.0"}"#;
    let expected = GenerationDefaults {
        eos_token_ids: vec![3, 5],
        bos_token_id: Some(1),
        pad_token_id: Some(0),
        do_sample: Some(true),
        temperature: Some(0.6),
        top_k: Some(20),
        top_p: Some(0.95),
        min_p: Some(0.0),
        repetition_penalty: Some(1.05),
        max_new_tokens: Some(2048),
    };
    assert_eq!(parse(all, "").unwrap(), expected);
    assert_eq!(parse("", all).unwrap(), expected);
}

#[test]
fn token_ids_fall_back_to_the_configuration_and_its_text_part() {
    let eos = |generation, config| parse(generation, config).unwrap().eos_token_ids;
    let config = r#"{"eos_token_id": 7, "text_config": {"eos_token_id": 8, "pad_token_id": 9}}"#;
    assert_eq!(eos(r#"{"eos_token_id": 6}"#, config), [6]);
    assert_eq!(eos(r#"{"eos_token_id": null}"#, config), [7]);
    assert_eq!(eos("{}", config), [7]);
    assert_eq!(eos("{}", r#"{"text_config": {"eos_token_id": 8}}"#), [8]);
    assert_eq!(parse("{}", config).unwrap().pad_token_id, Some(9));
}

#[test]
fn sampling_settings_of_the_configuration_count_only_without_a_generation_file() {
    let config = r#"{"temperature": 1.0, "top_k": 50}"#;
    assert_eq!(parse("{}", config).unwrap().top_k, None);
    assert_eq!(parse("", config).unwrap().top_k, Some(50));
}

#[test]
fn wrong_values_are_refused_with_file_key_and_value() {
    let cases = [
        (r#"{"temperature": "hot"}"#, r#"`temperature` is "hot""#),
        (r#"{"temperature": -1}"#, "`temperature` is -1"),
        (r#"{"temperature": 1e300}"#, "`temperature` is 1e+300"),
        (r#"{"top_p": 1.5}"#, "`top_p` is 1.5"),
        (r#"{"top_k": -1}"#, "`top_k` is -1"),
        (r#"{"top_k": 2.5}"#, "`top_k` is 2.5"),
        (r#"{"repetition_penalty": 0}"#, "`repetition_penalty` is 0"),
        (r#"{"max_new_tokens": 0}"#, "`max_new_tokens` is 0"),
        (r#"{"do_sample": 1}"#, "`do_sample` is 1"),
        (r#"{"eos_token_id": -2}"#, "`eos_token_id` is -2"),
        (r#"{"eos_token_id": [1, "x"]}"#, r#"`eos_token_id` is [1,"x"]"#),
        (r#"{"eos_token_id": []}"#, "`eos_token_id` is []"),
        (r#"{"eos_token_id": 4294967296}"#, "`eos_token_id` is 4294967296"),
    ];
    for (file, expected) in cases {
        let error = parse(file, "").unwrap_err();
        assert!(error.starts_with("generation_config.json: "), "{error}");
        assert!(error.contains(expected), "{error}");
    }
    for broken in ["{", "[]", "{\"temperature\": NaN}", "\u{fffd}"] {
        let error = parse(broken, "").unwrap_err();
        assert!(error.starts_with("generation_config.json is not usable JSON"), "{error}");
    }
}

#[test]
fn the_tokenizers_eos_is_a_further_end_token_for_chat() {
    let tokenizer = Tokenizer::from_bytes(include_bytes!("data/tokenizer.json")).unwrap();
    let mut special = SpecialTokens::default();
    let config: serde_json::Value =
        serde_json::from_str(include_str!("data/tokenizer_config.json")).unwrap();
    special.add("tokenizer_config.json", config.as_object().unwrap()).unwrap();
    let defaults = |eos| parse(&format!(r#"{{"eos_token_id": {eos}}}"#), "").unwrap();
    assert_eq!(defaults(379).with_chat_eos(&tokenizer, &special).eos_token_ids, [379, 381]);
    assert_eq!(defaults(381).with_chat_eos(&tokenizer, &special).eos_token_ids, [381]);
}

#[test]
fn a_config_with_pythons_words_for_infinity_is_read() {
    let config = br#"{"eos_token_id": 7, "time_step_limit": [0.0, Infinity]}"#;
    let defaults = GenerationDefaults::from_bytes(None, Some(config)).unwrap();
    assert_eq!(defaults.eos_token_ids, [7]);
}
