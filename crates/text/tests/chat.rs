//! Chat templates in the styles models come with, and what the filters promise.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use forerun_text::{ChatInput, ChatTemplate, SpecialTokens, TextError};
use serde_json::{Map, Value, json};

/// 2024-07-05 14:03:09 UTC, a Friday.
const NOW: i64 = 1_720_188_189;

fn special() -> SpecialTokens {
    let mut special = SpecialTokens::default();
    let config = json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": null});
    special.add("test", config.as_object().unwrap()).unwrap();
    special
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::from_source(source, special()).unwrap().with_clock(|| NOW)
}

struct ChatFamily {
    messages: Value,
    tools: Value,
    prompt: bool,
    extra: Value,
}

impl Default for ChatFamily {
    fn default() -> Self {
        Self {
            messages: json!([{"role": "user", "content": "Hi"}]),
            tools: json!([]),
            prompt: true,
            extra: json!({}),
        }
    }
}

fn try_render(source: &str, chat: &ChatFamily) -> Result<String, TextError> {
    let template = ChatTemplate::from_source(source, special())?.with_clock(|| NOW);
    template.render(&ChatInput {
        messages: chat.messages.as_array().unwrap(),
        tools: chat.tools.as_array().unwrap(),
        add_generation_prompt: chat.prompt,
        extra: chat.extra.as_object().unwrap(),
    })
}

fn render(source: &str, chat: &ChatFamily) -> String {
    try_render(source, chat).unwrap()
}

fn plain(source: &str) -> String {
    render(source, &ChatFamily::default())
}

const TOOLS_AND_THINKING: &str = include_str!("data/tools_and_thinking.jinja");
const HEADERS_AND_DATE: &str = include_str!("data/headers_and_date.jinja");
const TURNS_AND_PARTS: &str = include_str!("data/turns_and_parts.jinja");

fn weather_tool() -> Value {
    json!([{"type": "function", "function": {
        "name": "weather", "description": "It's <b>bold</b> & naïve",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}])
}

#[test]
fn a_tool_conversation_renders_with_spaced_unescaped_json_in_key_order() {
    let chat = ChatFamily {
        messages: json!([
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Weather in Oslo?"},
            {"role": "assistant", "content": "<think>\nlook it up\n</think>\n\nOne moment.",
             "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Oslo", "days": 2}}}]},
            {"role": "tool", "content": "rain"},
            {"role": "tool", "content": "wind"},
        ]),
        tools: weather_tool(),
        ..ChatFamily::default()
    };
    let expected = "<|im_start|>system\nBe kind.\n\n# Tools\n<tools>\n\
        {\"type\": \"function\", \"function\": {\"name\": \"weather\", \"description\": \"It's <b>bold</b> & naïve\", \
        \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}}}}}\n</tools><|im_end|>\n\
        <|im_start|>user\nWeather in Oslo?<|im_end|>\n\
        <|im_start|>assistant\n<think>\nlook it up\n</think>\n\nOne moment.\n\
        <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 2}}\n</tool_call><|im_end|>\n\
        <|im_start|>user\n<tool_response>\nrain\n</tool_response>\n<tool_response>\nwind\n</tool_response><|im_end|>\n\
        <|im_start|>assistant\n";
    assert_eq!(render(TOOLS_AND_THINKING, &chat), expected);
}

#[test]
fn thinking_is_dropped_from_earlier_turns_and_can_be_switched_off() {
    let messages = json!([
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "<think>\neasy\n</think>\n\n2"},
        {"role": "user", "content": "2+2?"},
    ]);
    let earlier = "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n\
        <|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n";
    let chat = ChatFamily { messages: messages.clone(), ..ChatFamily::default() };
    assert_eq!(render(TOOLS_AND_THINKING, &chat), earlier);
    let chat =
        ChatFamily { messages, extra: json!({"enable_thinking": false}), ..ChatFamily::default() };
    assert_eq!(render(TOOLS_AND_THINKING, &chat), format!("{earlier}<think>\n\n</think>\n\n"));
}

#[test]
fn headers_carry_the_date_and_pretty_tools() {
    let chat = ChatFamily {
        messages: json!([{"role": "system", "content": " Short. "}, {"role": "user", "content": " Hi "}]),
        tools: json!([{"name": "f", "arguments": {}}]),
        ..ChatFamily::default()
    };
    let expected = "<s><|start_header_id|>system<|end_header_id|>\n\n\
        Today Date: 05 Jul 2024\n\n\
        {\n    \"name\": \"f\",\n    \"arguments\": {}\n}\n\nShort.<|eot_id|>\
        <|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>\
        <|start_header_id|>assistant<|end_header_id|>\n\n";
    assert_eq!(render(HEADERS_AND_DATE, &chat), expected);
    let chat = ChatFamily { extra: json!({"date_string": "26 Jul 2024"}), ..ChatFamily::default() };
    assert!(render(HEADERS_AND_DATE, &chat).contains("Today Date: 26 Jul 2024\n"));
}

#[test]
fn content_parts_join_and_roles_must_alternate() {
    let chat = ChatFamily {
        messages: json!([
            {"role": "system", "content": "S"},
            {"role": "user", "content": [{"type": "text", "text": " a "}, {"type": "image"}]},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ]),
        ..ChatFamily::default()
    };
    let expected = "<s><start_of_turn>user\nS\n\na<image><end_of_turn>\n\
        <start_of_turn>model\nb<end_of_turn>\n<start_of_turn>user\nc<end_of_turn>\n<start_of_turn>model\n";
    assert_eq!(render(TURNS_AND_PARTS, &chat), expected);

    let twice = json!([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]);
    let chat = ChatFamily { messages: twice, ..ChatFamily::default() };
    let error = try_render(TURNS_AND_PARTS, &chat).unwrap_err();
    let TextError::Template { line, message } = &error else { panic!("{error}") };
    assert_eq!(message, "Roles must alternate user/assistant");
    assert_eq!(*line, Some(14));
    assert_eq!(error.to_string(), "chat template line 14: Roles must alternate user/assistant");
}

#[test]
fn expressions_work_as_in_python() {
    // Every expected text was checked against Jinja2 3.1 set up as `transformers` does.
    let cases: Vec<(String, String)> =
        serde_json::from_str(include_str!("data/expressions.json")).unwrap();
    for (source, expected) in cases {
        assert_eq!(plain(&source), expected, "{source}");
    }
}

#[test]
fn tojson_takes_the_arguments_of_json_dumps() {
    let value = json!({"b": [1, 2.0, null, true], "a": "é\n\"<&'", "e": [], "f": {}});
    let chat = ChatFamily { extra: json!({"v": value}), ..ChatFamily::default() };
    let cases = [
        ("{{ v | tojson }}", r#"{"b": [1, 2.0, null, true], "a": "é\n\"<&'", "e": [], "f": {}}"#),
        ("{{ v.a | tojson(ensure_ascii=true) }}", r#""\u00e9\n\"<&'""#),
        ("{{ v.b | tojson(separators=(',', ':')) }}", "[1,2.0,null,true]"),
        ("{{ {'z': 1, 'a': 2} | tojson(sort_keys=true) }}", r#"{"a": 2, "z": 1}"#),
        (
            "{{ {'a': [1], 'b': {}} | tojson(indent=2) }}",
            "{\n  \"a\": [\n    1\n  ],\n  \"b\": {}\n}",
        ),
        ("{{ 1e20 | tojson }}{{ '😀' | tojson(true) }}", "1e+20\"\\ud83d\\ude00\""),
        ("{{ v | tojson | length }}", "62"),
    ];
    for (source, expected) in cases {
        assert_eq!(render(source, &chat), expected, "{source}");
    }
    assert!(try_render("{{ nothing | tojson }}", &chat).is_err());
}

#[test]
fn blocks_are_trimmed_as_transformers_does() {
    let source = "{% if true %}\n  a\n    {% endif %}\nb\n  {%- if true %} c{% endif -%}  \n d\n";
    assert_eq!(plain(source), "  a\nb cd");
}

#[test]
fn a_list_of_templates_uses_the_one_for_tools_when_there_are_tools() {
    let config = json!({"chat_template": [
        {"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]});
    let template =
        ChatTemplate::from_config("c", config.as_object().unwrap(), special()).unwrap().unwrap();
    let extra = Map::new();
    let mut input =
        ChatInput { messages: &[], tools: &[], add_generation_prompt: false, extra: &extra };
    assert_eq!(template.render(&input).unwrap(), "plain");
    let tools = [json!({})];
    input.tools = &tools;
    assert_eq!(template.render(&input).unwrap(), "tools");
}

#[test]
fn a_template_file_wins_over_the_configuration_and_no_template_is_none() {
    let folder = tempfile::tempdir().unwrap();
    assert!(ChatTemplate::load(folder.path()).unwrap().is_none());
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("tokenizer_config.json", r#"{"chat_template": "config", "bos_token": "B"}"#);
    let extra = Map::new();
    let input =
        ChatInput { messages: &[], tools: &[], add_generation_prompt: false, extra: &extra };
    let load = || ChatTemplate::load(folder.path()).unwrap().unwrap();
    assert_eq!(load().render(&input).unwrap(), "config");
    write("special_tokens_map.json", r#"{"bos_token": "no", "eos_token": {"content": "E"}}"#);
    write("chat_template.jinja", "file {{ bos_token }}{{ eos_token }}");
    assert_eq!(load().render(&input).unwrap(), "file BE");
}

#[test]
fn reserved_names_cannot_be_smuggled_in_as_arguments() {
    let chat = ChatFamily { extra: json!({"messages": []}), ..ChatFamily::default() };
    let error = try_render("x", &chat).unwrap_err().to_string();
    assert_eq!(error, "chat template: `messages` cannot be given as a template argument");
}

#[test]
fn errors_name_the_line() {
    let error = try_render("a\nb\n{{ messages.x.y.z }}", &ChatFamily::default()).unwrap_err();
    assert!(error.to_string().starts_with("chat template line 3: "), "{error}");
    let error = template_error("{{ a\n\n{% if %}");
    assert!(error.starts_with("chat template line "), "{error}");
}

fn template_error(source: &str) -> String {
    match ChatTemplate::from_source(source, special()) {
        Ok(_) => panic!("{source} compiled"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_thousand_message_chat_stays_within_the_limits() {
    let turn = |i: usize| {
        let role = if i.is_multiple_of(2) { "user" } else { "assistant" };
        json!({"role": role, "content": "word ".repeat(400)})
    };
    let messages: Vec<Value> = (0..2_001).map(turn).collect();
    let tools = weather_tool();
    let extra = Map::new();
    let input = ChatInput {
        messages: &messages,
        tools: tools.as_array().unwrap(),
        add_generation_prompt: true,
        extra: &extra,
    };
    for source in [TOOLS_AND_THINKING, HEADERS_AND_DATE, TURNS_AND_PARTS] {
        assert!(template(source).render(&input).unwrap().len() > 3_500_000);
    }
}
