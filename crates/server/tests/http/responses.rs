//! OpenAI's Responses API: the same answers as items.

use crate::client::{JSON, post, post_bytes};
use crate::running::{Running, sizes, thinking};
use forerun_server::Settings;
use serde_json::{Value, json};

const PATH: &str = "/v1/responses";

fn body(fields: Value) -> Value {
    let mut body =
        json!({"input": "I want to eat tonight.", "max_output_tokens": 24, "temperature": 0});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

fn ask(server: &Running, fields: Value) -> Value {
    let response = post(server.address, PATH, &body(fields));
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

/// The last view of a streamed response; what its events say on the way must come to the same.
fn streamed(server: &Running, fields: Value) -> Value {
    let mut asked = body(fields);
    asked["stream"] = true.into();
    let events = post(server.address, PATH, &asked).typed();
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "{event}");
    }
    assert_eq!(events[0]["type"], "response.created");
    assert_eq!(events[1]["type"], "response.in_progress");
    let mut items: Vec<Value> = Vec::new();
    let mut text = String::new();
    for event in &events[2..events.len() - 1] {
        let kind = event["type"].as_str().unwrap();
        let index = items.len();
        if kind != "response.output_item.done" {
            let at = event["output_index"].as_u64().unwrap() as usize;
            assert_eq!(at, if kind == "response.output_item.added" { index } else { index - 1 });
        }
        match kind {
            "response.output_item.added" => {
                items.push(event["item"].clone());
                text.clear();
            }
            "response.output_item.done" => {
                let item = &event["item"];
                assert_eq!(items[index - 1]["id"], item["id"]);
                items[index - 1] = item.clone();
            }
            "response.content_part.added" => assert_eq!(event["part"]["text"], ""),
            "response.content_part.done" => assert_eq!(event["part"]["text"], text.as_str()),
            "response.output_text.done" | "response.reasoning_text.done" => {
                assert_eq!(event["text"], text.as_str());
            }
            "response.function_call_arguments.done" => {
                assert_eq!(event["arguments"], text.as_str());
            }
            _ => text.push_str(event["delta"].as_str().unwrap_or_else(|| panic!("{event}"))),
        }
    }
    let last = events.last().unwrap();
    let response = last["response"].clone();
    assert_eq!(last["type"], format!("response.{}", response["status"].as_str().unwrap()));
    assert_eq!(response["output"], json!(items));
    response
}

/// A response without what differs from one time to the next.
fn told(mut response: Value) -> Value {
    let fields = response.as_object_mut().unwrap();
    for key in ["id", "created_at", "timings"] {
        fields.remove(key);
    }
    for item in fields["output"].as_array_mut().unwrap() {
        let item = item.as_object_mut().unwrap();
        item.remove("id");
        item.remove("call_id");
    }
    response
}

fn same_both_ways(server: &Running, fields: Value) -> Value {
    let whole = told(ask(server, fields.clone()));
    assert_eq!(told(streamed(server, fields)), whole);
    whole
}

fn tools() -> Value {
    json!([{"type": "function", "name": "book", "strict": true, "parameters": {
        "type": "object", "properties": {"people": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["people"], "additionalProperties": false}}])
}

#[test]
fn a_response_says_what_a_chat_says_whole_and_streamed() {
    let server = Running::start();
    let response =
        same_both_ways(&server, json!({"instructions": "Be kind.", "metadata": {"a": "b"}}));
    let chat = post(
        server.address,
        "/v1/chat/completions",
        &json!({"max_tokens": 24, "temperature": 0, "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "I want to eat tonight."}]}),
    )
    .json();
    let item = &response["output"][0];
    assert_eq!(item["content"][0]["text"], chat["choices"][0]["message"]["content"]);
    assert_eq!(response["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
    assert_eq!(response["usage"]["output_tokens"], chat["usage"]["completion_tokens"]);
    assert_eq!(response["metadata"], json!({"a": "b"}));
    let short = same_both_ways(&server, json!({"max_output_tokens": 3}));
    assert_eq!(short["status"], "incomplete");
    assert_eq!(short["incomplete_details"]["reason"], "max_output_tokens");
}

#[test]
fn a_forced_call_is_valid_and_its_result_leads_on() {
    let server = Running::start();
    for choice in [json!("required"), json!({"type": "function", "name": "book"})] {
        // A model as small as this one goes on calling if it may.
        let fields = json!({"tools": tools(), "tool_choice": choice, "max_output_tokens": 200,
            "parallel_tool_calls": false});
        let response = same_both_ways(&server, fields);
        assert_eq!(response["status"], "completed");
        for item in response["output"].as_array().unwrap() {
            assert_eq!((&item["type"], &item["name"]), (&json!("function_call"), &json!("book")));
            let arguments: Value =
                serde_json::from_str(item["arguments"].as_str().unwrap()).unwrap();
            assert!((1..=9).contains(&arguments["people"].as_i64().unwrap()), "{item}");
        }
    }
    let response = ask(
        &server,
        json!({"tools": tools(), "tool_choice": "required", "max_output_tokens": 200,
            "parallel_tool_calls": false}),
    );
    let mut input = vec![json!({"role": "user", "content": "A table, please."})];
    input.extend(response["output"].as_array().unwrap().iter().cloned());
    for call in response["output"].as_array().unwrap() {
        input.push(
            json!({"type": "function_call_output", "call_id": call["call_id"], "output": "done"}),
        );
    }
    let response = ask(&server, json!({"input": input, "tools": tools(), "tool_choice": "none"}));
    assert_eq!(response["output"][0]["type"], "message");
}

#[test]
fn a_call_that_breaks_off_is_incomplete() {
    let server = Running::start();
    let fields = |max: usize| json!({"tools": tools(), "tool_choice": "required", "max_output_tokens": max, "parallel_tool_calls": false});
    let whole = ask(&server, fields(200));
    let length = whole["usage"]["output_tokens"].as_u64().unwrap() as usize;
    let mut cut = 0;
    for max in length - 12..length {
        let response = same_both_ways(&server, fields(max));
        assert_eq!(response["status"], "incomplete");
        for item in response["output"].as_array().unwrap() {
            if item["type"] == "function_call" {
                let text = item["arguments"].as_str().unwrap();
                let object = serde_json::from_str::<Value>(text).is_ok();
                // The arguments may be whole before the call is.
                assert!(object || item["status"] == "incomplete", "{max}: {item}");
                assert_ne!(item["status"], "in_progress", "{max}: {item}");
                cut += usize::from(!object);
            }
        }
    }
    assert!(cut > 0, "no length ended inside the arguments");
}

#[test]
fn an_answer_keeps_to_a_schema_or_calls() {
    let server = Running::start();
    let schema = json!({"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}},
        "required": ["colour"], "additionalProperties": false});
    let format =
        json!({"format": {"type": "json_schema", "name": "c", "schema": schema, "strict": true}});
    for tools in [json!([]), tools()] {
        let fields = json!({"max_output_tokens": 100, "text": format, "tools": tools});
        for item in ask(&server, fields)["output"].as_array().unwrap() {
            let (text, key) = match item["type"].as_str().unwrap() {
                "message" => (&item["content"][0]["text"], "colour"),
                _ => (&item["arguments"], "people"),
            };
            let said: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
            assert!(said.get(key).is_some(), "{item}");
        }
    }
}

#[test]
fn reasoning_is_an_item_and_goes_back_as_one() {
    let server = Running::with(&sizes(), thinking(), Settings::default());
    let response =
        same_both_ways(&server, json!({"reasoning": {"effort": "low", "summary": "auto"}}));
    let item = &response["output"][0];
    assert_eq!((&item["type"], &item["summary"]), (&json!("reasoning"), &json!([])));
    assert!(!item["content"][0]["text"].as_str().unwrap().is_empty());
    assert!(response["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 0);

    let silent = same_both_ways(&server, json!({"reasoning": {"effort": "none"}}));
    assert_eq!(silent["output"][0]["type"], "message");

    let mut input =
        vec![json!({"role": "user", "content": [{"type": "input_text", "text": "Hi"}]})];
    input.push(item.clone());
    input.push(silent["output"][0].clone());
    input.push(json!({"role": "developer", "content": "Be kind."}));
    input.push(json!({"role": "user", "content": "And?"}));
    assert_eq!(ask(&server, json!({"input": input}))["object"], "response");
}

#[test]
fn what_is_wrong_with_a_response_is_named() {
    let server = Running::start();
    let cases = [
        (json!({"colour": "red"}), "colour"),
        (json!({"input": null}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": 5}), "input"),
        (json!({"input": [{"type": "item_reference", "id": "x"}]}), "input[0].type"),
        (json!({"input": [{"role": "robot", "content": "a"}]}), "input[0]"),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
            "input[0].content[0].type",
        ),
        (json!({"input": [{"type": "function_call", "call_id": "a", "name": "b"}]}), "input[0]"),
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
        (json!({"previous_response_id": "resp_1"}), "previous_response_id"),
        (json!({"conversation": "c"}), "conversation"),
        (json!({"background": true}), "background"),
        (json!({"truncation": "auto"}), "truncation"),
        (json!({"include": ["message.output_text.logprobs"]}), "include[0]"),
        (json!({"max_tool_calls": 3}), "max_tool_calls"),
        (json!({"prompt": {"id": "p"}}), "prompt"),
        (json!({"tools": [{"type": "computer_use_preview"}]}), "tools[0].type"),
        (json!({"tools": [{"type": "mcp", "server_label": "a"}]}), "tools[0].type"),
        (json!({"tools": [{"type": "custom", "name": "a b"}]}), "tools[0].name"),
        (
            json!({"tools": [{"type": "custom", "name": "a", "format": {"type": "x"}}]}),
            "tools[0].format",
        ),
        (json!({"tools": [{"type": "namespace", "name": "a"}]}), "tools[0]"),
        (
            json!({"tools": [{"type": "web_search"}, {"type": "namespace", "name": "a", "tools": [
                {"type": "function", "name": "b"}, {"type": "function", "name": "b c"}]}]}),
            "tools[1].tools[1].name",
        ),
        (json!({"tools": [{"type": "function"}]}), "tools[0]"),
        (json!({"tool_choice": "often"}), "tool_choice"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tool_choice": {"type": "web_search"}}), "tool_choice"),
        (json!({"text": {"colour": "red"}}), "text.colour"),
        (json!({"text": {"format": {"type": "poem"}}}), "text.format.type"),
        (json!({"reasoning": {"effort": "some"}}), "reasoning.effort"),
        (json!({"reasoning": {"summary": 5}}), "reasoning.summary"),
        (json!({"reasoning": {"colour": "red"}}), "reasoning.colour"),
    ];
    for (fields, param) in cases {
        let response = post(server.address, PATH, &body(fields.clone()));
        let error = &response.json()["error"];
        assert_eq!(response.status, 400, "{fields}: {error}");
        assert_eq!(error["type"], "invalid_request_error");
        let place = error["param"].as_str().unwrap_or_default();
        assert!(place == param || place.starts_with(&format!("{param}.")), "{fields}: {error}");
    }
}

#[test]
fn a_response_that_is_kept_can_be_gone_on_from_by_its_owner_alone() {
    let keys = ["one", "two"].map(str::to_owned).to_vec();
    let settings = Settings { response_bytes: 1 << 20, api_keys: keys, ..Settings::default() };
    let server = Running::with(&sizes(), crate::running::served(), settings);
    let ask = |key: &str, fields: Value| {
        let key = format!("x-api-key: {key}");
        let body = body(fields).to_string();
        post_bytes(server.address, PATH, &[JSON, &key], body.as_bytes())
    };
    let first = ask("one", json!({"instructions": "Be kind."})).json();
    assert_eq!((&first["store"], &first["previous_response_id"]), (&json!(true), &Value::Null));
    let id = first["id"].as_str().unwrap().to_owned();
    let next = json!({"input": "For two.", "previous_response_id": id});
    let gone_on = ask("one", next.clone()).json();
    assert_eq!(gone_on["previous_response_id"], id.as_str());
    // The same as sending all of it, but for the instructions, which belong to one response.
    let mut items = vec![json!({"role": "user", "content": "I want to eat tonight."})];
    items.extend(first["output"].as_array().unwrap().iter().cloned());
    items.push(json!({"role": "user", "content": "For two."}));
    let whole = ask("one", json!({"input": items, "store": false})).json();
    assert_eq!(whole["store"], false);
    let text = |answer: &Value| answer["output"][0]["content"][0]["text"].clone();
    assert_eq!(text(&gone_on), text(&whole));
    assert_eq!(gone_on["usage"]["input_tokens"], whole["usage"]["input_tokens"]);
    // Others do not find it, nor does anybody what was not to be stored.
    let not_stored = whole["id"].as_str().unwrap();
    for (key, id) in [("two", id.as_str()), ("one", not_stored), ("one", "resp_0")] {
        let refused = ask(key, json!({"previous_response_id": id}));
        assert_eq!(refused.status, 400, "{key}, {id}: {}", refused.text());
        assert_eq!(refused.json()["error"]["param"], "previous_response_id");
    }
    // A streamed response is kept, too.
    let key = "x-api-key: one";
    let streamed = body(json!({"stream": true})).to_string();
    let events = post_bytes(server.address, PATH, &[JSON, key], streamed.as_bytes()).typed();
    let id = events.last().unwrap()["response"]["id"].as_str().unwrap().to_owned();
    assert_eq!(ask("one", json!({"previous_response_id": id})).status, 200);
}
