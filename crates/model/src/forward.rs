//! One step: rows in, hidden states and logits out.

use crate::LayerState;
use crate::model::Layer;
use crate::{Batch, Model, StateBuffers, Workspace};
use forerun_backend::op::{
    Embed, GatherRows, Linear, RmsNorm, RopeTable, ScatterRows, SpanEntry, Spans,
};
use forerun_backend::{Backend, BackendError, BufferId, View, WeightId};

/// What every part of a forward pass needs to know.
pub(crate) struct Pass<'a> {
    pub(crate) backend: &'a mut dyn Backend,
    pub(crate) space: &'a Workspace,
    pub(crate) rows: usize,
    pub(crate) spans: usize,
    pub(crate) visible_keys: usize,
    pub(crate) hidden: usize,
    pub(crate) rotary: usize,
    pub(crate) eps: f32,
}

impl Pass<'_> {
    /// The batch's rows in a scratch buffer of rows `width` wide.
    pub(crate) fn rows_of(&self, buffer: BufferId, width: usize) -> View {
        View::head(buffer, self.rows * width)
    }

    /// One of the batch's per-row arrays.
    pub(crate) fn index_of(&self, buffer: BufferId) -> View {
        View::head(buffer, self.rows)
    }

    /// The batch's span table.
    pub(crate) fn span_table(&self) -> Spans {
        let limits = &self.space.limits;
        Spans {
            table: View::head(self.space.index.spans, self.spans * SpanEntry::WORDS),
            slots: limits.sequences,
            log_rows: limits.log_rows,
        }
    }

    pub(crate) fn norm(
        &mut self,
        x: BufferId,
        weight: WeightId,
        out: BufferId,
    ) -> Result<(), BackendError> {
        let (dim, eps) = (self.hidden, self.eps);
        let (x, out) = (self.rows_of(x, dim), self.rows_of(out, dim));
        self.backend.rms_norm(RmsNorm { x, weight, out, dim, eps })
    }
}

impl Layer {
    /// One block over the residual stream in `x`.
    pub(crate) fn forward(
        &self,
        pass: &mut Pass<'_>,
        state: &LayerState,
    ) -> Result<(), BackendError> {
        let space = pass.space;
        pass.norm(space.x, self.mixer_norm, space.normed)?;
        self.mixer.forward(pass, state)?;
        pass.norm(space.x, self.mlp_norm, space.normed)?;
        self.mlp.forward(pass)
    }
}

impl Model {
    /// Queues one step: the batch is written to the device, every layer runs over its rows, and the
    /// sampled rows' logits are left in the view returned, `[sampled, vocabulary]`.
    pub fn forward(
        &self,
        backend: &mut dyn Backend,
        space: &Workspace,
        states: &StateBuffers,
        batch: &Batch,
    ) -> Result<View, BackendError> {
        space.write(backend, batch)?;
        let mut pass = self.pass(backend, space, batch);
        self.embed(&mut pass, space.x)?;
        for (layer, state) in self.layers.iter().zip(&states.layers) {
            layer.forward(&mut pass, state)?;
        }
        pass.norm(space.x, self.norm, space.final_hidden)?;
        if let Some(mtp) = &states.mtp {
            let dim = pass.hidden;
            let (x, out) = (pass.rows_of(space.final_hidden, dim), mtp.hidden);
            let rows = pass.index_of(space.index.hidden_places);
            pass.backend.scatter_rows(ScatterRows { x, rows, out, dim })?;
        }
        self.head(&mut pass, batch.sampled.len())
    }

    pub(crate) fn pass<'a>(
        &self,
        backend: &'a mut dyn Backend,
        space: &'a Workspace,
        batch: &Batch,
    ) -> Pass<'a> {
        Pass {
            backend,
            space,
            rows: batch.rows(),
            spans: batch.spans.len() / SpanEntry::WORDS,
            visible_keys: batch.visible_keys,
            hidden: self.spec.hidden,
            rotary: self.spec.rope.rotary,
            eps: self.spec.eps,
        }
    }

    /// The rows' embeddings to `out`, and the cosines and sines of their positions.
    pub(crate) fn embed(&self, pass: &mut Pass<'_>, out: BufferId) -> Result<(), BackendError> {
        let index = &pass.space.index;
        let ids = pass.index_of(index.ids);
        let out = pass.rows_of(out, pass.hidden);
        pass.backend.embed(Embed { ids, table: self.embedding, scale: 1.0, out })?;
        let positions = pass.index_of(index.positions);
        let out = pass.rows_of(pass.space.rope, pass.rotary);
        pass.backend.rope_table(RopeTable {
            positions,
            shift: 0,
            inv_freq: self.inv_freq,
            scale: 1.0,
            out,
        })
    }

    /// Logits of the sampled rows of `final_hidden`.
    pub(crate) fn head(&self, pass: &mut Pass<'_>, sampled: usize) -> Result<View, BackendError> {
        let (space, dim) = (pass.space, pass.hidden);
        let x = pass.rows_of(space.final_hidden, dim);
        let rows = View::head(space.index.sampled, sampled);
        let hidden = View::head(space.sampled_hidden, sampled * dim);
        let logits = View::head(space.logits, sampled * self.spec.vocabulary);
        if sampled > 0 {
            pass.backend.gather_rows(GatherRows { x, rows, out: hidden, dim })?;
            pass.backend.linear(Linear::set(hidden, self.head, logits))?;
        }
        Ok(logits)
    }
}
