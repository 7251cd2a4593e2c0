//! What comes, where it lies, and who is told what.

use crate::setup::{Setup, ask, content, pull, refused, simple};
use forerun_hub::{DownloadRequest, Hub, HubError, RepoPart, Unwatched};
use forerun_testkit::hub_server::{HubRepo, git_sha1, sha256};
use std::path::Path;

#[test]
fn files_lie_as_the_hubs_other_clients_lay_them() {
    let repo = simple().large("mtp/weights.safetensors", content(50, 2));
    let setup = Setup::new(vec![repo.clone()]);
    let (plan, fetched) = setup.pull("o/simple").unwrap();
    assert_eq!((plan.bytes(), fetched.bytes), (300_052, 300_052));
    let root = setup.cache().join("models--o--simple");
    assert_eq!(std::fs::read_to_string(root.join("refs/main")).unwrap(), repo.commit);
    assert_eq!(plan.path(), root.join("snapshots").join(&repo.commit));
    for (name, bytes, large) in &repo.files {
        let pointer = plan.path().join(name);
        if name == "README.md" {
            assert!(!pointer.exists());
            continue;
        }
        assert_eq!(&std::fs::read(&pointer).unwrap(), bytes, "{name}");
        let etag = if *large { sha256(bytes) } else { git_sha1(bytes) };
        let up = if name.contains('/') { "../../../blobs" } else { "../../blobs" };
        assert_eq!(std::fs::read_link(&pointer).unwrap(), Path::new(up).join(&etag), "{name}");
        assert!(root.join("blobs").join(etag).is_file());
    }
    let left = std::fs::read_dir(root.join("blobs")).unwrap();
    let names: Vec<_> = left.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.iter().all(|name| !name.ends_with(".incomplete")), "{names:?}");
}

#[test]
fn what_is_there_is_not_fetched_again() {
    let setup = Setup::new(vec![simple()]);
    setup.pull("o/simple").unwrap();
    setup.server.forget();
    let (plan, fetched) = setup.pull("o/simple").unwrap();
    assert!(plan.files.iter().all(|file| file.cached));
    assert_eq!(fetched.bytes, 0);
    assert_eq!(setup.server.seen().len(), 1, "{:?}", setup.server.seen());
}

#[test]
fn a_new_commit_shares_the_blobs_of_the_old_one() {
    let setup = Setup::new(vec![simple()]);
    setup.pull("o/simple").unwrap();
    let mut newer = simple();
    newer.commit = "f".repeat(40);
    newer.files[0].1 = b"{\"new\": 1}".to_vec();
    setup.server.set_repos(vec![newer]);
    let (plan, fetched) = setup.pull("o/simple").unwrap();
    assert_eq!(fetched.bytes, 10);
    assert_eq!(std::fs::read(plan.path().join("model.safetensors")).unwrap().len(), 300_000);
}

#[test]
fn a_damaged_file_of_the_cache_is_fetched_anew() {
    let setup = Setup::new(vec![simple()]);
    let (plan, _) = setup.pull("o/simple").unwrap();
    let file = plan.path().join("model.safetensors");
    std::fs::write(&file, "short").unwrap();
    setup.pull("o/simple").unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), content(300_000, 1));
}

#[test]
fn the_token_goes_to_the_endpoint_and_not_to_the_content_network() {
    let setup = Setup::new(vec![simple()]);
    setup.server.require_token("hf_secret");
    let hub = Hub::new(setup.settings_with(&[("HF_TOKEN", "hf_secret")])).unwrap();
    pull(&hub, "o/simple", &mut Unwatched).unwrap();
    let seen = setup.server.seen();
    let (content, own): (Vec<_>, Vec<_>) = seen.iter().partition(|s| s.content_network);
    assert!(!content.is_empty() && !own.is_empty());
    assert!(own.iter().all(|s| s.headers["authorization"] == "Bearer hf_secret"));
    assert!(content.iter().all(|s| !s.headers.contains_key("authorization")));
}

#[test]
fn a_closed_door_says_where_the_key_is_and_shows_no_token() {
    let setup = Setup::new(vec![simple()]);
    setup.server.require_token("right");
    let error = refused(setup.pull("o/simple"));
    let page = format!("{}/o/simple", setup.server.endpoint());
    assert!(error.contains("HF_TOKEN") && error.contains(&page) && error.contains("terms"));
    let hub = Hub::new(setup.settings_with(&[("HF_TOKEN", "hf_wrong")])).unwrap();
    let error = refused(pull(&hub, "o/simple", &mut Unwatched));
    assert!(error.contains("401") && !error.contains("hf_wrong"), "{error}");
}

#[test]
fn unknown_repositories_and_revisions_are_named() {
    let setup = Setup::new(vec![simple()]);
    let error = refused(setup.pull("o/none"));
    assert!(error.contains("o/none"), "{error}");
    let other = DownloadRequest { revision: "v9".into(), ..ask("o/simple") };
    let error = setup.hub().plan(&other, &mut Unwatched).unwrap_err().to_string();
    assert!(error.contains("v9") && error.contains("o/simple"), "{error}");
}

#[test]
fn revisions_with_slashes_and_commits_are_found_and_remembered() {
    let setup = Setup::new(vec![simple()]);
    let commit = simple().commit;
    for revision in ["refs/pr/1", &commit] {
        let ask = DownloadRequest { revision: revision.into(), ..ask("o/simple") };
        let plan = setup.hub().plan(&ask, &mut Unwatched).unwrap();
        setup.hub().fetch(&plan, &mut Unwatched).unwrap();
        assert_eq!(setup.offline().plan(&ask, &mut Unwatched).unwrap().path(), plan.path());
    }
    assert!(setup.cache().join("models--o--simple/refs/refs/pr/1").is_file());
    assert!(!setup.cache().join("models--o--simple/refs").join(commit).exists());
}

#[test]
fn offline_answers_from_the_cache_without_a_request() {
    let setup = Setup::new(vec![simple()]);
    let error = setup.offline().plan(&ask("o/simple"), &mut Unwatched).unwrap_err();
    assert!(matches!(error, HubError::NotCached { .. }), "{error}");
    let (plan, _) = setup.pull("o/simple").unwrap();
    setup.server.forget();
    let (again, fetched) = pull(&setup.offline(), "o/simple", &mut Unwatched).unwrap();
    assert_eq!((again.path(), again.bytes(), fetched.bytes), (plan.path(), plan.bytes(), 0));
    assert!(setup.server.seen().is_empty());
}

#[test]
fn offline_names_what_a_broken_snapshot_lacks() {
    let index = r#"{"weight_map": {"a": "model-00001-of-00002.safetensors",
        "b": "model-00002-of-00002.safetensors"}}"#;
    let repo = HubRepo::new("o/two")
        .small("config.json", "{}")
        .small("model.safetensors.index.json", index)
        .large("model-00001-of-00002.safetensors", content(10, 1))
        .large("model-00002-of-00002.safetensors", content(10, 2));
    let setup = Setup::new(vec![repo]);
    let (plan, _) = setup.pull("o/two").unwrap();
    std::fs::remove_file(plan.path().join("model-00002-of-00002.safetensors")).unwrap();
    let error = refused(pull(&setup.offline(), "o/two", &mut Unwatched));
    assert!(error.contains("model-00002-of-00002.safetensors"), "{error}");
}

#[test]
fn a_listing_without_checksums_is_completed_by_headers() {
    let repo = HubRepo { bare_listing: true, ..simple() };
    let setup = Setup::new(vec![repo]);
    let (plan, _) = setup.pull("o/simple").unwrap();
    assert_eq!(plan.bytes(), 300_002);
    let heads: Vec<_> =
        setup.server.seen().into_iter().filter(|seen| seen.method == "HEAD").collect();
    assert_eq!(heads.len(), 2, "one for each chosen file");
    assert!(heads.iter().all(|seen| !seen.content_network));
}

#[test]
fn split_ggufs_come_whole_and_their_first_file_is_the_model() {
    let repo = HubRepo::new("o/gguf")
        .large("Q8_0/m-Q8_0-00001-of-00002.gguf", content(10, 1))
        .large("Q8_0/m-Q8_0-00002-of-00002.gguf", content(20, 2))
        .large("m-Q4_K_M.gguf", content(30, 3));
    let setup = Setup::new(vec![repo]);
    assert!(matches!(setup.pull("o/gguf"), Err(HubError::Several { .. })));
    let (plan, _) = setup.pull("o/gguf:q8_0").unwrap();
    assert_eq!(plan.bytes(), 30);
    assert!(plan.path().ends_with("Q8_0/m-Q8_0-00001-of-00002.gguf") && plan.path().is_file());
    let (again, _) = pull(&setup.offline(), "o/gguf", &mut Unwatched).unwrap();
    assert_eq!(again.path(), plan.path(), "the only one in the cache");
}

#[test]
fn the_mtp_part_alone_is_the_shards_that_hold_it() {
    let index = r#"{"weight_map": {"a": "model-00001-of-00002.safetensors",
        "mtp.fc.weight": "model-00002-of-00002.safetensors"}}"#;
    let repo = HubRepo::new("o/two")
        .small("config.json", "{}")
        .small("model.safetensors.index.json", index)
        .large("model-00001-of-00002.safetensors", content(10, 1))
        .large("model-00002-of-00002.safetensors", content(10, 2));
    let setup = Setup::new(vec![repo]);
    let only = DownloadRequest { part: RepoPart::MtpOnly, ..ask("o/two") };
    let plan = setup.hub().plan(&only, &mut Unwatched).unwrap();
    let names: Vec<&str> = plan.files.iter().map(|file| file.name.as_str()).collect();
    let shard = "model-00002-of-00002.safetensors";
    assert_eq!(names, ["config.json", "model.safetensors.index.json", shard]);
}

#[test]
fn planning_writes_nothing() {
    let setup = Setup::new(vec![simple()]);
    setup.hub().plan(&ask("o/simple"), &mut Unwatched).unwrap();
    assert!(!setup.cache().exists());
}
