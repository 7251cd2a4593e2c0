//! Words that may be a model or a text.

use crate::{bundled, hub_model};
use anyhow::bail;
use std::path::{Path, PathBuf};

/// What exists, or could be the name of a model on the hub: no other word has that form.
pub(crate) fn is_model(word: &Path) -> bool {
    word.exists() || hub_model::name_of(word).is_some()
}

pub(crate) fn looks_like_path(word: &str) -> bool {
    let separated = word.contains(std::path::is_separator) && !word.contains(char::is_whitespace);
    separated || word.ends_with(".safetensors") || word.ends_with(".gguf")
}

/// Whether somebody may have meant a model by a prompt of one word: names of models have digits in them.
pub(crate) fn like_a_model(word: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    let letters = word.chars().filter(char::is_ascii_alphabetic).count();
    letters > 2 && word.contains(|c: char| c.is_ascii_digit()) && word.chars().all(known)
}

/// The model and the text of a command that reads one: a single word is the text where it is no model, and then the
/// bundled model reads it. `elsewhere` says that the text is given by an option.
pub(crate) fn model_and_text(
    first: Option<&str>,
    second: Option<&str>,
    elsewhere: bool,
) -> anyhow::Result<(PathBuf, Option<String>)> {
    Ok(match (first, second) {
        (Some(model), Some(text)) => (model.into(), Some(text.to_owned())),
        (Some(model), None) if elsewhere || is_model(Path::new(model)) => (model.into(), None),
        (Some(word), None) if looks_like_path(word) => {
            bail!("{word} does not exist; give a model folder or file, or put the text behind it")
        }
        (text, _) => (bundled::find()?, text.map(str::to_owned)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_is_the_model_where_it_can_be_and_else_a_text_for_the_bundled_one() {
        let here = env!("CARGO_MANIFEST_DIR");
        let bundled = bundled::find().unwrap();
        let sort = |first, second, elsewhere| model_and_text(first, second, elsewhere).unwrap();
        assert_eq!(sort(Some("m"), Some("hi"), false), ("m".into(), Some("hi".into())));
        assert_eq!(sort(Some(here), None, false), (here.into(), None));
        assert_eq!(sort(Some("o/m"), None, false), ("o/m".into(), None));
        assert_eq!(sort(Some("m"), None, true), ("m".into(), None));
        assert_eq!(sort(Some("hi"), None, false), (bundled.clone(), Some("hi".into())));
        assert_eq!(sort(None, None, true), (bundled, None));
        assert!(model_and_text(Some("no/such/folder"), None, false).is_err());
    }

    #[test]
    fn a_word_with_letters_and_digits_may_be_a_model() {
        for (word, expected) in [
            ("llama9", true),
            ("phi-4", true),
            ("mistral:7b", true),
            ("Hello", false),
            ("2+2", false),
            ("a 1", false),
        ] {
            assert_eq!(like_a_model(word), expected, "{word}");
        }
    }
}
