//! The table: every operation over awkward sizes.

mod attention;
mod attention_inputs;
mod cluster;
mod conv;
mod delta;
mod elementwise;
mod entries;
mod hyper;
mod kda;
mod latent;
mod linear;
mod masks;
mod moe;
mod rope;
mod rows;
mod sample;
mod scan;
mod streams;

pub(super) use conv::{ConvKind, conv_op};
pub(super) use delta::{Batch, delta_op, inputs_op};
pub(super) use entries::{AttendKind, PoolKind, attend_op, pool_op};
pub(super) use hyper::ngram_op;
pub(super) use kda::kda_op;
pub(super) use scan::scan_op;

use super::ConformStage;
use super::stage::BufferOutcome;
use crate::{Backend, BackendError, Op};
use std::fmt;

type Build = dyn Fn(&mut ConformStage<'_>) -> Result<Op, BackendError> + Send + Sync;

/// One call of one operation, with its data.
pub struct ConformCase {
    /// Tells it apart from all others.
    pub name: String,
    /// The operation.
    pub op: &'static str,
    /// Rows in the call.
    pub rows: usize,
    build: Box<Build>,
}

impl ConformCase {
    fn new(
        op: &'static str,
        sizes: impl fmt::Display,
        rows: usize,
        build: impl Fn(&mut ConformStage<'_>) -> Result<Op, BackendError> + Send + Sync + 'static,
    ) -> Self {
        let name = format!("{op}: {sizes}");
        Self { name, op, rows, build: Box::new(build) }
    }

    /// Makes the case's buffers and weights and returns its operation, ready to apply.
    pub fn set(&self, stage: &mut ConformStage<'_>) -> Result<Op, BackendError> {
        (self.build)(stage)
    }

    /// Runs the case and reads everything back.
    pub(super) fn play(
        &self,
        backend: &mut dyn Backend,
    ) -> Result<Vec<BufferOutcome>, BackendError> {
        let mut stage = ConformStage::new(backend, &self.name);
        let op = self.set(&mut stage)?;
        stage.play(&[op])
    }
}

impl fmt::Debug for ConformCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// All cases.
pub fn cases() -> Vec<ConformCase> {
    let parts = [
        rows::cases(),
        linear::cases(),
        elementwise::cases(),
        rope::cases(),
        attention_inputs::cases(),
        attention::cases(),
        conv::cases(),
        delta::cases(),
        moe::cases(),
        cluster::cases(),
        masks::cases(),
        sample::cases(),
        streams::cases(),
        latent::cases(),
        kda::cases(),
        scan::cases(),
        hyper::cases(),
        entries::cases(),
    ];
    parts.into_iter().flatten().collect()
}
