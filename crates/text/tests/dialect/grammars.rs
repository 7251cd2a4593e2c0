//! The text of grammars. That they hold a model to what they say is for the grammar crate.

use super::*;
use forerun_text::ToolChoice;
use std::path::Path;

fn grammar(source: &str, choice: &ToolChoice) -> Result<Option<String>, String> {
    let found = dialect(source).tool_grammar(&tools(), choice, true, Opening::Closed);
    found.map_err(|error| error.to_string())
}

#[test]
fn a_forced_call_is_written_as_the_template_writes_it() {
    let named = ToolChoice::Named("now".to_owned());
    let spacing =
        r#""x-guidance":{"whitespace_flexible":false,"item_separator":", ","key_separator":": "}"#;
    let marked = format!(
        "start: answer\nanswer: opened_call\nopened_call: \"<tool_call>\" call\ngap: /\\n{{1,2}}/\ncall: call_0\n\
         call_0: \"\\n{{\\\"name\\\": \\\"now\\\", \\\"arguments\\\": \" %json {{\"type\":\"object\",{spacing}}} \"}}\\n\" \"</tool_call>\"\n"
    );
    assert_eq!(grammar(MARKED, &named).unwrap().unwrap(), marked);
    let tags = grammar(TAGS, &named).unwrap().unwrap();
    assert!(
        tags.ends_with("call_0: \"\\n<function=now>\\n\"  \"</function>\\n\" \"</tool_call>\"\n"),
        "{tags}"
    );
    let bare = grammar(BARE, &named).unwrap().unwrap();
    assert!(
        bare.contains("call_0: \"{\\\"name\\\": \\\"now\\\", \\\"parameters\\\": \" %json"),
        "{bare}"
    );
    let channels = grammar(CHANNELS, &named).unwrap().unwrap();
    assert!(channels.ends_with("call_0: \"call:now\" object \"<tool_call|>\"\n"), "{channels}");
}

#[test]
fn special_tokens_are_named_by_id() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tales-28m"));
    let tokenizer = Tokenizer::open(folder).unwrap();
    let (open, close) = (
        tokenizer.token_to_id("<tool_call>").unwrap(),
        tokenizer.token_to_id("</tool_call>").unwrap(),
    );
    let dialect = Dialect::of(&template(MARKED), &tokenizer);
    let text = dialect.tool_grammar(&tools(), &ToolChoice::Auto, true, Opening::Closed);
    let text = text.unwrap().unwrap();
    assert!(text.contains(&format!("start: text (<[{open}]> call text)*")), "{text}");
    assert!(text.contains(&format!("\"}}\\n\" <[{close}]>")), "{text}");
}

#[test]
fn an_answer_may_call_or_be_json() {
    let schema = json!({"type": "integer"});
    let found = |source| {
        dialect(source).tool_or_json_grammar(&tools(), &schema, false, Opening::Closed).unwrap()
    };
    for source in ALL {
        let text = found(source).unwrap();
        assert!(text.contains("answer: opened_call | content\n"), "{text}");
        assert!(text.contains("content: %json {\"type\":\"integer\","), "{text}");
    }
}

#[test]
fn where_nothing_can_be_held_to_there_is_no_grammar_or_a_reason() {
    let named = ToolChoice::Named("gone".to_owned());
    assert_eq!(grammar(BARE, &ToolChoice::Auto), Ok(None));
    assert_eq!(grammar(PLAIN, &ToolChoice::Required), grammar(MARKED, &ToolChoice::Required));
    assert_eq!(grammar(MARKED, &named), Err("tool_choice: there is no tool `gone`".to_owned()));
    let none = dialect(MARKED).tool_grammar(&[], &ToolChoice::Required, true, Opening::Closed);
    let none = none.unwrap_err().to_string();
    assert_eq!(none, "tool_choice: a call is required but no tool is given");

    let odd = json!([{"type": "function", "function": {"name": "f",
        "parameters": {"properties": {"a>b": {"type": "string"}}}}}]);
    let odd = Tool::parse_all(odd.as_array().unwrap()).unwrap();
    for source in [TAGS, CHANNELS] {
        let found = dialect(source).tool_grammar(&odd, &ToolChoice::Auto, true, Opening::Closed);
        let expected = "tool `f`: this model's call form has no way to write the argument \"a>b\"";
        assert_eq!(found.unwrap_err().to_string(), expected);
    }
}

#[test]
fn a_tool_that_says_nothing_but_that_there_are_arguments_may_have_any() {
    let list = json!([{"type": "function", "function": {"name": "f",
        "parameters": {"type": "object", "additionalProperties": true}}}]);
    let tools = Tool::parse_all(list.as_array().unwrap()).unwrap();
    let lark = dialect(TAGS).tool_grammar(&tools, &ToolChoice::Required, true, Opening::Closed);
    let lark = lark.unwrap().unwrap();
    assert!(lark.contains("<function=f>\\n\" parameter_0* \"</function>"), "{lark}");
}
