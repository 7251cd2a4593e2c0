//! Any bytes as the JSON configuration files of a model.
#![no_main]

use forerun_text::{ChatTemplate, GenerationDefaults, SpecialTokens};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = GenerationDefaults::from_bytes(Some(bytes), Some(bytes));
    let _ = GenerationDefaults::from_bytes(None, Some(bytes));
    let Ok(serde_json::Value::Object(config)) = serde_json::from_slice(bytes) else { return };
    let mut special = SpecialTokens::default();
    let _ = special.add("tokenizer_config.json", &config);
    let _ = ChatTemplate::from_config("tokenizer_config.json", &config, special);
});
