//! The bundled model's template and marks.

use super::*;
use forerun_text::Detokenizer;
use proptest::prelude::*;
use std::path::Path;

const TALES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tales-28m");

/// What the model was trained on.
const WITHOUT_TOOLS: &str = "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}";

fn bundled() -> (ChatTemplate, Tokenizer) {
    let folder = Path::new(TALES);
    (ChatTemplate::load(folder).unwrap().unwrap(), Tokenizer::open(folder).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn without_tools_the_prompt_is_the_one_the_model_was_trained_on(
        turns in prop::collection::vec((prop::sample::select(vec!["system", "user", "assistant"]), any::<String>()), 0..6),
        add_generation_prompt in any::<bool>(),
    ) {
        let messages: Vec<Value> =
            turns.iter().map(|(role, text)| json!({"role": role, "content": text})).collect();
        let extra = Map::new();
        let input = ChatInput { messages: &messages, tools: &[], add_generation_prompt, extra: &extra };
        let trained = template(WITHOUT_TOOLS).render(&input).unwrap();
        prop_assert_eq!(bundled().0.render(&input).unwrap(), trained);
    }
}

#[test]
fn tools_calls_and_results_are_written_in_the_hermes_form() {
    let (template, tokenizer) = bundled();
    let messages = json!([
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Oslo\"}"}},
            {"id": "2", "type": "function", "function": {"name": "now", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "rain"},
        {"role": "tool", "tool_call_id": "2", "content": "noon"},
    ]);
    let dialect = Dialect::of(&template, &tokenizer);
    let messages = dialect.normalise_messages(messages.as_array().unwrap()).unwrap();
    let tools = tool_list()[1..2].to_vec();
    let extra = Map::new();
    let input = ChatInput {
        messages: &messages,
        tools: &tools,
        add_generation_prompt: true,
        extra: &extra,
    };
    let expected = "<|im_start|>system\nBe kind.\n\n# Tools\n\nYou may call one or more functions. \
        Their signatures are within <tools></tools>:\n<tools>\n\
        {\"type\": \"function\", \"function\": {\"name\": \"now\"}}\n</tools>\n\n\
        To call a function, write a JSON object with its name and arguments within <tool_call></tool_call>:\n\
        <tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n\
        <|im_start|>user\nWeather?<|im_end|>\n\
        <|im_start|>assistant\n\
        <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>\n\
        <tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call><|im_end|>\n\
        <|im_start|>user\n<tool_response>\nrain\n</tool_response>\n<tool_response>\nnoon\n</tool_response><|im_end|>\n\
        <|im_start|>assistant\n";
    assert_eq!(template.render(&input).unwrap(), expected);
}

#[test]
fn marks_that_are_special_tokens_are_shown_and_the_others_are_not() {
    let (template, tokenizer) = bundled();
    let dialect = Dialect::of(&template, &tokenizer);
    assert!(dialect.has_own_calls() && !dialect.thinks());
    let text = "<tool_call>{\"name\": \"now\"}</tool_call><|im_end|>";
    let tokens = tokenizer.encode(text, false).unwrap();
    let mut stream = Detokenizer::new(&tokenizer, true).showing(dialect.shown_tokens());
    let mut shown: String = tokens.iter().map(|&t| stream.push(t).unwrap()).collect();
    shown += &stream.finish().unwrap();
    assert_eq!(shown, "<tool_call>{\"name\": \"now\"}</tool_call>");
    let mut parser = AnswerParser::new(&dialect, false, &tools());
    assert_eq!(read_in(&mut parser, [shown.as_str()]), call("now", "{}"));
}
