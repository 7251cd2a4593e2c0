//! Short names of models: a table in a file beside this one.

use forerun_hub::ModelName;
use std::collections::BTreeMap;
use std::sync::LazyLock;

static TABLE: LazyLock<BTreeMap<String, ModelName>> = LazyLock::new(|| {
    let names: BTreeMap<String, String> =
        toml::from_str(include_str!("short_names.toml")).expect("a test reads the table");
    let parsed = |name: String| name.parse().expect("a test reads every name");
    names.into_iter().map(|(short, name)| (short, parsed(name))).collect()
});

/// The model of a short name: `llama3.2-1b`, `llama3.2:1b`, `llama3.2-1b:Q8_0`.
pub(crate) fn model(given: &str) -> Option<ModelName> {
    let given_lower = given.to_ascii_lowercase();
    if let Some(model) =
        TABLE.get(&given_lower).or_else(|| TABLE.get(&given_lower.replacen(':', "-", 1)))
    {
        return Some(model.clone());
    }
    let (short, file) = given.rsplit_once(':').filter(|(_, file)| !file.is_empty())?;
    let model = model(short)?;
    let file = Some(file.to_owned());
    // Without a file the name stands for a whole repository, which has none to choose from.
    model.file.is_some().then_some(ModelName { file, ..model })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_can_be_read_and_its_names_are_short() {
        assert!(TABLE.len() > 10);
        for short in TABLE.keys() {
            assert!(!short.contains([':', '/', ' ']) && *short == short.to_lowercase(), "{short}");
        }
    }

    #[test]
    fn a_name_may_have_its_size_behind_a_colon_and_another_quantisation() {
        let name = |given| model(given).map(|model| model.to_string());
        let small = "bartowski/Llama-3.2-1B-Instruct-GGUF";
        for given in ["llama3.2-1b", "llama3.2:1b", "Llama3.2-1B"] {
            assert_eq!(name(given), Some(format!("{small}:Q4_K_M")), "{given}");
        }
        for given in ["llama3.2-1b:Q8_0", "llama3.2:1b:Q8_0"] {
            assert_eq!(name(given), Some(format!("{small}:Q8_0")), "{given}");
        }
        for given in ["llama", "llama3.2-1b:", "qwen3-0.6b:Q8_0", "hello", ""] {
            assert_eq!(name(given), None, "{given}");
        }
    }
}
