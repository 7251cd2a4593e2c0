//! The description of everything the server answers to, made once for the models that are served.
//!
//! The parts are files in `openapi/`: one with what all APIs share, one per API. A schema marked
//! `x-generation` gets the fields of `generation.json`, all or those it lists, and every operation the refusals
//! that any may have, in the form of its API.

use super::ignored;
use crate::app::App;
use crate::error::ErrorForm;
use crate::models::{ModelNames, Models};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use forerun_engine::Depth;
use serde_json::{Map, Value, json};
use std::sync::Arc;

const SHARED: &str = include_str!("../../openapi/shared.json");
const GENERATION: &str = include_str!("../../openapi/generation.json");
const APIS: [&str; 6] = [
    include_str!("../../openapi/chat.json"),
    include_str!("../../openapi/completions.json"),
    include_str!("../../openapi/responses.json"),
    include_str!("../../openapi/messages.json"),
    include_str!("../../openapi/embeddings.json"),
    include_str!("../../openapi/ollama.json"),
];

pub(crate) async fn openapi(State(app): State<Arc<App>>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], app.openapi.clone()).into_response()
}

/// The whole document as text.
pub(crate) fn document(models: &Models) -> String {
    // What holds for the one model that is served; of several, each has limits of its own.
    let only = match models.entries() {
        [only] => only.loaded(),
        _ => None,
    };
    let most_answers = only.as_ref().map_or(usize::MAX, |model| model.places.capacity());
    let mut document = parse(SHARED);
    for api in APIS.map(parse) {
        for place in ["/paths", "/components/schemas", "/components/responses"] {
            let part = api.pointer(place).and_then(Value::as_object).cloned().unwrap_or_default();
            object(&mut document, place).extend(part);
        }
    }
    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    let mut generation = parse(GENERATION);
    generation["n"]["maximum"] = most_answers.min(128).into();
    generation["speculation"]["anyOf"][2]["maximum"] = Depth::MOST.into();
    describe_ignored(&mut document);
    if let Some(model) = &only {
        let last = model.facts.vocabulary.saturating_sub(1);
        generation["logit_bias"]["propertyNames"] =
            json!({"pattern": format!("^({})$", up_to(last))});
    }
    let schemas = object(&mut document, "/components/schemas");
    for schema in schemas.values_mut().filter_map(Value::as_object_mut) {
        if let Some(wanted) = schema.remove("x-generation") {
            let own = schema["properties"].as_object_mut().expect("a request has properties");
            let mut shared = generation.as_object().cloned().unwrap_or_default();
            if let Value::Array(names) = wanted {
                shared.retain(|name, _| names.iter().any(|wanted| wanted == name));
            }
            own.extend(shared);
        }
    }
    let all = || models.entries().iter().map(|entry| &entry.names);
    let names: Vec<&str> = all().flat_map(ModelNames::names).collect();
    // Where any name will do, those that are known are examples.
    let open = all().any(ModelNames::has_open_names);
    schemas["ModelName"][if open { "examples" } else { "enum" }] = json!(names);
    if let Some(model) = &only {
        schemas["TokenId"]["maximum"] = model.facts.vocabulary.saturating_sub(1).into();
        schemas["PromptTokens"]["maxItems"] = model.facts.context.saturating_sub(1).into();
    }
    refusals(object(&mut document, "/paths"));
    document.to_string()
}

/// Adds to each request the fields that are accepted and ignored.
fn describe_ignored(document: &mut Value) {
    const REQUESTS: [(&str, &str); 5] = [
        ("/v1/chat/completions", "ChatRequest"),
        ("/v1/completions", "CompletionRequest"),
        ("/v1/responses", "ResponsesRequest"),
        ("/v1/messages", "MessagesRequest"),
        ("/v1/messages/count_tokens", "CountTokensRequest"),
    ];
    for (path, schema) in REQUESTS {
        let fields = object(document, &format!("/components/schemas/{schema}/properties"));
        for (field, why) in ignored::documented(path) {
            let described = json!({"description": format!("Ignored: {why}")});
            fields.entry(field).or_insert(described);
        }
    }
}

/// Adds to each operation what any request may be told.
fn refusals(paths: &mut Map<String, Value>) {
    const ANY: [&str; 5] = ["400", "401", "403", "431", "500"];
    const WITH_BODY: [&str; 4] = ["404", "408", "413", "415"];
    for (path, methods) in paths {
        let form = match ErrorForm::of(path) {
            ErrorForm::OpenAi => "",
            ErrorForm::Anthropic => "Anthropic",
            ErrorForm::Ollama => "Ollama",
        };
        for (method, operation) in methods.as_object_mut().expect("a path has methods") {
            let responses = operation["responses"].as_object_mut().expect("responses are listed");
            let bodied = method == "post";
            let plain = WITH_BODY.iter().filter(|_| bodied).chain(&ANY);
            let later = ["429", "503"].iter().filter(|&&status| bodied || status == "503");
            for (statuses, name) in
                [(plain.collect::<Vec<_>>(), "Error"), (later.collect(), "Later")]
            {
                for status in statuses {
                    let reference = json!({"$ref": format!("#/components/responses/{form}{name}")});
                    responses.entry((*status).to_owned()).or_insert(reference);
                }
            }
        }
    }
}

/// A regular expression for the integers from 0 to `most`.
fn up_to(most: usize) -> String {
    let digits = most.to_string();
    let mut ways = vec!["0".to_owned()];
    if digits.len() > 1 {
        ways.push(format!("[1-9][0-9]{{0,{}}}", digits.len() - 2));
    }
    // As long as `most`: the same digits up to a smaller one, then any.
    for (i, digit) in digits.bytes().enumerate() {
        let lowest = if i == 0 { b'1' } else { b'0' };
        if digit > lowest {
            let (same, smaller) = (&digits[..i], [lowest, digit - 1].map(char::from));
            let rest = digits.len() - 1 - i;
            ways.push(format!("{same}[{}-{}][0-9]{{{rest}}}", smaller[0], smaller[1]));
        }
    }
    ways.push(digits);
    ways.join("|")
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).expect("the parts of the document are JSON, as a test shows")
}

fn object<'a>(document: &'a mut Value, place: &str) -> &'a mut Map<String, Value> {
    let found = document.pointer_mut(place).and_then(Value::as_object_mut);
    found.expect("the shared part has the places that the others fill")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_defines_what_another_part_defines() {
        let mut seen = std::collections::HashSet::new();
        for part in APIS.into_iter().chain([SHARED]).map(parse) {
            for place in ["/paths", "/components/schemas", "/components/responses"] {
                let names = part.pointer(place).and_then(Value::as_object);
                for name in names.into_iter().flatten().map(|(name, _)| name) {
                    assert!(seen.insert(format!("{place}/{name}")), "{place}/{name} twice");
                }
            }
        }
    }

    #[test]
    fn the_pattern_of_token_ids_ends_with_the_vocabulary() {
        assert_eq!(up_to(7), "0|[1-6][0-9]{0}|7");
        assert_eq!(up_to(0), "0|0");
        let expected =
            "0|[1-9][0-9]{0,2}|[1-7][0-9]{3}|8[0-0][0-9]{2}|81[0-8][0-9]{1}|819[0-0][0-9]{0}|8191";
        assert_eq!(up_to(8191), expected);
    }
}
