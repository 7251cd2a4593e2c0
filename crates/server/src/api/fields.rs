//! The fields of a request, taken one by one. What nobody took is ignored where that does no harm, and otherwise not
//! supported, and named.

use super::Ignored;
use crate::app::shortened;
use crate::error::ServerError;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Fields that are not supported and that client libraries send as null where nobody set them: null asks for nothing.
const UNSET: [&str; 14] = [
    "audio",
    "container",
    "function_call",
    "functions",
    "inference_geo",
    "max_tool_calls",
    "mcp_servers",
    "modalities",
    "moderation",
    "prompt",
    "prompt_cache_options",
    "reasoning",
    "top_logprobs",
    "truncate_prompt_tokens",
];

/// The object of a request body, or one inside it.
pub(crate) struct RequestFields {
    /// Where it is, with a dot at the end, or nothing.
    place: String,
    fields: Map<String, Value>,
    /// What of the request had no effect.
    pub(crate) ignored: Ignored,
}

impl RequestFields {
    /// Parses a body.
    pub(crate) fn parse(bytes: &[u8], ignored: Ignored) -> Result<Self, ServerError> {
        let not_json = |why: String| ServerError::Invalid { param: None, message: why };
        match serde_json::from_slice(bytes) {
            Ok(Value::Object(fields)) => Ok(Self::new("", fields, &ignored)),
            Ok(_) => Err(not_json("the body is JSON, but no object".to_owned())),
            Err(error) => Err(not_json(format!("the body is not JSON: {error}"))),
        }
    }

    /// An object at `place`.
    pub(crate) fn new(place: &str, fields: Map<String, Value>, ignored: &Ignored) -> Self {
        let place = if place.is_empty() { String::new() } else { format!("{place}.") };
        Self { place, fields, ignored: ignored.clone() }
    }

    /// Takes a field; null is as good as absent.
    pub(crate) fn take<T: DeserializeOwned>(
        &mut self,
        name: &str,
    ) -> Result<Option<T>, ServerError> {
        match self.fields.shift_remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => read(&self.place_of(name), value).map(Some),
        }
    }

    /// Takes a field where it has this value; whether it had.
    pub(crate) fn take_only(&mut self, name: &str, value: &Value) -> bool {
        let has = self.fields.get(name) == Some(value);
        if has {
            self.fields.shift_remove(name);
        }
        has
    }

    /// Takes a field that must be there.
    pub(crate) fn need<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, ServerError> {
        let place = self.place_of(name);
        let missing = || ServerError::invalid(&place, format!("`{place}` is missing"));
        self.take(name)?.ok_or_else(missing)
    }

    /// Takes a field that is an object, to be taken apart in turn.
    pub(crate) fn inside(&mut self, name: &str) -> Result<Option<Self>, ServerError> {
        let fields = self.take(name)?;
        Ok(fields.map(|fields| Self::new(&self.place_of(name), fields, &self.ignored)))
    }

    fn place_of(&self, name: &str) -> String {
        format!("{}{name}", self.place)
    }

    /// Takes a field of a few words. These words ask for nothing; others are ignored.
    pub(crate) fn word(&mut self, name: &str, neutral: &[&str]) -> Result<(), ServerError> {
        match self.take::<String>(name)? {
            Some(word) if !neutral.contains(&word.as_str()) => self.ignored(name),
            _ => Ok(()),
        }
    }

    /// Says that a field was given and has no effect.
    pub(crate) fn ignored(&self, name: &str) -> Result<(), ServerError> {
        let place = self.place_of(name);
        if self.ignored.field(&place)? { Ok(()) } else { Err(unsupported(&place)) }
    }

    /// Everything but what is ignored here, to be read as a whole.
    pub(crate) fn rest(self) -> Result<Value, ServerError> {
        let Self { place, fields, ignored } = self;
        let mut kept = Map::new();
        for (name, value) in fields {
            let at = format!("{place}{name}");
            let dropped = if value.is_null() { ignored.knows(&at) } else { ignored.field(&at)? };
            if !dropped {
                kept.insert(name, value);
            }
        }
        Ok(kept.into())
    }

    /// Takes a field that may only have one of these values, for which nothing has to be done.
    pub(crate) fn only(&mut self, name: &str, allowed: &[Value]) -> Result<(), ServerError> {
        match self.fields.shift_remove(name) {
            None | Some(Value::Null) => Ok(()),
            Some(value) if allowed.contains(&value) => Ok(()),
            Some(value) => {
                let expected: Vec<String> = allowed.iter().map(Value::to_string).collect();
                let value = shortened(&value.to_string());
                let message =
                    format!("`{name}` is {value}; supported here is {}", expected.join(" or "));
                Err(ServerError::invalid(name, message))
            }
        }
    }

    /// Ignores what is left where that does no harm, and refuses it otherwise.
    pub(crate) fn finish(&self) -> Result<(), ServerError> {
        for (name, value) in &self.fields {
            let place = self.place_of(name);
            // Null is as good as absent, so it is only told whether the field is known.
            let null = value.is_null();
            let known = if null && UNSET.contains(&place.as_str()) {
                true
            } else if null {
                self.ignored.knows(&place)
            } else {
                self.ignored.field(&place)?
            };
            if !known {
                return Err(unsupported(&place));
            }
        }
        Ok(())
    }
}

fn unsupported(place: &str) -> ServerError {
    ServerError::Unsupported { field: shortened(place), why: None }
}

/// A value as a type; an error names the place.
pub(crate) fn read<T: DeserializeOwned>(name: &str, value: Value) -> Result<T, ServerError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let inside = error.path().to_string();
        let place = match inside.as_str() {
            "." => name.to_owned(),
            path if path.starts_with('[') => format!("{name}{path}"),
            path => format!("{name}.{path}"),
        };
        let place = shortened(&place);
        ServerError::invalid(
            &place,
            format!("`{place}`: {}", shortened(&error.inner().to_string())),
        )
    })
}
