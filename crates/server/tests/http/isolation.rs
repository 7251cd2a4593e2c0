//! What one key's requests leave behind, another key does not learn.

use crate::client::{Connection, JSON, Response, get};
use crate::running::{Running, served, sizes};
use forerun_engine::{CacheSettings, Settings as EngineSettings};
use forerun_server::Settings;
use serde_json::{Value, json};

const FIRST: &str = "x-api-key: first";
const SECOND: &str = "authorization: Bearer second";
const ADMIN: &str = "x-api-key: root";

fn caching(settings: Settings) -> Running {
    let cache = CacheSettings { bytes: 64 << 20, ..CacheSettings::default() };
    Running::with(&EngineSettings { cache, ..sizes() }, served(), settings)
}

fn keyed(settings: Settings) -> Running {
    let api_keys = vec!["first".to_owned(), "second".to_owned()];
    caching(Settings { api_keys, ..settings })
}

fn with_admin() -> Settings {
    Settings { admin_keys: vec!["root".to_owned()], ..Settings::default() }
}

fn send(server: &Running, headers: &[&str], path: &str, body: &Value) -> Response {
    let mut connection = Connection::open(server.address);
    let headers: Vec<&str> = [JSON].iter().chain(headers).copied().collect();
    let method = if body.is_null() { "GET" } else { "POST" };
    connection.ask(method, path, &headers, body.to_string().as_bytes());
    connection.response().unwrap()
}

/// The same long prompt in the form of each API.
fn question(path: &str) -> Value {
    let text = "You are a kind helper who books tables, taxis and trains for guests. ".repeat(8);
    match path {
        "/v1/completions" => json!({"prompt": text, "max_tokens": 2}),
        "/v1/responses" => {
            json!({"instructions": text, "input": "Hello", "max_output_tokens": 2})
        }
        "/v1/messages" => {
            let messages = [json!({"role": "user", "content": "Hello"})];
            json!({"system": text, "messages": messages, "max_tokens": 2})
        }
        _ => {
            let system = json!({"role": "system", "content": text});
            json!({"messages": [system, {"role": "user", "content": "Hello"}], "max_tokens": 2})
        }
    }
}

const APIS: [&str; 4] =
    ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"];

fn cached(server: &Running, headers: &[&str], path: &str, body: &Value) -> u64 {
    let response = send(server, headers, path, body);
    assert_eq!(response.status, 200, "{path}: {}", response.text());
    response.json()["timings"]["cached_tokens"].as_u64().unwrap()
}

#[test]
fn another_key_finds_nothing_of_what_a_key_left_in_the_cache() {
    for path in APIS {
        let server = keyed(Settings::default());
        let body = question(path);
        assert_eq!(cached(&server, &[FIRST], path, &body), 0, "{path}");
        let second = send(&server, &[SECOND], path, &body).json();
        assert_eq!(second["timings"]["cached_tokens"], 0, "{path}");
        assert_eq!(second["timings"]["cache"]["miss"]["reason"], "empty", "{path}");
        assert!(cached(&server, &[FIRST], path, &body) > 60, "{path}: its own is there");
        assert!(cached(&server, &[SECOND], path, &body) > 60, "{path}: and the other's own");
    }
}

#[test]
fn keys_share_the_cache_where_the_operator_says_so_and_a_salt_narrows_it() {
    let shared = keyed(Settings { share_cache: true, ..Settings::default() });
    let path = "/v1/chat/completions";
    assert_eq!(cached(&shared, &[FIRST], path, &question(path)), 0);
    assert!(cached(&shared, &[SECOND], path, &question(path)) > 60);
    let open = caching(Settings::default());
    let own = keyed(Settings::default());
    for (server, headers) in [(&open, &[][..]), (&own, &[FIRST]), (&shared, &[FIRST])] {
        for path in APIS {
            let mut body = question(path);
            for salt in ["a", "b"] {
                // What one API left is found in another, so each has salts of its own.
                let salt = if path == APIS[0] { salt.to_owned() } else { format!("{salt}{path}") };
                body["cache_salt"] = salt.as_str().into();
                assert_eq!(cached(server, headers, path, &body), 0, "{path}, {salt}");
                assert!(cached(server, headers, path, &body) > 60, "{path}, {salt}");
            }
        }
    }
    // A key's salt is not the same salt of another key.
    let mut body = question(path);
    body["cache_salt"] = "a".into();
    assert_eq!(cached(&own, &[SECOND], path, &body), 0);
    assert!(cached(&shared, &[SECOND], path, &body) > 60);
    for path in APIS {
        for wrong in [json!(""), json!("x".repeat(1025)), json!(7)] {
            let mut body = question(path);
            body["cache_salt"] = wrong.clone();
            let refused = send(&open, &[], path, &body);
            assert_eq!(refused.status, 400, "{path}: {wrong}");
            assert!(refused.text().contains("cache_salt"), "{path}: {}", refused.text());
        }
    }
}

/// With some known tokens and a wrong next one, the cache told the right one.
#[test]
fn nobody_is_told_what_another_key_said() {
    let path = "/v1/chat/completions";
    let system = "The vault of the tall tower opens with the word ".repeat(4);
    let ask = |server: &Running, headers: &[&str], secret: &str| {
        let messages = json!([{"role": "system", "content": format!("{system}{secret}.")}, {"role": "user", "content": "Hello"}]);
        send(server, headers, path, &json!({"messages": messages, "max_tokens": 2})).json()
    };
    for settings in [with_admin(), Settings { share_cache: true, ..with_admin() }] {
        let isolated = !settings.share_cache;
        let server = keyed(settings);
        ask(&server, &[FIRST, "x-request-id: asked-first"], "marmalade");
        let told = ask(&server, &[SECOND, "x-request-id: asked-second"], "something");
        if isolated {
            assert_eq!(told["timings"]["cached_tokens"], 0, "{told}");
            assert_eq!(told["timings"]["cache"]["miss"]["at"], 0, "{told}");
        }
        let seen = |headers: &[&str], path: &str| {
            let response = send(&server, headers, path, &Value::Null);
            (response.status, response.text().to_owned())
        };
        for (headers, mine, theirs) in [
            (&[FIRST][..], "asked-first", "asked-second"),
            (&[SECOND], "asked-second", "asked-first"),
        ] {
            let (status, all) = seen(headers, "/debug/cache");
            assert_eq!(status, 200, "{all}");
            assert!(all.contains(mine) && !all.contains(theirs), "{all}");
            assert!(headers == [FIRST] || !all.contains("mar"), "{all}");
            assert_eq!(seen(headers, &format!("/debug/cache/{mine}")).0, 200);
            assert_eq!(seen(headers, &format!("/debug/cache/{theirs}")).0, 404);
        }
        let (status, all) = seen(&[ADMIN], "/debug/cache");
        assert_eq!(status, 200);
        assert!(all.contains("asked-first") && all.contains("asked-second"), "{all}");
        assert_eq!(seen(&[ADMIN], "/debug/cache/asked-first").0, 200);
        assert_eq!(seen(&[], "/debug/cache").0, 401);
    }
}

#[test]
fn what_shows_prompts_is_off_without_an_admin_key_and_open_on_a_machine_without_any() {
    let keys = |server: &Running, headers: &[&str]| {
        ["/debug/cache", "/debug/cache/named"].map(|path| {
            let response = send(server, headers, path, &Value::Null);
            (response.status, response.text().to_owned())
        })
    };
    let named = |server: &Running, headers: &[&str]| {
        let headers = [headers, &["x-request-id: named"]].concat();
        let path = "/v1/completions";
        assert_eq!(send(server, &headers, path, &question(path)).status, 200);
    };
    // API keys alone.
    let server = keyed(Settings::default());
    named(&server, &[FIRST]);
    for (status, told) in keys(&server, &[FIRST]) {
        assert_eq!(status, 403);
        assert!(told.contains("--admin-key-file"), "{told}");
    }
    // An admin key alone: the rest stays open.
    let server = caching(with_admin());
    named(&server, &[]);
    assert_eq!(get(server.address, "/v1/models").status, 200);
    assert!(keys(&server, &[]).iter().all(|(status, _)| *status == 403));
    assert!(
        keys(&server, &[ADMIN])
            .iter()
            .all(|(status, told)| *status == 200 && told.contains("named"))
    );
    // No keys, this machine only.
    let server = caching(Settings::default());
    named(&server, &[]);
    assert!(
        keys(&server, &[]).iter().all(|(status, told)| *status == 200 && told.contains("named"))
    );
    // An admin key opens what API keys open.
    let server = keyed(with_admin());
    assert_eq!(send(&server, &[ADMIN], "/v1/models", &Value::Null).status, 200);
}
