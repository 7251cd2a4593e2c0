//! Several models in one server: which answers, when each is loaded and when it goes.

use crate::client::{Connection, JSON, get, post};
use crate::running::{Running, details, engine, served, sizes};
use forerun_server::{
    LoadError, LoadModel, LoadedModel, ModelDetails, ModelEntry, RoomLeft, ServedModel, Settings,
};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Loads the bundled model, counts how often, and fails as it is told.
pub(crate) struct Source {
    loads: AtomicUsize,
    /// Why the next loads fail.
    fails: Mutex<Option<&'static str>>,
    /// Bytes that all models together may take, each taking one.
    limit: u64,
}

impl Source {
    fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { loads: AtomicUsize::new(0), fails: Mutex::new(None), limit })
    }

    pub(crate) fn loads(&self) -> usize {
        self.loads.load(Ordering::SeqCst)
    }
}

impl LoadModel for Source {
    fn details(&self) -> ModelDetails {
        details()
    }

    fn load(&self, room: RoomLeft) -> Result<LoadedModel, LoadError> {
        if room.others + 1 > self.limit {
            assert!(!room.shorten, "the others can make room");
            return Err(LoadError::NoRoom("2 GiB are needed and 1 GiB is free".to_owned()));
        }
        self.loads.fetch_add(1, Ordering::SeqCst);
        if let Some(why) = *self.fails.lock().unwrap() {
            return Err(LoadError::Failed(why.to_owned()));
        }
        let ServedModel { tokenizer, template, defaults, pooling, .. } = served();
        let engine = engine(&sizes());
        Ok(LoadedModel { engine, tokenizer, template, defaults, pooling, bytes: 1 })
    }
}

fn entry(name: &str, aliases: &[&str], source: &Arc<Source>) -> ModelEntry {
    let aliases = aliases.iter().map(|&alias| alias.to_owned()).collect();
    ModelEntry { name: name.to_owned(), aliases, loader: Arc::clone(source) as _ }
}

/// Models `a` (also `gpt-*`) and `b`.
pub(crate) fn two(settings: Settings, limit: u64) -> (Running, Arc<Source>, Arc<Source>) {
    let (a, b) = (Source::new(limit), Source::new(limit));
    let models = vec![entry("a", &["gpt-*", "other"], &a), entry("b", &[], &b)];
    (Running::several(models, settings), a, b)
}

fn ask(server: &Running, model: &str) -> (u16, Value) {
    let body = json!({"model": model, "prompt": "Once", "max_tokens": 2, "temperature": 0});
    let response = post(server.address, "/v1/completions", &body);
    (response.status, response.json())
}

pub(crate) fn state(server: &Running, model: &str) -> String {
    let card = get(server.address, &format!("/v1/models/{model}")).json();
    card["state"].as_str().unwrap().to_owned()
}

pub(crate) fn wait_for(server: &Running, model: &str, expected: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while state(server, model) != expected {
        assert!(Instant::now() < deadline, "{model} is {} for ever", state(server, model));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_model_of_a_request_is_loaded_and_answers_under_its_name() {
    let (server, a, b) = two(Settings::default(), 9);
    assert_eq!(get(server.address, "/health/ready").status, 200);
    let listed = get(server.address, "/v1/models").json();
    let ids: Vec<&str> =
        listed["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["a", "other", "b"]);
    assert!(listed["data"].as_array().unwrap().iter().all(|m| m["state"] == "unloaded"));
    assert!(listed["data"][0].get("max_model_len").is_none(), "{listed}");
    for (asked, answers) in [("b", "b"), ("gpt-4o", "a"), ("other", "a")] {
        let (status, body) = ask(&server, asked);
        assert_eq!((status, &body["model"]), (200, &json!(answers)), "{body}");
    }
    assert_eq!((a.loads(), b.loads()), (1, 1));
    let card = get(server.address, "/v1/models/a").json();
    assert_eq!((&card["state"], &card["max_model_len"]), (&json!("loaded"), &json!(1024)));
}

#[test]
fn a_name_nobody_has_and_a_request_without_one_are_told_what_there_is() {
    let (server, a, b) = two(Settings::default(), 9);
    let (status, body) = ask(&server, "c");
    assert_eq!((status, &body["error"]["code"]), (404, &json!("model_not_found")));
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.contains("`a`, `b`") && message.contains("`c`"), "{message}");
    for path in ["/v1/completions", "/tokenize"] {
        let response = post(server.address, path, &json!({"prompt": "A"}));
        assert_eq!(
            (response.status, response.json()["error"]["param"].clone()),
            (400, json!("model"))
        );
        assert!(response.text().contains("`a`, `b`"), "{}", response.text());
    }
    // What is wrong with a request is told without loading anything.
    let body = json!({"model": "a", "prompt": "A", "surprise": 1});
    assert_eq!(post(server.address, "/v1/completions", &body).status, 400);
    assert_eq!((a.loads(), b.loads()), (0, 0));
}

#[test]
fn first_requests_that_come_together_load_the_model_once() {
    let (server, a, _) = two(Settings::default(), 9);
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..4).map(|_| scope.spawn(|| ask(&server, "a"))).collect();
        for asked in asked {
            let (status, body) = asked.join().unwrap();
            assert_eq!(status, 200, "{body}");
        }
    });
    assert_eq!(a.loads(), 1);
}

#[test]
fn a_model_that_cannot_be_loaded_says_why_and_harms_nobody_else() {
    let (server, a, _) = two(Settings::default(), 9);
    *a.fails.lock().unwrap() = Some("a tensor is missing");
    let (status, body) = ask(&server, "a");
    assert_eq!((status, &body["error"]["code"]), (500, &json!("model_failed")), "{body}");
    assert!(body["error"]["message"].as_str().unwrap().contains("a tensor is missing"), "{body}");
    let card = get(server.address, "/v1/models/a").json();
    assert_eq!(card["state"], "failed");
    assert!(card["error"].as_str().unwrap().contains("a tensor is missing"));
    assert_eq!(ask(&server, "b").0, 200);
    // The next request tries again.
    *a.fails.lock().unwrap() = None;
    assert_eq!(ask(&server, "a").0, 200);
    assert_eq!((state(&server, "a").as_str(), a.loads()), ("loaded", 2));
}

#[test]
fn a_model_that_nobody_uses_is_unloaded_and_comes_back() {
    let unload_after = Some(Duration::from_millis(200));
    let (server, a, _) = two(Settings { unload_after, ..Settings::default() }, 9);
    let (_, first) = ask(&server, "a");
    let metrics = get(server.address, "/metrics").text().to_owned();
    let counted = "forerun:request_success_total{model_name=\"a\",finished_reason=\"length\"} 1";
    assert!(metrics.contains(counted), "{metrics}");
    assert!(metrics.contains("forerun:steps_total{model_name=\"b\"} 0"), "{metrics}");
    assert_eq!(metrics.matches("# TYPE forerun:steps counter").count(), 1);
    wait_for(&server, "a", "unloaded");
    // Its memory goes with its thread.
    let deadline = Instant::now() + Duration::from_secs(30);
    let gone = "forerun:model_loaded{model_name=\"a\"} 0";
    while !get(server.address, "/metrics").text().contains(gone) {
        assert!(Instant::now() < deadline, "the model's memory stays");
        std::thread::sleep(Duration::from_millis(20));
    }
    let (_, second) = ask(&server, "a");
    assert_eq!(first["choices"][0]["text"], second["choices"][0]["text"]);
    assert_eq!(a.loads(), 2);
}

#[test]
fn a_model_makes_room_for_another_once_nobody_uses_it() {
    let patience = Duration::from_millis(300);
    let (server, a, b) = two(Settings { patience, unload_after: None, ..Settings::default() }, 1);
    assert_eq!(ask(&server, "a").0, 200);
    assert_eq!(ask(&server, "b").0, 200);
    assert_eq!(
        (state(&server, "a").as_str(), state(&server, "b").as_str()),
        ("unloaded", "loaded")
    );
    // While `b` answers it stays, and `a` has to wait.
    let body = json!({"model": "b", "prompt": "Once", "max_tokens": 1000, "ignore_eos": true,
                      "stream": true, "n": 4});
    let mut stream = Connection::open(server.address);
    stream.ask("POST", "/v1/completions", &[JSON], body.to_string().as_bytes());
    assert_eq!(stream.head().unwrap().status, 200);
    let (status, told) = ask(&server, "a");
    assert_eq!((status, &told["error"]["code"]), (503, &json!("no_room")), "{told}");
    assert!(told["error"]["message"].as_str().unwrap().contains("2 GiB are needed"), "{told}");
    // The stream comes to its end.
    let mut last = String::new();
    while let Some(line) = stream.line().filter(|line| line != "0") {
        if line.starts_with("data: ") {
            last = line;
        }
    }
    assert_eq!(last, "data: [DONE]");
    assert_eq!(ask(&server, "a").0, 200);
    assert_eq!((a.loads(), b.loads()), (2, 1));
}
