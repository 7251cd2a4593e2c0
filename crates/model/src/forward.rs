//! One step: rows in, hidden states and logits out.

use crate::model::StreamEnd;
use crate::{Head, HeadProduct, Model, ModelSpec, PassInputs, StateBuffers, Workspace, streams};
use forerun_backend::op::{
    Activation, AddNorm, Embed, GatherRows, InputNorm, RmsNorm, RopeTable, ScatterRows, Spans,
    Store,
};
use forerun_backend::{BufferId, Op, View, WeightId};

/// What every part of a forward pass needs to know.
pub(crate) struct Pass<'a> {
    ops: &'a mut Vec<Op>,
    pub(crate) space: &'a Workspace,
    pub(crate) inputs: PassInputs,
    pub(crate) sizes: LayerSizes<'a>,
}

/// What a network's layers have in common.
#[derive(Clone, Copy)]
pub(crate) struct LayerSizes<'a> {
    pub(crate) hidden: usize,
    pub(crate) activation: Activation,
    pub(crate) eps: f32,
    pub(crate) ropes: &'a [RopeWeight],
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
    /// Adds an operation.
    pub(crate) fn push(&mut self, op: impl Into<Op>) {
        self.ops.push(op.into());
    }

    /// The same pass for a network of other sizes.
    pub(crate) fn with_sizes<'a>(&'a mut self, sizes: LayerSizes<'a>) -> Pass<'a> {
        Pass { ops: &mut *self.ops, space: self.space, inputs: self.inputs, sizes }
    }

    /// Rows that were normed before.
    pub(crate) fn normed(&self) -> Input {
        Input { x: self.rows_of(self.space.normed, self.sizes.hidden), norm: None }
    }

    /// The residual stream behind a norm.
    pub(crate) fn norm_of(&self, weight: WeightId) -> Input {
        let (dim, eps) = (self.sizes.hidden, self.sizes.eps);
        let [x, room] = [self.space.x, self.space.normed].map(|rows| self.rows_of(rows, dim));
        Input { x, norm: Some(InputNorm { weight, dim, eps, room }) }
    }

    /// The residual stream, behind a norm where there is one.
    pub(crate) fn input_of(&self, norm: Option<WeightId>) -> Input {
        match norm {
            Some(weight) => self.norm_of(weight),
            None => Input { x: self.rows_of(self.space.x, self.sizes.hidden), norm: None },
        }
    }

    /// The batch's rows in a scratch buffer of rows `width` wide.
    pub(crate) fn rows_of(&self, buffer: BufferId, width: usize) -> View {
        View::head(buffer, self.inputs.rows() * width)
    }

    /// Scratch of a mixer, rows of these widths, as its spec declares them.
    pub(crate) fn scratch<const N: usize>(&self, widths: [usize; N]) -> [View; N] {
        std::array::from_fn(|i| self.rows_of(self.space.mixer[i], widths[i]))
    }

    /// Scratch between streams and a block's parts, rows of these widths.
    pub(crate) fn frame_scratch(&self, widths: [usize; 7]) -> [View; 7] {
        std::array::from_fn(|i| self.rows_of(self.space.frame[i], widths[i]))
    }

    /// Room for the entries that are chosen for each row.
    pub(crate) fn chosen_entries(&self, most: usize) -> View {
        self.rows_of(self.space.chosen_entries, most)
    }

    /// The batch's span table.
    pub(crate) fn span_table(&self) -> Spans {
        let limits = &self.space.limits;
        Spans { table: self.inputs.spans, slots: limits.sequences, log_rows: limits.log_rows }
    }

    pub(crate) fn norm(&mut self, x: BufferId, weight: WeightId, out: BufferId) {
        let (dim, eps) = (self.sizes.hidden, self.sizes.eps);
        let (x, out) = (self.rows_of(x, dim), self.rows_of(out, dim));
        self.push(RmsNorm { x, weight, out, dim, eps });
    }

    /// `out = (out + norm(x)) · scale`, over rows of the residual stream's width.
    pub(crate) fn add_norm(&mut self, x: BufferId, weight: WeightId, out: BufferId, scale: f32) {
        let (dim, eps) = (self.sizes.hidden, self.sizes.eps);
        let (x, out) = (self.rows_of(x, dim), self.rows_of(out, dim));
        self.push(AddNorm { x, weight, out, dim, eps, scale });
    }

    /// The table of rope number `rope` and how many dims it turns.
    pub(crate) fn rope_of(&self, rope: usize) -> (View, usize) {
        let rotary = self.sizes.ropes[rope].rotary;
        (self.rows_of(self.space.ropes[rope], rotary), rotary)
    }

    /// Cosines and sines of the rows' positions, each moved by `shift`.
    pub(crate) fn turn_tables(&mut self, shift: u32) {
        let positions = self.inputs.positions;
        for (i, &RopeWeight { inv_freq, scale, .. }) in self.sizes.ropes.iter().enumerate() {
            let (out, _) = self.rope_of(i);
            self.push(RopeTable { positions, inv_freq, scale, shift, out });
        }
    }
}

impl Model {
    /// Adds the operations of one step up to its head: every layer runs over the rows of `inputs`, and the sampled rows
    /// wait for their logits.
    pub fn forward(
        &self,
        ops: &mut Vec<Op>,
        space: &Workspace,
        states: &StateBuffers,
        inputs: PassInputs,
    ) -> Head {
        let mut pass = self.pass(ops, space, inputs);
        self.first_layers(&mut pass, states, self.layers.len());
        match &self.end {
            StreamEnd::One(norm) => pass.norm(space.x, *norm, space.final_hidden),
            StreamEnd::Several(merge) => merge.forward(&mut pass),
        }
        if let Some(draft) = &states.draft {
            self.keep_hidden(&mut pass, draft.hidden);
        }
        self.head(&mut pass, self.head)
    }

    /// From tokens to the residual stream in `x` after the first so many layers.
    pub(crate) fn first_layers(&self, pass: &mut Pass<'_>, states: &StateBuffers, layers: usize) {
        let (space, ids) = (pass.space, pass.inputs.embedded);
        self.embed(pass, ids, self.embedding, space.x);
        if let StreamEnd::Several(merge) = &self.end {
            streams::begin(pass, merge.streams(), space.x);
        }
        pass.turn_tables(0);
        if let Some(per_layer) = &self.per_layer {
            per_layer.prepare(pass);
        }
        if let Some(altup) = &self.altup {
            let (table, scale) = (self.embedding, self.spec.embed_scale);
            let out = pass.rows_of(space.x, self.spec.hidden);
            altup.spread(pass, Embed { ids, table, scale, out });
        }
        for (layer, state) in self.layers.iter().zip(&states.layers).take(layers) {
            layer.forward(pass, state);
        }
        if let Some(altup) = &self.altup {
            altup.merge(pass);
        }
    }

    /// Hidden states that the drafter will want to the window.
    fn keep_hidden(&self, pass: &mut Pass<'_>, window: View) {
        let (space, dim) = (pass.space, self.spec.hidden);
        let PassInputs { hidden_rows: rows, hidden_places: places, .. } = pass.inputs;
        if places.len == 0 {
            return;
        }
        let mut x = pass.rows_of(space.final_hidden, dim);
        if rows.len < pass.inputs.rows() {
            // The residual stream has been read for the last time.
            let kept = View::head(space.x, rows.len * dim);
            pass.push(GatherRows { x, rows, out: kept, dim });
            x = kept;
        }
        pass.push(ScatterRows { x, rows: places, out: window, dim });
    }

    pub(crate) fn pass<'a>(
        &'a self,
        ops: &'a mut Vec<Op>,
        space: &'a Workspace,
        inputs: PassInputs,
    ) -> Pass<'a> {
        let ModelSpec { hidden, activation, eps, .. } = self.spec;
        Pass {
            ops,
            space,
            inputs,
            sizes: LayerSizes { hidden, activation, eps, ropes: &self.ropes },
        }
    }

    /// Embeddings of `ids` to `out`.
    pub(crate) fn embed(&self, pass: &mut Pass<'_>, ids: View, table: WeightId, out: BufferId) {
        let out = pass.rows_of(out, self.spec.hidden);
        pass.push(Embed { ids, table, out, scale: self.spec.embed_scale });
    }

    /// The sampled rows of `final_hidden` before a head.
    pub(crate) fn head(&self, pass: &mut Pass<'_>, weight: WeightId) -> Head {
        let (space, dim) = (pass.space, pass.sizes.hidden);
        let x = pass.rows_of(space.final_hidden, dim);
        let rows = pass.inputs.sampled;
        let sampled = rows.len;
        let hidden = View::head(space.sampled_hidden, sampled * dim);
        if sampled > 0 {
            pass.push(GatherRows { x, rows, out: hidden, dim });
        }
        let vocabulary = self.spec.vocabulary;
        Head::Hidden(HeadProduct {
            x: hidden,
            weight,
            logits: View::head(space.logits, sampled * vocabulary),
            cap: self.spec.logit_cap,
            vocabulary,
            tokens: vocabulary,
        })
    }
}
