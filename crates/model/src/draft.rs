//! One pass of whatever drafts ahead: the hidden states it starts from and the logits it leaves.

use crate::forward::Pass;
use crate::model::Drafter;
use crate::{Batch, Head, Model, StateBuffers, Workspace};
use forerun_backend::op::GatherRows;
use forerun_backend::{Backend, BackendError, View};

/// Where the hidden states of a draft pass come from; [`Batch::hidden_places`] names the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HiddenSource {
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
    /// Rows that need logits.
    pub(crate) sampled: usize,
    pub(crate) states: &'a StateBuffers,
}

impl Model {
    /// Whether the drafter keeps keys and values of its own, which must hear of every row. One that does not
    /// reads the trunk's at the last position the trunk has seen, for every draft of a chain.
    pub fn drafter_remembers(&self) -> bool {
        matches!(self.drafter, Some(Drafter::Head(_)))
    }

    /// Queues one pass of the drafter, up to its head, over a batch whose ids are the tokens *after* its positions.
    ///
    /// # Panics
    /// When the model has no drafter or its state was not made: callers ask first.
    pub fn draft(
        &self,
        backend: &mut dyn Backend,
        space: &Workspace,
        states: &StateBuffers,
        batch: &Batch,
        source: HiddenSource,
    ) -> Result<Head, BackendError> {
        let (Some(drafter), Some(state)) = (&self.drafter, &states.draft) else {
            panic!("a draft pass needs a drafter and its state")
        };
        space.write(backend, batch)?;
        let mut pass = self.pass(backend, space, batch);
        let dim = pass.hidden;
        let hidden = pass.rows_of(space.final_hidden, dim);
        pass.backend.gather_rows(GatherRows {
            x: match source {
                HiddenSource::Trunk => state.hidden,
                HiddenSource::LastPass => {
                    View::head(space.sampled_hidden, space.limits.sampled * dim)
                }
            },
            rows: pass.index_of(space.index.hidden_places),
            out: hidden,
            dim,
        })?;
        let sampled = batch.sampled.len();
        let draft = DraftPass { model: self, pass: &mut pass, hidden, sampled, states };
        match drafter {
            Drafter::Head(head) => {
                let cache = state.cache.as_ref().expect("made together with the head");
                head.draft(draft, cache)
            }
            Drafter::Assistant(assistant) => assistant.draft(draft),
        }
    }
}
