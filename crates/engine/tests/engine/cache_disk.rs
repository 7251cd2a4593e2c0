//! The tier on disk: what a restart, a crash, damage and a limit leave of it.

use crate::common::{Device, babble, engine, finish};
use forerun_base::{DType, Token};
use forerun_engine::{
    CacheReport, CacheSalt, CacheSettings, CacheStats, CacheUse, Depth, DiskSettings, DiskStats,
    Engine, Event, MissReason, ModelRunner, Request, Settings, Speculation,
};
use forerun_model::Blueprint;
use forerun_testkit::Golden;
use std::fs;
use std::path::{Path, PathBuf};

/// Hybrid with a head, attention only, windows with a separate drafter.
const MODELS: [&str; 3] = ["qwen3_5", "llama", "gemma4_dense + gemma4_assistant"];

fn settings(bytes: u64) -> Settings {
    Settings {
        context: 512,
        prefill_chunk: 64,
        speculation: Speculation::mtp(4),
        kv: DType::F16,
        cache: CacheSettings { bytes, interval: Some(64) },
        ..Settings::default()
    }
}

fn disk(folder: &Path, bytes: u64) -> DiskSettings {
    DiskSettings { folder: folder.to_owned(), bytes, identity: "a test".to_owned() }
}

/// A new process, as far as the folder can tell.
fn restarted(name: &str, settings: &Settings, disk: &DiskSettings) -> Engine<ModelRunner> {
    moved(name, Device::Tuned, settings, disk)
}

/// The same on another device.
fn moved(
    name: &str,
    device: Device,
    settings: &Settings,
    disk: &DiskSettings,
) -> Engine<ModelRunner> {
    let mut engine = engine(name, device, settings);
    engine.open_disk_cache(disk).expect("a folder");
    engine
}

fn ask(engine: &mut Engine<ModelRunner>, prompt: &[Token]) -> (Vec<Token>, CacheReport) {
    ask_under(None, engine, prompt)
}

fn ask_under(
    salt: Option<CacheSalt>,
    engine: &mut Engine<ModelRunner>,
    prompt: &[Token],
) -> (Vec<Token>, CacheReport) {
    let (depth, cache) = (Depth::Fixed(3), CacheUse { salt, ..CacheUse::default() });
    let request = Request { depth, cache, ..Request::greedy(prompt.to_vec(), 10) };
    engine.submit(request).expect("accepted");
    let mut events = Vec::new();
    while !engine.is_idle() {
        engine.step(&mut events);
    }
    let report = events.iter().find_map(|event| match event {
        Event::Started { cached, .. } => Some(CacheReport::clone(cached)),
        _ => None,
    });
    let tokens = events.iter().filter_map(|event| match event {
        Event::Token { token, .. } => Some(*token),
        _ => None,
    });
    (tokens.collect(), report.expect("it started"))
}

fn cold(name: &str, prompt: &[Token]) -> Vec<Token> {
    ask(&mut engine(name, Device::Tuned, &settings(0)), prompt).0
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("a file").path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|name| name == "prefix")).collect();
    files.sort();
    files
}

fn on_disk(stats: CacheStats) -> DiskStats {
    stats.disk.expect("a folder")
}

const ROOM: u64 = 1 << 30;

#[test]
fn a_conversation_goes_on_after_a_restart() {
    for name in MODELS {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = disk(folder.path(), ROOM);
        let mut text = babble(180, 373);
        for turn in 0..4 {
            let mut engine = restarted(name, &settings(64 << 20), &disk);
            let (answer, report) = ask(&mut engine, &text);
            assert_eq!(answer, cold(name, &text), "{name}, turn {turn}");
            if turn > 0 {
                let resent = text.len() - 30;
                assert!(report.cached_tokens + 6 >= resent, "{name}: {report:?} of {resent}");
                assert_eq!(report.from_disk, report.cached_tokens, "{name}");
                assert_eq!(report.from_disk as u64, engine.cache_stats().disk_hit_tokens);
            }
            let stats = on_disk(engine.cache_stats());
            assert_eq!((stats.dropped, stats.bad_files, stats.failed_writes), (0, 0, 0), "{name}");
            text.extend(answer);
            text.extend(babble(30, 373));
        }
    }
}

#[test]
fn what_memory_evicts_comes_back_from_disk() {
    for name in MODELS {
        let folder = tempfile::tempdir().expect("a folder");
        let mut engine = restarted(name, &settings(64 << 20), &disk(folder.path(), ROOM));
        let text = babble(200, 373);
        let (first, _) = ask(&mut engine, &text);
        engine.flush_cache();
        engine.clear_cache();
        let (second, report) = ask(&mut engine, &text);
        assert_eq!(first, second, "{name}");
        assert!(report.from_disk >= 190 && report.from_disk == report.cached_tokens, "{report:?}");
        let (_, again) = ask(&mut engine, &text);
        assert_eq!(again.from_disk, 0, "{name}: memory has it now");
    }
}

#[test]
fn a_salt_finds_its_own_entries_after_a_restart_and_nobody_elses() {
    for name in MODELS {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = disk(folder.path(), ROOM);
        let text = babble(200, 373);
        let [first, second] = [1, 2].map(|byte| Some(CacheSalt([byte; 32])));
        let mut engine = restarted(name, &settings(64 << 20), &disk);
        let (expected, report) = ask_under(first, &mut engine, &text);
        assert_eq!(report.cached_tokens, 0, "{name}");
        drop(engine);
        for (salt, from_disk) in [(second, false), (None, false), (first, true)] {
            let mut engine = restarted(name, &settings(64 << 20), &disk);
            let (answer, report) = ask_under(salt, &mut engine, &text);
            assert_eq!(answer, expected, "{name}, {salt:?}");
            assert_eq!(report.from_disk >= 190, from_disk, "{name}, {salt:?}: {report:?}");
            assert_eq!(report.from_disk, report.cached_tokens, "{name}, {salt:?}");
            if !from_disk {
                let miss = report.miss.expect("a miss");
                assert_eq!((miss.reason, miss.expected), (MissReason::Empty, None), "{name}");
            }
        }
    }
}

#[cfg(unix)]
#[test]
fn the_folder_and_its_files_are_for_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    let open = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
    };
    let above = tempfile::tempdir().expect("a folder");
    let made = above.path().join("made/below");
    let text = babble(200, 373);
    let fill = |folder: &Path| {
        ask(&mut restarted("llama", &settings(64 << 20), &disk(folder, ROOM)), &text);
    };
    fill(&made);
    assert_eq!(mode(&made), 0o700);
    let files: Vec<_> = entries(&made).into_iter().chain([made.join("lock")]).collect();
    assert!(files.len() > 3);
    files.iter().for_each(|file| assert_eq!(mode(file), 0o600, "{}", file.display()));
    // A folder of an earlier version.
    files.iter().for_each(|file| open(file, 0o644));
    open(&made, 0o755);
    fill(&made);
    assert_eq!(mode(&made), 0o700);
    files.iter().for_each(|file| assert_eq!(mode(file), 0o600, "{}", file.display()));
    // One that serves others too keeps its mode; the files are still nobody else's.
    for (other, folder_mode) in [(Some("notes.txt"), 0o755), (None, 0o1777)] {
        let shared = above.path().join(format!("{folder_mode:o}"));
        fs::create_dir(&shared).expect("made");
        other.into_iter().for_each(|name| fs::write(shared.join(name), "").expect("written"));
        open(&shared, folder_mode);
        fill(&shared);
        assert_eq!(mode(&shared), folder_mode & 0o777);
        entries(&shared).iter().for_each(|file| assert_eq!(mode(file), 0o600));
    }
}

/// Each file in turn is damaged: the text is the same, the entry is gone, and so is what stands on it.
#[test]
fn damage_costs_the_entry_and_nothing_else() {
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, Damage); 4] = [
        ("a byte of the contents", |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x40;
        }),
        ("the last byte", |bytes| *bytes.last_mut().expect("a byte") ^= 1),
        ("half of it", |bytes| bytes.truncate(bytes.len() / 2)),
        ("a byte of the header", |bytes| bytes[20] ^= 1),
    ];
    for name in ["qwen3_5", "llama"] {
        let folder = tempfile::tempdir().expect("a folder");
        let text = babble(200, 373);
        let expected = cold(name, &text);
        ask(&mut restarted(name, &settings(64 << 20), &disk(folder.path(), ROOM)), &text);
        let files: Vec<_> = entries(folder.path())
            .into_iter()
            .map(|path| (fs::read(&path).expect("a file"), path))
            .collect();
        assert!(files.len() >= 4, "{name}: {}", files.len());
        for (what, damage) in damages {
            let mut missed = 0;
            for (bytes, path) in &files {
                // The folder as it was.
                for (bytes, path) in &files {
                    fs::write(path, bytes).expect("written");
                }
                let mut damaged = bytes.clone();
                damage(&mut damaged);
                fs::write(path, &damaged).expect("written");
                let mut engine = restarted(name, &settings(64 << 20), &disk(folder.path(), ROOM));
                let (answer, report) = ask(&mut engine, &text);
                assert_eq!(answer, expected, "{name}: {what}");
                let (whole, bad) = (text.len() - 1, on_disk(engine.cache_stats()).bad_files);
                match what {
                    "half of it" => assert_eq!(bad, 1, "{name}: seen when the folder is opened"),
                    // What no look-up needs is not read.
                    _ => assert!(bad == 1 || report.cached_tokens == whole, "{name}: {what}"),
                }
                missed += usize::from(report.cached_tokens < whole);
                engine.flush_cache();
            }
            assert!(missed > 0, "{name}: {what} costs something");
        }
    }
}

#[test]
fn another_model_device_or_type_finds_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = babble(200, 373);
    ask(&mut restarted("qwen3_5", &settings(64 << 20), &disk(folder.path(), ROOM)), &text);
    let found = |settings: &Settings, disk: &DiskSettings| {
        ask(&mut restarted("qwen3_5", settings, disk), &text).1.cached_tokens
    };
    let other = DiskSettings { identity: "another test".to_owned(), ..disk(folder.path(), ROOM) };
    assert_eq!(found(&settings(64 << 20), &other), 0);
    for kv in [DType::F32, DType::BF16, DType::I8] {
        let others = Settings { kv, ..settings(64 << 20) };
        assert_eq!(found(&others, &disk(folder.path(), ROOM)), 0, "{kv}");
    }
    let plain = Settings { speculation: Speculation::OFF, ..settings(64 << 20) };
    assert_eq!(found(&plain, &disk(folder.path(), ROOM)), 0);
    assert!(
        found(&settings(64 << 20), &disk(folder.path(), ROOM)) >= 190,
        "its own are still there"
    );
}

#[test]
fn what_one_device_kept_is_found_by_those_of_the_same_arithmetic() {
    let (folder, text) = (tempfile::tempdir().expect("a folder"), babble(200, 373));
    let (settings, disk) = (settings(64 << 20), disk(folder.path(), ROOM));
    let kept = ask(&mut restarted("qwen3_5", &settings, &disk), &text).0;
    // Two threads before, one now; then other arithmetic.
    let (tokens, report) = ask(&mut moved("qwen3_5", Device::Recorded, &settings, &disk), &text);
    assert!(report.cached_tokens >= 190, "{report:?}");
    assert_eq!(tokens, kept);
    let (_, report) = ask(&mut moved("qwen3_5", Device::Plain, &settings, &disk), &text);
    assert_eq!(report.cached_tokens, 0);
}

#[test]
fn unfinished_and_foreign_files_do_no_harm() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = babble(200, 373);
    ask(&mut restarted("qwen3_5", &settings(64 << 20), &disk(folder.path(), ROOM)), &text);
    let whole = entries(folder.path());
    // Killed between two writes, or before the rename.
    let half = &fs::read(&whole[0]).expect("a file")[..100];
    fs::write(whole[0].with_extension("unfinished"), half).expect("written");
    fs::write(folder.path().join("notes.txt"), "mine").expect("written");
    fs::write(folder.path().join("zz.prefix"), "nonsense").expect("written");
    fs::copy(&whole[0], folder.path().join("00.prefix")).expect("copied");
    let mut engine = restarted("qwen3_5", &settings(64 << 20), &disk(folder.path(), ROOM));
    assert_eq!(on_disk(engine.cache_stats()).bad_files, 2, "the one and the other name");
    assert!(ask(&mut engine, &text).1.cached_tokens >= 190);
    assert!(!whole[0].with_extension("unfinished").exists());
    assert!(folder.path().join("notes.txt").exists(), "what is not ours stays");
}

#[test]
fn a_folder_keeps_to_its_limit() {
    for name in ["qwen3_5", "llama"] {
        let folder = tempfile::tempdir().expect("a folder");
        let size = |folder: &Path| -> u64 {
            entries(folder).iter().map(|path| fs::metadata(path).expect("a file").len()).sum()
        };
        let mut limit = u64::MAX;
        for round in 0..6 {
            let mut engine = restarted(name, &settings(64 << 20), &disk(folder.path(), limit));
            assert!(size(folder.path()) <= limit, "{name}: opening makes room");
            let mut text = babble(150, 373);
            text[0] = round;
            ask(&mut engine, &text);
            engine.flush_cache();
            let stats = on_disk(engine.cache_stats());
            assert_eq!(stats.tier.bytes, size(folder.path()), "{name}");
            assert!(stats.tier.bytes <= limit, "{name}: {stats:?}");
            // Room for about two.
            limit = limit.min(2 * stats.tier.bytes + 1000);
            let found = ask(&mut engine, &text).1.cached_tokens;
            assert!(found >= 140, "{name}: the newest is there: {found}");
        }
        let mut engine = restarted(name, &settings(64 << 20), &disk(folder.path(), 0));
        assert_eq!(size(folder.path()), 0, "{name}: nothing fits");
        ask(&mut engine, &babble(150, 373));
        engine.flush_cache();
        assert_eq!(size(folder.path()), 0, "{name}");
    }
}

#[test]
fn a_folder_belongs_to_one_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = restarted("llama", &settings(1 << 20), &disk(folder.path(), ROOM));
    let mut second = engine("llama", Device::Tuned, &settings(1 << 20));
    let refused = second.open_disk_cache(&disk(folder.path(), ROOM)).expect_err("locked");
    assert!(refused.to_string().contains("another process uses it"), "{refused}");
    drop(first);
    second.open_disk_cache(&disk(folder.path(), ROOM)).expect("free now");
    let mut none = engine("llama", Device::Tuned, &settings(0));
    let refused = none.open_disk_cache(&disk(folder.path(), ROOM)).expect_err("no cache");
    assert!(refused.to_string().contains("give it bytes"), "{refused}");
}

/// Reading is done in pieces between the steps of others, and nobody brings more than memory holds.
#[test]
fn many_who_read_from_disk_at_once_all_begin() {
    let folder = tempfile::tempdir().expect("a folder");
    let texts: Vec<Vec<Token>> = (0..6)
        .map(|i| {
            let mut text = babble(200, 373);
            text[0] = i;
            text
        })
        .collect();
    let mut expected = Vec::new();
    {
        let mut engine = restarted("qwen3_5", &settings(64 << 20), &disk(folder.path(), ROOM));
        expected.extend(texts.iter().map(|text| ask(&mut engine, text).0));
    }
    // Memory for one text and a half.
    let one = fs::read_dir(folder.path()).expect("a folder");
    let all: u64 = one.map(|entry| entry.expect("a file").metadata().expect("a size").len()).sum();
    let small = Settings { sequences: 4, ..settings(all / 4) };
    let mut engine = restarted("qwen3_5", &small, &disk(folder.path(), ROOM));
    for text in &texts {
        let depth = Depth::Fixed(3);
        engine.submit(Request { depth, ..Request::greedy(text.clone(), 10) }).expect("accepted");
    }
    let found: Vec<Vec<Token>> = finish(&mut engine).into_iter().map(|(text, _)| text).collect();
    assert_eq!(found, expected);
    assert!(engine.cache_stats().disk_hit_tokens > 0);
}

#[test]
fn a_fingerprint_tells_models_apart() {
    let fingerprint = |name: &str| {
        Blueprint::open(Golden::open(name).checkpoint()).expect("a model").fingerprint()
    };
    let names = ["qwen3_5", "qwen3_next", "llama", "gguf_qwen3_5_q8_0", "mlx_qwen3_5_4bit"];
    for (i, name) in names.iter().enumerate() {
        assert_eq!(fingerprint(name), fingerprint(name));
        for other in &names[..i] {
            assert_ne!(fingerprint(name), fingerprint(other), "{name} and {other}");
        }
    }
    // The last weight of the last tensor.
    let folder = tempfile::tempdir().expect("a folder");
    for file in fs::read_dir(Golden::open("llama").checkpoint()).expect("a folder") {
        let path = file.expect("a file").path();
        fs::copy(&path, folder.path().join(path.file_name().expect("a name"))).expect("copied");
    }
    let weights = folder.path().join("model.safetensors");
    let mut bytes = fs::read(&weights).expect("weights");
    *bytes.last_mut().expect("a byte") ^= 1;
    fs::write(&weights, bytes).expect("written");
    let changed = Blueprint::open(folder.path()).expect("a model").fingerprint();
    assert_ne!(changed, fingerprint("llama"));
}
