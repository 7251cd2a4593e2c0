//! Forced tool calls: whatever the model says, the answer is a call that fits the tool.

use crate::setup::{ENDS, Luck, allowed, folder, grammars, stroll_tokens, tokenizer};
use crate::valid::is_valid;
use forerun_grammar::GrammarSource;
use forerun_text::{AnswerParser, ChatTemplate, Dialect, Opening, Piece, Tool, ToolChoice};
use serde_json::{Value, json};

fn tools() -> Vec<Tool> {
    let tool = |name: &str, properties: Value, required: Value| {
        json!({"type": "function", "function": {"name": name, "parameters": {
            "type": "object", "properties": properties, "required": required,
            "additionalProperties": false,
        }}})
    };
    let animal = json!({"enum": ["fox", "bear"]});
    let count = json!({"type": "integer", "minimum": 0, "maximum": 99});
    let told = json!({"type": "string", "maxLength": 8});
    Tool::parse_all(&[
        tool("find_animal", json!({"animal": animal, "count": count}), json!(["animal"])),
        tool("tell", json!({"text": told}), json!(["text"])),
    ])
    .expect("tools")
}

#[test]
fn a_required_call_fits_its_tool() {
    let template = ChatTemplate::load(&folder()).expect("a template").expect("a template");
    let dialect = Dialect::of(&template, tokenizer());
    let (tools, mut luck) = (tools(), Luck(21));
    for (choice, only) in
        [(ToolChoice::Required, None), (ToolChoice::Named("tell".to_owned()), Some("tell"))]
    {
        let lark =
            dialect.tool_grammar(&tools, &choice, false, Opening::Closed).expect("a grammar");
        let source = GrammarSource::Lark(lark.expect("the bundled model calls tools"));
        for _ in 0..10 {
            let tokens = stroll_tokens(&source, grammars(), &mut luck).expect("an end");
            let text = tokenizer().decode(&tokens, false).expect("text");
            let (mut pieces, mut parser) = (Vec::new(), AnswerParser::new(&dialect, false, &tools));
            parser.push(&text, &mut pieces);
            parser.finish(&mut pieces);
            let Some(Piece::ToolCall { name }) = pieces.first() else {
                panic!("{text}: {pieces:?}")
            };
            assert_eq!(pieces.last(), Some(&Piece::ToolEnd), "{text}");
            let arguments: String = pieces
                .iter()
                .filter_map(|piece| match piece {
                    Piece::ToolArguments(part) => Some(part.as_str()),
                    _ => None,
                })
                .collect();
            let tool = tools.iter().find(|tool| tool.name == *name).expect("one of the tools");
            let value: Value = serde_json::from_str(&arguments).expect("JSON");
            assert!(is_valid(&Value::Object(tool.parameters.clone()), &value), "{text}");
            assert!(only.is_none_or(|only| only == name), "{text}");
        }
    }
}

#[test]
fn a_call_that_need_not_come_leaves_the_text_free() {
    let template = ChatTemplate::load(&folder()).expect("a template").expect("a template");
    let dialect = Dialect::of(&template, tokenizer());
    let lark = dialect.tool_grammar(&tools(), &ToolChoice::Auto, true, Opening::Closed);
    let lark = GrammarSource::Lark(lark.expect("a grammar").expect("a form for calls"));
    let mut constraint = grammars().compile(&lark).expect("compiled");
    for token in tokenizer().encode("Once upon a time, {\"name\"", false).expect("tokens") {
        let all = allowed(&mut *constraint).expect("a say");
        assert!(
            all.contains(&token) && ENDS.iter().any(|end| all.contains(end)),
            "free to go on or end"
        );
        assert!(constraint.take(token));
    }
    let open = tokenizer().token_to_id("<tool_call>").expect("a mark");
    assert!(constraint.take(open));
    let all = allowed(&mut *constraint).expect("a say");
    assert!(ENDS.iter().all(|end| !all.contains(end)), "a call that was begun must be whole");
}
