//! Fields that clients of other servers send.

use crate::client::{Response, post};
use crate::running::{Running, served, sizes, thinking};
use forerun_engine::{CacheSettings, Settings as EngineSettings};
use forerun_server::Settings;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn with(mut body: Value, extra: Value) -> Value {
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// A greedy continuation.
fn told(server: &Running, extra: Value) -> Value {
    let body = json!({"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0});
    let response = post(server.address, TEXT, &with(body, extra));
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()["choices"][0].clone()
}

/// A greedy answer to a question.
fn ask(server: &Running, extra: Value) -> Response {
    let body = json!({"messages": [{"role": "user", "content": "I want to eat tonight."}],
        "max_tokens": 24, "temperature": 0});
    post(server.address, CHAT, &with(body, extra))
}

fn said(response: &Response) -> String {
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

#[test]
fn a_token_that_is_to_end_the_answer_ends_it() {
    let server = Running::start();
    let whole = told(&server, json!({}));
    let text = whole["text"].as_str().unwrap();
    let tokens = post(server.address, "/tokenize", &json!({"prompt": text})).json();
    let third = &tokens["tokens"][3];
    for more in [json!({}), json!({"ignore_eos": true}), json!({"speculation": "off"})] {
        let cut = told(&server, with(json!({"stop_token_ids": [third]}), more));
        let cut_text = cut["text"].as_str().unwrap();
        assert!(cut_text.len() < text.len() && text.starts_with(cut_text), "{cut_text} of {text}");
        assert_eq!(cut["finish_reason"], "stop");
    }
}

#[test]
fn no_end_token_comes_before_the_least_length() {
    let server = Running::start();
    let short = ask(&server, json!({"max_tokens": 200})).json();
    assert_eq!(short["choices"][0]["finish_reason"], "stop", "{short}");
    let tokens = short["usage"]["completion_tokens"].as_u64().unwrap();
    let least = json!({"min_tokens": tokens + 8, "max_tokens": tokens + 40});
    let long = ask(&server, least.clone()).json();
    assert!(long["usage"]["completion_tokens"].as_u64().unwrap() >= tokens + 8, "{long}");
    let alone = ask(&server, with(least, json!({"speculation": "off"}))).json();
    assert_eq!(alone["choices"], long["choices"], "with drafts and without");
    let shorter = ask(&server, json!({"min_tokens": 2, "max_tokens": 200})).json();
    assert_eq!(shorter["choices"], short["choices"], "it is long enough anyway");
    for wrong in [
        json!({"min_tokens": 9, "max_tokens": 8}),
        json!({"min_tokens": 2, "response_format": {"type": "json_object"}}),
    ] {
        let refused = ask(&server, wrong);
        assert_eq!(
            (refused.status, &refused.json()["error"]["param"]),
            (400, &json!("min_tokens"))
        );
    }
}

#[test]
fn a_stop_text_is_told_where_that_is_asked() {
    let server = Running::start();
    let stop = json!({"stop": [" a"], "max_tokens": 60});
    let without = told(&server, stop.clone());
    assert_eq!(without["stop_reason"], " a", "{without}");
    let both = with(stop, json!({"include_stop_str_in_output": true}));
    let expected = format!("{} a", without["text"].as_str().unwrap());
    assert_eq!(told(&server, both.clone())["text"], expected);
    let body = with(json!({"prompt": "Once upon a time", "temperature": 0, "stream": true}), both);
    let streamed: String = post(server.address, TEXT, &body)
        .events()
        .iter()
        .filter_map(|event| event["choices"][0]["text"].as_str())
        .collect();
    assert_eq!(streamed, expected);
}

#[test]
fn other_names_ask_for_the_same() {
    let server = Running::start();
    let ours = told(&server, json!({"repetition_penalty": 1.5}));
    assert_eq!(told(&server, json!({"repeat_penalty": 1.5}))["text"], ours["text"]);
    assert_ne!(told(&server, json!({}))["text"], ours["text"]);
    assert!(
        ["yes", "no"]
            .contains(&said(&ask(&server, json!({"guided_choice": ["yes", "no"]}))).as_str())
    );
    assert!(said(&ask(&server, json!({"guided_regex": "[0-9]{3}"}))).parse::<u32>().is_ok());
    let schema = json!({"enum": [17]});
    for schema in [schema.clone(), schema.to_string().into()] {
        assert_eq!(said(&ask(&server, json!({"guided_json": schema}))), "17");
    }
    assert_eq!(said(&ask(&server, json!({"guided_grammar": "start: \"abc\""}))), "abc");
    let two = ask(&server, json!({"guided_regex": "a", "structured_outputs": {"regex": "b"}}));
    assert_eq!(two.status, 400);
}

#[test]
fn what_is_unset_or_comes_from_another_answer_is_no_obstacle() {
    let server = Running::start();
    let unset = json!({"audio": null, "functions": null, "function_call": null, "modalities": null,
        "store": null, "reasoning_effort": null, "tools": null, "logit_bias": null, "prediction": null,
        "stream_options": null, "response_format": null, "top_logprobs": null, "parallel_tool_calls": null});
    assert_eq!(said(&ask(&server, unset)), said(&ask(&server, json!({}))));
    let messages = json!([
        {"role": "user", "content": "Hi", "id": null},
        {"role": "assistant", "content": "Hello.", "id": "msg_1", "refusal": null, "tool_calls": null,
            "reasoning_details": [{"type": "reasoning.text"}], "provider_specific_fields": {"a": 1}},
        {"role": "user", "content": "I want to eat tonight."},
    ]);
    let told = ask(&server, json!({"messages": messages, "store": true}));
    let ignored = "store, messages[1].id, messages[1].reasoning_details, messages[1].provider_specific_fields";
    assert_eq!((told.status, told.ignored()), (200, Some(ignored)));
    let plain = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "I want to eat tonight."}]);
    assert_eq!(said(&told), said(&ask(&server, json!({"messages": plain}))));
    let stream = json!({"stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    let told = ask(&server, stream);
    assert_eq!((told.status, told.ignored()), (200, None));
    let stored = post(
        server.address,
        "/v1/responses",
        &json!({"input": "Hi", "store": true, "max_output_tokens": 2}),
    );
    assert_eq!((stored.status, stored.ignored()), (200, Some("store")));
    let gone = post(
        server.address,
        "/v1/responses",
        &json!({"input": "Hi", "previous_response_id": "resp_1"}),
    );
    assert!(gone.status == 400 && gone.text().contains("whole conversation"), "{}", gone.text());
    let unknown = ask(&server, json!({"colour": null}));
    assert_eq!(unknown.status, 400, "a name nobody knows is a slip");
}

#[test]
fn an_answer_goes_on_from_its_beginning() {
    let server = Running::start();
    let question = json!({"role": "user", "content": "I want to eat tonight."});
    let whole = said(&ask(&server, json!({"max_tokens": 12})));
    let beginning = said(&ask(&server, json!({"max_tokens": 5})));
    let begun = json!([question, {"role": "assistant", "content": beginning}]);
    let rest = json!({"messages": begun, "max_tokens": 7});
    let go_on = json!({"continue_final_message": true, "add_generation_prompt": false});
    assert_eq!(
        format!("{beginning}{}", said(&ask(&server, with(rest.clone(), go_on.clone())))),
        whole
    );
    assert_ne!(said(&ask(&server, rest.clone())), whole[beginning.len()..], "a turn of its own");
    // Anthropic's clients begin an answer without a flag.
    let body = with(rest, json!({"temperature": 0}));
    let told = post(server.address, "/v1/messages", &body);
    assert_eq!(told.status, 200, "{}", told.text());
    assert_eq!(told.json()["content"][0]["text"], whole[beginning.len()..]);
    // Reasoning that the template opens is over before the words of the answer.
    let thoughtful = Running::with(&sizes(), thinking(), Settings::default());
    let thought = ask(&thoughtful, with(json!({"messages": begun}), go_on)).json();
    assert!(thought["choices"][0]["message"].get("reasoning_content").is_none(), "{thought}");
    assert_eq!(thought["usage"]["completion_tokens_details"]["reasoning_tokens"], 0, "{thought}");
}

#[test]
fn a_label_for_billing_does_not_keep_a_session_from_the_cache() {
    let cache = CacheSettings { bytes: 64 << 20, ..CacheSettings::default() };
    let engine = EngineSettings { cache, ..sizes() };
    let server = Running::with(&engine, served(), Settings::default());
    let words = "You are a waiter who books tables. ".repeat(16);
    let ask = |label: Option<&str>| {
        let mut system = vec![json!({"type": "text", "text": words})];
        let label = label.map(|hash| {
            let text = format!("x-anthropic-billing-header: cc_version=2.1; cch={hash};");
            json!({"type": "text", "text": text})
        });
        system.splice(0..0, label);
        let body = json!({"system": system, "max_tokens": 4, "temperature": 0,
            "messages": [{"role": "user", "content": "I want to eat tonight."}]});
        let response = post(server.address, "/v1/messages", &body);
        assert_eq!(response.status, 200, "{}", response.text());
        response
    };
    let first = ask(Some("a1b2c"));
    assert_eq!(first.ignored(), Some("system[0]"));
    let second = ask(Some("d3e4f")).json();
    assert!(second["usage"]["cache_read_input_tokens"].as_u64().unwrap() > 50, "{second}");
    assert_eq!(second["content"], first.json()["content"]);
    assert_eq!(second["content"], ask(None).json()["content"], "it is not in the prompt");
}
