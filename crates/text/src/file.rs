//! Reading the small files of a model folder, with a size limit on each.

use crate::error::TextError;
use forerun_base::quoted_non_finite;
use serde_json::{Map, Value};
use std::io::{ErrorKind, Read};
use std::path::Path;

/// Configuration files are a few kilobytes; this leaves room for a template inside one.
pub(crate) const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// Reads a whole file of at most `max` bytes.
pub(crate) fn read(path: &Path, max: u64) -> Result<Vec<u8>, TextError> {
    let fail = |source| TextError::Read { path: path.to_owned(), source };
    let file = forerun_base::open_regular(path).map_err(fail)?;
    let mut bytes = Vec::new();
    // One byte past the limit tells "too large" without trusting the reported length.
    file.take(max + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > max {
        let bytes = path.metadata().map_or(max + 1, |m| m.len());
        return Err(TextError::TooLarge { what: path.display().to_string(), bytes, max });
    }
    Ok(bytes)
}

/// Like [`read`], but a file that does not exist is `None`.
pub(crate) fn read_optional(path: &Path, max: u64) -> Result<Option<Vec<u8>>, TextError> {
    match read(path, max) {
        Err(TextError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// Parses a JSON object; `file` names it in errors.
pub(crate) fn json_object(file: &str, bytes: &[u8]) -> Result<Map<String, Value>, TextError> {
    serde_json::from_slice(bytes)
        .map_err(|e| TextError::Json { file: file.to_owned(), cause: e.to_string() })
}

/// The same of a model's config, in which Python may have written numbers that are not finite.
pub(crate) fn config_object(file: &str, bytes: &[u8]) -> Result<Map<String, Value>, TextError> {
    json_object(file, &quoted_non_finite(bytes))
}

/// Reads an optional JSON object; a missing file is `None`.
pub(crate) fn read_json_object(path: &Path) -> Result<Option<Map<String, Value>>, TextError> {
    let bytes = read_optional(path, MAX_CONFIG_BYTES)?;
    bytes.map(|b| json_object(&path.display().to_string(), &b)).transpose()
}

/// A wrong value as an error, shortened so that a hostile file cannot flood a log.
pub(crate) fn field_error(
    file: &str,
    key: &str,
    value: &Value,
    expected: &'static str,
) -> TextError {
    const SHOWN: usize = 80;
    let text = value.to_string();
    let mut value: String = text.chars().take(SHOWN).collect();
    if value.len() < text.len() {
        value.push('…');
    }
    TextError::Field { file: file.to_owned(), key: key.to_owned(), value, expected }
}
