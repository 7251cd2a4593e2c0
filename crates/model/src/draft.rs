//! One pass of whatever drafts ahead: the hidden states it starts from and the logits it leaves.

use crate::forward::Pass;
use crate::model::Drafter;
use crate::{Head, Model, PassInputs, StateBuffers, Workspace};
use forerun_backend::op::GatherRows;
use forerun_backend::{BufferId, Op, View};

/// Where the hidden states of a draft pass come from; [`Batch::hidden_places`](crate::Batch::hidden_places) names the
/// rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HiddenSource {
    /// The trunk's step that the pass follows in the same program.
    Step,
    /// The trunk, through the window of hidden states.
    Trunk,
    /// The sampled rows of the last draft pass.
    LastPass,
}

/// What a drafter's pass starts from.
pub(crate) struct DraftPass<'a, 'p> {
    pub(crate) model: &'a Model,
    pub(crate) pass: &'a mut Pass<'p>,
    /// Hidden states of the batch's rows.
    pub(crate) hidden: View,
    pub(crate) states: &'a StateBuffers,
}

impl Model {
    /// Whether the drafter keeps keys and values of its own, which must hear of every row. One that does not
    /// reads the trunk's at the last position the trunk has seen, for every draft of a chain.
    pub fn drafter_remembers(&self) -> bool {
        matches!(self.drafter, Some(Drafter::Head(_)))
    }

    /// Adds the operations of one pass of the drafter, up to its head, over rows whose ids are the tokens *after* their
    /// positions.
    ///
    /// # Panics
    /// When the model has no drafter or its state was not made: callers ask first.
    pub fn draft(
        &self,
        ops: &mut Vec<Op>,
        space: &Workspace,
        states: &StateBuffers,
        inputs: PassInputs,
        source: HiddenSource,
    ) -> Head {
        let (Some(drafter), Some(state)) = (&self.drafter, &states.draft) else {
            panic!("a draft pass needs a drafter and its state")
        };
        let mut pass = self.pass(ops, space, inputs);
        let dim = self.spec.hidden;
        let own = |buffer: BufferId| pass.rows_of(buffer, dim);
        let all = |buffer: BufferId, rows: usize| View::head(buffer, rows * dim);
        let (x, hidden) = match source {
            HiddenSource::Step => (all(space.final_hidden, space.limits.rows), own(space.x)),
            HiddenSource::Trunk => (state.hidden, own(space.final_hidden)),
            HiddenSource::LastPass => {
                (all(space.sampled_hidden, space.limits.sampled), own(space.final_hidden))
            }
        };
        pass.push(GatherRows { x, rows: inputs.hidden_places, out: hidden, dim });
        let draft = DraftPass { model: self, pass: &mut pass, hidden, states };
        match drafter {
            Drafter::Head(head) => {
                let cache = state.cache.as_ref().expect("made together with the head");
                head.draft(draft, cache)
            }
            Drafter::Assistant(assistant) => assistant.draft(draft),
        }
    }
}
