//! Ollama's native API.

use crate::client::{Response, get, post};
use crate::running::{Running, served, sizes, thinking};
use crate::several::{state, two, wait_for};
use forerun_server::{ServedModel, Settings};
use serde_json::{Value, json};
use std::time::Duration;

fn lines(response: &Response) -> Vec<Value> {
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(response.header("content-type"), Some("application/x-ndjson"));
    response.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn chat(server: &Running, extra: Value) -> Response {
    let mut body = json!({"model": "tales", "messages": [{"role": "user", "content": "I want to eat"}],
                          "options": {"num_predict": 8, "seed": 5}});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    post(server.address, "/api/chat", &body)
}

#[test]
fn an_answer_comes_in_lines_and_is_that_of_the_other_apis() {
    let server = Running::start();
    let lines = lines(&chat(&server, json!({"model": "tales:latest"})));
    let (last, pieces) = lines.split_last().unwrap();
    assert!(
        pieces.iter().all(|line| line["done"] == false && line["message"]["role"] == "assistant")
    );
    let text: String =
        pieces.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect();
    let other = json!({"messages": [{"role": "user", "content": "I want to eat"}],
                       "max_tokens": 8, "seed": 5});
    let other = post(server.address, "/v1/chat/completions", &other).json();
    assert_eq!(other["choices"][0]["message"]["content"], text);
    assert_eq!((&last["done"], &last["model"]), (&json!(true), &json!("tales:latest")));
    assert_eq!(last["prompt_eval_count"], other["usage"]["prompt_tokens"]);
    assert_eq!(last["eval_count"], other["usage"]["completion_tokens"]);
    for name in ["total_duration", "load_duration", "prompt_eval_duration", "eval_duration"] {
        assert!(last[name].is_u64(), "{name} in {last}");
    }
    let whole = chat(&server, json!({"stream": false})).json();
    assert_eq!((&whole["message"]["content"], &whole["done"]), (&json!(text), &json!(true)));
    assert_eq!(whole["done_reason"], last["done_reason"]);
}

#[test]
fn a_prompt_is_a_message_and_a_raw_one_is_text() {
    let server = Running::start();
    let ask = |extra: Value| {
        let mut body = json!({"model": "tales", "prompt": "Once", "stream": false,
                              "options": {"num_predict": 6, "temperature": 0}});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        post(server.address, "/api/generate", &body).json()
    };
    let text = json!({"prompt": "Once", "max_tokens": 6, "temperature": 0});
    let text = post(server.address, "/v1/completions", &text).json();
    assert_eq!(ask(json!({"raw": true}))["response"], text["choices"][0]["text"]);
    let messages =
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Once"}]);
    let body = json!({"messages": messages, "max_tokens": 6, "temperature": 0});
    let said = post(server.address, "/v1/chat/completions", &body).json();
    assert_eq!(
        ask(json!({"system": "Be brief."}))["response"],
        said["choices"][0]["message"]["content"]
    );
    assert_eq!(ask(json!({"prompt": ""}))["done_reason"], "load");
    // A model without a template reads what is there.
    let model = ServedModel { template: None, ..served() };
    let plain = Running::with(&sizes(), model, Settings::default());
    let body = json!({"model": "tales", "prompt": "Once", "stream": false,
                      "options": {"num_predict": 6, "temperature": 0}});
    let told = post(plain.address, "/api/generate", &body).json();
    assert_eq!(told["response"], text["choices"][0]["text"]);
}

#[test]
fn formats_tools_and_thinking_are_those_of_the_other_apis() {
    let server = Running::with(&sizes(), thinking(), Settings::default());
    let schema = json!({"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
                        "additionalProperties": false});
    let options = json!({"num_predict": 40, "seed": 1});
    let told = chat(
        &server,
        json!({"format": schema, "think": false, "stream": false, "options": options}),
    );
    let text = told.json()["message"]["content"].as_str().unwrap().to_owned();
    let answer: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert!(answer["a"] == 1 || answer["a"] == 2, "{text}");
    let told = lines(&chat(&server, json!({"think": true})));
    assert!(told.iter().any(|line| line["message"]["thinking"].is_string()), "{told:?}");
    let tools = json!([{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]);
    let messages = json!([
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "look", "arguments": {"at": "it"}}}]},
        {"role": "tool", "tool_name": "look", "content": "A tree."},
    ]);
    let told = chat(&server, json!({"tools": tools, "messages": messages, "stream": false}));
    assert_eq!(told.status, 200, "{}", told.text());
}

#[test]
fn what_is_not_done_is_refused_by_name_in_the_form_of_this_api() {
    let server = Running::start();
    let image = json!([{"role": "user", "content": "What is it?", "images": ["aGk="]}]);
    for (extra, word) in [
        (json!({"messages": image}), "messages[0].images"),
        (json!({"options": {"mirostat": 1}}), "options.mirostat"),
        (json!({"options": {"repeat_last_n": 64, "repeat_penalty": 1.1}}), "options.repeat_last_n"),
        (json!({"options": {"surprise": 1}}), "options.surprise"),
        (json!({"options": {"temperature": -1}}), "temperature"),
        (json!({"format": "yaml"}), "format"),
        (json!({"keep_alive": "soon"}), "keep_alive"),
        (json!({"logprobs": true}), "logprobs"),
        (json!({"think": "a lot"}), "think"),
    ] {
        let response = chat(&server, extra);
        let error = response.json()["error"].as_str().unwrap_or_default().to_owned();
        assert!(response.status == 400 && error.contains(word), "{word}: {}", response.text());
    }
    assert_eq!(chat(&server, json!({"model": "other:7b"})).status, 404);
    let pull = post(server.address, "/api/pull", &json!({"model": "llama3"}));
    assert!(pull.status == 403 && pull.text().contains("forerun pull"), "{}", pull.text());
    assert_eq!(post(server.address, "/api/unknown", &json!({})).status, 404);
    let ignored =
        chat(&server, json!({"options": {"num_ctx": 4096, "num_predict": 2}, "keep_alive": "5m"}));
    assert_eq!(ignored.ignored(), Some("options.num_ctx, keep_alive"));
}

#[test]
fn models_are_listed_shown_and_counted() {
    let server = Running::start();
    let tags = get(server.address, "/api/tags").json();
    assert_eq!(tags["models"][0]["name"], "tales:latest", "{tags}");
    assert_eq!(get(server.address, "/api/ps").json()["models"].as_array().unwrap().len(), 1);
    let shown = post(server.address, "/api/show", &json!({"model": "tales"})).json();
    assert!(shown["capabilities"].as_array().unwrap().contains(&json!("completion")), "{shown}");
    assert!(get(server.address, "/api/version").json()["version"].is_string());
    let body = json!({"model": "tales", "input": ["A", "B"]});
    let told = post(server.address, "/api/embed", &body).json();
    let other = post(server.address, "/v1/embeddings", &json!({"input": "A"})).json();
    assert_eq!(told["embeddings"][0], other["data"][0]["embedding"]);
    assert_eq!(told["embeddings"].as_array().unwrap().len(), 2);
    let old =
        post(server.address, "/api/embeddings", &json!({"model": "tales", "prompt": "A"})).json();
    assert_eq!(old["embedding"], told["embeddings"][0]);
}

#[test]
fn keep_alive_says_when_a_model_goes() {
    let (server, a, _) = two(Settings { unload_after: None, ..Settings::default() }, 9);
    let ask = |extra: Value| {
        let mut body = json!({"model": "a", "prompt": "Once", "stream": false, "raw": true,
                              "options": {"num_predict": 1}});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let response = post(server.address, "/api/generate", &body);
        assert_eq!(response.status, 200, "{}", response.text());
        response.json()
    };
    ask(json!({"keep_alive": 0}));
    wait_for(&server, "a", "unloaded");
    ask(json!({"keep_alive": "1h"}));
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(state(&server, "a"), "loaded");
    let told = ask(json!({"prompt": "", "keep_alive": 0}));
    assert_eq!(
        (told["done_reason"].as_str(), state(&server, "a").as_str()),
        (Some("unload"), "unloaded")
    );
    assert_eq!(get(server.address, "/api/ps").json()["models"], json!([]));
    assert_eq!(a.loads(), 2);
}
