//! The prefix cache: the same answers, fewer tokens read, and a reason where there are not.

use crate::client::{Connection, JSON, get, post};
use crate::running::{Running, served, sizes};
use forerun_engine::{CacheSettings, Settings as EngineSettings};
use forerun_server::Settings;
use serde_json::{Value, json};

fn caching() -> Running {
    let cache = CacheSettings { bytes: 64 << 20, ..CacheSettings::default() };
    Running::with(&EngineSettings { cache, ..sizes() }, served(), Settings::default())
}

fn ask(server: &Running, messages: &[Value], cache_prompt: bool) -> Value {
    let body = json!({
        "messages": messages, "temperature": 0.7, "seed": 1, "max_tokens": 24, "cache_prompt": cache_prompt,
    });
    post(server.address, "/v1/chat/completions", &body).json()
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

fn long_system() -> Value {
    let text = "You are a kind helper who books tables, taxis and trains for guests. ".repeat(8);
    json!({"role": "system", "content": text})
}

#[test]
fn a_growing_conversation_is_read_once_and_answers_stay_the_same() {
    let server = caching();
    let mut messages = vec![long_system()];
    let (mut resent, mut found, mut before) = (0, 0, 0);
    for turn in ["I want to eat tonight.", "For two people, please.", "At seven.", "Thank you."] {
        messages.push(json!({"role": "user", "content": turn}));
        let answer = ask(&server, &messages, true);
        let anew = ask(&server, &messages, false);
        assert_eq!(answer["choices"], anew["choices"]);
        assert_eq!(cached(&anew), 0);
        assert_eq!(anew["timings"]["cache"]["miss"]["reason"], "disabled");
        if before > 0 {
            resent += before;
            found += cached(&answer);
        }
        before = answer["usage"]["prompt_tokens"].as_u64().unwrap();
        messages.push(answer["choices"][0]["message"].clone());
    }
    assert!(found as f64 >= 0.95 * resent as f64, "{found} of {resent} tokens were known");
}

#[test]
fn an_edited_message_is_read_from_there_on() {
    let server = caching();
    let user = |text: &str| json!({"role": "user", "content": text});
    let first = ask(&server, &[long_system(), user("I want to eat tonight.")], true);
    assert_eq!(cached(&first), 0);
    let edited = ask(&server, &[long_system(), user("A train to Berlin at nine.")], true);
    let system = edited["usage"]["prompt_tokens"].as_u64().unwrap() - 20;
    assert!(cached(&edited) >= system, "{edited}");
    let anew = ask(&server, &[long_system(), user("A train to Berlin at nine.")], false);
    assert_eq!(edited["choices"], anew["choices"]);
}

#[test]
fn a_miss_is_explained_with_the_text_around_it() {
    let server = caching();
    let user = |text: &str| json!({"role": "user", "content": text});
    ask(&server, &[long_system(), user("I want to eat tonight.")], true);
    let body = json!({
        "messages": [long_system(), user("I want to sleep tonight.")], "max_tokens": 1,
    });
    let mut connection = Connection::open(server.address);
    let named = ["x-request-id: why-not", JSON];
    connection.ask("POST", "/v1/chat/completions", &named, body.to_string().as_bytes());
    let answer = connection.response().unwrap().json();
    let traces = get(server.address, "/debug/cache/why-not").json();
    let trace = &traces["requests"][0];
    assert_eq!(trace["cached_tokens"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]);
    assert_eq!(trace["miss"]["reason"], "diverged", "{traces}");
    assert_eq!(trace["miss"]["expected"]["text"], " eat", "{traces}");
    assert_eq!(trace["miss"]["found"]["text"], " sleep", "{traces}");
    assert!(trace["miss"]["before"].as_str().unwrap().ends_with("I want to"), "{traces}");
    assert!(trace["miss"]["after"].as_str().unwrap().starts_with(" sleep"), "{traces}");
    assert_eq!(get(server.address, "/debug/cache").json()["requests"].as_array().unwrap().len(), 2);
    assert_eq!(get(server.address, "/debug/cache/nobody").status, 404);
    let queries = server.metric("forerun:prefix_cache_queries_total");
    let hits = server.metric("forerun:prefix_cache_hits_total");
    assert!(hits > 0.0 && hits < queries, "{hits} of {queries}");
    let text = get(server.address, "/metrics").text().to_owned();
    let line = "forerun:prefix_cache_misses_total{reason=\"diverged\"} 1";
    assert!(text.lines().any(|l| l == line), "{text}");
    assert!(text.contains("forerun:prefix_cache_bytes{tier=\"memory\"}"));
}

#[test]
fn whether_tools_may_be_called_changes_nothing_of_what_is_cached() {
    let server = caching();
    let tool = json!({"type": "function", "function": {"name": "book", "description": "Books a table. ".repeat(40),
        "parameters": {"properties": {"people": {"type": "integer"}}}}});
    let ask = |choice: &str| {
        let messages = [long_system(), json!({"role": "user", "content": "For two, please."})];
        let body =
            json!({"messages": messages, "tools": [tool], "tool_choice": choice, "max_tokens": 8});
        post(server.address, "/v1/chat/completions", &body).json()
    };
    assert_eq!(cached(&ask("auto")), 0);
    for choice in ["none", "auto", "none"] {
        let answer = ask(choice);
        let prompt = answer["usage"]["prompt_tokens"].as_u64().unwrap();
        assert!(cached(&answer) + 8 >= prompt, "{choice}: {answer}");
    }
}
