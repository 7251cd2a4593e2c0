//! The OpenAPI document says what the server does.

use crate::client::{get, post};
use crate::running::Running;
use serde_json::{Value, json};

/// Follows a reference.
fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(place) => document.pointer(place.trim_start_matches('#')).unwrap(),
        None => schema,
    }
}

fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[test]
fn every_reference_leads_somewhere() {
    let server = Running::start();
    let document = get(server.address, "/openapi.json").json();
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 50);
    for place in found {
        assert!(document.pointer(place.trim_start_matches('#')).is_some(), "{place}");
    }
    assert_eq!(document["components"]["schemas"]["ModelName"]["enum"][0], "tales");
    assert_eq!(document["components"]["schemas"]["TokenId"]["maximum"], 8191);
}

#[test]
fn every_documented_field_of_a_request_is_known_to_the_server() {
    let server = Running::start();
    let document = get(server.address, "/openapi.json").json();
    let mut fields = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        let body = &operations["post"]["requestBody"]["content"]["application/json"]["schema"];
        for schema in body["anyOf"].as_array().unwrap_or(&vec![body.clone()]) {
            let known = resolved(&document, schema)["properties"].as_object();
            for field in known.into_iter().flatten().map(|(name, _)| name) {
                // Null says nothing, so only a name nobody takes is complained about.
                let told = post(server.address, path, &json!({field: null})).text().to_owned();
                let unknown = format!("`{field}` is not supported");
                assert!(!told.contains(&unknown), "{path}: {told}");
                fields += 1;
            }
        }
    }
    assert!(fields > 60, "{fields} fields");
}

#[test]
fn every_documented_path_is_there() {
    let server = Running::start();
    let document = get(server.address, "/openapi.json").json();
    for (path, operations) in document["paths"].as_object().unwrap() {
        let path = path.replace("{model}", "tales").replace("{request}", "none");
        if operations.get("get").is_some() {
            let response = get(server.address, &path);
            let unknown = response.text().contains("there is nothing at");
            assert!(response.status < 500 && !unknown, "{path}: {}", response.status);
        } else {
            assert_eq!(post(server.address, &path, &json!({})).status, 400, "{path}");
        }
    }
}
