//! Any text as a chat template: compile and render a conversation with tools.
#![no_main]

use forerun_text::{ChatInput, ChatTemplate, SpecialTokens};
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, json};

fuzz_target!(|source: &str| {
    let Ok(template) = ChatTemplate::from_source(source, SpecialTokens::default()) else { return };
    let messages = [
        json!({"role": "system", "content": "Be brief."}),
        json!({"role": "user", "content": [{"type": "text", "text": "Hi"}]}),
        json!({"role": "assistant", "content": "<think>\nx\n</think>\n\nHo",
               "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, 2.5, null]}}}]}),
    ];
    let tools = [json!({"type": "function", "function": {"name": "f"}})];
    let extra = Map::from_iter([("enable_thinking".to_owned(), json!(false))]);
    let input = ChatInput {
        messages: &messages,
        tools: &tools,
        add_generation_prompt: true,
        extra: &extra,
    };
    let _ = template.with_clock(|| 0).render(&input);
});
