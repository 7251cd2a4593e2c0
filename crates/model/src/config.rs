//! Typed access to config.json with errors that name the key.

use crate::ModelError;
use serde_json::Value;

/// Larger counts than this are nonsense, and keep every product of two of them inside 64 bits.
const MAX_COUNT: u64 = 1 << 24;

/// An object inside config.json and where it lies.
#[derive(Clone)]
pub(crate) struct Config<'a> {
    value: &'a Value,
    path: String,
}

impl<'a> Config<'a> {
    pub(crate) fn root(value: &'a Value) -> Self {
        Self { value, path: String::new() }
    }

    /// The object under `key`, if there is one.
    pub(crate) fn section(&self, key: &str) -> Option<Self> {
        let value = self.value.get(key).filter(|v| v.is_object())?;
        Some(Self { value, path: self.full(key) })
    }

    fn full(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    pub(crate) fn bad(&self, key: &str, problem: impl Into<String>) -> ModelError {
        ModelError::Config { key: self.full(key), problem: problem.into() }
    }

    pub(crate) fn unsupported(&self, key: &str) -> ModelError {
        let value = self.get(key).map_or_else(|| "null".to_owned(), Value::to_string);
        ModelError::Unsupported { key: self.full(key), value }
    }

    /// The value under `key`; `null` counts as absent.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.value.get(key).filter(|v| !v.is_null())
    }

    /// Whether `key` is there and says `null`.
    pub(crate) fn is_null(&self, key: &str) -> bool {
        self.value.get(key).is_some_and(Value::is_null)
    }

    pub(crate) fn maybe_count(&self, key: &str) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_u64() {
            Some(n) if n <= MAX_COUNT => Ok(Some(n as usize)),
            _ => Err(self.bad(key, format!("is {value}, expected a count up to {MAX_COUNT}"))),
        }
    }

    /// A count of at least one.
    pub(crate) fn count(&self, key: &str) -> Result<usize, ModelError> {
        match self.maybe_count(key)? {
            Some(0) => Err(self.bad(key, "is 0, expected at least 1")),
            Some(n) => Ok(n),
            None => Err(self.bad(key, "is missing")),
        }
    }

    /// How many layers: a list of that length is made, so it is bounded more tightly.
    pub(crate) fn layers(&self, key: &str) -> Result<usize, ModelError> {
        match self.count(key)? {
            n if n <= 4096 => Ok(n),
            n => Err(self.bad(key, format!("is {n}, expected at most 4096"))),
        }
    }

    pub(crate) fn maybe_number(&self, key: &str) -> Result<Option<f64>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64() {
            Some(x) if x.is_finite() => Ok(Some(x)),
            _ => Err(self.bad(key, format!("is {value}, expected a finite number"))),
        }
    }

    /// A finite number above zero.
    pub(crate) fn positive(&self, key: &str, default: Option<f64>) -> Result<f64, ModelError> {
        match self.maybe_number(key)?.or(default) {
            Some(x) if x > 0.0 => Ok(x),
            Some(x) => Err(self.bad(key, format!("is {x}, expected more than 0"))),
            None => Err(self.bad(key, "is missing")),
        }
    }

    /// A cap on logits: above zero, or none.
    pub(crate) fn cap(&self, key: &str) -> Result<Option<f32>, ModelError> {
        match self.maybe_number(key)? {
            None => Ok(None),
            Some(_) => Ok(Some(self.positive(key, None)? as f32)),
        }
    }

    pub(crate) fn flag(&self, key: &str, default: bool) -> Result<bool, ModelError> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(other) => Err(self.bad(key, format!("is {other}, expected true or false"))),
        }
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(other) => Err(self.bad(key, format!("is {other}, expected a text"))),
        }
    }

    pub(crate) fn list(&self, key: &str) -> Result<Option<&'a [Value]>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(other) => Err(self.bad(key, format!("is {other}, expected a list"))),
        }
    }

    /// Refuses anything but the given values (or absence) under `key`.
    pub(crate) fn only(&self, key: &str, allowed: &[Value]) -> Result<(), ModelError> {
        match self.get(key) {
            Some(value) if !allowed.contains(value) => Err(self.unsupported(key)),
            _ => Ok(()),
        }
    }
}
