//! Answers in each form: whole, several, malformed, cut short.

use super::*;

struct Case {
    form: &'static str,
    text: &'static str,
    pieces: Vec<Piece>,
}

fn check(cases: Vec<Case>) {
    for Case { form, text, pieces } in cases {
        assert_eq!(read(form, text), pieces, "{text}");
    }
}

fn case(form: &'static str, text: &'static str, pieces: Vec<Vec<Piece>>) -> Case {
    Case { form, text, pieces: pieces.concat() }
}

#[test]
fn reasoning_content_and_calls_come_apart_and_lose_their_marks() {
    check(vec![
        case(
            MARKED,
            "<think>\nI should look.\n</think>\n\nOne moment.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
            vec![
                vec![reasoning("I should look."), content("One moment.")],
                call("weather", r#"{"city": "Oslo"}"#),
            ],
        ),
        case(
            MARKED,
            "<think>\n\n</think>\n\nHi <think> there",
            vec![vec![content("Hi <think> there")]],
        ),
        case(
            MARKED,
            " <tool_call>{\"name\": \"now\"}</tool_call>\n<tool_call>{\"arguments\": {\"a\": 1}, \"id\": [7], \"name\": \"f\"}</tool_call> bye\n",
            vec![call("now", "{}"), call("f", r#"{"a": 1}"#), vec![content("bye\n")]],
        ),
        case(
            MARKED,
            r#"<tool_call>{"name": "f", "arguments": "{\"a\": \"é\"}"}"#,
            vec![call("f", r#"{"a": "é"}"#)],
        ),
        case(
            MARKED,
            r#"<tool_call>{"name": "f", "arguments": {"a": "</tool_call>{\"<"}}</tool_call>"#,
            vec![call("f", r#"{"a": "</tool_call>{\"<"}"#)],
        ),
        case(
            CHANNELS,
            "<|channel>thought\nhm\n<channel|>Wait.<|tool_call>call:weather{city:<|\"|>a \"b\"\n<|\"|>,days:2,ok:true,o:{x:[],y:[1,<|\"|>z<|\"|>]}}<tool_call|><|channel>thought\nmore<channel|>Done",
            vec![
                vec![reasoning("hm"), content("Wait.")],
                call(
                    "weather",
                    r#"{"city": "a \"b\"\n", "days": 2, "ok": true, "o": {"x": [], "y": [1, "z"]}}"#,
                ),
                vec![reasoning("more"), content("Done")],
            ],
        ),
        case(
            CHANNELS,
            "<|tool_call>call:f{}<tool_call|><|tool_call>call:g{<|\"|>k:<|\"|>: \"v\", w:bare word, n:-1.5e3}<tool_call|>",
            vec![call("f", "{}"), call("g", r#"{"k:": "v", "w": "bare word", "n": -1.5e3}"#)],
        ),
        case(
            BARE,
            "{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}; {\"name\": \"now\", \"parameters\": {}}",
            vec![call("weather", r#"{"city": "Oslo"}"#), call("now", "{}")],
        ),
        case(
            BARE,
            "<|python_tag|>{\"name\": \"now\", \"parameters\": {}}",
            vec![call("now", "{}")],
        ),
    ]);
}

#[test]
fn tagged_values_take_the_type_of_the_schema() {
    check(vec![
        case(
            TAGS,
            "<tool_call>\n<function=weather>\n<parameter=city>\n42\n</parameter>\n<parameter=days>\n 3\n</parameter>\n<parameter=unit>\nC\n</parameter>\n<parameter=note>\nnull\n</parameter>\n<parameter=where>\n{\"x\": 1}\n</parameter>\n<parameter=tags>\n[\"a\"]\n</parameter>\n<parameter=other>\n5\n</parameter>\n</function>\n</tool_call>",
            vec![call(
                "weather",
                r#"{"city": "42", "days": 3, "unit": "C", "note": null, "where": {"x": 1}, "tags": ["a"], "other": "5"}"#,
            )],
        ),
        // What the schema does not admit is text; Python's words are understood.
        case(
            TAGS,
            "<function=weather><parameter=days>soon</parameter><parameter=note>None</parameter></function>",
            vec![call("weather", r#"{"days": "soon", "note": null}"#)],
        ),
        // Only the line breaks of the template go; the text keeps its own.
        case(
            TAGS,
            "<tool_call><function=run>\n<parameter=code>\n\n  if a < b:\n    \"x\\n\"\n\n</parameter>\n</function></tool_call><tool_call><function=now></function></tool_call>",
            vec![call("run", r#"{"code": "\n  if a < b:\n    \"x\\n\"\n"}"#), call("now", "{}")],
        ),
    ]);
}

#[test]
fn what_only_looks_like_a_call_is_content_word_for_word() {
    let cases = [
        (MARKED, "a <tool_call>\nnot json</tool_call> b"),
        (MARKED, "<tool_call>{\"name\": 7}</tool_call>"),
        (MARKED, "<tool_call>{\"arguments\": {}}</tool_call>"),
        (MARKED, "<tool_call>{\"name\": \"f\", \"arguments\": 3}"),
        (MARKED, "<tool_call>{\"name\": \"f\"; "),
        (MARKED, "<tool_call"),
        (MARKED, "x </tool_call> \n"),
        (TAGS, "<tool_call>{\"name\": \"f\"}</tool_call>"),
        (TAGS, "<tool_call><function=>x"),
        (TAGS, "<tool_call>\n<function=f>\ntext</function>"),
        (TAGS, "1 <function 2 <function=a\nb>"),
        (CHANNELS, "<|tool_call>call weather"),
        (CHANNELS, "<|tool_call>call:{}"),
        (CHANNELS, "<|tool_call>call:f<tool_call|>"),
        (BARE, "{\"name\": \"Ann\", \"parameters\": {}}"),
        (BARE, "{\"a\": 1}"),
        (BARE, "Say {\"name\": \"now\", \"parameters\": {}}"),
        (BARE, "<|python_tag|>print(1)"),
        (PLAIN, "<tool_call>now()</tool_call> <think>"),
    ];
    for (form, text) in cases {
        assert_eq!(read(form, text), [content(text)], "{text}");
    }
}

#[test]
fn a_call_that_goes_wrong_has_no_end_and_the_rest_is_content() {
    check(vec![
        case(
            MARKED,
            r#"<tool_call>{"name": "f", "arguments": {"a": [1</tool_call>ok"#,
            vec![begun("f", r#"{"a": [1"#), vec![content("ok")]],
        ),
        case(
            MARKED,
            r#"<tool_call>{"name": "f", "arguments": {}, "x" oh"#,
            vec![begun("f", "{}"), vec![content(r#", "x" oh"#)]],
        ),
        case(
            TAGS,
            "<function=now><parameter=a>1</parameter></func tion>",
            vec![begun("now", r#"{"a": "1""#), vec![content("</func tion>")]],
        ),
        case(
            CHANNELS,
            "<|tool_call>call:f{a:1,b<tool_call|>",
            vec![begun("f", r#"{"a": 1"#), vec![content("b<tool_call|>")]],
        ),
    ]);
}

#[test]
fn an_answer_that_is_cut_gives_what_it_has() {
    check(vec![
        case(
            MARKED,
            r#"<tool_call>{"name": "f", "arguments": {"a": "b"#,
            vec![begun("f", r#"{"a": "b"#)],
        ),
        case(
            TAGS,
            "<function=run><parameter=code>x = 1\n</para",
            vec![begun("run", r#"{"code": "x = 1"#)],
        ),
        case(TAGS, "<function=weather><parameter=days>1", vec![begun("weather", r#"{"days": 1"#)]),
        case(CHANNELS, "<|tool_call>call:f{a:<|\"|>b<|", vec![begun("f", r#"{"a": "b"#)]),
        case(CHANNELS, "<|tool_call>call:f{a:[1,2", vec![begun("f", r#"{"a": [1, 2"#)]),
        case(MARKED, "<think>hm\n", vec![vec![reasoning("hm\n")]]),
    ]);
}

#[test]
fn an_answer_cut_off_by_its_length_has_no_markup_in_its_content() {
    for (source, text, expected) in [
        (MARKED, "Well.\n<tool_ca", vec![content("Well.")]),
        (MARKED, "Well. <tool_call>", vec![content("Well.")]),
        (MARKED, "<tool_call>\n{\"name\": \"wea", vec![]),
        (MARKED, "<tool_call>\n{\"name\": \"weather\", \"argu", begun("weather", "")),
        (
            MARKED,
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b",
            begun("f", "{\"a\": \"b"),
        ),
        (MARKED, "<tool_call>{\"name\": \"now\", \"arguments\": {}}\n</tool_c", call("now", "{}")),
        (TAGS, "Well.<tool_call>\n<func", vec![content("Well.")]),
        (TAGS, "<tool_call>\n<function=weather>\n<para", begun("weather", "")),
        (TAGS, "<function=run><parameter=code>x = 1\n</para", begun("run", "{\"code\": \"x = 1")),
        (CHANNELS, "Well.<|tool_call>call:wea", vec![content("Well.")]),
        (CHANNELS, "<|tool_call>call:f{a:<|\"|>b<|", begun("f", "{\"a\": \"b")),
        (BARE, "{\"name\": \"now\", \"para", begun("now", "")),
        (BARE, "{\"name\": \"nobody\", \"para", vec![content("{\"name\": \"nobody\", \"para")]),
        (PLAIN, "Well.\n<tool_call>{\"name", vec![content("Well.")]),
        (MARKED, "<think>hm</thi", vec![reasoning("hm")]),
        (MARKED, "a < b and a <", vec![content("a < b and a <")]),
    ] {
        assert_eq!(read_cut(source, text), expected, "{text}");
    }
}

#[test]
fn a_number_stays_a_number_however_large_it_is() {
    let list = json!([{"type": "function", "function": {"name": "f", "parameters": {"properties": {
        "n": {"type": "number"}, "either": {"type": ["number", "string"]}, "text": {"type": "string"},
    }}}}]);
    let tools = Tool::parse_all(list.as_array().unwrap()).unwrap();
    let written = |key: &str, value: &str| {
        let text = format!("<function=f><parameter={key}>\n{value}\n</parameter></function>");
        let mut parser = AnswerParser::new(&dialect(TAGS), false, &tools);
        read_in(&mut parser, [text.as_str()])
    };
    for (key, value, expected) in [
        ("n", "54e54822", "{\"n\": 54e54822}"),
        ("n", "-1e999", "{\"n\": -1e999}"),
        ("n", "123456789012345678901234567890", "{\"n\": 123456789012345678901234567890}"),
        ("either", "54e54822", "{\"either\": 54e54822}"),
        ("either", "54e54822x", "{\"either\": \"54e54822x\"}"),
        ("text", "54e54822", "{\"text\": \"54e54822\"}"),
    ] {
        assert_eq!(written(key, value), call("f", expected), "{key}: {value}");
    }
    let gemma = "<|tool_call>call:f{n:54e54822}<tool_call|>";
    assert_eq!(read(CHANNELS, gemma), call("f", "{\"n\": 54e54822}"));
}

#[test]
fn types_of_arguments_are_found_through_all_of_and_references() {
    let list = json!([{"type": "function", "function": {"name": "f", "parameters": {
        "$ref": "#/$defs/base",
        "allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"$ref": "#/$defs/more"}],
        "properties": {"b": {"allOf": [{"$ref": "#/$defs/flag"}, {"description": "so"}]}},
        "$defs": {
            "base": {"properties": {"c": {"type": "number"}}},
            "more": {"properties": {"d": {"type": ["array", "null"]}, "a": {"minimum": 3}}},
            "flag": {"type": "boolean"},
        },
    }}}]);
    let tools = Tool::parse_all(list.as_array().unwrap()).unwrap();
    let text = "<function=f><parameter=a>7</parameter><parameter=b>true</parameter>\
        <parameter=c>1.5</parameter><parameter=d>[1]</parameter></function>";
    let mut parser = AnswerParser::new(&dialect(TAGS), false, &tools);
    let expected = r#"{"a": 7, "b": true, "c": 1.5, "d": [1]}"#;
    assert_eq!(read_in(&mut parser, [text]), call("f", expected));
    let auto = forerun_text::ToolChoice::Auto;
    let lark = dialect(TAGS).tool_grammar(&tools, &auto, true, Opening::Closed).unwrap().unwrap();
    for key in ["a", "b", "c", "d"] {
        assert!(lark.contains(&format!("<parameter={key}>")), "{lark}");
    }
}

#[test]
fn without_tools_nothing_is_a_call() {
    let text = "<tool_call>{\"name\": \"now\"}</tool_call>";
    let mut parser = AnswerParser::new(&dialect(MARKED), false, &[]);
    assert_eq!(read_in(&mut parser, [text]), [content(text)]);
}

#[test]
fn an_answer_may_begin_inside_its_reasoning() {
    let mut parser = AnswerParser::new(&dialect(TAGS), true, &[]);
    assert!(parser.is_reasoning());
    let pieces = read_in(&mut parser, ["so <think> it is\n</think>\n\nYes </think>"]);
    assert_eq!(pieces, [reasoning("so <think> it is"), content("Yes </think>")]);
}

#[test]
fn pieces_come_as_soon_as_they_are_certain() {
    let mut parser = AnswerParser::new(&dialect(MARKED), false, &tools());
    let mut after = |text: &str| {
        let mut out = Vec::new();
        parser.push(text, &mut out);
        out
    };
    assert_eq!(after("Hello"), [content("Hello")]);
    assert_eq!(after(" \n<tool"), []);
    assert_eq!(after("s>"), [content(" \n<tools>")]);
    assert_eq!(after("<tool_call>{\"name\": \"now\", \"arguments\": "), []);
    assert_eq!(after("{\"a\""), begun("now", "{\"a\""));
    assert_eq!(after(": 1}"), [arguments(": 1}")]);
    assert_eq!(after("}"), [Piece::ToolEnd]);

    let mut parser = AnswerParser::new(&dialect(TAGS), false, &tools());
    let mut out = Vec::new();
    parser.push("<function=run>\n<parameter=code>\nprint", &mut out);
    assert_eq!(out, begun("run", r#"{"code": "print"#));
}
