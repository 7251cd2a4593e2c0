//! Forced tool calls: whatever the model says, the answer is a call that fits the tool.

use crate::schemas::schema;
use crate::setup::{ENDS, Luck, VOCABULARY, allowed, folder, grammars, stroll_tokens, tokenizer};
use crate::valid::is_valid;
use forerun_grammar::{GrammarSource, Grammars};
use forerun_text::{
    AnswerParser, ChatTemplate, Dialect, Opening, Piece, SpecialTokens, Tokenizer, Tool, ToolChoice,
};
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

/// The name and the arguments of the one call that a text is.
fn call(dialect: &Dialect, tools: &[Tool], text: &str) -> (String, Value) {
    let (mut pieces, mut parser) = (Vec::new(), AnswerParser::new(dialect, false, tools));
    parser.push(text, &mut pieces);
    parser.finish(&mut pieces);
    let Some(Piece::ToolCall { name }) = pieces.first() else { panic!("{text}: {pieces:?}") };
    assert_eq!(pieces.last(), Some(&Piece::ToolEnd), "{text}: {pieces:?}");
    let arguments = pieces.iter().filter_map(|piece| match piece {
        Piece::ToolArguments(part) => Some(part.as_str()),
        _ => None,
    });
    let arguments: String = arguments.collect();
    let value = serde_json::from_str(&arguments).unwrap_or_else(|e| panic!("{text}: {e}"));
    (name.clone(), value)
}

/// The bundled tokenizer with its special tokens under the names of Gemma's marks.
fn with_gemmas_marks() -> Tokenizer {
    let mut text = std::fs::read_to_string(folder().join("tokenizer.json")).expect("the tokenizer");
    for (from, to) in [
        ("\"<tool_call>\"", "\"<|tool_call>\""),
        ("\"</tool_call>\"", "\"<tool_call|>\""),
        ("\"<|im_start|>\"", r#""<|\"|>""#),
    ] {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    Tokenizer::from_bytes(text.as_bytes()).expect("a tokenizer")
}

#[test]
fn arguments_fit_their_schema_in_every_form() {
    const GEMMA: &str = "<|channel><channel|><|tool_call><tool_call|>";
    let mut luck = Luck(8);
    let renamed = with_gemmas_marks();
    let of_renamed = Grammars::new(&renamed, VOCABULARY, &ENDS).expect("a vocabulary");
    for (form, source, tokenizer, grammars) in [
        ("JSON", "</think><tool_call>", tokenizer(), grammars()),
        ("tags", "</think><tool_call><function=<parameter=", tokenizer(), grammars()),
        ("bare JSON", "tool_calls parameters <|start_header_id|>", tokenizer(), grammars()),
        ("Gemma in letters", GEMMA, tokenizer(), grammars()),
        ("Gemma", GEMMA, &renamed, &of_renamed),
    ] {
        let template = ChatTemplate::from_source(source, SpecialTokens::default());
        let dialect = Dialect::of(&template.expect("plain text is a template"), tokenizer);
        let mut ended = 0;
        for _ in 0..60 {
            // Not every form can write every name.
            let text = schema(&mut luck).to_string();
            let text = text.replace("is it so?", "is_it_so").replace("a\\\"b", "a_b");
            let schema: Value = serde_json::from_str(&text).expect("JSON");
            let tool = json!({"type": "function", "function": {"name": "f", "parameters": schema}});
            let tools = Tool::parse_all(&[tool]).expect("a tool");
            let lark = dialect.tool_grammar(&tools, &ToolChoice::Required, false, Opening::Closed);
            let source = GrammarSource::Lark(lark.expect("a grammar").expect("a form for calls"));
            for _ in 0..3 {
                let Some(tokens) = stroll_tokens(&source, grammars, &mut luck) else { continue };
                let text = tokenizer.decode(&tokens, false).expect("text");
                let (_, value) = call(&dialect, &tools, &text);
                assert!(is_valid(&schema, &value), "{form}: {schema}: {text}: {value}");
                ended += 1;
            }
        }
        assert!(ended > 100, "{form}: {ended} of 180 ended");
    }
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
            let (name, value) = call(&dialect, &tools, &text);
            let tool = tools.iter().find(|tool| tool.name == name).expect("one of the tools");
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
