//! GGUF files as checkpoints: metadata, shapes, sets of files, folders.

use crate::written::{assert_says, checkpoint, f32s, gguf, safetensors};
use forerun_testkit::tiny::{GgufFile, GgufValue};
use forerun_weights::{Checkpoint, CheckpointLayout, gguf};

#[test]
fn metadata_comes_back_by_type() {
    let file = GgufFile::default()
        .with("text", GgufValue::text("Grüße"))
        .with("u8", GgufValue::U8(200))
        .with("i8", GgufValue::I8(-3))
        .with("u16", GgufValue::U16(60_000))
        .with("i16", GgufValue::I16(-30_000))
        .with("u32", GgufValue::U32(4_000_000_000))
        .with("i32", GgufValue::I32(-2_000_000_000))
        .with("u64", GgufValue::U64(u64::MAX))
        .with("i64", GgufValue::I64(i64::MIN))
        .with("f32", GgufValue::F32(1.5))
        .with("f64", GgufValue::F64(1e300))
        .with("yes", GgufValue::Bool(true))
        .with("texts", GgufValue::texts(&["a", "", "b c"]))
        .with("f32s", GgufValue::f32s(&[-1.0, 0.5]))
        .with("i32s", GgufValue::i32s(&[1, -2, 3]))
        .with("u64s", GgufValue::Array(10, vec![GgufValue::U64(u64::MAX)]))
        .with("flags", GgufValue::flags(&[true, false]))
        .with("none", GgufValue::texts(&[]))
        .with("deep", GgufValue::Array(9, vec![GgufValue::i32s(&[1])]));
    let header = gguf::parse(&file.bytes()).unwrap();
    let metadata = &header.metadata;
    let keys: Vec<&str> = file.metadata.iter().map(|(key, _)| key.as_str()).collect();
    assert!(metadata.keys().eq(keys), "keys keep their order");
    assert_eq!(metadata.text("text"), Some("Grüße"));
    let counts = ["u8", "u16", "u32", "u64", "i8", "f32", "text", "i32s", "absent"]
        .map(|key| metadata.count(key));
    let expected = [Some(200), Some(60_000), Some(4_000_000_000), Some(u64::MAX)];
    assert_eq!(counts, [&expected[..], &[None; 5]].concat()[..]);
    let numbers =
        ["i8", "i16", "i32", "i64", "f32", "f64", "u8"].map(|key| metadata.number(key).unwrap());
    assert_eq!(numbers, [-3.0, -30_000.0, -2e9, i64::MIN as f64, 1.5, 1e300, 200.0]);
    assert_eq!((metadata.flag("yes"), metadata.flag("u8")), (Some(true), None));
    assert_eq!(metadata.texts("texts").unwrap(), ["a", "", "b c"]);
    assert_eq!(metadata.texts("none").map(<[String]>::len), Some(0));
    assert_eq!(metadata.numbers("f32s").unwrap(), [-1.0, 0.5]);
    assert_eq!(metadata.numbers("i32s").unwrap(), [1.0, -2.0, 3.0]);
    assert_eq!(metadata.integers("i32s").unwrap(), [1, -2, 3]);
    assert_eq!(metadata.flags("flags").unwrap(), [true, false]);
    for key in ["u8", "texts", "flags", "deep", "absent"] {
        assert!(metadata.numbers(key).is_none() && metadata.integers(key).is_none(), "{key}");
    }
    assert!(metadata.integers("f32s").is_none() && metadata.integers("u64s").is_none());
}

#[test]
fn both_versions_and_other_alignments_open() {
    let small =
        GgufFile::default().f32s("a", &[3], &[1.0, 2.0, 3.0]).f32s("b", &[2, 1], &[4.0, 5.0]);
    for (file, version) in [
        (small.clone(), 3),
        (GgufFile { version: 2, ..small.clone() }, 2),
        (small.clone().aligned(64), 3),
        (small.clone().aligned(1), 3),
    ] {
        assert_eq!(gguf::parse(&file.bytes()).unwrap().version, version);
        let (folder, checkpoint) = gguf(&file);
        assert_eq!(checkpoint.values("a", &[3]).unwrap(), [1.0, 2.0, 3.0]);
        assert_eq!(checkpoint.values("b", &[2, 1]).unwrap(), [4.0, 5.0]);
        assert_eq!(checkpoint.layout(), CheckpointLayout::Gguf);
        assert_eq!(checkpoint.folder(), folder.path());
        assert!(checkpoint.config().is_null());
        assert!(checkpoint.names().eq(["a", "b"]) && checkpoint.untranslated().next().is_none());
    }
}

/// Five tensors in three parts and their files.
fn parts() -> Vec<(String, Vec<u8>)> {
    let mut whole = GgufFile::default().with("general.architecture", GgufValue::text("llama"));
    for i in 0..5u8 {
        whole = whole.f32s(&format!("t{i}"), &[2], &[f32::from(i), -1.0]);
    }
    let name = |i| GgufFile::part_name("m", i, 3);
    whole.split(3).iter().zip(1..).map(|(part, i)| (name(i), part.bytes())).collect()
}

fn as_slices(files: &[(String, Vec<u8>)]) -> Vec<(&str, &[u8])> {
    files.iter().map(|(name, bytes)| (name.as_str(), &bytes[..])).collect()
}

#[test]
fn a_split_set_opens_from_its_folder_and_from_any_part() {
    let parts = parts();
    let (folder, opened) = checkpoint(&as_slices(&parts));
    let of_part = |(name, _): &(String, Vec<u8>)| Checkpoint::open(&folder.path().join(name));
    for opened in parts.iter().map(of_part).chain([opened]) {
        let opened = opened.unwrap();
        assert_eq!(opened.files().len(), 3);
        assert_eq!(opened.gguf().unwrap().text("general.architecture"), Some("llama"));
        for i in 0..5u8 {
            assert_eq!(opened.values(&format!("t{i}"), &[2]).unwrap(), [f32::from(i), -1.0]);
        }
    }
}

#[test]
fn split_sets_that_do_not_add_up_are_refused() {
    let good = parts();
    let mut absent = good.clone();
    absent.remove(1);
    assert_says(
        checkpoint(&as_slices(&absent)).1,
        &["part 2 of 3", "`m-00002-of-00003.gguf`"],
        "absent",
    );

    let mut swapped = good.clone();
    (swapped[1].1, swapped[2].1) = (good[2].1.clone(), good[1].1.clone());
    let words = ["m-00002-of-00003.gguf", "`split.no` is 2", "expected 1"];
    assert_says(checkpoint(&as_slices(&swapped)).1, &words, "swapped");

    let mut twice = good.clone();
    twice[2].1 = good[1].1.clone();
    assert_says(checkpoint(&as_slices(&twice)).1, &["both", "m-00003-of-00003.gguf"], "twice");

    let alone = [("renamed.gguf", &good[0].1[..])];
    assert_says(checkpoint(&alone).1, &["renamed.gguf", "`split.count` is 3"], "renamed");

    let plain = GgufFile::default().f32s("x", &[1], &[0.0]).bytes();
    let mut unmarked = good.clone();
    unmarked[2].1 = plain;
    let words = ["m-00003-of-00003.gguf", "`split.no` is no count"];
    assert_says(checkpoint(&as_slices(&unmarked)).1, &words, "unmarked");

    let fewer = GgufFile::default().f32s("t0", &[1], &[0.0]).f32s("t1", &[1], &[0.0]).split(2);
    let mut first = fewer[0].clone();
    first.metadata.retain(|(key, _)| key != "split.tensors.count");
    first = first.with("split.tensors.count", GgufValue::I32(7));
    let files = [
        ("m-00001-of-00002.gguf", &first.bytes()[..]),
        ("m-00002-of-00002.gguf", &fewer[1].bytes()),
    ];
    let words = ["m-00001-of-00002.gguf", "`split.tensors.count` is 7", "expected 2"];
    assert_says(checkpoint(&files).1, &words, "tensors");
}

#[test]
fn a_folder_opens_when_it_holds_one_model() {
    let file = GgufFile::default().f32s("a", &[1], &[1.0]).bytes();
    let other = GgufFile::default().f32s("b", &[1], &[1.0]).bytes();
    let trunk = safetensors("pt", &[f32s("c", &[1], &[1.0])]);
    let opened = |files: &[(&str, &[u8])]| checkpoint(files).1;
    let beside = [("model.gguf", &file[..]), ("mmproj-f16.gguf", &other[..]), ("README.md", b"")];
    assert!(opened(&beside).unwrap().names().eq(["a"]), "projectors are left alone");
    let both = [("model.safetensors", &trunk[..]), ("config.json", b"{}"), ("x.gguf", &file)];
    assert!(opened(&both).unwrap().names().eq(["c"]), "safetensors come first");
    let several = [("a-Q4_0.gguf", &file[..]), ("a-Q8_0.gguf", &other)];
    let words = ["several", "`a-Q4_0.gguf`", "`a-Q8_0.gguf`", "name one"];
    assert_says(opened(&several), &words, "several");
    let (folder, _) = checkpoint(&several);
    let named = Checkpoint::open(&folder.path().join("a-Q8_0.gguf")).unwrap();
    assert!(named.names().eq(["b"]));
    assert_says(opened(&[("mmproj.gguf", &file)]), &["no weights"], "only a projector");
}

#[test]
fn a_gguf_file_is_known_by_its_first_bytes_too() {
    let file = GgufFile::default().f32s("a", &[1], &[1.0]).bytes();
    let (folder, _) = checkpoint(&[("sha256-abc", &file)]);
    let opened = Checkpoint::open(&folder.path().join("sha256-abc")).unwrap();
    assert!(opened.contains("a"));
}
