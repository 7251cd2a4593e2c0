//! Texts that are read: prompts told back with log-probabilities, token ids, embeddings, rankings.

use crate::client::{get, post};
use crate::running::{Running, folder};
use forerun::{Model, Options, Pooling};
use serde_json::{Value, json};

const TEXT: &str = "The king had three sons, and the youngest was called Hans.";

fn library() -> Model {
    let options = Options { context: Some(256), sequences: 1, ..Options::default() };
    Model::open_with(folder(), &options).unwrap()
}

fn ask(server: &Running, body: &Value) -> Value {
    let response = post(server.address, "/v1/completions", body);
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect()
}

#[test]
fn a_prompt_is_told_back_with_the_log_probabilities_that_score_has() {
    let server = Running::start();
    let scores = library().score(TEXT).unwrap();
    let body = json!({"prompt": TEXT, "echo": true, "logprobs": 2, "max_tokens": 0});
    let choice = &ask(&server, &body)["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(TEXT), &json!("length")));
    let told = &choice["logprobs"];
    let logprobs = told["token_logprobs"].as_array().unwrap();
    assert!(logprobs[0].is_null() && told["top_logprobs"][0].is_null(), "{told}");
    assert_eq!(logprobs.len(), scores.token_ids.len());
    for (at, (told, expected)) in logprobs.iter().zip(&scores.logprobs).enumerate().skip(1) {
        assert_eq!(told.as_f64().unwrap() as f32, expected.unwrap() as f32, "token {at}");
    }
    // The texts of the tokens are the text, and the offsets say where each begins.
    let tokens: Vec<&str> =
        told["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    let offsets = numbers(&told["text_offset"]);
    for (at, offset) in offsets.iter().enumerate() {
        assert_eq!(tokens[..at].concat().chars().count() as f64, *offset);
    }
    assert!(tokens.concat().ends_with(TEXT), "{tokens:?}");
    let top = told["top_logprobs"][3].as_object().unwrap();
    assert!((2..=3).contains(&top.len()) && top.contains_key(tokens[3]), "{top:?}");
}

#[test]
fn an_evaluation_harness_gets_what_it_asks_for() {
    let server = Running::start();
    let tokens = library().tokenize(TEXT).unwrap();
    let half = tokens.len() / 2;
    // As lm-eval asks: batches of token ids, one token generated, which it cuts off again.
    let body = json!({"prompt": [tokens, tokens[..half]], "echo": true, "logprobs": 1,
                      "max_tokens": 1, "temperature": 0, "seed": 1234});
    let body = ask(&server, &body);
    let choices = body["choices"].as_array().unwrap();
    for (choice, read) in choices.iter().zip([tokens.len(), half]) {
        let told = &choice["logprobs"];
        for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            assert_eq!(told[list].as_array().unwrap().len(), read + 1, "{list}");
        }
    }
    let read = |choice: usize| {
        numbers(&json!(
            choices[choice]["logprobs"]["token_logprobs"].as_array().unwrap()[1..half].to_vec()
        ))
    };
    assert_eq!(read(0), read(1));
    assert_eq!(body["usage"]["prompt_tokens"], tokens.len() + half);
    assert_eq!(body["usage"]["completion_tokens"], 2);
}

#[test]
fn an_echo_is_streamed_first_and_the_answer_is_the_same_as_without() {
    let server = Running::start();
    let plain = json!({"prompt": TEXT, "max_tokens": 5, "temperature": 0});
    let answer = ask(&server, &plain)["choices"][0]["text"].as_str().unwrap().to_owned();
    let mut body = plain.clone();
    body["echo"] = true.into();
    assert_eq!(ask(&server, &body)["choices"][0]["text"], format!("{TEXT}{answer}"));
    body["stream"] = true.into();
    let events = post(server.address, "/v1/completions", &body).events();
    assert_eq!(events[0]["choices"][0]["text"], TEXT);
    let rest: String =
        events[1..].iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(rest, answer);
    for (extra, param) in [
        (json!({"prompt": "A", "max_tokens": 0}), "max_tokens"),
        (json!({"prompt": "A", "echo": true, "logprobs": 21}), "logprobs"),
        (json!({"prompt": "A", "prompt_logprobs": 21}), "prompt_logprobs"),
    ] {
        let response = post(server.address, "/v1/completions", &extra);
        assert_eq!((response.status, &response.json()["error"]["param"]), (400, &json!(param)));
    }
}

#[test]
fn prompt_logprobs_are_told_by_token_id_with_ranks() {
    let server = Running::start();
    let scores = library().score(TEXT).unwrap();
    let body = json!({"prompt": TEXT, "prompt_logprobs": 1, "max_tokens": 1});
    let choice = &ask(&server, &body)["choices"][0];
    let told = choice["prompt_logprobs"].as_array().unwrap();
    assert!(told[0].is_null() && choice["logprobs"].is_null());
    for (at, (&token, expected)) in
        scores.token_ids.iter().zip(&scores.logprobs).enumerate().skip(1)
    {
        let own = &told[at][token.to_string()];
        assert_eq!(own["logprob"].as_f64().unwrap() as f32, expected.unwrap() as f32, "{at}");
        let others = told[at].as_object().unwrap().len();
        assert_eq!(others, if own["rank"] == 1 { 1 } else { 2 }, "{at}: {}", told[at]);
    }
}

#[test]
fn token_ids_are_told_where_they_are_asked_for() {
    let server = Running::start();
    let prompt = library().tokenize(TEXT).unwrap();
    let body = json!({"prompt": TEXT, "max_tokens": 6, "temperature": 0, "return_token_ids": true});
    let whole = ask(&server, &body);
    let choice = &whole["choices"][0];
    assert_eq!(choice["prompt_token_ids"], json!(prompt));
    let ids = choice["token_ids"].as_array().unwrap().clone();
    assert_eq!(ids.len(), 6);
    let streamed = |path: &str, mut body: Value| -> (Value, Vec<Value>) {
        body["stream"] = true.into();
        let events = post(server.address, path, &body).events();
        let first = [&events[0]["prompt_token_ids"], &events[0]["choices"][0]["prompt_token_ids"]];
        let prompt = first.into_iter().find(|ids| !ids.is_null()).unwrap().clone();
        let ids = events.iter().filter_map(|event| event["choices"][0]["token_ids"].as_array());
        (prompt, ids.flatten().cloned().collect())
    };
    assert_eq!(streamed("/v1/completions", body), (json!(prompt), ids));
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "seed": 3,
                      "return_token_ids": true});
    let whole = post(server.address, "/v1/chat/completions", &chat).json();
    let tokens = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let tokens = post(server.address, "/tokenize", &tokens).json()["tokens"].clone();
    assert_eq!(whole["prompt_token_ids"], tokens);
    let ids = whole["choices"][0]["token_ids"].as_array().unwrap().clone();
    assert_eq!(streamed("/v1/chat/completions", chat), (tokens, ids));
}

#[test]
fn usage_comes_with_each_chunk_where_it_is_asked_for() {
    let server = Running::start();
    for (path, prompt) in [
        ("/v1/completions", json!({"prompt": TEXT})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": TEXT}]})),
    ] {
        let mut body = prompt;
        body["max_tokens"] = 6.into();
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
        let events = post(server.address, path, &body).events();
        let counts: Vec<u64> = events
            .iter()
            .map(|event| event["usage"]["completion_tokens"].as_u64().unwrap())
            .collect();
        assert!(counts.is_sorted() && counts.last() == Some(&6), "{path}: {counts:?}");
        let last = &events[events.len() - 1]["usage"];
        assert_eq!(events[events.len() - 2]["usage"], *last, "{path}");
        assert!(last["prompt_tokens"].as_u64().unwrap() > 3);
    }
}

#[test]
fn an_embedding_is_the_pooled_hidden_state_and_says_so() {
    let server = Running::start();
    let library = library();
    let ask = |extra: Value| {
        let mut body = json!({"input": [TEXT, "Bread."]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        post(server.address, "/v1/embeddings", &body)
    };
    for (pooling, word) in [(Pooling::Mean, "mean"), (Pooling::Last, "last")] {
        let response = ask(json!({"pooling": word}));
        assert_eq!(response.header("x-forerun-pooling"), Some(word), "{}", response.text());
        let body = response.json();
        assert_eq!(body["pooling"], word);
        let expected = library.embed(TEXT, pooling).unwrap();
        let told: Vec<f32> =
            numbers(&body["data"][0]["embedding"]).into_iter().map(|n| n as f32).collect();
        assert_eq!(told, expected.vector);
        let length: f64 = told.iter().map(|&n| f64::from(n) * f64::from(n)).sum();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
        let bread = library.embed("Bread.", pooling).unwrap().tokens;
        assert_eq!(body["usage"]["prompt_tokens"], expected.tokens + bread);
    }
    let plain = ask(json!({})).json();
    assert_eq!(plain["pooling"], "mean");
    let width = plain["data"][0]["embedding"].as_array().unwrap().len();
    let same = ask(json!({"encoding_format": "base64", "dimensions": width})).json();
    let text = same["data"][1]["embedding"].as_str().unwrap();
    assert_eq!(text.len(), (width * 4).div_ceil(3) * 4);
    for (extra, param) in [
        (json!({"dimensions": width - 1}), "dimensions"),
        (json!({"encoding_format": "int8"}), "encoding_format"),
        (json!({"pooling": "cls"}), "pooling"),
        (json!({"input": []}), "input"),
    ] {
        let response = ask(extra);
        assert_eq!((response.status, &response.json()["error"]["param"]), (400, &json!(param)));
    }
    assert_eq!(ask(json!({"user": "me"})).ignored(), Some("user"));
}

#[test]
fn texts_are_read_while_answers_are_made_and_both_are_as_alone() {
    let server = Running::start();
    let expected = library().embed(TEXT, Pooling::Mean).unwrap().vector;
    let body = json!({"prompt": "Once", "max_tokens": 200, "ignore_eos": true, "temperature": 0});
    let alone = ask(&server, &body)["choices"][0]["text"].clone();
    std::thread::scope(|scope| {
        // As many as there are places on the device.
        let answers: Vec<_> = (0..4).map(|_| scope.spawn(|| ask(&server, &body))).collect();
        for _ in 0..3 {
            let told = post(server.address, "/v1/embeddings", &json!({"input": TEXT})).json();
            let told: Vec<f32> =
                numbers(&told["data"][0]["embedding"]).into_iter().map(|n| n as f32).collect();
            assert_eq!(told, expected);
        }
        for answer in answers {
            assert_eq!(answer.join().unwrap()["choices"][0]["text"], alone);
        }
    });
    server.wait_for("forerun:slots_used", 0.0);
}

#[test]
fn a_ranking_has_to_be_asked_for_by_its_method() {
    let server = Running::start();
    let mut body = json!({"query": "a king", "documents": ["The king ruled.", {"text": "Bread."}]});
    let refused = post(server.address, "/v1/rerank", &body);
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("method")));
    assert!(refused.text().contains("no head for ranking"), "{}", refused.text());
    body["method"] = "embedding_cosine".into();
    let mut unknown = body.clone();
    unknown["documents"][1]["title"] = "A book".into();
    assert_eq!(post(server.address, "/v1/rerank", &unknown).status, 400);
    body["return_documents"] = true.into();
    let told = post(server.address, "/v1/rerank", &body).json();
    let results = told["results"].as_array().unwrap();
    let scores: Vec<f64> =
        results.iter().map(|result| result["relevance_score"].as_f64().unwrap()).collect();
    assert!(scores.len() == 2 && scores[0] >= scores[1] && scores[0] <= 1.0001, "{told}");
    assert_eq!(
        results[0]["document"]["text"],
        if results[0]["index"] == 0 { "The king ruled." } else { "Bread." }
    );
    body["top_n"] = 1.into();
    let told = post(server.address, "/v1/rerank", &body).json();
    assert_eq!(told["results"].as_array().unwrap().len(), 1);
    assert_eq!(get(server.address, "/v1/models").status, 200);
}
