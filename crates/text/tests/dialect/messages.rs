//! Messages of clients, in the form templates want.

use super::*;

fn normalised(source: &str, messages: Value) -> Vec<Value> {
    dialect(source).normalise_messages(messages.as_array().unwrap()).unwrap()
}

#[test]
fn calls_and_results_come_in_the_form_of_templates() {
    let messages = json!([
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": "Hi", "name": "ann"},
        {"role": "assistant", "content": null, "refusal": null, "annotations": [], "audio": null,
         "function_call": null, "reasoning": "hm",
         "tool_calls": [{"id": "c1", "type": "function",
                         "function": {"name": "weather", "arguments": "{\"b\": 1, \"a\": 2}"}},
                        {"id": "c2", "type": "function", "function": {"name": "now", "arguments": ""}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "tool", "tool_call_id": "c9", "content": "?"},
        {"role": "assistant", "content": "It rains.", "tool_calls": null},
    ]);
    let expected = json!([
        {"role": "system", "content": "Be kind."},
        {"role": "user", "name": "ann", "content": "Hi"},
        {"role": "assistant",
         "tool_calls": [{"id": "c1", "type": "function",
                         "function": {"name": "weather", "arguments": {"b": 1, "a": 2}}},
                        {"id": "c2", "type": "function", "function": {"name": "now", "arguments": {}}}],
         "reasoning_content": "hm", "content": ""},
        {"role": "tool", "tool_call_id": "c1", "content": "rain", "name": "weather"},
        {"role": "tool", "tool_call_id": "c9", "content": "?"},
        {"role": "assistant", "content": "It rains."},
    ]);
    assert_eq!(Value::from(normalised(MARKED, messages)), expected);
}

#[test]
fn parts_stay_parts_only_for_templates_that_read_them() {
    let messages = json!([{"role": "user", "cache_control": {"type": "ephemeral"}, "content": [
        {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "b"}]}]);
    let joined = json!([{"role": "user", "content": "a\nb"}]);
    assert_eq!(Value::from(normalised(PLAIN, messages.clone())), joined);
    let parts = json!([{"role": "user", "content": [
        {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
    assert_eq!(Value::from(normalised(TAGS, messages)), parts);
}

#[test]
fn a_template_that_wants_arguments_as_text_gets_text() {
    let source = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}\
        {{ c.function.name + c.function.arguments }}{% endfor %}{% endfor %}";
    let messages = json!([{"role": "assistant", "content": "", "tool_calls": [
        {"function": {"name": "f", "arguments": "{\"a\":  1}"}}]}]);
    let arguments = &normalised(source, messages)[0]["tool_calls"][0]["function"]["arguments"];
    assert_eq!(arguments, "{\"a\":1}");
}

#[test]
fn what_cannot_be_given_to_the_model_is_refused_by_its_path() {
    let call = |call: Value| json!([{"role": "assistant", "content": "", "tool_calls": [call]}]);
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    let cases = [
        (json!(["x"]), "messages[0]: must be an object"),
        (json!([{"content": "x"}]), "messages[0].role: must be given"),
        (
            json!([{"role": "robot", "content": "x"}]),
            "messages[0].role: robot is not supported; use system, developer, user, assistant or tool",
        ),
        (json!([{"role": "user"}]), "messages[0].content: must be given"),
        (user(json!(5)), "messages[0].content: must be a string or a list of parts"),
        (
            user(json!([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}])),
            "messages[0].content[1].type: image_url is not supported; send text parts",
        ),
        (
            user(json!([{"type": "input_audio"}])),
            "messages[0].content[0].type: input_audio is not supported; send text parts",
        ),
        (user(json!([{"type": "text"}])), "messages[0].content[0].text: must be a string"),
        (user(json!(["a"])), "messages[0].content[0].type: must be \"text\""),
        (
            json!([{"role": "user", "content": "a", "tool_calls": [{}]}]),
            "messages[0].tool_calls: only an assistant message has calls",
        ),
        (
            json!([{"role": "assistant", "content": "a", "function_call": {"name": "f"}}]),
            "messages[0].function_call: is not supported; remove it",
        ),
        (
            call(json!({"type": "custom"})),
            "messages[0].tool_calls[0].type: custom is not supported; only function is",
        ),
        (call(json!({})), "messages[0].tool_calls[0].function: must be an object"),
        (
            call(json!({"function": {}})),
            "messages[0].tool_calls[0].function.name: must be a string",
        ),
        (
            call(json!({"function": {"name": "f", "arguments": ["a"]}})),
            "messages[0].tool_calls[0].function.arguments: must be the text of a JSON object",
        ),
        (
            call(json!({"id": 7, "function": {"name": "f"}})),
            "messages[0].tool_calls[0].id: must be a string",
        ),
        (
            json!([{"role": "user", "content": "a", "name": ["n"]}]),
            "messages[0].name: must be a string",
        ),
        (
            json!([{"role": "tool", "content": "a", "tool_call_id": 5}]),
            "messages[0].tool_call_id: must be a string",
        ),
    ];
    for (messages, expected) in cases {
        let error = dialect(MARKED).normalise_messages(messages.as_array().unwrap()).unwrap_err();
        assert_eq!(error.to_string(), expected, "{messages}");
    }
}

#[test]
fn tools_that_cannot_be_called_are_refused_by_their_path() {
    let function = |function: Value| json!([{"type": "function", "function": function}]);
    const NAME: &str = "must be 1 to 128 letters, digits, or any of `_ - . : /`";
    let cases = [
        (json!([5]), "tools[0].type: must be \"function\"".to_owned()),
        (
            json!([{"type": "web_search"}]),
            "tools[0].type: web_search is not supported; only function is".to_owned(),
        ),
        (json!([{"type": "function"}]), "tools[0].function: must be an object".to_owned()),
        (function(json!({})), format!("tools[0].function.name: {NAME}")),
        (function(json!({"name": "a>b"})), format!("tools[0].function.name: {NAME}")),
        (
            function(json!({"name": "a", "strict": {}})),
            "tools[0].function.strict: must be true or false".to_owned(),
        ),
        (
            function(json!({"name": "a", "description": 5})),
            "tools[0].function.description: must be a string".to_owned(),
        ),
        (
            function(json!({"name": "a", "parameters": []})),
            "tools[0].function.parameters: must be a JSON Schema object".to_owned(),
        ),
        (
            function(json!({"name": "a", "parameters": {"type": "string"}})),
            "tools[0].function.parameters.type: must be \"object\"".to_owned(),
        ),
        (
            json!([{"type": "function", "function": {"name": "a"}},
                   {"type": "function", "function": {"name": "a"}}]),
            "tools[1].function.name: `a` is defined twice".to_owned(),
        ),
    ];
    for (tools, expected) in cases {
        let error = Tool::parse_all(tools.as_array().unwrap()).unwrap_err();
        assert_eq!(error.to_string(), expected, "{tools}");
    }
}

#[test]
fn a_broken_call_is_text_and_the_conversation_goes_on() {
    let messages = json!([
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "now", "arguments": "{}"}},
            {"id": "b", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Os"}}]},
        {"role": "tool", "tool_call_id": "b", "content": "no JSON"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{\"city"}}]},
    ]);
    let expected = json!([
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "now", "arguments": {}}}],
         "content": "Let me see.\nweather {\"city\": \"Os"},
        {"role": "tool", "tool_call_id": "b", "content": "no JSON", "name": "weather"},
        {"role": "assistant", "content": "weather {\"city"},
    ]);
    assert_eq!(Value::from(normalised(MARKED, messages)), expected);
}
