//! LFM2, Granite 4 and Nemotron 3: templates of the published forms.

use super::*;
use forerun_text::ToolChoice;

const PYTHON: &str = include_str!("../data/calls_in_python.jinja");
const GRANITE: &str = include_str!("../data/calls_of_granite.jinja");
const NEMOTRON: &str = include_str!("../data/calls_of_nemotron.jinja");

fn open(text: &str) -> String {
    format!("<|tool_call_start|>{text}")
}

#[test]
fn each_template_shows_its_form() {
    for (source, think) in [(PYTHON, None), (GRANITE, None), (NEMOTRON, Some("<think>"))] {
        let dialect = dialect(source);
        assert!(dialect.has_own_calls());
        assert_eq!(dialect.reasoning_open(), think);
    }
    let opening = |extra: Value| {
        let messages = [json!({"role": "user", "content": "a"})];
        dialect(NEMOTRON).opening(&render(NEMOTRON, &messages, extra))
    };
    assert_eq!(opening(json!({})), Opening::Open);
    assert_eq!(opening(json!({"enable_thinking": false})), Opening::Closed);
}

#[test]
fn calls_of_granite_and_nemotron_are_read() {
    let marked = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    assert_eq!(read(GRANITE, marked), call("now", "{}"));
    let tags = "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n2\n\
                </parameter>\n</function>\n</tool_call>";
    assert_eq!(read(NEMOTRON, tags), call("weather", r#"{"city": "Oslo", "days": 2}"#));
}

#[test]
fn calls_in_python_come_out_as_json() {
    let cases: [(&str, &str); 8] = [
        ("[now()]", "{}"),
        ("[now(a='b')]", r#"{"a": "b"}"#),
        ("[now( a = \"it's\" , b=1.5 )]", r#"{"a": "it's", "b": 1.5}"#),
        ("[now(a=True, b=False, c=None)]", r#"{"a": true, "b": false, "c": null}"#),
        (
            "[now(a=[1, 'x', [True]], b={'k': {}, \"l\": []})]",
            r#"{"a": [1, "x", [true]], "b": {"k": {}, "l": []}}"#,
        ),
        (r#"[now(a='l\n\'q\' \\ \d \"')]"#, r#"{"a": "l\n'q' \\ \\d \""}"#),
        ("[now(a=word)]", r#"{"a": "word"}"#),
        ("[now(a='(],=)')]", r#"{"a": "(],=)"}"#),
    ];
    for (text, json) in cases {
        let whole = open(text) + "<|tool_call_end|>";
        assert_eq!(read(PYTHON, &whole), call("now", json), "{text}");
        let dialect = dialect(PYTHON);
        let mut parser = AnswerParser::new(&dialect, false, &tools());
        let (mut buffer, mut pieces) = ([0; 4], Vec::new());
        whole.chars().for_each(|c| parser.push(c.encode_utf8(&mut buffer), &mut pieces));
        parser.finish(&mut pieces);
        assert_eq!(pieces, call("now", json), "{text}, by characters");
        serde_json::from_str::<Value>(json).unwrap();
    }
    let both = open("[now(), run(code='x')]<|tool_call_end|> Done.");
    let expected = [call("now", "{}"), call("run", r#"{"code": "x"}"#), vec![content("Done.")]];
    assert_eq!(read(PYTHON, &both), expected.concat());
}

#[test]
fn what_is_no_call_in_python_is_content() {
    for text in ["[now", "now()", "[(a=1)]", "[1, 2]", "{}", "[no w()]"] {
        let whole = open(text);
        assert_eq!(read(PYTHON, &whole), [content(&whole)], "{text}");
    }
    // From the bracket on it is a call, whatever comes.
    assert_eq!(read(PYTHON, &open("[now(a='b")), begun("now", r#"{"a": "b"#));
    let broken = [begun("now", r#"{"a": "b""#), vec![content(";")]].concat();
    assert_eq!(read(PYTHON, &open("[now(a='b';")), broken);
    assert_eq!(read_cut(PYTHON, "Well.<|tool_call_start|>[no"), [content("Well.")]);
}

#[test]
fn a_forced_call_in_python_names_its_arguments_in_order() {
    let list = json!([{"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "required": ["b"],
        "properties": {"a": {"type": "boolean"}, "b": {"type": "integer"}}}}}]);
    let tools = Tool::parse_all(list.as_array().unwrap()).unwrap();
    let found = dialect(PYTHON).tool_grammar(&tools, &ToolChoice::Required, false, Opening::Closed);
    let lark = found.unwrap().unwrap();
    for line in [
        "opened_call: \"<|tool_call_start|>\" call\n",
        "call_0: \"[f(\" first_0_0 \"]\" \"<|tool_call_end|>\"\n",
        "first_0_0: \"a=\" (\"True\" | \"False\") after_0_1 | first_0_1\n",
    ] {
        assert!(lark.contains(line), "{line}\n{lark}");
    }
    assert!(lark.contains("first_0_1: \"b=\" %json"), "{lark}");
    assert!(lark.contains("after_0_1: \", \" \"b=\" %json"), "{lark}");
}

#[test]
fn earlier_calls_are_written_as_the_templates_write_them() {
    let messages = [
        json!({"role": "user", "content": "a"}),
        json!({"role": "assistant", "content": "", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "now", "arguments": {"k": 1}}}]}),
    ];
    for (source, text) in [
        (PYTHON, "<|tool_call_start|>[now(k=1)]<|tool_call_end|>"),
        (GRANITE, "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"k\": 1}}\n</tool_call>"),
        (NEMOTRON, "<function=now>\n<parameter=k>\n1\n</parameter>\n</function>"),
    ] {
        assert!(render(source, &messages, json!({})).contains(text), "{text}");
    }
}
