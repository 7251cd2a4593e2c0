use super::*;

fn listing(names: &[&str]) -> Listing {
    let file = |name: &&str| ListedFile { name: (*name).into(), size: Some(7), blob: None };
    Listing {
        repo: "o/n".parse().unwrap(),
        commit: "a".repeat(40),
        files: names.iter().map(file).collect(),
        originals: Vec::new(),
    }
}

fn model(names: &[&str], file: Option<&str>) -> Result<FileSelection, HubError> {
    choose(&listing(names), file, RepoPart::Model, None)
}

fn map(pairs: &[(&str, &str)]) -> WeightMap {
    pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
}

#[test]
fn only_what_the_engine_reads_is_taken_and_weights_come_last() {
    let names = [
        ".gitattributes",
        "LICENSE",
        "README.md",
        "config.json",
        "generation_config.json",
        "chat_template.jinja",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
        "original/consolidated.00.pth",
        "pytorch_model.bin",
        "onnx/model.onnx",
        "picture.png",
        "other.safetensors",
        "model.safetensors",
        "mtp/weights.safetensors",
        "mtp/manifest.json",
        "tokenizer/deep.json",
    ];
    let choice = model(&names, None).unwrap();
    assert_eq!(choice.entry, None);
    assert_eq!(
        choice.files,
        [
            "config.json",
            "generation_config.json",
            "chat_template.jinja",
            "tokenizer.json",
            "tokenizer_config.json",
            "mtp/weights.safetensors",
            "mtp/manifest.json",
            "model.safetensors",
        ]
    );
}

#[test]
fn an_index_decides_which_shards_there_are() {
    let names = ["config.json", INDEX, "a.safetensors", "b.safetensors", "model.safetensors"];
    let index = map(&[("x", "a.safetensors"), ("y", "b.safetensors"), ("z", "a.safetensors")]);
    let choice = choose(&listing(&names), None, RepoPart::Model, Some(&index)).unwrap();
    assert_eq!(choice.files, ["config.json", INDEX, "a.safetensors", "b.safetensors"]);
    let index = map(&[("x", "gone.safetensors")]);
    let error = choose(&listing(&names), None, RepoPart::Model, Some(&index)).unwrap_err();
    assert!(error.to_string().contains("gone.safetensors"), "{error}");
}

#[test]
fn the_mtp_part_is_the_shards_that_hold_it() {
    let names = ["config.json", INDEX, "a.safetensors", "b.safetensors", "tokenizer.json"];
    let index = map(&[("model.x", "a.safetensors"), ("mtp.fc.weight", "b.safetensors")]);
    let choice = choose(&listing(&names), None, RepoPart::MtpOnly, Some(&index)).unwrap();
    assert_eq!(choice.files, ["config.json", INDEX, "b.safetensors"]);
    let without = map(&[("model.x", "a.safetensors")]);
    let error = choose(&listing(&names), None, RepoPart::MtpOnly, Some(&without)).unwrap_err();
    assert!(error.to_string().contains("no MTP head"), "{error}");
}

#[test]
fn a_lone_gguf_is_taken_and_projectors_do_not_count() {
    let names = ["README.md", "m-Q4_K_M.gguf", "mmproj-F16.gguf", "m.imatrix.gguf"];
    let choice = model(&names, None).unwrap();
    assert_eq!(choice.files, ["m-Q4_K_M.gguf"]);
    assert_eq!(choice.entry.as_deref(), Some("m-Q4_K_M.gguf"));
}

const QUANTS: [&str; 6] = [
    "m-Q4_K_M.gguf",
    "m-Q4_K_S.gguf",
    "m-UD-Q4_K_XL.gguf",
    "BF16/m-BF16-00002-of-00002.gguf",
    "BF16/m-BF16-00001-of-00002.gguf",
    "mmproj-BF16.gguf",
];

#[test]
fn several_ggufs_are_listed_with_a_set_as_one() {
    let Err(HubError::Several { files, .. }) = model(&QUANTS, None) else { panic!("chosen") };
    assert_eq!(files.len(), 4);
    assert_eq!(files[0], ("BF16/m-BF16-00001-of-00002.gguf".to_owned(), Some(14)));
}

#[test]
fn a_quantisation_finds_its_file_in_any_case_and_split_sets_come_whole() {
    let both = ["BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf"];
    let cases: [(&str, &[&str]); 6] = [
        ("Q4_K_M", &["m-Q4_K_M.gguf"]),
        ("q4_k_m", &["m-Q4_K_M.gguf"]),
        ("Q4_K_XL", &["m-UD-Q4_K_XL.gguf"]),
        ("m-Q4_K_S.gguf", &["m-Q4_K_S.gguf"]),
        ("bf16", &both),
        ("BF16/m-BF16-00002-of-00002.gguf", &both),
    ];
    for (wanted, files) in cases {
        assert_eq!(model(&QUANTS, Some(wanted)).unwrap().files, files, "{wanted}");
    }
    for absent in ["Q4_K", "Q8_0", "K_M", "README.md"] {
        let error = model(&QUANTS, Some(absent)).unwrap_err().to_string();
        assert!(error.contains(absent) && error.contains("m-Q4_K_M.gguf"), "{error}");
    }
    let twice = ["a-Q8_0.gguf", "b-Q8_0.gguf"];
    assert!(matches!(model(&twice, Some("Q8_0")), Err(HubError::Several { .. })));
}

#[test]
fn a_single_safetensors_file_may_be_named() {
    let names = ["config.json", INDEX, "model.safetensors", "other.safetensors"];
    let choice = model(&names, Some("other.safetensors")).unwrap();
    assert_eq!(choice.files, ["config.json", "other.safetensors"]);
    assert_eq!(choice.entry.as_deref(), Some("other.safetensors"));
    assert!(model(&names, Some("config.json")).unwrap_err().to_string().contains("config.json"));
}

#[test]
fn sets_with_holes_and_repositories_without_weights_are_refused() {
    for names in [
        &["m-00001-of-00003.gguf", "m-00003-of-00003.gguf"][..],
        &["model-00002-of-00002.safetensors"],
    ] {
        let error = model(names, None).unwrap_err().to_string();
        assert!(error.contains("not complete"), "{error}");
    }
    for names in [&["config.json", "pytorch_model.bin"][..], &[]] {
        let error = model(names, None).unwrap_err().to_string();
        assert!(error.contains("no weights"), "{error}");
    }
}
