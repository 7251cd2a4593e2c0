//! Which files make a checkpoint, and what is said when they do not.

use crate::written::{WrittenTensor, assert_says, checkpoint, f32s, raw, safetensors, single};
use forerun_weights::{Checkpoint, CheckpointLayout, is_mtp_tensor};

const CONFIG: (&str, &[u8]) = ("config.json", b"{}");

fn one(name: &str, value: f32) -> Vec<u8> {
    safetensors("pt", &[f32s(name, &[1], &[value])])
}

#[test]
fn an_index_joins_its_shards_into_one_sorted_table() {
    let (first, second) = (one("b", 1.0), one("a", 2.0));
    let index = br#"{"metadata": {"total_size": 8}, "weight_map":
        {"b": "model-00001-of-00002.safetensors", "a": "more/second.safetensors"}}"#;
    let (folder, opened) = checkpoint(&[
        CONFIG,
        ("model.safetensors.index.json", index),
        ("model-00001-of-00002.safetensors", &first),
        ("more/second.safetensors", &second),
        ("golden.safetensors", b"not part of the checkpoint"),
    ]);
    let opened = opened.unwrap();
    assert_eq!(opened.names().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(opened.values("a", &[1]).unwrap(), [2.0]);
    let file = opened.file_of("a").unwrap();
    assert_eq!(file.path(), folder.path().join("more/second.safetensors"));
    assert_eq!((file.tensors(), file.is_sidecar()), (1, false));
    assert_eq!(opened.files().len(), 2);
    assert_eq!(opened.total_bytes(), (first.len() + second.len()) as u64);
    assert_eq!(opened.layout(), CheckpointLayout::Published);
}

#[test]
fn without_an_index_a_single_file_or_a_complete_run_is_taken() {
    let (_folder, opened) = checkpoint(&[CONFIG, ("model.safetensors", &one("a", 1.0))]);
    assert!(opened.unwrap().contains("a"));
    let (first, second) = (one("a", 1.0), one("b", 2.0));
    let (_folder, opened) = checkpoint(&[
        CONFIG,
        ("model-00002-of-00002.safetensors", &second),
        ("model-00001-of-00002.safetensors", &first),
    ]);
    assert_eq!(opened.unwrap().names().count(), 2);
}

#[test]
fn an_incomplete_run_of_shards_is_refused() {
    let file = one("a", 1.0);
    let cases: [(&[&str], &str); 3] = [
        (&["model-00002-of-00002.safetensors"], "shard 1 of 2"),
        (&["model-00001-of-00002.safetensors"], "1 of 2 shards"),
        (
            &["model-00001-of-00001.safetensors", "model-00001-of-00002.safetensors"],
            "do not belong to one set",
        ),
    ];
    for (names, words) in cases {
        let mut files = vec![CONFIG];
        files.extend(names.iter().map(|name| (*name, &file[..])));
        assert_says(checkpoint(&files).1, &[words], words);
    }
}

#[test]
fn a_path_to_one_file_opens_with_the_config_beside_it() {
    let (folder, _) = checkpoint(&[CONFIG, ("other.safetensors", &one("a", 1.0))]);
    let opened = Checkpoint::open(&folder.path().join("other.safetensors")).unwrap();
    assert!(opened.contains("a"));
    assert_eq!(opened.folder(), folder.path());
}

#[test]
fn paths_that_hold_no_checkpoint_say_why() {
    let weights = one("a", 1.0);
    let (folder, opened) = checkpoint(&[("model.safetensors", &weights)]);
    assert_says(opened, &["config.json"], "no config");
    assert_says(Checkpoint::open(&folder.path().join("absent")), &["absent", "exist"], "absent");
    assert_says(Checkpoint::open("".as_ref()), &["empty"], "empty path");
    let looked_for = ["model.safetensors.index.json", "model.safetensors", "0000x-of-0000y"];
    assert_says(checkpoint(&[CONFIG]).1, &looked_for, "no weights");
    let other = [CONFIG, ("adapter.safetensors", &weights[..])];
    assert_says(checkpoint(&other).1, &looked_for, "other weights");
    let (folder, _) = checkpoint(&[("model.bin", b"GGUF\x03\0\0\0"), ("notes.txt", b"hello")]);
    let inside = |name| Checkpoint::open(&folder.path().join(name));
    assert_says(inside("model.bin"), &["model.bin", "the file ends"], "cut gguf file");
    assert_says(inside("notes.txt"), &["notes.txt", ".safetensors", ".gguf"], "text file");
}

#[test]
fn an_index_that_does_not_match_its_shards_is_refused() {
    let (a, b) = (one("a", 1.0), one("b", 2.0));
    let cases: [(&str, &[&str]); 4] = [
        (r#"{"a": "model.safetensors", "c": "gone.safetensors"}"#, &["`gone.safetensors`"]),
        (r#"{"a": "model.safetensors", "c": "model.safetensors"}"#, &["model.safetensors", "`c`"]),
        (r#"{"b": "model.safetensors", "a": "b.safetensors"}"#, &["b.safetensors", "`a`"]),
        ("{}", &["index.json", "no tensor"]),
    ];
    for (map, words) in cases {
        let index = format!(r#"{{"weight_map": {map}}}"#);
        let files: [(&str, &[u8]); 4] = [
            CONFIG,
            ("model.safetensors.index.json", index.as_bytes()),
            ("model.safetensors", &a),
            ("b.safetensors", &b),
        ];
        assert_says(checkpoint(&files).1, words, map);
    }
}

#[test]
fn an_index_cannot_reach_outside_its_folder() {
    for file in ["../../etc/x.safetensors", "/etc/passwd", "a/../../b", "..\\x", "c:x", "", "."] {
        let index = serde_json::json!({"weight_map": {"a": file}}).to_string();
        let files: [(&str, &[u8]); 2] =
            [CONFIG, ("model.safetensors.index.json", index.as_bytes())];
        assert_says(checkpoint(&files).1, &["index.json", "`a`", "inside the folder"], file);
    }
}

#[test]
fn sidecars_are_added_under_their_stored_names() {
    let (trunk, first, second) = (one("a", 1.0), one("mtp.fc.weight", 2.0), one("mtp.norm", 3.0));
    let (_folder, opened) = checkpoint(&[
        CONFIG,
        ("model.safetensors.index.json", br#"{"weight_map": {"a": "model.safetensors"}}"#),
        ("model.safetensors", &trunk),
        ("model-mtp.safetensors", &first),
        ("mtp/weights.safetensors", &second),
        ("mtp/manifest.json", br#"{"rmsnorm_weight_format": "mlx_gamma"}"#),
    ]);
    let opened = opened.unwrap();
    assert_eq!(opened.names().collect::<Vec<_>>(), ["a", "mtp.fc.weight", "mtp.norm"]);
    assert!(opened.file_of("mtp.norm").unwrap().is_sidecar());
    assert!(!opened.file_of("a").unwrap().is_sidecar());
    assert!(opened.sidecar_norms_are_gamma());
}

#[test]
fn a_sidecar_named_by_the_index_is_read_once() {
    let file = one("mtp.a", 1.0);
    let (_folder, opened) = checkpoint(&[
        CONFIG,
        ("model.safetensors.index.json", br#"{"weight_map": {"mtp.a": "model-mtp.safetensors"}}"#),
        ("model-mtp.safetensors", &file),
    ]);
    let opened = opened.unwrap();
    assert_eq!(opened.files().len(), 1);
    assert!(!opened.sidecar_norms_are_gamma());
}

#[test]
fn a_tensor_in_two_files_is_refused_naming_both() {
    let file = one("a", 1.0);
    let (_folder, opened) =
        checkpoint(&[CONFIG, ("model.safetensors", &file), ("model-mtp.safetensors", &file)]);
    assert_says(opened, &["`a`", "model.safetensors", "model-mtp.safetensors"], "twice");
}

/// 8-bit codes with groups of 32: not what the configs below say of the trunk.
fn packed_8_32(path: &str, lead: &[usize]) -> [WrittenTensor; 3] {
    let rows: usize = lead.iter().product();
    let plane = |part: &str, dtype, last: usize, size: usize| {
        let shape = [lead, &[last]].concat();
        raw(&format!("{path}.{part}"), dtype, &shape, &vec![0; rows * last * size])
    };
    [plane("weight", "U32", 8, 4), plane("scales", "BF16", 1, 2), plane("biases", "BF16", 1, 2)]
}

#[test]
fn the_configs_default_binds_the_trunk_but_neither_sidecars_nor_stacks() {
    let config = br#"{"quantization": {"group_size": 64, "bits": 4}}"#;
    let trunk = [packed_8_32("m", &[1]), packed_8_32("stack", &[2, 3])].concat();
    let (_folder, opened) = checkpoint(&[
        ("config.json", config),
        ("model.safetensors", &safetensors("mlx", &trunk)),
        ("model-mtp.safetensors", &safetensors("mlx", &packed_8_32("mtp.m", &[1]))),
    ]);
    let opened = opened.unwrap();
    assert_eq!(opened.matrix("mtp.m", [1, 32]).unwrap().format().name(), "u8/32");
    assert_eq!(opened.stacked("stack", [2, 3, 32]).unwrap().rows(), 6);
    assert_says(opened.matrix("m", [1, 32]), &["`m.weight`", "4 bits", "8 bits"], "trunk");
}

#[test]
fn layout_follows_the_trunks_metadata_or_the_config() {
    let plain = one("a", 1.0);
    let mlx = safetensors("mlx", &[f32s("b", &[1], &[0.0])]);
    let layout = |files: &[(&str, &[u8])]| checkpoint(files).1.unwrap().layout();
    assert_eq!(layout(&[CONFIG, ("model.safetensors", &mlx)]), CheckpointLayout::Mlx);
    let packed: (&str, &[u8]) = ("config.json", br#"{"quantization": {"bits": 4}}"#);
    assert_eq!(layout(&[packed, ("model.safetensors", &plain)]), CheckpointLayout::Mlx);
    let sidecar = [CONFIG, ("model.safetensors", &plain[..]), ("model-mtp.safetensors", &mlx)];
    assert_eq!(layout(&sidecar), CheckpointLayout::Published);
}

#[test]
fn the_config_is_given_as_it_stands() {
    let (_folder, opened) = single(r#"{"model_type": "qwen3", "limit": [0.0, Infinity]}"#, &[]);
    assert_eq!(opened.config()["model_type"], "qwen3");
    assert!(opened.config()["limit"][1].is_null());
}

#[test]
fn a_name_that_is_not_stored_is_named_with_the_folder() {
    let (folder, opened) = single("{}", &[]);
    let place = folder.path().to_str().unwrap();
    assert_says(opened.tensor("x"), &["`x`", place], "tensor");
    assert_says(opened.values("x", &[1]), &["`x`", place], "values");
    assert_says(opened.matrix("x", [1, 1]), &["`x.weight`", place], "matrix");
    assert!(!opened.has_matrix("x"));
}

#[test]
fn the_head_is_told_by_a_whole_segment_of_the_name() {
    for name in ["mtp.fc.weight", "language_model.mtp.norm.weight", "blk.24.nextn.eh_proj"] {
        assert!(is_mtp_tensor(name), "{name}");
    }
    for name in ["model.mtpx.weight", "smtp.fc", "lm_head.weight"] {
        assert!(!is_mtp_tensor(name), "{name}");
    }
}

#[test]
fn for_a_head_other_shards_may_be_missing() {
    let (trunk, head) = (one("a", 1.0), one("mtp.fc.weight", 2.0));
    let named = |a: &str, mtp: &str| {
        serde_json::json!({"weight_map": {"a": a, "mtp.fc.weight": mtp}}).to_string()
    };
    let index = named("trunk.safetensors", "head.safetensors");
    let index = ("model.safetensors.index.json", index.as_bytes());
    let (folder, opened) = checkpoint(&[CONFIG, index, ("head.safetensors", &head)]);
    assert_says(opened, &["`trunk.safetensors`", "missing"], "a model");
    let opened = Checkpoint::open_head(folder.path()).expect("the head is there");
    assert_eq!(opened.names().collect::<Vec<_>>(), ["mtp.fc.weight"]);
    // All of it, as ever.
    std::fs::write(folder.path().join("trunk.safetensors"), &trunk).expect("written");
    let opened = Checkpoint::open_head(folder.path()).expect("all is there");
    assert_eq!(opened.names().collect::<Vec<_>>(), ["a", "mtp.fc.weight"]);
    // The shard with the head may not.
    std::fs::remove_file(folder.path().join("head.safetensors")).expect("removed");
    assert_says(Checkpoint::open_head(folder.path()), &["`head.safetensors`", "missing"], "a head");
}

#[test]
fn for_a_head_in_a_sidecar_all_shards_may_be_missing() {
    let index = br#"{"weight_map": {"a": "trunk.safetensors"}}"#;
    let files = [CONFIG, ("model.safetensors.index.json", &index[..])];
    let (folder, _) = checkpoint(&files);
    assert_says(Checkpoint::open_head(folder.path()), &["`trunk.safetensors`"], "no head");
    let head = one("mtp.fc.weight", 2.0);
    std::fs::write(folder.path().join("model-mtp.safetensors"), &head).expect("written");
    let opened = Checkpoint::open_head(folder.path()).expect("the head is there");
    assert_eq!(opened.names().collect::<Vec<_>>(), ["mtp.fc.weight"]);
}
