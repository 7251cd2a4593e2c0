//! Checkpoints with random weights in the shapes of published models: for measurements where no checkpoint of that
//! size is at hand. What such a model says means nothing; how long it takes does.
//!
//! Every tensor is drawn by a counter keyed by seed and name, so any of its rows can be made alone and by any thread:
//! into files ([`write_folder`]) or straight for a device ([`Synth`] is a
//! [`TensorSource`]).
#![forbid(unsafe_code)]

mod config;
mod draw;
mod folder;
mod shape;
mod tensor;
mod tensors;

pub use folder::{FolderReport, write_folder};
pub use shape::{PublishedShape, SynthError, SynthOptions, WeightForm, published, shapes};

use forerun_base::DType;
use forerun_weights::TensorSource;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ops::Range;
use tensor::SynthTensor;

/// A model that is drawn, not trained.
#[derive(Clone, Debug)]
pub struct Synth {
    /// Its `config.json`.
    pub config: Value,
    /// Fields of the published shape that are not certain.
    pub assumed: &'static [&'static str],
    /// Numbers that the weights stand for.
    pub parameters: u64,
    tensors: BTreeMap<String, SynthTensor>,
}

impl Synth {
    /// Decides every tensor; none is drawn yet.
    ///
    /// # Errors
    /// When the options ask for a shape that cannot be.
    pub fn new(options: &SynthOptions) -> Result<Self, SynthError> {
        let shape = options.shape()?;
        let list = tensors::list(&shape, options);
        Ok(Self {
            config: config::of(&shape, options),
            assumed: shape.assumed,
            parameters: list.parameters,
            tensors: list.tensors,
        })
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.tensors.values().map(SynthTensor::bytes).sum()
    }
}

impl TensorSource for Synth {
    fn tensors(&self) -> Vec<(String, DType, Vec<usize>)> {
        let entry = |(name, tensor): (&String, &SynthTensor)| {
            (name.clone(), tensor.dtype, tensor.shape.clone())
        };
        self.tensors.iter().map(entry).collect()
    }

    fn rows(&self, name: &str, rows: Range<usize>) -> Vec<u8> {
        self.tensors[name].draw(rows)
    }
}
