//! Answers held to a form, calls of tools, and what the model thought of its tokens.

use crate::client::post;
use crate::running::Running;
use serde_json::{Value, json};

fn ask(server: &Running, body: &Value) -> Value {
    let response = post(server.address, "/v1/chat/completions", body);
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

fn chat(extra: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "I want to eat tonight."}],
        "temperature": 0.8, "seed": 3, "max_tokens": 200,
    });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn table_tool() -> Value {
    json!({"type": "function", "function": {
        "name": "book_table",
        "description": "Books a table",
        "parameters": {
            "type": "object",
            "properties": {
                "people": {"type": "integer", "minimum": 1, "maximum": 9},
                "place": {"enum": ["inside", "outside"]},
            },
            "required": ["people", "place"],
            "additionalProperties": false,
        },
    }})
}

#[test]
fn an_answer_follows_its_schema_with_drafts_and_without() {
    let server = Running::start();
    let schema = json!({
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": false,
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": true}});
    let mut texts = Vec::new();
    for speculation in ["off", "auto"] {
        let body = chat(json!({"response_format": format, "speculation": speculation}));
        let answer = ask(&server, &body);
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert!(value["name"].is_string() && value["age"].is_u64(), "{text}");
        assert_eq!(value.as_object().unwrap().len(), 2);
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        texts.push(text);
    }
    assert_eq!(texts[0], texts[1]);
}

#[test]
fn objects_expressions_choices_and_grammars_hold_answers() {
    let server = Running::start();
    for (asked, fits) in [
        (
            json!({"structured_outputs": {"regex": "[0-9]{3}-[a-f]{2}"}}),
            (|t: &str| t.len() == 6) as fn(&str) -> bool,
        ),
        (json!({"structured_outputs": {"choice": ["yes", "no"]}}), |t| t == "yes" || t == "no"),
        (json!({"structured_outputs": {"grammar": "start: \"a\" \"b\" \"b\"? \"c\""}}), |t| {
            t.starts_with("ab") && t.ends_with('c')
        }),
        (json!({"structured_outputs": {"json": {"type": "boolean"}}}), |t| {
            t == "true" || t == "false"
        }),
    ] {
        let answer = ask(&server, &chat(asked.clone()));
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(fits(text), "{asked}: {text}");
        let mut body = asked.clone();
        body["prompt"] = "Say it: ".into();
        body["max_tokens"] = 100.into();
        let text =
            post(server.address, "/v1/completions", &body).json()["choices"][0]["text"].clone();
        assert!(fits(text.as_str().unwrap()), "{asked}: {text}");
    }
    for (wrong, param) in [
        (json!({"response_format": {"type": "xml"}}), "response_format.type"),
        (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema"),
        (json!({"response_format": {"type": "json_object", "x": 1}}), "response_format.x"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}}),
            "response_format",
        ),
        (json!({"structured_outputs": {"regex": "("}}), "response_format"),
        (json!({"structured_outputs": {}}), "structured_outputs"),
        (json!({"structured_outputs": {"regex": "a", "choice": ["b"]}}), "structured_outputs"),
        (
            json!({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}),
            "structured_outputs",
        ),
    ] {
        let response = post(server.address, "/v1/chat/completions", &chat(wrong.clone()));
        let told = response.json();
        assert_eq!(
            (response.status, &told["error"]["param"]),
            (400, &json!(param)),
            "{wrong}: {told}"
        );
    }
}

#[test]
fn a_call_that_is_required_comes_whole_and_in_pieces_alike() {
    let server = Running::start();
    let named = json!({"type": "function", "function": {"name": "book_table"}});
    for choice in [json!("required"), named] {
        let mut body = chat(json!({
            "tools": [table_tool()], "tool_choice": choice, "parallel_tool_calls": false,
        }));
        let answer = ask(&server, &body);
        let message = &answer["choices"][0]["message"];
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
        assert!(message["content"].is_null(), "{answer}");
        let call = &message["tool_calls"][0];
        assert_eq!(
            (&call["type"], &call["function"]["name"]),
            (&json!("function"), &json!("book_table"))
        );
        let arguments = call["function"]["arguments"].as_str().unwrap();
        let given: Value = serde_json::from_str(arguments).unwrap();
        assert!((1..=9).contains(&given["people"].as_u64().unwrap()), "{arguments}");
        assert!(["inside", "outside"].contains(&given["place"].as_str().unwrap()));

        body["stream"] = true.into();
        let chunks = post(server.address, "/v1/chat/completions", &body).events();
        let deltas: Vec<&Value> = chunks
            .iter()
            .map(|c| &c["choices"][0]["delta"]["tool_calls"][0])
            .filter(|c| !c.is_null())
            .collect();
        assert!(deltas[0]["id"].as_str().unwrap().starts_with("call_"));
        assert_eq!(deltas[0]["function"]["name"], "book_table");
        assert!(deltas.len() > 2, "arguments come as they are made");
        let joined: String =
            deltas.iter().map(|d| d["function"]["arguments"].as_str().unwrap()).collect();
        assert_eq!(joined, arguments);
        assert!(deltas[1..].iter().all(|d| d["id"].is_null() && d["index"] == 0));

        // The call and its result go back into the conversation.
        let mut next = chat(json!({"tools": [table_tool()], "max_tokens": 8}));
        let messages = next["messages"].as_array_mut().unwrap();
        messages.push(message.clone());
        messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "booked"}));
        assert!(ask(&server, &next)["usage"]["completion_tokens"].as_u64().unwrap() > 0);
    }
}

#[test]
fn tools_that_make_no_sense_are_refused_by_place() {
    let server = Running::start();
    let twice = json!([table_tool(), table_tool()]);
    for (wrong, param) in [
        (json!({"tools": [{"type": "web"}]}), "tools[0].type"),
        (
            json!({"tools": [{"type": "function", "function": {"name": "a b"}}]}),
            "tools[0].function.name",
        ),
        (json!({"tools": twice}), "tools[1].function.name"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tools": [table_tool()], "tool_choice": "never"}), "tool_choice"),
        (
            json!({"tools": [table_tool()], "tool_choice": {"type": "function", "function": {"name": "x"}}}),
            "tool_choice",
        ),
        (
            json!({"tools": [table_tool()], "structured_outputs": {"regex": "[a-z]+"}}),
            "structured_outputs",
        ),
        (json!({"reasoning_effort": "huge"}), "reasoning_effort"),
        (json!({"reasoning_effort": "high", "enable_thinking": false}), "reasoning_effort"),
    ] {
        let response = post(server.address, "/v1/chat/completions", &chat(wrong.clone()));
        let told = response.json();
        assert_eq!(
            (response.status, &told["error"]["param"]),
            (400, &json!(param)),
            "{wrong}: {told}"
        );
    }
}

#[test]
fn a_model_that_must_not_call_hears_of_tools_and_says_text() {
    let server = Running::start();
    let with = |choice: &str, more: Value| {
        let mut body = json!({"tools": [table_tool()], "tool_choice": choice, "max_tokens": 40});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ask(&server, &chat(body))
    };
    let (none, auto) = (with("none", json!({})), with("auto", json!({})));
    assert_eq!(none["usage"]["prompt_tokens"], auto["usage"]["prompt_tokens"]);
    // Whatever is asked of the sampling, the mark that opens a call is never said.
    let mark = post(server.address, "/tokenize", &json!({"prompt": "<tool_call>"})).json();
    let mark = mark["tokens"][0].to_string();
    for (temperature, seed) in [(0.0, 0), (1.5, 1), (1.5, 2)] {
        let wish =
            json!({"temperature": temperature, "seed": seed, "logit_bias": {mark.as_str(): 100}});
        let message = with("none", wish.clone())["choices"][0]["message"].clone();
        assert!(message.get("tool_calls").is_none_or(Value::is_null), "{message}");
        assert!(!message["content"].as_str().unwrap().contains("<tool_call>"), "{message}");
        let called = with("auto", wish)["choices"][0]["message"].clone();
        assert!(called["tool_calls"].is_array(), "it would have called: {called}");
    }
    // What is spelled like a call, letter by letter, is text.
    let call = r#"<tool_call>{"name": "book_table", "arguments": {}}</tool_call>"#;
    let spelled = with("none", json!({"structured_outputs": {"choice": [call]}}));
    assert_eq!(spelled["choices"][0]["message"]["content"], call, "{spelled}");
    assert_eq!(spelled["choices"][0]["finish_reason"], "stop");
}

#[test]
fn log_probabilities_are_told_for_each_token_streamed_and_whole() {
    let server = Running::start();
    let mut body =
        chat(json!({"logprobs": true, "top_logprobs": 3, "temperature": 0, "max_tokens": 12}));
    let answer = ask(&server, &body);
    let choice = &answer["choices"][0];
    let told = choice["logprobs"]["content"].as_array().unwrap();
    let ended = usize::from(choice["finish_reason"] == "stop");
    assert_eq!(told.len() + ended, answer["usage"]["completion_tokens"].as_u64().unwrap() as usize);
    let bytes: Vec<u8> = told
        .iter()
        .flat_map(|entry| entry["bytes"].as_array().unwrap())
        .map(|byte| byte.as_u64().unwrap() as u8)
        .collect();
    assert_eq!(String::from_utf8(bytes).unwrap(), choice["message"]["content"].as_str().unwrap());
    for entry in told {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        assert_eq!(entry["logprob"], top[0]["logprob"], "greedy takes the likeliest");
        assert!(entry["logprob"].as_f64().unwrap() <= 0.0);
    }
    body["stream"] = true.into();
    let chunks = post(server.address, "/v1/chat/completions", &body).events();
    let streamed: Vec<Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(&streamed, told);

    let body =
        json!({"prompt": "Once upon a time", "logprobs": 2, "max_tokens": 6, "temperature": 0});
    let answer = post(server.address, "/v1/completions", &body).json();
    let told = &answer["choices"][0]["logprobs"];
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(told[list].as_array().unwrap().len(), 6, "{told}");
    }
    let text: String =
        told["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    assert_eq!(text, answer["choices"][0]["text"].as_str().unwrap());
    for wrong in [json!({"top_logprobs": 3}), json!({"logprobs": true, "top_logprobs": 21})] {
        assert_eq!(post(server.address, "/v1/chat/completions", &chat(wrong)).status, 400);
    }
}
