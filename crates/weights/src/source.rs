//! Tensors that are made instead of read.

use crate::config;
use crate::files::{TensorEntry, TensorLocation, WeightFile};
use crate::{Checkpoint, Storage, WeightsError};
use forerun_base::DType;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Makes the tensors of a checkpoint that has no files.
pub trait TensorSource: fmt::Debug + Send + Sync {
    /// Names, element types and shapes of all tensors.
    fn tensors(&self) -> Vec<(String, DType, Vec<usize>)>;

    /// Some rows of a tensor as they would be stored; a row is its last axis. Threads ask for different rows at once,
    /// and the same rows are always the same.
    fn rows(&self, name: &str, rows: Range<usize>) -> Vec<u8>;
}

impl Checkpoint {
    /// A checkpoint whose tensors are made. Text files are looked for in `folder`; messages call its only file `name`.
    ///
    /// # Errors
    /// When the config cannot be understood.
    pub fn made(
        folder: &Path,
        name: &str,
        config: Value,
        source: Arc<dyn TensorSource>,
    ) -> Result<Self, WeightsError> {
        let config = config::check(config).map_err(|why| WeightsError::json(folder, why))?;
        let tensors = source.tensors();
        let file = WeightFile::made(name, tensors.len());
        let mut places = BTreeMap::new();
        let mut at = 0;
        for (name, dtype, shape) in tensors {
            let bytes = shape.iter().product::<usize>() * dtype.size();
            let entry =
                TensorEntry { storage: Storage::Plain(dtype), shape, range: at..at + bytes };
            at += bytes;
            places.insert(name, TensorLocation { file: 0, entry });
        }
        Ok(Self::of_source(folder, config, file, places, source))
    }
}
