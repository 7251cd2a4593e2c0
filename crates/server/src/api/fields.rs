//! The fields of a request, taken one by one. What nobody took is not supported, and named.

use crate::app::shortened;
use crate::error::ServerError;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// The object of a request body, or one inside it.
pub(crate) struct Fields {
    /// Where it is, with a dot at the end, or nothing.
    place: String,
    fields: Map<String, Value>,
}

impl Fields {
    /// Parses a body.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, ServerError> {
        let not_json = |why: String| ServerError::Invalid { param: None, message: why };
        match serde_json::from_slice(bytes) {
            Ok(Value::Object(fields)) => Ok(Self { place: String::new(), fields }),
            Ok(_) => Err(not_json("the body is JSON, but no object".to_owned())),
            Err(error) => Err(not_json(format!("the body is not JSON: {error}"))),
        }
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

    /// Takes a field that must be there.
    pub(crate) fn need<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, ServerError> {
        let place = self.place_of(name);
        let missing = || ServerError::invalid(&place, format!("`{place}` is missing"));
        self.take(name)?.ok_or_else(missing)
    }

    /// Takes a field that is an object, to be taken apart in turn.
    pub(crate) fn inside(&mut self, name: &str) -> Result<Option<Self>, ServerError> {
        let place = format!("{}.", self.place_of(name));
        Ok(self.take(name)?.map(|fields| Self { place, fields }))
    }

    fn place_of(&self, name: &str) -> String {
        format!("{}{name}", self.place)
    }

    /// Takes fields that legitimately change nothing.
    pub(crate) fn drop(&mut self, names: &[&str]) {
        for name in names {
            self.fields.shift_remove(*name);
        }
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

    /// Refuses what is left.
    pub(crate) fn finish(&self) -> Result<(), ServerError> {
        match self.fields.keys().next() {
            Some(name) => {
                let field = shortened(&self.place_of(name));
                Err(ServerError::Unsupported { field, why: None })
            }
            None => Ok(()),
        }
    }
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
