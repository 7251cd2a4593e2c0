//! Dialects: found from templates, read in answers, written as grammars.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod answers;
mod bundled;
mod grammars;
mod hybrids;
mod messages;
mod prompts;
mod streaming;

use forerun_text::{
    AnswerParser, ChatInput, ChatTemplate, Dialect, Opening, Piece, SpecialTokens, Tokenizer, Tool,
};
use serde_json::{Map, Value, json};

const MARKED: &str = include_str!("../data/tools_and_thinking.jinja");
const TAGS: &str = include_str!("../data/calls_with_tags.jinja");
const BARE: &str = include_str!("../data/calls_as_json.jinja");
const CHANNELS: &str = include_str!("../data/calls_in_channels.jinja");
const PLAIN: &str = "{% for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %}";
const ALL: [&str; 5] = [MARKED, TAGS, BARE, CHANNELS, PLAIN];

fn template(source: &str) -> ChatTemplate {
    let special = SpecialTokens::from_iter([("bos_token", "<s>".to_owned())]);
    ChatTemplate::from_source(source, special).unwrap()
}

/// Of the marks only those of reasoning are tokens of this tokenizer.
fn tokenizer() -> Tokenizer {
    Tokenizer::from_bytes(include_bytes!("../data/tokenizer.json")).unwrap()
}

fn dialect(source: &str) -> Dialect {
    Dialect::of(&template(source), &tokenizer())
}

fn render(source: &str, messages: &[Value], extra: Value) -> String {
    let extra = extra.as_object().unwrap().clone();
    let input = ChatInput { messages, tools: &[], add_generation_prompt: true, extra: &extra };
    template(source).render(&input).unwrap()
}

fn tool_list() -> Vec<Value> {
    let weather = json!({"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"},
        "unit": {"enum": ["C", "F"]}, "note": {"type": ["string", "null"]},
        "where": {"$ref": "#/$defs/place"}, "tags": {"type": "array", "items": {"type": "string"}}},
        "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number"}}}}});
    let function = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    vec![
        function("weather", weather),
        json!({"type": "function", "function": {"name": "now"}}),
        function("run", json!({"properties": {"code": {"type": "string"}}})),
    ]
}

fn tools() -> Vec<Tool> {
    Tool::parse_all(&tool_list()).unwrap()
}

/// Reads a text that a limit on its length cut off.
fn read_cut(source: &str, text: &str) -> Vec<Piece> {
    let (mut out, mut parser) = (Vec::new(), AnswerParser::new(&dialect(source), false, &tools()));
    parser.push(text, &mut out);
    parser.cut(&mut out);
    out
}

/// Reads a text in one go.
fn read(source: &str, text: &str) -> Vec<Piece> {
    read_in(&mut AnswerParser::new(&dialect(source), false, &tools()), [text])
}

fn read_in<'a>(parser: &mut AnswerParser, pieces: impl IntoIterator<Item = &'a str>) -> Vec<Piece> {
    let mut out = Vec::new();
    pieces.into_iter().for_each(|piece| parser.push(piece, &mut out));
    parser.finish(&mut out);
    out
}

fn reasoning(text: &str) -> Piece {
    Piece::Reasoning(text.to_owned())
}

fn content(text: &str) -> Piece {
    Piece::Content(text.to_owned())
}

fn arguments(text: &str) -> Piece {
    Piece::ToolArguments(text.to_owned())
}

fn begun(name: &str, text: &str) -> Vec<Piece> {
    let mut pieces = vec![Piece::ToolCall { name: name.to_owned() }];
    if !text.is_empty() {
        pieces.push(arguments(text));
    }
    pieces
}

fn call(name: &str, text: &str) -> Vec<Piece> {
    let mut pieces = begun(name, text);
    pieces.push(Piece::ToolEnd);
    pieces
}

#[test]
fn the_template_tells_who_thinks_and_who_calls() {
    let told: Vec<_> = ALL
        .iter()
        .map(|source| {
            let dialect = dialect(source);
            (dialect.reasoning_open(), dialect.reasoning_end(), dialect.has_own_calls())
        })
        .collect();
    let think = (Some("<think>"), Some("</think>"), true);
    let channel = (Some("<|channel>thought"), Some("<channel|>"), true);
    assert_eq!(told, [think, think, (None, None, true), channel, (None, None, false)]);
}

#[test]
fn the_end_of_the_prompt_tells_whether_reasoning_has_begun() {
    let asked = [json!({"role": "user", "content": "What is <think>"})];
    let cases = [
        (MARKED, json!({}), Opening::Free),
        (MARKED, json!({"enable_thinking": false}), Opening::Closed),
        (TAGS, json!({}), Opening::Open),
        (TAGS, json!({"enable_thinking": false}), Opening::Closed),
        (CHANNELS, json!({}), Opening::Free),
        (BARE, json!({}), Opening::Closed),
        (PLAIN, json!({}), Opening::Closed),
    ];
    for (source, extra, expected) in cases {
        let prompt = render(source, &asked, extra.clone());
        assert_eq!(dialect(source).opening(&prompt), expected, "{prompt}");
    }
}

#[test]
fn every_form_renders_and_reads_the_same_call() {
    let arguments = json!({"city": "Oslo\n<b>\"x\"</b>", "days": 2, "tags": ["a", "b"]});
    let messages = [
        json!({"role": "user", "content": "Weather?"}),
        json!({"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
            "function": {"name": "weather", "arguments": arguments.to_string()}}]}),
    ];
    for source in [MARKED, TAGS, BARE, CHANNELS] {
        let dialect = dialect(source);
        let messages = dialect.normalise_messages(&messages).unwrap();
        let extra = Map::new();
        let input = ChatInput {
            messages: &messages,
            tools: &[],
            add_generation_prompt: false,
            extra: &extra,
        };
        let text = template(source).render(&input).unwrap();
        // The answer is what the template wrote for the assistant.
        let starts =
            ["<|im_start|>assistant\n", "assistant<|end_header_id|>\n\n", "<|turn>model\n"];
        let answer = starts.iter().find_map(|start| Some(text.split_once(start)?.1)).unwrap();
        let ends = ["<|im_end|>\n", "<|eot_id|>", "<turn|>\n"];
        let answer = ends.iter().find_map(|end| answer.strip_suffix(end)).unwrap();
        let pieces = read(source, answer);
        let [Piece::ToolCall { name }, Piece::ToolArguments(text), Piece::ToolEnd] = &pieces[..]
        else {
            panic!("{answer}: {pieces:?}")
        };
        assert_eq!(name, "weather");
        assert_eq!(serde_json::from_str::<Value>(text).unwrap(), arguments, "{text}");
    }
}
