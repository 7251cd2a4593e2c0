//! What docs/server.md says, done: its examples, endpoints, fields and metrics.

use crate::client::{JSON, Response, get, post, post_bytes};
use crate::running::{Running, engine, served, sizes, thinking};
use forerun_engine::{CacheSettings, DiskSettings, Settings as EngineSettings};
use forerun_server::Settings;
use serde_json::{Value, json};
use std::path::PathBuf;

fn page(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rows of the tables in a section, by their first cell.
fn rows(title: &str) -> Vec<String> {
    let text = page("docs/server.md");
    let (_, section) = text.split_once(&format!("\n## {title}\n")).expect(title);
    let section = section.split("\n## ").next().unwrap();
    let cells = section.lines().filter_map(|line| line.strip_prefix("| "));
    let first = cells.map(|line| line.split(" | ").next().unwrap().to_owned());
    first.filter(|cell| cell.starts_with('`')).collect()
}

/// What stands in backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The words of the first shell command in a text.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut rest = text.chars();
    while let Some(char) = rest.next() {
        match (char, quote) {
            ('\'' | '"', None) => {
                quote = Some(char);
                word.get_or_insert_default();
            }
            (char, Some(open)) if char == open => quote = None,
            ('\\', None | Some('"')) => match rest.next() {
                Some('\n') | None => {}
                Some(other) => word.get_or_insert_default().push(other),
            },
            ('\n', None) => break,
            (' ', None) => words.extend(word.take()),
            (char, _) => word.get_or_insert_default().push(char),
        }
    }
    words.extend(word);
    words
}

/// Does what a `curl` command does.
fn curl(server: &Running, words: &[String]) -> Response {
    let (mut headers, mut body, mut path) = (Vec::new(), None, None);
    let mut rest = words[1..].iter();
    while let Some(word) = rest.next() {
        match word.as_str() {
            "-H" => headers.push(rest.next().unwrap().as_str()),
            "-d" => body = Some(rest.next().unwrap()),
            "-s" | "-N" | "-sN" | "-Ns" => {}
            url if !url.starts_with('-') => {
                let (_, after) = url.trim_start_matches("http://").split_once('/').unwrap();
                path = Some(format!("/{after}"));
            }
            other => panic!("{other} in {words:?}"),
        }
    }
    let path = path.unwrap();
    match body {
        Some(body) => post_bytes(server.address, &path, &headers, body.as_bytes()),
        None => get(server.address, &path),
    }
}

#[test]
fn every_example_of_a_request_is_answered() {
    let server = Running::start();
    let mut done = 0;
    for name in
        ["README.md", "docs/usage.md", "docs/server.md", "docs/grammars.md", "docs/deployment.md"]
    {
        let text = page(name);
        for (at, _) in text.match_indices("\ncurl ") {
            let words = words(&text[at + 1..]);
            let response = curl(&server, &words);
            assert_eq!(response.status, 200, "{name}: {words:?}: {}", response.text());
            done += 1;
        }
    }
    assert!(done >= 3, "{done} examples");
}

#[test]
fn every_documented_endpoint_answers() {
    let server = caching(served());
    let named = [JSON, "x-request-id: named"];
    let body = br#"{"prompt": "A", "max_tokens": 1}"#;
    assert_eq!(post_bytes(server.address, "/v1/completions", &named, body).status, 200);
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let short = json!({"num_predict": 1});
    let mut done = 0;
    for row in rows("Endpoints") {
        let method = row.trim_start_matches('`').split(' ').next().unwrap().to_owned();
        for path in quoted(&row) {
            let path = path.trim_start_matches(method.as_str()).trim();
            let path = path.replace("{name}", "tales").replace("{request id}", "named");
            let body = match path.as_str() {
                "/v1/chat/completions" | "/v1/messages" => {
                    json!({"messages": messages, "max_tokens": 1})
                }
                "/v1/messages/count_tokens" => json!({"messages": messages}),
                "/v1/completions" => json!({"prompt": "A", "max_tokens": 1}),
                "/v1/responses" => json!({"input": "Hi", "max_output_tokens": 1}),
                "/v1/embeddings" => json!({"input": "A"}),
                "/v1/rerank" => {
                    json!({"query": "A", "documents": ["B"], "method": "embedding_cosine"})
                }
                "/api/chat" => json!({"model": "tales", "messages": messages, "options": short}),
                "/api/generate" => json!({"model": "tales", "prompt": "A", "options": short}),
                "/api/embed" => json!({"model": "tales", "input": "A"}),
                "/api/embeddings" => json!({"model": "tales", "prompt": "A"}),
                "/api/show" => json!({"model": "tales"}),
                "/tokenize" => json!({"prompt": "A"}),
                "/detokenize" => json!({"tokens": [5]}),
                _ => Value::Null,
            };
            let response = match method.as_str() {
                "POST" => post(server.address, &path, &body),
                _ => get(server.address, &path),
            };
            assert_eq!(response.status, 200, "{method} {path}: {}", response.text());
            assert!(response.header("x-request-id").is_some(), "{path}");
            done += 1;
        }
    }
    assert!(done >= 18, "{done} endpoints");
}

fn caching(model: forerun_server::ServedModel) -> Running {
    let cache = CacheSettings { bytes: 64 << 20, ..CacheSettings::default() };
    Running::with(&EngineSettings { cache, ..sizes() }, model, Settings::default())
}

/// Asks with some fields beside those that are needed.
struct Asker {
    server: Running,
    thinking: Running,
}

fn with(mut body: Value, extra: Value) -> Value {
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn answered(response: &Response) -> Value {
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

impl Asker {
    fn text(&self, extra: Value) -> Value {
        let body = json!({"prompt": "Once upon a time there was a little fox who", "max_tokens": 16, "temperature": 0});
        answered(&post(self.server.address, "/v1/completions", &with(body, extra)))
    }

    fn said(&self, extra: Value) -> String {
        self.text(extra)["choices"][0]["text"].as_str().unwrap().to_owned()
    }

    fn chat(&self, extra: Value) -> Value {
        self.chat_with(&self.server, extra)
    }

    fn thoughtful(&self, extra: Value) -> Value {
        self.chat_with(&self.thinking, extra)
    }

    fn chat_with(&self, server: &Running, extra: Value) -> Value {
        let messages = json!([{"role": "user", "content": "I want to eat tonight."}]);
        let body = json!({"messages": messages, "max_tokens": 60, "temperature": 0});
        answered(&post(server.address, "/v1/chat/completions", &with(body, extra)))
    }
}

/// A field, and what shows that it does what the page says.
type Case = (&'static str, fn(&Asker) -> bool);

const PROMPT: &[Case] = &[
    ("model", |ask| ask.chat(json!({"model": "other/name"}))["model"] == "tales"),
    ("messages", |ask| {
        let call =
            json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
        let messages = json!([
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "done"},
        ]);
        let whole = ask.chat(json!({"messages": messages}))["usage"]["prompt_tokens"].as_u64();
        let first = json!([{"role": "developer", "content": "Be kind."}, messages[1]]);
        whole > ask.chat(json!({"messages": first}))["usage"]["prompt_tokens"].as_u64()
    }),
    ("prompt", |ask| {
        ask.text(json!({"prompt": ["A", "The"]}))["choices"].as_array().unwrap().len() == 2
            && ask.text(json!({"prompt": [[5, 6]]}))["usage"]["prompt_tokens"] == 2
    }),
    ("chat_template_kwargs", |ask| {
        let off = ask.thoughtful(json!({"chat_template_kwargs": {"enable_thinking": false}}));
        off["usage"]["prompt_tokens"] != ask.thoughtful(json!({}))["usage"]["prompt_tokens"]
    }),
    ("cache_prompt", |ask| {
        let answer = ask.chat(json!({"cache_prompt": false}));
        answer["timings"]["cache"]["miss"]["reason"] == "disabled"
    }),
    ("cache_salt", |ask| {
        let text = "The fox and the crow met in the wood and spoke of cheese. ".repeat(10);
        let cached = |salt: Value| {
            ask.text(json!({"prompt": text, "cache_salt": salt}))["timings"]["cached_tokens"]
                .as_u64()
        };
        cached(json!("a")) == Some(0)
            && cached(json!("b")) == Some(0)
            && cached(json!("a")) > Some(60)
    }),
    ("prompt_cache_key", |ask| {
        ask.chat(json!({"prompt_cache_key": "a"}))["usage"]["completion_tokens"].as_u64() > Some(0)
    }),
    ("cache_control", |ask| {
        let mark = json!({"type": "ephemeral"});
        let text = "You are a kind helper who books tables and trains for guests. ".repeat(10);
        let marked = |question: &str| {
            let part = json!({"type": "text", "text": text, "cache_control": mark});
            let messages =
                json!([{"role": "user", "content": [part]}, {"role": "user", "content": question}]);
            let body = json!({"messages": messages, "cache_salt": "control"});
            ask.chat(body)["timings"]["cached_tokens"].as_u64()
        };
        marked("One?") == Some(0) && marked("Two!") > Some(60)
    }),
];

const SAMPLING: &[Case] = &[
    ("temperature", |ask| ask.said(json!({"temperature": 1.5, "seed": 1})) != ask.said(json!({}))),
    ("top_p", |ask| {
        ask.said(json!({"temperature": 1.5, "seed": 1, "top_p": 1e-6})) == ask.said(json!({}))
    }),
    ("top_k", |ask| {
        ask.said(json!({"temperature": 1.5, "seed": 1, "top_k": 1})) == ask.said(json!({}))
    }),
    ("min_p", |ask| {
        ask.said(json!({"temperature": 1.5, "seed": 1, "min_p": 1.0})) == ask.said(json!({}))
    }),
    ("repetition_penalty", |ask| penalised(ask, json!({"repetition_penalty": 1.5}))),
    ("presence_penalty", |ask| penalised(ask, json!({"presence_penalty": 2.0}))),
    ("frequency_penalty", |ask| penalised(ask, json!({"frequency_penalty": 2.0}))),
    ("logit_bias", |ask| {
        let said =
            ask.said(json!({"logit_bias": {"300": 100}, "max_tokens": 2, "ignore_eos": true}));
        let one = post(ask.server.address, "/detokenize", &json!({"tokens": [300, 300]})).json();
        said == one["prompt"].as_str().unwrap()
    }),
    ("seed", |ask| {
        let said = |seed: u64| ask.said(json!({"temperature": 1.2, "seed": seed}));
        said(7) == said(7) && said(7) != said(8)
    }),
];

fn penalised(ask: &Asker, penalty: Value) -> bool {
    ask.said(with(penalty, json!({"max_tokens": 80}))) != ask.said(json!({"max_tokens": 80}))
}

const LENGTH: &[Case] = &[
    ("max_tokens", |ask| long(&ask.text(json!({"max_tokens": 3, "ignore_eos": true}))) == 3),
    ("max_completion_tokens", |ask| {
        long(&ask.chat(json!({"max_tokens": null, "max_completion_tokens": 3, "ignore_eos": true})))
            == 3
    }),
    ("n", |ask| ask.chat(json!({"n": 2}))["choices"].as_array().unwrap().len() == 2),
    ("stop", |ask| {
        let said = ask.said(json!({}));
        let stop = said.trim().split(' ').nth(1).unwrap();
        let answer = ask.text(json!({"stop": [stop]}));
        answer["choices"][0]["stop_reason"] == stop
            && !answer["choices"][0]["text"].as_str().unwrap().contains(stop)
    }),
    ("ignore_eos", |ask| long(&ask.chat(json!({"max_tokens": 200, "ignore_eos": true}))) == 200),
    ("speculation", |ask| {
        let drafted = |depth: Value| {
            let answer = ask.text(json!({"speculation": depth}));
            answer["timings"]["speculation"]["drafted"].as_u64().unwrap()
        };
        drafted(json!("off")) == 0 && drafted(json!(4)) > 0
    }),
    ("priority", |ask| long(&ask.text(json!({"priority": -1}))) > 0),
    ("stream", |ask| streamed(ask, json!({"stream": true})).1 == 0),
    ("stream_options.include_usage", |ask| {
        let (chunks, usages) =
            streamed(ask, json!({"stream": true, "stream_options": {"include_usage": true}}));
        chunks > 2 && usages == 1
    }),
];

fn long(answer: &Value) -> u64 {
    answer["usage"]["completion_tokens"].as_u64().unwrap()
}

/// Chunks of a stream, and how many of them tell of usage.
fn streamed(ask: &Asker, extra: Value) -> (usize, usize) {
    let body = with(json!({"prompt": "Once upon a time", "max_tokens": 8}), extra);
    let chunks = post(ask.server.address, "/v1/completions", &body).events();
    (chunks.len(), chunks.iter().filter(|chunk| chunk["usage"].is_object()).count())
}

const FORM: &[Case] = &[
    ("tools", |ask| called(&ask.chat(tools(json!("required"))))),
    ("tool_choice", |ask| {
        let named = json!({"type": "function", "function": {"name": "book"}});
        called(&ask.chat(tools(named))) && !called(&ask.chat(tools(json!("none"))))
    }),
    ("parallel_tool_calls", |ask| {
        let single = with(tools(json!("required")), json!({"parallel_tool_calls": false}));
        let answer = ask.chat(single);
        answer["choices"][0]["message"]["tool_calls"].as_array().map(Vec::len) == Some(1)
    }),
    ("response_format", |ask| {
        let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false});
        let format = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}});
        let answer = ask.chat(json!({"response_format": format}));
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        serde_json::from_str::<Value>(text).unwrap()["a"].is_boolean()
    }),
    ("structured_outputs", |ask| {
        ["yes", "no"]
            .contains(&ask.said(json!({"structured_outputs": {"choice": ["yes", "no"]}})).as_str())
    }),
    ("enable_thinking", |ask| {
        let thought = |on: bool| ask.thoughtful(json!({"enable_thinking": on}));
        thought(true)["usage"]["prompt_tokens"] != thought(false)["usage"]["prompt_tokens"]
    }),
    ("reasoning_effort", |ask| {
        let none = ask.thoughtful(json!({"reasoning_effort": "none"}));
        none["usage"]["prompt_tokens"]
            == ask.thoughtful(json!({"enable_thinking": false}))["usage"]["prompt_tokens"]
    }),
    ("thinking_budget", |ask| {
        let answer = ask.thoughtful(json!({"thinking_budget": 4}));
        let told = &answer["usage"]["completion_tokens_details"]["reasoning_tokens"];
        told.as_u64().is_some_and(|tokens| tokens <= 12)
    }),
    ("logprobs", |ask| {
        ask.chat(json!({"logprobs": true}))["choices"][0]["logprobs"]["content"].is_array()
            && ask.text(json!({"logprobs": 2}))["choices"][0]["logprobs"]["tokens"].is_array()
    }),
    ("echo", |ask| {
        let answer = ask.text(json!({"prompt": "Once", "echo": true, "max_tokens": 1}));
        answer["choices"][0]["text"].as_str().unwrap().starts_with("Once")
    }),
    ("prompt_logprobs", |ask| {
        ask.text(json!({"prompt_logprobs": 1}))["choices"][0]["prompt_logprobs"][0].is_null()
    }),
    ("return_token_ids", |ask| {
        let answer = ask.text(json!({"return_token_ids": true, "max_tokens": 2}));
        answer["choices"][0]["token_ids"].as_array().map(Vec::len) == Some(2)
    }),
    ("top_logprobs", |ask| {
        let answer = ask.chat(json!({"logprobs": true, "top_logprobs": 2}));
        let first = &answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"];
        first.as_array().map(Vec::len) == Some(2)
    }),
];

fn tools(choice: Value) -> Value {
    let parameters = json!({"type": "object", "properties": {"at": {"enum": [7, 8]}}, "required": ["at"], "additionalProperties": false});
    let tool = json!({"type": "function", "function": {"name": "book", "parameters": parameters}});
    json!({"tools": [tool], "tool_choice": choice, "max_tokens": 200})
}

fn called(answer: &Value) -> bool {
    answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "book"
}

#[test]
fn every_documented_field_of_a_request_does_what_is_said() {
    let ask = Asker { server: caching(served()), thinking: caching(thinking()) };
    let cases: Vec<&Case> = [PROMPT, SAMPLING, LENGTH, FORM].into_iter().flatten().collect();
    for (name, shows) in &cases {
        assert!(shows(&ask), "{name}");
    }
    for row in rows("Fields of a request") {
        for field in quoted(&row) {
            let end = field.find(|char: char| !(char.is_ascii_lowercase() || "_.".contains(char)));
            let name = &field[..end.unwrap_or(field.len())];
            let elsewhere = ["system", "max_output_tokens", "input", "do_sample"].contains(&name);
            let known = cases.iter().any(|(case, _)| *case == name);
            assert!(known || elsewhere || other_api(&row), "{name} has no case: {row}");
        }
    }
}

/// Rows about the other APIs, which have tests of their own (`messages`, `responses`, `ollama`).
fn other_api(row: &str) -> bool {
    ["`system`", "`max_tokens`, `stop", "`tools`, `tool_choice` ", "`thinking` ", "`output_config"]
        .iter()
        .chain(&["`cache_control` ", "`input`", "`max_output", "`reasoning.effort", "`store`"])
        .chain(&["`thinking`", "`tools`, `tool_choice`", "`cache_control`", "`/v1/"])
        .chain(&["`/api/", "`format`", "`think`", "`options`", "`keep_alive`", "`background`"])
        .any(|start| row.starts_with(start.trim_end()))
}

/// What has a number on the page and is one more than that.
#[test]
fn one_more_than_a_documented_limit_is_refused_by_its_number() {
    let server = Running::start();
    let hi = json!({"role": "user", "content": "Hi"});
    let many = |one: &Value, count: usize| Value::Array(vec![one.clone(); count]);
    let biases: Value = (0..16_385)
        .map(|i| (format!("{i:06}"), json!(1)))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let item = json!({"type": "message", "role": "user", "content": "Hi"});
    let nested = (0..127).fold(json!([]), |inner, _| json!([inner]));
    let (chat, text) = ("/v1/chat/completions", "/v1/completions");
    for (path, body, limit) in [
        (chat, json!({"messages": many(&hi, 10_001)}), "10000"),
        ("/tokenize", json!({"messages": many(&hi, 10_001)}), "10000"),
        ("/v1/messages", json!({"messages": many(&hi, 10_001), "max_tokens": 1}), "10000"),
        ("/v1/messages/count_tokens", json!({"messages": many(&hi, 10_001)}), "10000"),
        ("/v1/responses", json!({"input": many(&item, 10_001)}), "10000"),
        (text, json!({"prompt": "A", "logit_bias": biases}), "16384"),
        (text, json!({"prompt": "A", "stop": many(&json!("a"), 17)}), "16"),
        (text, json!({"prompt": "A", "stop": "a".repeat(513)}), "512"),
        (text, json!({"prompt": "A", "n": 129}), "128"),
        (text, json!({"prompt": nested}), "128"),
        (text, json!({"prompt": "A", "cache_salt": "a".repeat(1025)}), "1024"),
        (text, json!({"prompt": "A", "logprobs": 21}), "20"),
    ] {
        let response = post(server.address, path, &body);
        let told = response.text();
        assert_eq!(response.status, 400, "{path}, {limit}: {told}");
        assert!(told.replace(',', "").contains(limit), "{path}, {limit}: {told}");
    }
    let just = json!({"prompt": "A", "max_tokens": 1, "n": 128, "cache_salt": "a".repeat(1024), "logprobs": 20,
        "stop": many(&json!("a".repeat(512)), 16)});
    assert_eq!(post(server.address, text, &just).status, 200);
}

#[test]
fn every_documented_metric_is_told() {
    let folder = std::env::temp_dir().join(format!("forerun-metrics-{}", std::process::id()));
    let cache = CacheSettings { bytes: 64 << 20, ..CacheSettings::default() };
    let mut engine = engine(&EngineSettings { cache, ..sizes() });
    let (bytes, identity) = (64 << 20, "a test".to_owned());
    engine.open_disk_cache(&DiskSettings { folder: folder.clone(), bytes, identity }).unwrap();
    let server = Running::of(engine, served(), Settings::default());
    let body = json!({"prompt": "Once upon a time", "max_tokens": 20, "speculation": 4});
    assert_eq!(post(server.address, "/v1/completions", &body).status, 200);
    let text = get(server.address, "/metrics").text().to_owned();
    let mut done = 0;
    for row in rows("Metrics") {
        for name in quoted(&row) {
            // Names of one row may be told by their ends.
            let first = quoted(&row).next().unwrap();
            let stem = first.split("bytes").next().unwrap().trim_end_matches('_');
            let name =
                if name.starts_with('_') { format!("{stem}{name}") } else { name.to_owned() };
            let (name, label) = name.split_once('{').unwrap_or((&name, "}"));
            let start = format!("forerun:{}", name.trim_end_matches('*'));
            let label = label.trim_end_matches('}');
            let told = |line: &str| {
                line.strip_prefix(&start).is_some_and(|rest| {
                    let whole = name.ends_with('*')
                        || rest.starts_with(['{', ' '])
                        || ["_bucket", "_count", "_sum"].iter().any(|part| rest.starts_with(part));
                    whole && label.split(',').all(|label| rest.contains(label))
                })
            };
            assert!(text.lines().any(told), "{name}{{{label}}} is not in\n{text}");
            done += 1;
        }
    }
    assert!(done > 30, "{done} metrics");
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}
