//! One step: rows in, hidden states and logits out.

use crate::{Batch, Head, HeadProduct, Model, StateBuffers, Workspace};
use forerun_backend::op::{
    Activation, AddNorm, Embed, GatherRows, InputNorm, RmsNorm, RopeTable, ScatterRows, SpanEntry,
    Spans, Store,
};
use forerun_backend::{Backend, BackendError, BufferId, View, WeightId};

/// What every part of a forward pass needs to know.
pub(crate) struct Pass<'a> {
    pub(crate) backend: &'a mut dyn Backend,
    pub(crate) space: &'a Workspace,
    pub(crate) rows: usize,
    pub(crate) spans: usize,
    pub(crate) visible: VisibleKeys,
    pub(crate) hidden: usize,
    pub(crate) activation: Activation,
    pub(crate) eps: f32,
    pub(crate) ropes: &'a [RopeWeight],
}

/// Keys visible to all rows of a batch together, for the cost of attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VisibleKeys {
    pub(crate) all: usize,
    pub(crate) windowed: usize,
}

/// Frequencies on the device and the factor on cosines and sines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeWeight {
    pub(crate) inv_freq: WeightId,
    pub(crate) rotary: usize,
    pub(crate) scale: f32,
}

/// Where a branch of a block leaves its result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) view: View,
    pub(crate) store: Store,
}

/// Rows that a projection reads.
#[derive(Clone, Copy)]
pub(crate) struct Input {
    pub(crate) x: View,
    /// What the rows of `x` go through first.
    pub(crate) norm: Option<InputNorm>,
}

impl Pass<'_> {
    /// Rows that were normed before.
    pub(crate) fn normed(&self) -> Input {
        Input { x: self.rows_of(self.space.normed, self.hidden), norm: None }
    }

    /// The residual stream behind a norm.
    pub(crate) fn norm_of(&self, weight: WeightId) -> Input {
        let (dim, eps) = (self.hidden, self.eps);
        let [x, room] = [self.space.x, self.space.normed].map(|rows| self.rows_of(rows, dim));
        Input { x, norm: Some(InputNorm { weight, dim, eps, room }) }
    }

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

    /// `out = (out + norm(x)) · scale`, over rows of the residual stream's width.
    pub(crate) fn add_norm(
        &mut self,
        x: BufferId,
        weight: WeightId,
        out: BufferId,
        scale: f32,
    ) -> Result<(), BackendError> {
        let (dim, eps) = (self.hidden, self.eps);
        let (x, out) = (self.rows_of(x, dim), self.rows_of(out, dim));
        self.backend.add_norm(AddNorm { x, weight, out, dim, eps, scale })
    }

    /// The table of rope number `rope` and how many dims it turns.
    pub(crate) fn rope_of(&self, rope: usize) -> (View, usize) {
        let rotary = self.ropes[rope].rotary;
        (self.rows_of(self.space.ropes[rope], rotary), rotary)
    }

    /// Cosines and sines of the rows' positions, each moved by `shift`.
    pub(crate) fn turn_tables(&mut self, shift: u32) -> Result<(), BackendError> {
        let positions = self.index_of(self.space.index.positions);
        for (i, &RopeWeight { inv_freq, scale, .. }) in self.ropes.iter().enumerate() {
            let (out, _) = self.rope_of(i);
            self.backend.rope_table(RopeTable { positions, inv_freq, scale, shift, out })?;
        }
        Ok(())
    }
}

impl Model {
    /// Queues one step up to its head: the batch is written to the device, every layer runs over its rows, and the
    /// sampled rows wait for their logits.
    pub fn forward(
        &self,
        backend: &mut dyn Backend,
        space: &Workspace,
        states: &StateBuffers,
        batch: &Batch,
    ) -> Result<Head, BackendError> {
        space.write(backend, batch)?;
        let mut pass = self.pass(backend, space, batch);
        let read = pass.index_of(space.index.inputs);
        self.embed(&mut pass, read, self.embedding, space.x)?;
        pass.turn_tables(0)?;
        if let Some(inputs) = &self.per_layer {
            inputs.prepare(&mut pass)?;
        }
        for (layer, state) in self.layers.iter().zip(&states.layers) {
            layer.forward(&mut pass, state)?;
        }
        pass.norm(space.x, self.norm, space.final_hidden)?;
        if let Some(draft) = &states.draft {
            let dim = pass.hidden;
            let (x, out) = (pass.rows_of(space.final_hidden, dim), draft.hidden);
            let rows = pass.index_of(space.index.hidden_places);
            pass.backend.scatter_rows(ScatterRows { x, rows, out, dim })?;
        }
        self.head(&mut pass, self.head, batch.sampled.len())
    }

    pub(crate) fn pass<'a>(
        &'a self,
        backend: &'a mut dyn Backend,
        space: &'a Workspace,
        batch: &Batch,
    ) -> Pass<'a> {
        Pass {
            backend,
            space,
            rows: batch.rows(),
            spans: batch.spans.len() / SpanEntry::WORDS,
            visible: VisibleKeys { all: batch.visible_keys, windowed: batch.windowed_keys },
            hidden: self.spec.hidden,
            activation: self.spec.activation,
            eps: self.spec.eps,
            ropes: &self.ropes,
        }
    }

    /// Embeddings of `ids` to `out`.
    pub(crate) fn embed(
        &self,
        pass: &mut Pass<'_>,
        ids: View,
        table: WeightId,
        out: BufferId,
    ) -> Result<(), BackendError> {
        let out = pass.rows_of(out, self.spec.hidden);
        pass.backend.embed(Embed { ids, table, out, scale: self.spec.embed_scale })
    }

    /// The sampled rows of `final_hidden` before a head.
    pub(crate) fn head(
        &self,
        pass: &mut Pass<'_>,
        weight: WeightId,
        sampled: usize,
    ) -> Result<Head, BackendError> {
        let (space, dim) = (pass.space, pass.hidden);
        let x = pass.rows_of(space.final_hidden, dim);
        let rows = View::head(space.index.sampled, sampled);
        let hidden = View::head(space.sampled_hidden, sampled * dim);
        if sampled > 0 {
            pass.backend.gather_rows(GatherRows { x, rows, out: hidden, dim })?;
        }
        let vocabulary = self.spec.vocabulary;
        Ok(Head::Hidden(HeadProduct {
            x: hidden,
            weight,
            logits: View::head(space.logits, sampled * vocabulary),
            cap: self.spec.logit_cap,
            vocabulary,
            tokens: vocabulary,
        }))
    }
}
