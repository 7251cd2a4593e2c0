//! What is said is what the engine says alone, in whatever form.

use crate::client::{get, post};
use crate::running::{Running, alone, folder};
use forerun_engine::Sampling;
use forerun_text::{ChatInput, ChatTemplate, Tokenizer};
use serde_json::{Value, json};

const STORY: &str = "Once upon a time there was a little fox who";

fn content(chunks: &[Value]) -> String {
    let delta = |chunk: &Value| {
        chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned()
    };
    chunks.iter().map(delta).collect()
}

#[test]
fn a_chat_answer_is_the_same_streamed_whole_and_by_the_engine_alone() {
    let server = Running::start();
    let messages = json!([{"role": "user", "content": "I want to eat tonight."}]);
    for (temperature, seed) in [(0.0, 0), (0.8, 7)] {
        let mut body = json!({
            "model": "tales", "messages": messages, "temperature": temperature, "seed": seed,
            "max_tokens": 24, "top_p": 1.0,
        });
        let whole = post(server.address, "/v1/chat/completions", &body).json();
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        let chunks = post(server.address, "/v1/chat/completions", &body).events();
        let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
        assert_eq!(text, content(&chunks));

        let template = ChatTemplate::load(&folder()).unwrap().unwrap();
        let rendered = template
            .render(&ChatInput {
                messages: messages.as_array().unwrap(),
                tools: &[],
                add_generation_prompt: true,
                extra: &Default::default(),
            })
            .unwrap();
        let prompt = Tokenizer::open(&folder()).unwrap().encode(&rendered, false).unwrap();
        let prompt_tokens = prompt.len();
        let sampling = Sampling { temperature, seed, ..Sampling::default() };
        let (expected, tokens) = alone(prompt, sampling, 24);
        assert_eq!(text, expected);

        let usage = &chunks.last().unwrap()["usage"];
        assert_eq!(usage["prompt_tokens"], prompt_tokens);
        assert_eq!(usage["completion_tokens"], tokens);
        assert_eq!(usage["total_tokens"], prompt_tokens + tokens);
        assert_eq!(usage, &whole["usage"]);
        assert!(chunks[..chunks.len() - 1].iter().all(|chunk| chunk["usage"].is_null()));
        assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    }
}

#[test]
fn a_text_is_continued_as_the_engine_does_alone_at_any_depth_of_drafting() {
    let server = Running::start();
    let prompt = Tokenizer::open(&folder()).unwrap().encode(STORY, true).unwrap();
    let (expected, _) = alone(prompt.clone(), Sampling::default(), 40);
    for speculation in [json!("off"), json!("auto"), json!(1), json!(4), Value::Null] {
        for given in [json!(STORY), json!(prompt), json!([STORY]), json!([prompt])] {
            let body = json!({
                "prompt": given, "temperature": 0, "max_tokens": 40, "speculation": speculation,
            });
            let answer = post(server.address, "/v1/completions", &body).json();
            assert_eq!(answer["choices"][0]["text"], expected.as_str(), "{body}");
            let drafted = answer["timings"]["speculation"]["drafted"].as_u64().unwrap();
            if speculation == json!("off") {
                assert_eq!(drafted, 0);
            }
            if speculation == json!(4) {
                assert!(drafted > 0, "{answer}");
            }
        }
    }
}

#[test]
fn several_answers_have_seeds_one_after_the_other() {
    let server = Running::start();
    let ask = |body: Value| post(server.address, "/v1/completions", &body).json();
    let several = ask(json!({
        "prompt": [STORY, "The king"], "n": 3, "seed": 5, "temperature": 1.0, "max_tokens": 12,
    }));
    assert_eq!(several["choices"].as_array().unwrap().len(), 6);
    for (index, choice) in several["choices"].as_array().unwrap().iter().enumerate() {
        assert_eq!(choice["index"], index);
        let prompt = [STORY, "The king"][index / 3];
        let one = ask(json!({
            "prompt": prompt, "seed": 5 + index % 3, "temperature": 1.0, "max_tokens": 12,
        }));
        assert_eq!(choice["text"], one["choices"][0]["text"], "answer {index}");
    }
    let texts: std::collections::HashSet<&str> =
        (0..3).map(|i| several["choices"][i]["text"].as_str().unwrap()).collect();
    assert_eq!(texts.len(), 3, "three seeds, three texts: {texts:?}");
}

#[test]
fn a_stop_string_ends_the_answer_before_it_and_is_told() {
    let server = Running::start();
    let mut body = json!({"prompt": STORY, "temperature": 0, "max_tokens": 60});
    let whole = post(server.address, "/v1/completions", &body).json();
    let text = whole["choices"][0]["text"].as_str().unwrap().to_owned();
    // Cut inside a word, so that the stop string lies across tokens.
    let stop: String = text.chars().skip(20).take(9).collect();
    let expected = &text[..text.find(&stop).unwrap()];
    for stops in [json!(stop), json!(["never said", stop])] {
        body["stop"] = stops;
        for stream in [false, true] {
            body["stream"] = stream.into();
            let response = post(server.address, "/v1/completions", &body);
            let parts = if stream { response.events() } else { vec![response.json()] };
            let said: String =
                parts.iter().map(|part| part["choices"][0]["text"].as_str().unwrap()).collect();
            assert_eq!(said, expected);
            let last = &parts.last().unwrap()["choices"][0];
            assert_eq!(
                (&last["finish_reason"], &last["stop_reason"]),
                (&json!("stop"), &json!(stop))
            );
        }
    }
}

#[test]
fn bias_and_penalties_and_length_reach_the_engine() {
    let server = Running::start();
    let ask = |extra: Value| {
        let mut body = json!({"prompt": STORY, "temperature": 0, "max_tokens": 16});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        post(server.address, "/v1/completions", &body).json()
    };
    let plain = ask(json!({}));
    let first = Tokenizer::open(&folder())
        .unwrap()
        .encode(plain["choices"][0]["text"].as_str().unwrap(), false)
        .unwrap()[0];
    let biased = ask(json!({"logit_bias": {(first.to_string()): -100}}));
    assert_ne!(plain["choices"][0]["text"], biased["choices"][0]["text"]);
    let forced = ask(json!({"logit_bias": {(first.to_string()): 100}, "max_tokens": 3}));
    assert_eq!(forced["usage"]["completion_tokens"], 3);
    assert_eq!(forced["choices"][0]["finish_reason"], "length");
    for extra in [
        json!({"frequency_penalty": 2.0, "max_tokens": 80}),
        json!({"presence_penalty": 2.0, "max_tokens": 80}),
        json!({"repetition_penalty": 1.5, "max_tokens": 80}),
    ] {
        let text = &ask(json!({"max_tokens": 80}))["choices"][0]["text"];
        assert_ne!(&ask(extra.clone())["choices"][0]["text"], text, "{extra}");
    }
}

#[test]
fn tokens_of_texts_and_conversations_come_back_as_they_went() {
    let server = Running::start();
    let body = json!({"prompt": "Käse & café — 漢字", "return_token_strs": true});
    let tokens = post(server.address, "/tokenize", &body).json();
    assert_eq!(tokens["count"], tokens["tokens"].as_array().unwrap().len());
    assert_eq!(tokens["count"], tokens["token_strs"].as_array().unwrap().len());
    let back = post(server.address, "/detokenize", &json!({"tokens": tokens["tokens"]})).json();
    assert_eq!(back["prompt"], "Käse & café — 漢字");
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let chat = post(server.address, "/tokenize", &chat).json();
    let back = post(server.address, "/detokenize", &json!({"tokens": chat["tokens"]})).json();
    let expected = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(back["prompt"], expected);
}

#[test]
fn a_conversation_with_tools_has_the_tokens_that_its_prompt_has() {
    let server = Running::start();
    let tool =
        json!({"type": "function", "function": {"name": "book", "parameters": {"type": "object"}}});
    let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "tools": [tool]});
    let tokens = post(server.address, "/tokenize", &body).json()["count"].clone();
    body["max_tokens"] = 1.into();
    let answer = post(server.address, "/v1/chat/completions", &body).json();
    assert_eq!(tokens, answer["usage"]["prompt_tokens"]);
    body["tools"] = json!([]);
    let without = post(server.address, "/v1/chat/completions", &body).json();
    assert!(tokens.as_u64() > without["usage"]["prompt_tokens"].as_u64());
}

#[test]
fn what_a_router_adds_changes_nothing() {
    let server = Running::start();
    let plain = json!({"prompt": STORY, "max_tokens": 8, "temperature": 0});
    let mut routed = plain.clone();
    let added = json!({
        "logprobs": null, "stream": false, "no_stop_trim": false, "ignore_eos": false, "echo": false,
        "continue_final_message": false, "skip_special_tokens": true, "separate_reasoning": true,
        "stream_reasoning": true, "return_hidden_states": false, "top_k": -1, "min_p": 0.0,
        "repetition_penalty": 1.0, "priority": 0,
    });
    routed.as_object_mut().unwrap().extend(added.as_object().unwrap().clone());
    let [plain, routed] =
        [plain, routed].map(|body| post(server.address, "/v1/completions", &body).json());
    assert_eq!(plain["choices"], routed["choices"]);
}

#[test]
fn parts_of_text_and_the_developer_role_say_what_plain_messages_say() {
    let server = Running::start();
    let ask = |messages: Value| {
        let body = json!({"messages": messages});
        post(server.address, "/tokenize", &body).json()["tokens"].clone()
    };
    let plain =
        json!([{"role": "system", "content": "Be\nbrief."}, {"role": "user", "content": "Hi"}]);
    let parts = json!([
        {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]},
        {"role": "user", "content": "Hi"},
    ]);
    assert_eq!(ask(plain), ask(parts));
}

#[test]
fn the_model_is_listed_under_each_of_its_names() {
    let server = Running::start();
    let list = get(server.address, "/v1/models").json();
    assert_eq!(list["data"][0]["id"], "tales");
    assert_eq!(list["data"][1]["id"], "other/name");
    assert_eq!(get(server.address, "/v1/models/other/name").json()["max_model_len"], 1024);
    let missing = get(server.address, "/v1/models/none");
    assert_eq!(
        (missing.status, &missing.json()["error"]["code"]),
        (404, &json!("model_not_found"))
    );
    let body = json!({"model": "other/name", "prompt": "A", "max_tokens": 1});
    assert_eq!(post(server.address, "/v1/completions", &body).status, 200);
}
