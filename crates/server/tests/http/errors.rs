//! Errors name the thing and keep the form of their API.

use crate::client::{Connection, JSON, get, post, post_bytes};
use crate::running::{Running, served, sizes};
use forerun_server::{ServedModel, Settings};
use serde_json::{Value, json};

#[test]
fn what_is_wrong_with_a_request_is_named() {
    let server = Running::start();
    let hi = json!([{"role": "user", "content": "Hi"}]);
    let chat =
        |field: &str, value: Value| ("/v1/chat/completions", json!({"messages": hi, field: value}));
    let message = |message: Value| ("/v1/chat/completions", json!({"messages": [message]}));
    let text = |field: &str, value: Value| {
        ("/v1/completions", json!({"prompt": "A", "max_tokens": 1, field: value}))
    };
    let cases = [
        (chat("no_such_thing", json!(1)), "no_such_thing"),
        (chat("audio", json!({})), "audio"),
        (chat("temperature", json!("hot")), "temperature"),
        (chat("temperature", json!(-1)), "temperature"),
        (chat("temperature", json!(1e39)), "temperature"),
        (chat("top_p", json!(0)), "top_p"),
        (chat("top_k", json!(-2)), "top_k"),
        (chat("n", json!(0)), "n"),
        (chat("n", json!(1000)), "n"),
        (chat("max_tokens", json!(0)), "max_tokens"),
        (chat("max_completion_tokens", json!(-5)), "max_completion_tokens"),
        (chat("max_tokens", json!(1.5)), "max_tokens"),
        (chat("stop", json!("")), "stop"),
        (chat("stop", json!([1])), "stop[0]"),
        (chat("stop", json!(vec!["a"; 99])), "stop"),
        (chat("logit_bias", json!({"x": 1})), "logit_bias"),
        (chat("logit_bias", json!({"1": 1000})), "logit_bias"),
        (chat("speculation", json!("fast")), "speculation"),
        (chat("speculation", json!(9999)), "speculation"),
        (chat("store", json!(3)), "store"),
        (chat("stop_token_ids", json!(vec![1; 17])), "stop_token_ids"),
        (chat("repeat_penalty", json!(0)), "repetition_penalty"),
        (chat("add_generation_prompt", json!(false)), "add_generation_prompt"),
        (chat("continue_final_message", json!(true)), "continue_final_message"),
        (chat("guided_json", json!("{")), "guided_json"),
        (chat("service_tier", json!(1)), "service_tier"),
        (chat("skip_special_tokens", json!(false)), "skip_special_tokens"),
        (text("return_hidden_states", json!(true)), "return_hidden_states"),
        (chat("stream_options", json!({"include_usage": true})), "stream_options"),
        (chat("chat_template_kwargs", json!([])), "chat_template_kwargs"),
        (chat("messages", json!([])), "messages"),
        (chat("messages", json!("Hi")), "messages"),
        (message(json!({"role": "king", "content": "Hi"})), "messages[0].role"),
        (message(json!({"role": "user"})), "messages[0].content"),
        (message(json!({"role": "user", "content": 3})), "messages[0].content"),
        (message(json!({"role": "user", "content": "Hi", "x": 1})), "messages[0].x"),
        (
            message(json!({"role": "user", "content": [{"type": "text"}]})),
            "messages[0].content[0].text",
        ),
        (
            message(json!({"role": "user", "content": [{"type": "image_url", "image_url": {}}]})),
            "messages[0].content[0].type",
        ),
        (text("prompt", json!(null)), "prompt"),
        (text("prompt", json!([])), "prompt"),
        (text("prompt", json!(["a", 1])), "prompt[0]"),
        (text("suffix", json!("b")), "suffix"),
        (text("best_of", json!(3)), "best_of"),
        (text("max_completion_tokens", json!(3)), "max_completion_tokens"),
    ];
    for ((path, body), param) in cases {
        let response = post(server.address, path, &body);
        let error = &response.json()["error"];
        assert_eq!(response.status, 400, "{body}: {error}");
        assert_eq!(error["param"], param, "{body}: {error}");
        assert_eq!(error["type"], "invalid_request_error");
        assert!(error["message"].as_str().unwrap().contains(param.split('[').next().unwrap()));
    }
}

#[test]
fn what_the_context_cannot_hold_is_refused() {
    let server = Running::start();
    for (path, body) in [
        ("/v1/completions", json!({"prompt": vec![5; 1024]})),
        ("/v1/completions", json!({"prompt": [99999]})),
        ("/v1/completions", json!({"prompt": []})),
        ("/v1/completions", json!({"prompt": ""})),
        ("/v1/completions", json!({"prompt": "word ".repeat(400_000)})),
        ("/detokenize", json!({"tokens": [99999]})),
        ("/tokenize", json!({})),
    ] {
        let response = post(server.address, path, &body);
        let told = response.json();
        assert_eq!(response.status, 400, "{path}: {told}");
    }
    let fits = json!({"prompt": vec![5; 1020], "max_tokens": 100, "ignore_eos": true});
    let answer = post(server.address, "/v1/completions", &fits).json();
    assert_eq!(answer["usage"]["completion_tokens"], 4, "the context ends the answer");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[test]
fn each_api_says_errors_in_its_own_form() {
    let server = Running::start();
    let openai = get(server.address, "/v1/nothing");
    assert_eq!(
        (openai.status, &openai.json()["error"]["type"]),
        (404, &json!("invalid_request_error"))
    );
    let anthropic = get(server.address, "/v1/messages/nothing");
    let told = anthropic.json();
    assert_eq!((anthropic.status, &told["error"]["type"]), (404, &json!("not_found_error")));
    assert_eq!(told["type"], "error");
    assert_eq!(told["request_id"].as_str(), anthropic.header("x-request-id"));
    let method = get(server.address, "/v1/completions");
    assert_eq!(
        (method.status, &method.json()["error"]["code"]),
        (405, &json!("method_not_allowed"))
    );
    assert_eq!(method.header("allow"), Some("POST"));
}

#[test]
fn a_request_keeps_the_name_its_client_gave_it() {
    let server = Running::start();
    for (given, kept) in [("my-request.7", true), ("", false)] {
        let mut connection = Connection::open(server.address);
        connection.ask("GET", "/version", &[&format!("x-request-id: {given}")], b"");
        let response = connection.response().unwrap();
        let name = response.header("x-request-id").unwrap();
        assert_eq!(name == given, kept, "{name}");
        assert!(!name.is_empty());
    }
}

#[test]
fn a_key_opens_everything_but_health_needs_none() {
    let settings = Settings { api_keys: vec!["sesame".to_owned()], ..Settings::default() };
    let server = Running::with(&sizes(), served(), settings);
    let body = json!({"prompt": "A", "max_tokens": 1}).to_string();
    let ask = |headers: &[&str]| {
        let headers: Vec<&str> = [JSON].iter().chain(headers).copied().collect();
        post_bytes(server.address, "/v1/completions", &headers, body.as_bytes())
    };
    assert_eq!(ask(&["authorization: Bearer sesame"]).status, 200);
    assert_eq!(ask(&["x-api-key: sesame"]).status, 200);
    for headers in [&[][..], &["authorization: Bearer sesam"], &["x-api-key: sesamee"]] {
        let refused = ask(headers);
        assert_eq!(refused.status, 401);
        assert_eq!(refused.json()["error"]["code"], "invalid_api_key");
        assert!(refused.header("www-authenticate").is_some());
    }
    for path in ["/v1/models", "/metrics", "/version", "/nothing", "/v1/messages"] {
        assert_eq!(get(server.address, path).status, 401, "{path}");
    }
    for path in ["/health/live", "/health/ready"] {
        assert_eq!(get(server.address, path).status, 200, "{path}");
    }
}

#[test]
fn a_model_without_a_template_continues_text_and_does_not_chat() {
    let model = ServedModel { template: None, ..served() };
    let server = Running::with(&sizes(), model, Settings::default());
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let refused = post(server.address, "/v1/chat/completions", &chat);
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("no chat template"), "{}", refused.text());
    let text = json!({"prompt": "A", "max_tokens": 1});
    assert_eq!(post(server.address, "/v1/completions", &text).status, 200);
}
