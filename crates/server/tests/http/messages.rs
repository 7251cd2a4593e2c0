//! Anthropic's Messages API: the same answers in another form.

use crate::client::post;
use crate::running::{Running, sizes, thinking};
use forerun_server::Settings;
use serde_json::{Value, json};

const PATH: &str = "/v1/messages";

fn ask(server: &Running, fields: Value) -> Value {
    let response = post(server.address, PATH, &body(fields));
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(response.header("request-id"), response.header("x-request-id"));
    response.json()
}

fn body(fields: Value) -> Value {
    let mut body = json!({"model": "tales", "max_tokens": 24, "temperature": 0,
        "messages": [{"role": "user", "content": "I want to eat tonight."}]});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

/// Puts a streamed message together as clients do, and checks the order of its events.
fn streamed(server: &Running, fields: Value) -> Value {
    let mut asked = body(fields);
    asked["stream"] = true.into();
    let events = post(server.address, PATH, &asked).typed();
    let mut message = events[0]["message"].clone();
    assert_eq!(events[0]["type"], "message_start");
    assert_eq!(events.last().unwrap()["type"], "message_stop");
    let mut open: Option<(usize, String)> = None;
    let mut blocks: Vec<Value> = Vec::new();
    for event in &events[1..events.len() - 1] {
        match event["type"].as_str().unwrap() {
            "ping" => {}
            "content_block_start" => {
                assert!(open.is_none() && event["index"] == blocks.len(), "{event}");
                open = Some((blocks.len(), String::new()));
                blocks.push(event["content_block"].clone());
            }
            "content_block_delta" => {
                let (index, json) = open.as_mut().unwrap();
                assert_eq!(event["index"], *index);
                let delta = &event["delta"];
                let block = &mut blocks[*index];
                let mut grow = |key: &str| {
                    let more = delta[key].as_str().unwrap();
                    block[key] = (block[key].as_str().unwrap().to_owned() + more).into();
                };
                match delta["type"].as_str().unwrap() {
                    "text_delta" => grow("text"),
                    "thinking_delta" => grow("thinking"),
                    "signature_delta" => grow("signature"),
                    "input_json_delta" => json.push_str(delta["partial_json"].as_str().unwrap()),
                    other => panic!("{other}"),
                }
            }
            "content_block_stop" => {
                let (index, json) = open.take().unwrap();
                assert_eq!(event["index"], index);
                if !json.is_empty() {
                    blocks[index]["input"] = serde_json::from_str(&json).unwrap();
                }
            }
            "message_delta" => {
                assert!(open.is_none());
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            other => panic!("{other}"),
        }
    }
    message["content"] = blocks.into();
    message
}

/// A message without what differs from one time to the next.
fn told(mut message: Value) -> Value {
    let fields = message.as_object_mut().unwrap();
    fields.remove("id");
    fields.remove("timings");
    for block in fields["content"].as_array_mut().unwrap() {
        block.as_object_mut().unwrap().remove("id");
    }
    message
}

fn same_both_ways(server: &Running, fields: Value) -> Value {
    let whole = told(ask(server, fields.clone()));
    assert_eq!(told(streamed(server, fields)), whole);
    whole
}

fn tools() -> Value {
    json!([{"name": "book", "description": "Books a table", "input_schema": {
        "type": "object", "properties": {"people": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["people"], "additionalProperties": false}}])
}

#[test]
fn a_message_says_what_a_chat_says_whole_and_streamed() {
    let server = Running::start();
    let message =
        same_both_ways(&server, json!({"system": [{"type": "text", "text": "Be kind."}]}));
    let chat = post(
        server.address,
        "/v1/chat/completions",
        &json!({"max_tokens": 24, "temperature": 0, "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "I want to eat tonight."}]}),
    )
    .json();
    let text = &chat["choices"][0]["message"]["content"];
    assert_eq!(message["content"], json!([{"type": "text", "text": text}]));
    assert_eq!(message["usage"]["output_tokens"], chat["usage"]["completion_tokens"]);
    assert_eq!(message["model"], "tales");

    let text = text.as_str().unwrap();
    let stop: String = text.chars().skip(5).take(6).collect();
    let message = same_both_ways(&server, json!({"system": "Be kind.", "stop_sequences": [stop]}));
    assert_eq!(
        (&message["stop_reason"], &message["stop_sequence"]),
        (&json!("stop_sequence"), &json!(stop))
    );
    assert_eq!(message["content"][0]["text"], text[..text.find(&stop).unwrap()]);
}

#[test]
fn a_forced_call_is_valid_and_its_result_leads_on() {
    let server = Running::start();
    // A model as small as this one goes on calling if it may.
    let any = json!({"type": "any", "disable_parallel_tool_use": true});
    for choice in [any.clone(), json!({"type": "tool", "name": "book"})] {
        let fields = json!({"tools": tools(), "tool_choice": choice, "max_tokens": 200});
        let message = same_both_ways(&server, fields);
        assert_eq!(message["stop_reason"], "tool_use", "{message}");
        for block in message["content"].as_array().unwrap() {
            assert_eq!((&block["type"], &block["name"]), (&json!("tool_use"), &json!("book")));
            assert!((1..=9).contains(&block["input"]["people"].as_i64().unwrap()), "{block}");
        }
    }
    let message = ask(&server, json!({"tools": tools(), "tool_choice": any, "max_tokens": 200}));
    let results: Vec<Value> = message["content"]
        .as_array()
        .unwrap()
        .iter()
        .map(|block| json!({"type": "tool_result", "tool_use_id": block["id"], "content": [{"type": "text", "text": "done"}]}))
        .collect();
    let conversation = json!([{"role": "user", "content": "A table, please."},
        {"role": "assistant", "content": message["content"]}, {"role": "user", "content": results}]);
    let message = ask(
        &server,
        json!({"messages": conversation, "tools": tools(), "tool_choice": {"type": "none"}}),
    );
    assert_eq!(message["content"][0]["type"], "text");
}

#[test]
fn thinking_comes_in_a_block_of_its_own_and_keeps_its_budget() {
    let server = Running::with(&sizes(), thinking(), Settings::default());
    let fields = json!({"thinking": {"type": "enabled", "budget_tokens": 8}, "max_tokens": 24});
    let message = same_both_ways(&server, fields);
    let kinds: Vec<&str> = message["content"]
        .as_array()
        .unwrap()
        .iter()
        .map(|b| b["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["thinking", "text"], "{message}");
    assert!(!message["content"][0]["signature"].as_str().unwrap().is_empty());

    // What was thought goes back as the model wrote it.
    let conversation = json!([{"role": "user", "content": "Hi"},
        {"role": "assistant", "content": message["content"]}, {"role": "user", "content": "And?"}]);
    assert_eq!(ask(&server, json!({"messages": conversation}))["type"], "message");

    let silent = same_both_ways(&server, json!({"thinking": {"type": "disabled"}}));
    assert_eq!(silent["content"][0]["type"], "text");
}

#[test]
fn an_answer_keeps_to_a_schema() {
    let server = Running::start();
    let schema = json!({"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}},
        "required": ["colour"], "additionalProperties": false});
    let message = ask(
        &server,
        json!({"max_tokens": 60,
        "output_config": {"format": {"type": "json_schema", "schema": schema}}}),
    );
    let said: Value =
        serde_json::from_str(message["content"][0]["text"].as_str().unwrap()).unwrap();
    assert!(["red", "blue"].contains(&said["colour"].as_str().unwrap()));
}

#[test]
fn counting_tokens_agrees_with_using_them() {
    let server = Running::start();
    let conversation = json!([
        {"role": "user", "content": [{"type": "text", "text": "A table", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "please."}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "x"}, {"type": "text", "text": "Well."},
            {"type": "tool_use", "id": "t1", "name": "book", "input": {"people": 2}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "full", "is_error": true}, {"type": "text", "text": "Try again."}]},
    ]);
    for fields in [
        json!({}),
        json!({"system": "Be kind."}),
        json!({"messages": conversation, "tools": tools()}),
    ] {
        let mut counted = body(fields.clone());
        for key in ["max_tokens", "temperature"] {
            counted.as_object_mut().unwrap().remove(key);
        }
        let counted = post(server.address, "/v1/messages/count_tokens", &counted).json();
        let usage = ask(&server, fields)["usage"].clone();
        let used = ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"]
            .iter()
            .map(|key| usage[key].as_u64().unwrap())
            .sum::<u64>();
        assert_eq!(counted["input_tokens"], used);
    }
    // The same conversation in the other API's words is the same prompt.
    let chat = json!([
        {"role": "user", "content": "A table\nplease."},
        {"role": "assistant", "content": "Well.", "reasoning_content": "hm", "tool_calls": [
            {"id": "t1", "type": "function", "function": {"name": "book", "arguments": "{\"people\": 2}"}}]},
        {"role": "tool", "tool_call_id": "t1", "content": "Error: full"},
        {"role": "user", "content": "Try again."},
    ]);
    let counted = post(
        server.address,
        "/v1/messages/count_tokens",
        &json!({"model": "tales", "messages": conversation}),
    )
    .json();
    let tokens = post(server.address, "/tokenize", &json!({"messages": chat})).json();
    assert_eq!(counted["input_tokens"], tokens["count"]);
}

#[test]
fn what_is_wrong_with_a_message_is_named_in_its_own_form() {
    let server = Running::start();
    let user = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let cases = [
        (json!({"colour": "red"}), "colour"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": null}), "max_tokens"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"stop_sequences": [""]}), "stop_sequences"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"role": "robot", "content": "a"}]}), "messages[0].role"),
        (
            json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [
                {"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]}),
            "messages",
        ),
        (user(json!([])), "messages[0].content"),
        (user(json!(5)), "messages[0].content"),
        (user(json!([{"type": "image", "source": {}}])), "image"),
        (user(json!([{"type": "text"}])), "messages[0].content[0]"),
        (user(json!([{"type": "text", "text": "a", "colour": 1}])), "colour"),
        (user(json!([{"type": "tool_use", "id": "a", "name": "b", "input": {}}])), "tool_use"),
        (
            user(json!([{"type": "text", "text": "a", "cache_control": {"type": "forever"}}])),
            "forever",
        ),
        (json!({"system": [{"type": "thinking", "thinking": "a"}]}), "system[0]"),
        (json!({"tools": [{"type": "bash_20250124", "name": "bash"}]}), "tools[0].type"),
        (json!({"tools": [{"type": "mcp_toolset", "mcp_server_name": "a"}]}), "tools[0].type"),
        (json!({"tools": [{"name": "a b", "input_schema": {}}]}), "tools[0].name"),
        (
            json!({"tools": [{"type": "web_search_20250305", "name": "web_search"},
                {"name": "a", "input_schema": {"type": "string"}}]}),
            "tools[1].input_schema.type",
        ),
        (json!({"tools": [{"name": "a"}]}), "input_schema"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
        (json!({"tools": tools(), "tool_choice": {"type": "tool", "name": "gone"}}), "gone"),
        (json!({"tool_choice": {"type": "often"}}), "tool_choice"),
        (json!({"thinking": {"type": "enabled"}}), "budget_tokens"),
        (json!({"thinking": {"type": "adaptive", "colour": 1}}), "colour"),
        (json!({"output_config": {"effort": "huge"}}), "effort"),
        (json!({"output_config": {"colour": 1}}), "output_config.colour"),
        (json!({"service_tier": 5}), "service_tier"),
        (json!({"mcp_servers": []}), "mcp_servers"),
    ];
    for (fields, named) in cases {
        let response = post(server.address, PATH, &body(fields.clone()));
        let told = response.json();
        assert_eq!(response.status, 400, "{fields}: {told}");
        assert_eq!(
            (&told["type"], &told["error"]["type"]),
            (&json!("error"), &json!("invalid_request_error"))
        );
        assert!(told["error"]["message"].as_str().unwrap().contains(named), "{fields}: {told}");
    }
    let response = post(server.address, PATH, &body(json!({"model": "gone"})));
    assert_eq!(
        (response.status, &response.json()["error"]["type"]),
        (404, &json!("not_found_error"))
    );
}
