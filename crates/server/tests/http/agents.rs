//! Requests of coding agents as they were recorded, without their words: `claude -p` and `codex exec`, each with its
//! first request and one after some calls of tools. `tests/server/run.sh agents` runs the programs themselves.

use crate::client::{JSON, Response, post_bytes};
use crate::running::{Running, served, sizes};
use forerun_engine::Settings as EngineSettings;
use forerun_server::{ServedModel, Settings};
use serde_json::{Value, json};

const CLAUDE: &str = include_str!("../fixtures/agents/claude.json");
const CODEX: &str = include_str!("../fixtures/agents/codex.json");
const CODEX_GPT: &str = include_str!("../fixtures/agents/codex-gpt.json");

/// What of the recorded requests has no effect.
const CLAUDE_IGNORED: &str =
    "anthropic-beta, metadata, context_management, output_config.effort, thinking";
const CODEX_IGNORED: &str = "tools[8], reasoning.summary, client_metadata, reasoning.effort";
const CODEX_GPT_IGNORED: &str = "tools[3].format, tools[8], tools[9], text.verbosity, \
                                 reasoning.summary, client_metadata, reasoning.effort";

fn recorded(text: &str) -> Vec<Value> {
    serde_json::from_str(text).unwrap()
}

/// A server with room for an agent's tools, under any name.
fn server(strict: bool) -> Running {
    let sizes = EngineSettings { context: 16_384, sequences: 1, ..sizes() };
    let model = ServedModel { aliases: vec!["*".to_owned()], ..served() };
    Running::with(&sizes, model, Settings { strict, ..Settings::default() })
}

/// Sends a recorded request with further fields, for a short answer.
fn send(server: &Running, request: &Value, fields: &Value) -> Response {
    let mut body = request["body"].clone();
    let length = if body.get("input").is_some() { "max_output_tokens" } else { "max_tokens" };
    body[length] = 4.into();
    body["temperature"] = 0.into();
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let headers = request["headers"].as_object().unwrap();
    let lines: Vec<String> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.as_str().unwrap()))
        .collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).chain([JSON]).collect();
    let path = request["path"].as_str().unwrap();
    post_bytes(server.address, path, &lines, body.to_string().as_bytes())
}

#[test]
fn every_recorded_request_is_answered_and_what_is_ignored_is_told() {
    let server = server(false);
    for (text, told) in
        [(CLAUDE, CLAUDE_IGNORED), (CODEX, CODEX_IGNORED), (CODEX_GPT, CODEX_GPT_IGNORED)]
    {
        for request in recorded(text) {
            let response = send(&server, &request, &json!({}));
            assert_eq!(response.status, 200, "{}", response.text());
            assert_eq!(response.ignored(), Some(told));
            // Two of Claude's schemas have a keyword that grammars lack.
            let notes = response.notes().unwrap_or_default();
            let loosened = notes.contains("tools[14]") && notes.contains("propertyNames");
            assert_eq!(loosened, text == CLAUDE, "{notes}");
            let last = response.typed().last().unwrap()["type"].clone();
            let ends = ["message_stop", "response.incomplete", "response.completed"];
            assert!(ends.contains(&last.as_str().unwrap()), "{last}");
        }
    }
    let mut body = recorded(CLAUDE).remove(0)["body"].take();
    body.as_object_mut().unwrap().retain(|key, _| key != "stream" && key != "max_tokens");
    let path = "/v1/messages/count_tokens?beta=true";
    let counted = post_bytes(server.address, path, &[JSON], body.to_string().as_bytes());
    assert!(counted.json()["input_tokens"].as_u64().unwrap() > 5000, "{}", counted.text());
}

#[test]
fn a_strict_server_refuses_the_first_request_of_each_by_name() {
    let server = server(true);
    for (text, first) in
        [(CLAUDE, "`anthropic-beta`"), (CODEX, "`tools[8]`"), (CODEX_GPT, "`tools[3].format`")]
    {
        let response = send(&server, &recorded(text)[0], &json!({}));
        assert_eq!(response.status, 400);
        assert!(response.text().contains(first), "{}", response.text());
    }
}

/// The schema of the only call there can be.
fn only(argument: &str, value: &str) -> Value {
    json!({"type": "object", "properties": {argument: {"const": value}}, "required": [argument],
        "additionalProperties": false})
}

fn named<'a>(tools: &'a mut Value, name: &str) -> &'a mut Value {
    tools.as_array_mut().unwrap().iter_mut().find(|tool| tool["name"] == name).unwrap()
}

#[test]
fn a_call_of_claudes_tools_comes_and_its_result_goes_back() {
    let server = server(false);
    let request = recorded(CLAUDE).remove(0);
    let mut tools = request["body"]["tools"].clone();
    named(&mut tools, "Bash")["input_schema"] = only("command", "echo hello");
    let forced = json!({"tools": tools, "max_tokens": 100, "stream": false,
        "tool_choice": {"type": "tool", "name": "Bash", "disable_parallel_tool_use": true}});
    let answer = send(&server, &request, &forced).json();
    assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
    let call = answer["content"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&call["name"], &call["input"]),
        (&json!("Bash"), &json!({"command": "echo hello"}))
    );
    let mut messages = request["body"]["messages"].as_array().unwrap().clone();
    messages.push(json!({"role": "assistant", "content": answer["content"]}));
    messages.push(json!({"role": "user", "content": [{"tool_use_id": call["id"],
        "type": "tool_result", "content": "hello", "is_error": false,
        "cache_control": {"type": "ephemeral"}}]}));
    let went = send(&server, &request, &json!({"messages": messages}));
    assert_eq!(went.status, 200, "{}", went.text());
    assert_eq!(went.typed()[0]["type"], "message_start");
}

#[test]
fn a_call_of_codexs_functions_comes_and_its_result_goes_back() {
    let server = server(false);
    let request = recorded(CODEX).remove(0);
    let mut tools = request["body"]["tools"].clone();
    named(&mut tools, "exec_command")["parameters"] = only("cmd", "echo hello");
    let space = named(&mut tools, "multi_agent_v1");
    named(&mut space["tools"], "close_agent")["parameters"] = only("target", "one");
    for (asked, name, namespace, arguments) in [
        ("exec_command", "exec_command", Value::Null, json!({"cmd": "echo hello"})),
        (
            "multi_agent_v1.close_agent",
            "close_agent",
            json!("multi_agent_v1"),
            json!({"target": "one"}),
        ),
    ] {
        let forced = json!({"tools": tools, "max_output_tokens": 100, "stream": false,
            "parallel_tool_calls": false, "tool_choice": {"type": "function", "name": asked}});
        let answer = send(&server, &request, &forced).json();
        let call = answer["output"][0].clone();
        assert_eq!(
            (&call["type"], &call["name"]),
            (&json!("function_call"), &json!(name)),
            "{call}"
        );
        assert_eq!((&call["namespace"], &call["status"]), (&namespace, &json!("completed")));
        let told: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert_eq!(told, arguments);
        let mut input = request["body"]["input"].as_array().unwrap().clone();
        input.push(call.clone());
        input.push(
            json!({"type": "function_call_output", "id": "fco_1", "call_id": call["call_id"],
            "output": "hello"}),
        );
        let went = send(&server, &request, &json!({"input": input}));
        assert_eq!(went.status, 200, "{}", went.text());
        assert_eq!(went.typed()[0]["type"], "response.created");
    }
}

#[test]
fn a_call_of_a_custom_tool_has_text_and_goes_back() {
    let server = server(false);
    let request = recorded(CODEX_GPT).remove(0);
    let forced = |stream: bool| {
        let asked = json!({"max_output_tokens": 40, "stream": stream, "parallel_tool_calls": false,
            "tool_choice": {"type": "custom", "name": "apply_patch"}});
        let response = send(&server, &request, &asked);
        assert_eq!(response.status, 200, "{}", response.text());
        response
    };
    let call = forced(false).json()["output"][0].clone();
    assert_eq!(
        (&call["type"], &call["name"]),
        (&json!("custom_tool_call"), &json!("apply_patch")),
        "{call}"
    );
    assert!(!call["input"].as_str().unwrap().is_empty(), "{call}");
    let events = forced(true).typed();
    let done = events.iter().find(|event| event["type"] == "response.output_item.done").unwrap();
    assert_eq!(done["item"]["input"], call["input"]);
    let mut input = request["body"]["input"].as_array().unwrap().clone();
    input.push(call.clone());
    input.push(
        json!({"type": "custom_tool_call_output", "id": "ctco_1", "call_id": call["call_id"],
        "output": "Done."}),
    );
    let went = send(&server, &request, &json!({"input": input}));
    assert_eq!(went.status, 200, "{}", went.text());
}
