//! The web page over the socket.

use crate::client::get;
use crate::running::{Running, served, sizes};
use forerun_server::Settings;

#[test]
fn the_page_and_its_files_come_without_a_key_and_with_their_policy() {
    let keyed = Settings { api_keys: vec!["sesame".to_owned()], ..Settings::default() };
    let server = Running::with(&sizes(), served(), keyed);
    let page = get(server.address, "/");
    assert_eq!(page.status, 200);
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    let files: Vec<&str> =
        page.text().split('"').filter(|part| part.starts_with("page/")).collect();
    assert!(files.len() >= 3, "{files:?}");
    for file in files {
        assert_eq!(get(server.address, &format!("/{file}")).status, 200, "{file}");
    }
    assert_eq!(get(server.address, "/v1/models").status, 401);
    assert_eq!(get(server.address, "/page/nothing.js").status, 401);
    assert_eq!(get(server.address, "/health").status, 200);
}
