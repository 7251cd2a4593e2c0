//! Grammars that want too much, or nothing: each ends its own request, and the server goes on.

use crate::client::{Connection, post};
use crate::running::{Running, served, sizes};
use forerun_engine::Settings as EngineSettings;
use forerun_server::Settings;
use serde_json::{Value, json};

fn completion(extra: Value) -> Value {
    let mut body = json!({"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn any_of(count: usize) -> Value {
    let one = |i: usize| {
        let key = format!("k{i}");
        json!({"type": "object", "properties": {&key: {"type": "integer"}}, "required": [&key]})
    };
    json!({"anyOf": (0..count).map(one).collect::<Vec<_>>()})
}

/// A tool whose schema has nine kilobytes, most of them words.
fn wide_tool() -> Value {
    const WORDS: &str = "Once upon a time there was a little girl who had a big dog, and they went to \
        the park to play with all of their friends.";
    let names: Vec<String> = (0..60).map(|i| format!("f{i}")).collect();
    let field = |name: &String| {
        (name.clone(), json!({"description": WORDS, "enum": ["red", "blue", "green"]}))
    };
    let properties: serde_json::Map<String, Value> = names.iter().map(field).collect();
    let parameters = json!({"type": "object", "properties": properties, "required": names});
    assert!(parameters.to_string().len() > 9000);
    json!({"type": "function", "function": {"name": "wide", "parameters": parameters}})
}

#[test]
fn a_grammar_ends_its_own_request_and_no_other() {
    let server = Running::start();
    let plain = completion(json!({}));
    let text = |body: &Value| {
        let answer = post(server.address, "/v1/completions", body);
        assert_eq!(answer.status, 200, "{body}: {}", answer.text());
        answer.json()["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let expected = text(&plain);
    let held = |form: Value| completion(json!({"structured_outputs": form}));
    let cases = [
        (held(json!({"grammar": "start: <|im_end|>"})), 200, ""),
        (held(json!({"grammar": "start: <[2]>"})), 200, ""),
        (held(json!({"regex": "(((a{100}){100}){100})"})), 400, "60000"),
        (
            completion(json!({
                "structured_outputs": {"regex": "(((a{100}){100}){100})"}, "speculation": "off",
            })),
            400,
            "60000",
        ),
        (held(json!({"json": any_of(200)})), 200, ""),
        (held(json!({"json": any_of(400)})), 200, ""),
        (
            held(json!({"json": {
                "type": "array", "minItems": 1_000_000_000, "items": {"type": "null"},
            }})),
            400,
            "50000",
        ),
        (held(json!({"json": {"type": "integer", "multipleOf": 999_983}})), 400, "20000"),
        (held(json!({"regex": "a".repeat(262_000)})), 400, "60000"),
        (held(json!({"grammar": "start: \"a\" start"})), 400, "no answer fits"),
        (held(json!({"grammar": "start: \"a\" X\nX: /b/ & /c/"})), 400, "no answer fits"),
    ];
    for (body, status, said) in cases {
        let name: String = body.to_string().chars().take(150).collect();
        let answer = post(server.address, "/v1/completions", &body);
        assert_eq!(answer.status, status, "{name}: {}", answer.text());
        assert!(answer.text().contains(said), "{name}: {}", answer.text());
        assert_eq!(text(&plain), expected, "after {name}");
    }
}

#[test]
fn a_wide_tool_is_called_four_times_at_once() {
    let sizes = EngineSettings { context: 8192, ..sizes() };
    let server = Running::with(&sizes, served(), Settings::default());
    let body = json!({
        "messages": [{"role": "user", "content": "Call it."}],
        "tools": [wide_tool()], "tool_choice": "required", "max_tokens": 60,
    });
    let ask = || post(server.address, "/v1/chat/completions", &body);
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        for answer in asked {
            let answer = answer.join().unwrap();
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    });
}

/// An ambiguous grammar, whose masks take longer with every letter until it is refused.
fn ambiguous() -> Value {
    completion(json!({
        "structured_outputs": {"grammar": "start: e\ne: e e | W\nW: /[a-z ]/"},
        "max_tokens": 200, "ignore_eos": true,
    }))
}

#[test]
fn nobody_waits_for_the_masks_of_an_ambiguous_grammar_and_it_ends_with_its_limit() {
    let server = Running::start();
    let plain = completion(json!({"max_tokens": 60, "ignore_eos": true}));
    let text = |body: &Value| post(server.address, "/v1/completions", body);
    let expected = text(&plain).json()["choices"][0]["text"].clone();
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| text(&ambiguous()));
        while !slow.is_finished() {
            let answer = text(&plain);
            assert_eq!(answer.json()["choices"][0]["text"], expected, "{}", answer.text());
        }
        let slow = slow.join().unwrap();
        assert_eq!(slow.status, 400, "{}", slow.text());
        assert!(
            slow.text().contains("too ambiguous") && slow.text().contains("300"),
            "{}",
            slow.text()
        );
    });
}

#[test]
fn a_client_that_hangs_up_takes_its_masks_along() {
    let server = Running::start();
    for _ in 0..3 {
        let mut connection = Connection::open(server.address);
        let body = ambiguous().to_string();
        let head = ["content-type: application/json"];
        connection.ask("POST", "/v1/completions", &head, body.as_bytes());
        server.wait_for("forerun:num_requests_running", 1.0);
        drop(connection);
        server.wait_for("forerun:num_requests_running", 0.0);
    }
}

#[test]
fn an_expression_that_counts_back_is_followed_alike_at_every_depth() {
    let sizes = EngineSettings { context: 2048, ..sizes() };
    let server = Running::with(&sizes, served(), Settings::default());
    let answer = |speculation: Value| {
        let body = json!({
            "prompt": "Once upon a time there was", "temperature": 0.9, "seed": 1, "max_tokens": 700,
            "ignore_eos": true, "speculation": speculation,
            "structured_outputs": {"regex": "[a-z ]*e[a-z ]{60}"},
        });
        let answer = post(server.address, "/v1/completions", &body);
        assert_eq!(answer.status, 200, "{speculation}: {}", answer.text());
        let choice = answer.json()["choices"][0].clone();
        (choice["text"].clone(), choice["finish_reason"].clone())
    };
    let off = answer(json!("off"));
    assert!(off.0.as_str().unwrap().len() > 1000, "{off:?}");
    for speculation in [json!(1), json!(3), json!("auto")] {
        assert_eq!(answer(speculation.clone()), off, "{speculation}");
    }
}

#[test]
fn the_receipt_says_that_a_grammar_keeps_the_host_between_drafts() {
    let server = Running::start();
    let rounds = |form: Value| {
        let mut body = completion(json!({"speculation": 3}));
        body.as_object_mut().unwrap().extend(form.as_object().unwrap().clone());
        let answer = post(server.address, "/v1/completions", &body);
        assert_eq!(answer.status, 200, "{body}: {}", answer.text());
        answer.json()["timings"]["speculation"]["rounds_with_host"].as_u64()
    };
    assert_eq!(rounds(json!({})), Some(0));
    assert!(rounds(json!({"structured_outputs": {"regex": "([a-z]{2,5} ){12}end"}})) > Some(2));
}

#[test]
fn a_schema_that_is_not_strict_is_followed_as_far_as_it_can_be_and_the_rest_is_told() {
    let server = Running::start();
    let part = |extra: Value| {
        let mut schema = json!({"type": "object", "required": ["a"], "additionalProperties": false,
            "properties": {"a": {"enum": [7, 8]}}});
        schema.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        schema
    };
    let branches = json!([{"type": "string", "maxLength": 3}, {"type": "string", "maxLength": 5}]);
    for (schema, lost) in [
        (part(json!({})), None),
        (part(json!({"if": {"required": ["b"]}, "then": {"required": ["c"]}})), Some("#/if")),
        (part(json!({"properties": {"a": {"oneOf": branches}}})), Some("#/properties/a/oneOf")),
        (
            part(json!({"properties": {"a": {"type": "array", "uniqueItems": true, "maxItems": 2,
            "items": {"enum": [1, 2]}}}})),
            Some("#/properties/a/uniqueItems"),
        ),
    ] {
        for (path, prompt) in [
            ("/v1/completions", json!({"prompt": "Say"})),
            ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "Say"}]})),
        ] {
            let ask = |strict: bool| {
                let named = json!({"name": "it", "schema": schema, "strict": strict});
                let mut body = prompt.clone();
                body["response_format"] = json!({"type": "json_schema", "json_schema": named});
                body["max_tokens"] = 60.into();
                body["temperature"] = 0.into();
                post(server.address, path, &body)
            };
            let told = ask(false);
            assert_eq!(told.status, 200, "{schema}: {}", told.text());
            assert_eq!(told.notes().is_some(), lost.is_some(), "{schema}: {:?}", told.notes());
            assert!(told.notes().unwrap_or_default().contains(lost.unwrap_or_default()));
            let choice = &told.json()["choices"][0];
            let text = choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap();
            let answer: Value =
                serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
            assert!(answer.get("a").is_some(), "{text}");
            // Who insists is told what cannot be done, and where.
            assert_eq!(ask(true).status, if lost.is_some() { 400 } else { 200 }, "{schema}");
        }
    }
}
