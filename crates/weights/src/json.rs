//! JSON from files nobody vouches for: bounded reads, and maps that refuse a repeated key
//! instead of silently keeping the last one.

use crate::WeightsError;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::marker::PhantomData;
use std::path::Path;

/// The largest JSON text read: the cap of the safetensors format, taken for every file.
pub(crate) const MAX_JSON_BYTES: u64 = 100_000_000;

/// Reads a file of at most [`MAX_JSON_BYTES`].
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, WeightsError> {
    let io = |e| WeightsError::io(path, e);
    let mut bytes = Vec::new();
    forerun_base::open_regular(path)
        .map_err(io)?
        .take(MAX_JSON_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(io)?;
    if bytes.len() as u64 > MAX_JSON_BYTES {
        return Err(WeightsError::json(path, format!("more than {MAX_JSON_BYTES} bytes of JSON")));
    }
    Ok(bytes)
}

/// A JSON object whose keys are all different.
#[derive(Debug)]
pub(crate) struct UniqueMap<V>(pub(crate) BTreeMap<String, V>);

impl<V> Default for UniqueMap<V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueMapVisitor(PhantomData))
    }
}

struct UniqueMapVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for UniqueMapVisitor<V> {
    type Value = UniqueMap<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut map = BTreeMap::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value =
                entries.next_value().map_err(|e| A::Error::custom(format!("`{key}`: {e}")))?;
            if map.contains_key(&key) {
                return Err(A::Error::custom(format!("`{key}` appears twice")));
            }
            map.insert(key, value);
        }
        Ok(UniqueMap(map))
    }
}
