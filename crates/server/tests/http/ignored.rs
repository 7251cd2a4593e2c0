//! What has no effect is accepted and told; a strict server refuses it.

use crate::client::{Connection, JSON, Response, get, post, post_bytes};
use crate::running::{Running, served, sizes, thinking};
use forerun_server::{ServedModel, Settings};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

/// The shortest request to an API, with further fields.
fn body(path: &str, fields: &Value) -> Value {
    let hi = json!([{"role": "user", "content": "Hi"}]);
    let mut body = match path {
        CHAT => json!({"messages": hi, "max_tokens": 2}),
        COMPLETIONS => json!({"prompt": "Hi", "max_tokens": 2}),
        RESPONSES => json!({"input": "Hi", "max_output_tokens": 2}),
        MESSAGES => json!({"model": "tales", "messages": hi, "max_tokens": 2}),
        _ => json!({"model": "tales", "messages": hi}),
    };
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

fn tool(kind: &str) -> Value {
    json!([{"type": "function", "name": "f", "parameters": {}}, {"type": kind}])
}

/// Fields that have no effect, and how that is told.
fn cases() -> Vec<(&'static str, Value, &'static str)> {
    let examples = json!([{"name": "f", "input_schema": {}, "input_examples": [{"a": 1}]}]);
    let search = json!([{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}]);
    vec![
        (CHAT, json!({"user": "me"}), "user"),
        (CHAT, json!({"metadata": {"a": "b"}, "verbosity": "low"}), "metadata, verbosity"),
        (CHAT, json!({"service_tier": "flex"}), "service_tier"),
        (CHAT, json!({"enable_thinking": true}), "enable_thinking"),
        (CHAT, json!({"thinking_budget": 5}), "thinking_budget"),
        (CHAT, json!({"reasoning_effort": "high"}), "reasoning_effort"),
        (CHAT, json!({"prediction": {"type": "content", "content": "Hi"}}), "prediction"),
        (COMPLETIONS, json!({"safety_identifier": "a"}), "safety_identifier"),
        (
            COMPLETIONS,
            json!({"stream": true, "stream_options": {"include_obfuscation": true}}),
            "stream_options.include_obfuscation",
        ),
        (RESPONSES, json!({"client_metadata": {"a": "b"}}), "client_metadata"),
        (RESPONSES, json!({"text": {"verbosity": "low"}}), "text.verbosity"),
        (RESPONSES, json!({"reasoning": {"effort": "high"}}), "reasoning.effort"),
        (RESPONSES, json!({"reasoning": {"summary": "detailed"}}), "reasoning.summary"),
        (
            RESPONSES,
            json!({"include": ["reasoning.encrypted_content", "web_search_call.action.sources"]}),
            "include[1]",
        ),
        (RESPONSES, json!({"tools": tool("web_search")}), "tools[1]"),
        (RESPONSES, json!({"tools": tool("web_search_preview_2025_03_11")}), "tools[1]"),
        (RESPONSES, json!({"tools": tool("tool_search")}), "tools[1]"),
        (RESPONSES, json!({"tools": tool("image_generation")}), "tools[1]"),
        (MESSAGES, json!({"metadata": {"user_id": "a"}, "speed": "fast"}), "speed, metadata"),
        (
            MESSAGES,
            json!({"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}}),
            "context_management",
        ),
        (MESSAGES, json!({"thinking": {"type": "adaptive"}}), "thinking"),
        (MESSAGES, json!({"thinking": {"type": "enabled", "budget_tokens": 9}}), "thinking"),
        (
            MESSAGES,
            json!({"thinking": {"type": "disabled", "display": "omitted"}}),
            "thinking.display",
        ),
        (
            MESSAGES,
            json!({"output_config": {"effort": "high", "task_budget": {"type": "tokens"}}}),
            "output_config.task_budget, output_config.effort",
        ),
        (MESSAGES, json!({"tools": examples}), "tools[0].input_examples"),
        (MESSAGES, json!({"tools": search}), "tools[0]"),
        (COUNT, json!({"thinking": {"type": "adaptive"}, "metadata": {}}), "metadata, thinking"),
    ]
}

#[test]
fn what_has_no_effect_is_accepted_and_told_in_a_header() {
    let server = Running::start();
    for (path, fields, told) in cases() {
        let response = post(server.address, path, &body(path, &fields));
        assert_eq!(response.status, 200, "{path} {fields}: {}", response.text());
        assert_eq!(response.ignored(), Some(told), "{path} {fields}");
        let plain = post(server.address, path, &body(path, &json!({})));
        assert_eq!((plain.status, plain.notes()), (200, None), "{path}");
    }
}

#[test]
fn a_field_that_is_null_is_not_told() {
    let server =
        Running::with(&sizes(), served(), Settings { strict: true, ..Settings::default() });
    for (path, fields) in [
        (CHAT, json!({"user": null, "verbosity": null})),
        (RESPONSES, json!({"client_metadata": null, "text": {"verbosity": null}})),
        (
            MESSAGES,
            json!({"context_management": null, "thinking": {"type": "disabled", "display": null}}),
        ),
    ] {
        let response = post(server.address, path, &body(path, &fields));
        assert_eq!((response.status, response.notes()), (200, None), "{}", response.text());
    }
}

#[test]
fn a_strict_server_refuses_each_by_name() {
    let server =
        Running::with(&sizes(), served(), Settings { strict: true, ..Settings::default() });
    for (path, fields, told) in cases() {
        let response = post(server.address, path, &body(path, &fields));
        assert_eq!(response.status, 400, "{path} {fields}: {}", response.text());
        let named = told.split(", ").any(|place| response.text().contains(&format!("`{place}`")));
        assert!(named, "{path} {fields}: {}", response.text());
    }
    for path in [CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT] {
        let response = post(server.address, path, &body(path, &json!({})));
        assert_eq!((response.status, response.notes()), (200, None), "{path}");
    }
}

#[test]
fn flags_of_betas_are_told_and_a_strict_server_refuses_them() {
    let ask = |server: &Running| {
        let text = body(MESSAGES, &json!({})).to_string();
        let headers = [JSON, "anthropic-beta: context-management-2025-06-27"];
        post_bytes(server.address, "/v1/messages?beta=true", &headers, text.as_bytes())
    };
    let response = ask(&Running::start());
    assert_eq!((response.status, response.ignored()), (200, Some("anthropic-beta")));
    let strict = Settings { strict: true, ..Settings::default() };
    let response = ask(&Running::with(&sizes(), served(), strict));
    assert_eq!(response.status, 400);
    assert!(response.text().contains("`anthropic-beta`"), "{}", response.text());
}

#[test]
fn a_strict_server_holds_calls_to_whole_schemas_or_refuses_them_at_their_place() {
    let strict = Settings { strict: true, ..Settings::default() };
    let server = Running::with(&sizes(), served(), strict);
    let schema = json!({"type": "object", "propertyNames": {"maxLength": 3}});
    let inner = json!([{"type": "function", "name": "a"}, {"type": "function", "name": "b", "parameters": schema}]);
    for (path, fields, place) in [
        (MESSAGES, json!({"tools": [{"name": "a", "input_schema": schema}]}), "tools[0]"),
        (
            RESPONSES,
            json!({"tools": [{"type": "namespace", "name": "n", "tools": inner}]}),
            "tools[0].tools[1]",
        ),
    ] {
        let response = post(server.address, path, &body(path, &fields));
        let told = response.text();
        assert_eq!(response.status, 400, "{told}");
        assert!(told.contains(place) && told.contains("propertyNames"), "{told}");
    }
}

#[test]
fn what_a_template_understands_is_not_told() {
    let server = Running::with(&sizes(), thinking(), Settings::default());
    for (path, fields, told) in [
        (CHAT, json!({"enable_thinking": true}), None),
        (CHAT, json!({"thinking_budget": 5}), None),
        (RESPONSES, json!({"reasoning": {"effort": "none"}}), None),
        (MESSAGES, json!({"thinking": {"type": "adaptive"}}), None),
        // It may think, but not more or less.
        (RESPONSES, json!({"reasoning": {"effort": "low"}}), Some("reasoning.effort")),
    ] {
        let response = post(server.address, path, &body(path, &fields));
        assert_eq!((response.status, response.ignored()), (200, told), "{path} {fields}");
    }
}

#[test]
fn a_tool_that_is_ignored_cannot_be_required() {
    let server = Running::start();
    let search = json!([{"type": "web_search_20250305", "name": "web_search"}]);
    for (path, fields) in [
        (MESSAGES, json!({"tools": search, "tool_choice": {"type": "tool", "name": "web_search"}})),
        (MESSAGES, json!({"tools": search, "tool_choice": {"type": "any"}})),
        (RESPONSES, json!({"tools": tool("web_search"), "tool_choice": {"type": "web_search"}})),
        (RESPONSES, json!({"tools": [{"type": "web_search"}], "tool_choice": "required"})),
    ] {
        let response = post(server.address, path, &body(path, &fields));
        assert_eq!(response.status, 400, "{fields}");
        assert!(response.text().contains("tool_choice"), "{}", response.text());
    }
}

#[test]
fn an_alias_with_a_star_is_any_name_and_answers_tell_the_real_one() {
    let aliases = |names: &[&str]| {
        let aliases = names.iter().map(|&name| name.to_owned()).collect();
        Running::with(&sizes(), ServedModel { aliases, ..served() }, Settings::default())
    };
    let ask = |server: &Running, name: &str| {
        [CHAT, RESPONSES, MESSAGES]
            .map(|path| post(server.address, path, &body(path, &json!({"model": name}))))
    };
    let told = |response: &Response| (response.status, response.json()["model"].clone());
    let server = aliases(&["claude-*", "gpt-5"]);
    for name in ["claude-opus-4-8", "claude-", "gpt-5", "tales"] {
        for response in ask(&server, name) {
            assert_eq!(told(&response), (200, json!("tales")), "{name}");
        }
    }
    for name in ["claude", "gpt-5.5", "*", "claude-*x"] {
        let status = if name.starts_with("claude-") { 200 } else { 404 };
        assert!(ask(&server, name).iter().all(|response| response.status == status), "{name}");
    }
    let server = aliases(&["*"]);
    assert!(ask(&server, "whatever/it:is").iter().all(|response| response.status == 200));
    let listed = get(server.address, "/v1/models").json();
    assert_eq!(listed["data"].as_array().unwrap().len(), 1);
    assert_eq!(listed["data"][0]["id"], "tales");
    assert_eq!(get(server.address, "/v1/models/gpt-5.5").json()["id"], "gpt-5.5");
    let document = get(server.address, "/openapi.json").json();
    assert_eq!(document["components"]["schemas"]["ModelName"]["enum"], Value::Null);
    // What clients try first.
    let mut connection = Connection::open(server.address);
    connection.ask("HEAD", "/", &[], b"");
    assert_eq!(connection.head().unwrap().status, 200);
}
