//! Broken connections, busy servers, hostile answers.

use crate::setup::{Setup, ask, content, pull, refused, simple};
use forerun_hub::{DownloadWatch, Hub, HubError, HubSettings, Unwatched};
use forerun_testkit::hub_server::{HubRepo, ServerFault, sha256};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const FILE: &str = "model.safetensors";

fn large() -> String {
    sha256(&content(300_000, 1))
}

fn partial(setup: &Setup) -> PathBuf {
    setup.cache().join(format!("models--o--simple/blobs/{}.incomplete", large()))
}

/// Ranges asked of the content network.
fn ranges(setup: &Setup) -> Vec<Option<String>> {
    let seen = setup.server.seen().into_iter().filter(|seen| seen.content_network);
    seen.map(|seen| seen.headers.get("range").cloned()).collect()
}

fn check_whole(setup: &Setup) {
    let plan = setup.offline().plan(&ask("o/simple"), &mut Unwatched).unwrap();
    assert_eq!(std::fs::read(plan.path().join(FILE)).unwrap(), content(300_000, 1));
    assert!(!partial(setup).exists());
}

#[test]
fn a_broken_connection_goes_on_where_it_broke() {
    let setup = Setup::new(vec![simple()]);
    setup.server.fail(&large(), [ServerFault::CutAfter(100_000), ServerFault::CutAfter(50_000)]);
    setup.pull("o/simple").unwrap();
    let bytes = |n: u32| Some(format!("bytes={n}-"));
    assert_eq!(ranges(&setup), [None, bytes(100_000), bytes(150_000)]);
    check_whole(&setup);
}

#[test]
fn a_later_run_goes_on_where_the_first_gave_up() {
    let setup = Setup::new(vec![simple()]);
    setup.server.fail(
        &large(),
        [ServerFault::CutAfter(1000), ServerFault::CutAfter(0), ServerFault::CutAfter(0)],
    );
    let error = refused(setup.pull("o/simple"));
    assert!(error.contains(FILE) && error.contains("tried 3 times"), "{error}");
    assert_eq!(std::fs::metadata(partial(&setup)).unwrap().len(), 1000);
    setup.server.forget();
    let (_, fetched) = setup.pull("o/simple").unwrap();
    assert_eq!(ranges(&setup), [Some("bytes=1000-".to_owned())]);
    assert_eq!(fetched.bytes, 299_000);
    check_whole(&setup);
}

#[test]
fn a_server_that_ignores_the_range_starts_the_file_over() {
    let setup = Setup::new(vec![simple()]);
    setup.server.fail(&large(), [ServerFault::CutAfter(1000), ServerFault::IgnoreRange]);
    setup.pull("o/simple").unwrap();
    check_whole(&setup);
}

#[test]
fn a_partial_file_longer_than_the_file_is_dropped() {
    let setup = Setup::new(vec![simple()]);
    std::fs::create_dir_all(partial(&setup).parent().unwrap()).unwrap();
    std::fs::write(partial(&setup), content(300_001, 9)).unwrap();
    setup.pull("o/simple").unwrap();
    assert_eq!(ranges(&setup), [None]);
    check_whole(&setup);
}

#[test]
fn a_range_that_was_not_asked_for_is_refused() {
    let setup = Setup::new(vec![simple()]);
    setup.server.fail(&large(), [ServerFault::CutAfter(1000), ServerFault::WrongRange]);
    let error = refused(setup.pull("o/simple"));
    assert!(error.contains("bytes 1000-299999/300000"), "{error}");
}

#[test]
fn wrong_bytes_are_found_deleted_and_fetched_anew() {
    for (place, name) in [(large(), FILE), ("resolve".to_owned(), "config.json")] {
        let setup = Setup::new(vec![simple()]);
        setup.server.fail(&place, [ServerFault::Corrupt]);
        let error = refused(setup.pull("o/simple"));
        assert!(error.contains("checksum") && error.contains(name), "{error}");
        assert!(!partial(&setup).exists());
        assert!(matches!(
            setup.offline().plan(&ask("o/simple"), &mut Unwatched),
            Err(HubError::NotCached { .. })
        ));
        setup.pull("o/simple").unwrap();
        check_whole(&setup);
    }
}

#[test]
fn bytes_beyond_the_listed_size_are_refused() {
    let setup = Setup::new(vec![simple()]);
    setup.server.fail(&large(), [ServerFault::TooLong(1)]);
    let error = refused(setup.pull("o/simple"));
    assert!(error.contains("more than the 300000 bytes"), "{error}");
}

#[test]
fn busy_servers_are_asked_again() {
    let setup = Setup::new(vec![simple()]);
    setup.server.fail("/api/", [ServerFault::Status(503), ServerFault::Status(500)]);
    setup.server.fail("config.json", [ServerFault::Busy(0), ServerFault::Status(502)]);
    setup.server.fail(&large(), [ServerFault::Status(504)]);
    setup.pull("o/simple").unwrap();
    check_whole(&setup);
}

#[test]
fn a_server_that_stays_busy_or_asks_for_too_long_a_wait_is_left() {
    let setup = Setup::new(vec![simple()]);
    setup.server.fail(
        "/api/",
        [ServerFault::Status(503), ServerFault::Status(503), ServerFault::Status(503)],
    );
    let error = refused(setup.pull("o/simple"));
    assert!(error.contains("503") && error.contains("tried 3 times"), "{error}");
    setup.server.fail("/api/", [ServerFault::Busy(3600)]);
    let error = refused(setup.pull("o/simple"));
    assert!(error.contains("429") && error.contains("3600 s"), "{error}");
}

#[test]
fn slow_bytes_are_waited_for_and_silence_is_not() {
    let setup = Setup::new(vec![simple()]);
    setup.server.fail(&large(), [ServerFault::Drip(30_000, Duration::from_millis(5))]);
    setup.pull("o/simple").unwrap();
    check_whole(&setup);
    let setup = Setup::new(vec![simple()]);
    let silence = ServerFault::Stall(Duration::from_secs(30));
    setup.server.fail(&large(), [silence.clone(), silence.clone(), silence]);
    let error = refused(setup.pull("o/simple"));
    assert!(error.contains("timeout") && error.contains(FILE), "{error}");
}

#[test]
fn redirects_are_counted_and_must_lead_to_the_web() {
    let setup = Setup::new(vec![simple()]);
    let around = ServerFault::Redirect(format!("{}/o/simple/around", setup.server.endpoint()));
    setup.server.fail("o/simple", vec![around; 6]);
    let error = refused(setup.pull("o/simple"));
    assert!(error.contains("more than 5 times"), "{error}");
    for bad in ["file:///etc/passwd", "x", "ftp://h/x"] {
        let setup = Setup::new(vec![simple()]);
        setup.server.fail("config.json", [ServerFault::Redirect(bad.into())]);
        let error = refused(setup.pull("o/simple"));
        assert!(error.contains("redirected"), "{bad}: {error}");
    }
}

#[test]
fn file_names_that_leave_the_folder_are_refused_before_anything_is_written() {
    for name in ["../../evil.gguf", "/evil.gguf", "a\\..\\evil.gguf", "a:evil.gguf"] {
        let repo = HubRepo::new("o/evil").large(name, content(10, 1));
        let setup = Setup::new(vec![repo]);
        let error = refused(setup.pull("o/evil"));
        assert!(error.contains("refused"), "{name}: {error}");
        assert!(!setup.cache().exists(), "{name}");
    }
}

#[test]
fn an_index_that_points_outside_is_refused() {
    let repo = HubRepo::new("o/evil")
        .small("model.safetensors.index.json", r#"{"weight_map": {"a": "../../evil"}}"#);
    let error = refused(Setup::new(vec![repo]).pull("o/evil"));
    assert!(error.contains("../../evil"), "{error}");
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let setup = Setup::new(vec![]);
    // A port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let settings = HubSettings { endpoint: format!("http://{free}"), ..setup.settings() };
    let error = refused(pull(&Hub::new(settings).unwrap(), "o/simple", &mut Unwatched));
    assert!(error.contains(&free.to_string()) && error.contains("3 times"), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_called_that() {
    let setup = Setup::new(vec![simple()]);
    std::fs::create_dir_all(partial(&setup).parent().unwrap()).unwrap();
    std::os::unix::fs::symlink("/dev/full", partial(&setup)).unwrap();
    let error = refused(setup.pull("o/simple"));
    assert!(error.contains("disk is full") && error.contains("300000 bytes"), "{error}");
}

#[test]
fn a_proxy_is_asked_except_for_hosts_that_need_none() {
    let proxy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", proxy.local_addr().unwrap());
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in proxy.incoming() {
            let mut line = String::new();
            BufReader::new(stream.unwrap()).read_line(&mut line).unwrap();
            // The test may be over.
            let _ = tell.send(line);
        }
    });
    let setup = Setup::new(vec![simple()]);
    let proxied = setup.settings_with(&[("HTTP_PROXY", &address)]);
    let away = HubSettings { endpoint: "http://hub.example".into(), ..proxied };
    refused(pull(&Hub::new(away).unwrap(), "o/simple", &mut Unwatched));
    let line = told.recv().unwrap();
    assert!(line.contains("hub.example"), "{line}");
    let near = setup.settings_with(&[("HTTP_PROXY", &address), ("NO_PROXY", "127.0.0.1")]);
    pull(&Hub::new(near).unwrap(), "o/simple", &mut Unwatched).unwrap();
    for wrong in ["ftp://u:secret@h:1", "socks5://u:secret@h:1"] {
        let error = Hub::new(setup.settings_with(&[("HTTP_PROXY", wrong)])).err().unwrap();
        let error = error.to_string();
        assert!(error.contains("HTTP_PROXY") && !error.contains("secret"), "{error}");
    }
}

#[test]
fn a_file_without_certificates_is_refused() {
    let setup = Setup::new(vec![]);
    let file = setup.home.path().join("roots.pem");
    std::fs::write(&file, "nothing").unwrap();
    let settings = setup.settings_with(&[("SSL_CERT_FILE", file.to_str().unwrap())]);
    let error = Hub::new(settings).err().unwrap().to_string();
    assert!(error.contains("SSL_CERT_FILE") && error.contains("roots.pem"), "{error}");
}

/// Stops after a number of bytes.
struct StopAt {
    bytes: u64,
    stop: bool,
    notes: Vec<String>,
}

impl DownloadWatch for StopAt {
    fn bytes(&mut self, done: u64) {
        self.stop |= done >= self.bytes;
    }

    fn note(&mut self, line: &str) {
        self.notes.push(line.into());
    }

    fn stop(&mut self) -> bool {
        self.stop
    }
}

#[test]
fn a_stopped_download_keeps_what_it_has_and_the_next_one_goes_on() {
    let setup = Setup::new(vec![simple()]);
    setup.server.fail(&large(), [ServerFault::Drip(10_000, Duration::from_millis(2))]);
    let mut watch = StopAt { bytes: 40_000, stop: false, notes: Vec::new() };
    let stopped = pull(&setup.hub(), "o/simple", &mut watch);
    assert!(matches!(stopped, Err(HubError::Stopped)));
    let kept = std::fs::metadata(partial(&setup)).unwrap().len();
    assert!((30_000..300_000).contains(&kept), "{kept}");
    setup.server.forget();
    setup.pull("o/simple").unwrap();
    assert_eq!(ranges(&setup), [Some(format!("bytes={kept}-"))]);
    check_whole(&setup);
}

#[test]
fn two_that_want_the_same_file_fetch_it_once() {
    let setup = Setup::new(vec![simple()]);
    setup.server.fail(&large(), [ServerFault::Drip(30_000, Duration::from_millis(10))]);
    let waited = AtomicUsize::new(0);
    let came: u64 = std::thread::scope(|scope| {
        let run = || {
            let mut watch = StopAt { bytes: u64::MAX, stop: false, notes: Vec::new() };
            let (_, fetched) = pull(&setup.hub(), "o/simple", &mut watch).unwrap();
            waited.fetch_add(watch.notes.len(), Ordering::SeqCst);
            fetched.bytes
        };
        let runs = [scope.spawn(run), scope.spawn(run)];
        runs.into_iter().map(|run| run.join().unwrap()).sum()
    });
    assert_eq!(came, 300_002);
    assert_eq!(ranges(&setup), [None]);
    check_whole(&setup);
}
