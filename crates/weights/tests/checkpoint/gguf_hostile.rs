//! Damaged and malicious GGUF files: always an error that names the culprit, never a panic.

use crate::written::{assert_says, checkpoint};
use forerun_testkit::tiny::{GgufFile, GgufValue};
use forerun_weights::gguf;

/// Where the header says how many tensors and keys there are.
const TENSORS_AT: usize = 8;
const KEYS_AT: usize = 16;
/// Where the first key begins: its length, its letters, its type.
const FIRST_KEY_AT: usize = 24;

/// One of everything; the last tensor ends with the file.
fn small() -> GgufFile {
    GgufFile::default()
        .with("k", GgufValue::texts(&["one", "two"]))
        .with("n", GgufValue::U32(7))
        .with("deep", GgufValue::Array(9, vec![GgufValue::flags(&[true])]))
        .f32s("a", &[2, 4], &[1.0; 8])
        .tensor("q", 8, &[1, 32], &[3; 34])
        .f32s("last", &[8], &[2.0; 8])
}

fn patched(mut file: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    file[at..at + bytes.len()].copy_from_slice(bytes);
    file
}

fn assert_refused(file: &[u8], words: &[&str], case: &str) {
    let (_folder, opened) = checkpoint(&[("model.gguf", file)]);
    assert_says(opened, &[words, &["model.gguf"]].concat(), case);
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let file = small().bytes();
    gguf::parse(&file).unwrap();
    for length in 0..file.len() {
        assert!(gguf::parse(&file[..length]).is_err(), "cut to {length} of {}", file.len());
    }
    assert_refused(&file[..file.len() - 1], &["`last`", "past the end"], "cut by one");
}

#[test]
fn any_byte_may_change_without_a_panic() {
    let file = small().bytes();
    for at in 0..file.len() {
        for byte in [0, 1, 0x7f, 0x80, 0xff, file[at] ^ 1] {
            let _ = gguf::parse(&patched(file.clone(), at, &[byte]));
        }
    }
}

#[test]
fn other_kinds_of_files_say_what_they_are() {
    let file = small().bytes();
    let big = patched(file.clone(), 4, &3u32.to_be_bytes());
    let cases: [(&[u8], &[&str]); 4] = [
        (&patched(file.clone(), 0, b"GGML"), &["begins with", "`GGUF`"]),
        (&big, &["big-endian"]),
        (&patched(file.clone(), 4, &[1]), &["version 1", "2 and 3"]),
        (&patched(file.clone(), 4, &[4]), &["version 4", "2 and 3"]),
    ];
    for (file, words) in cases {
        assert_refused(file, words, words[0]);
    }
}

#[test]
fn counts_and_lengths_that_the_file_cannot_hold_are_refused() {
    let file = small().bytes();
    let value_at = FIRST_KEY_AT + 8 + 1 + 4;
    for claim in [1 << 60, u64::MAX, u64::MAX / 13, file.len() as u64] {
        let cases = [
            (TENSORS_AT, "tensors"),
            (KEYS_AT, "keys"),
            (FIRST_KEY_AT, "key number 0"),
            (value_at + 4, "key `k`: claims"),
            (value_at + 12, "inside key `k`"),
        ];
        for (at, words) in cases {
            let lying = patched(file.clone(), at, &claim.to_le_bytes());
            assert_refused(&lying, &[words, &claim.to_string()], &format!("{claim} at {at}"));
        }
    }
}

#[test]
fn keys_that_are_no_metadata_are_refused_by_name() {
    let key = |key: &str, value| GgufFile::default().with(key, value).bytes();
    let nested = |depth: usize| {
        (1..depth).fold(GgufValue::i32s(&[1]), |inner, _| GgufValue::Array(9, vec![inner]))
    };
    assert!(gguf::parse(&key("k", nested(4))).is_ok());
    let with_type = |kind: u8| patched(key("k", GgufValue::U8(2)), FIRST_KEY_AT + 9, &[kind]);
    let twice = GgufFile::default().with("k", GgufValue::U8(1)).with("j", GgufValue::U8(1));
    let elements = GgufValue::Array(77, vec![]);
    let cases: [(Vec<u8>, &[&str]); 9] = [
        (twice.with("k", GgufValue::U8(2)).bytes(), &["key `k`", "twice"]),
        (key("k", nested(5)), &["key `k`", "deeper than 4"]),
        (key("k", nested(10_000)), &["key `k`", "deeper than 4"]),
        (with_type(13), &["key `k`", "value type 13"]),
        (with_type(7), &["key `k`", "truth value of 2"]),
        (key("k", elements), &["key `k`", "value type 77"]),
        (key("k", GgufValue::Array(7, vec![GgufValue::U8(9)])), &["key `k`", "truth value of 9"]),
        (
            patched(key("kk", GgufValue::U8(0)), FIRST_KEY_AT + 8, &[0xff]),
            &["key number 0", "UTF-8"],
        ),
        (
            patched(key("k", GgufValue::text("x")), FIRST_KEY_AT + 21, &[0xff]),
            &["key `k`", "UTF-8"],
        ),
    ];
    for (file, words) in cases {
        assert_refused(&file, words, &words.join(", "));
    }
}

#[test]
fn alignment_must_be_a_power_of_two() {
    let file = |value| GgufFile::default().with("general.alignment", value).f32s("a", &[1], &[0.0]);
    let cases = [
        (GgufValue::U32(0), "is 0"),
        (GgufValue::U32(24), "is 24"),
        (GgufValue::I32(-32), "is not a count"),
        (GgufValue::text("32"), "is not a count"),
    ];
    for (value, words) in cases {
        let words = ["`general.alignment`", words, "power of two"];
        assert_refused(&file(value).bytes(), &words, words[1]);
    }
    let huge = file(GgufValue::U64(1 << 63));
    assert_refused(&huge.bytes(), &["`a`", "past the end"], "huge");
}

#[test]
fn tensors_that_contradict_the_file_are_refused_by_name() {
    let second = |kind: u32, shape: &[u64], bytes: usize, offset: Option<u64>| {
        let mut file = GgufFile::default().f32s("first", &[16], &[0.0; 16]).tensor(
            "bad",
            kind,
            shape,
            &vec![0; bytes],
        );
        file.tensors[1].offset = offset;
        file.bytes()
    };
    let twice = GgufFile::default().f32s("bad", &[1], &[0.0]).f32s("bad", &[1], &[0.0]);
    let cases: [(Vec<u8>, &[&str]); 15] = [
        (second(0, &[8], 32, Some(32)), &["inside `first`"]),
        (second(0, &[8], 32, Some(0)), &["byte"]),
        (second(0, &[8], 32, Some(68)), &["68", "multiple of 32"]),
        (second(0, &[8], 32, Some(96)), &["96", "past the end"]),
        (second(0, &[8], 32, Some(u64::MAX - 31)), &["past the end"]),
        (second(999, &[8], 32, Some(1 << 40)), &["past the end"]),
        (second(999, &[8], 32, Some(65)), &["65", "multiple of 32"]),
        (second(0, &[8, 0], 32, None), &["length 0"]),
        (second(0, &[1 << 63], 32, None), &["9223372036854775808", "overflow"]),
        (second(0, &[1 << 32, 1 << 32], 32, None), &["4294967296", "overflow"]),
        (second(999, &[1 << 32, 1 << 32], 32, None), &["4294967296", "overflow"]),
        (second(0, &[1, 1, 1, 1, 1], 32, None), &["5 axes", "at most 4"]),
        (second(8, &[2, 33], 68, None), &["rows of 33", "Q8_0", "multiple of 32"]),
        (second(12, &[256, 128], 32, None), &["rows of 128", "Q4_K", "multiple of 256"]),
        (twice.bytes(), &["twice"]),
    ];
    for (file, words) in cases {
        assert_refused(&file, &[words, &["`bad`"]].concat(), &words.join(", "));
    }
    let nameless = GgufFile::default().f32s("", &[1], &[0.0]);
    assert_refused(&nameless.bytes(), &["tensor number 0", "empty name"], "nameless");
}
