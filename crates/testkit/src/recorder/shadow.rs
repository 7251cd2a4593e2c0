//! What the recorder knows of each buffer: its label and which elements hold something.

use forerun_backend::{
    Access, BackendError, BufferId, BufferInfo, BufferRole, BufferSpec, Op, Operand, View,
};
use std::collections::BTreeMap;

/// One buffer seen from outside.
#[derive(Debug)]
pub(super) struct Shadow {
    pub(super) label: String,
    pub(super) info: BufferInfo,
    pub(super) role: BufferRole,
    /// Whether each element was ever written.
    written: Vec<bool>,
}

impl Shadow {
    pub(super) fn new(spec: &BufferSpec<'_>) -> Self {
        Self {
            label: spec.label.to_owned(),
            info: BufferInfo { dtype: spec.dtype, len: spec.len },
            role: spec.role,
            written: vec![false; spec.len],
        }
    }

    fn mark(&mut self, view: View, written: bool) {
        self.written[view.start..view.start + view.len].fill(written);
    }

    fn first_unwritten(&self, view: View) -> Option<usize> {
        (view.start..view.start + view.len).find(|&i| !self.written[i])
    }
}

/// All buffers by id; ordered, so that an error names the same buffer every time.
#[derive(Debug, Default)]
pub(super) struct Shadows(BTreeMap<u32, Shadow>);

impl Shadows {
    pub(super) fn insert(&mut self, id: BufferId, shadow: Shadow) {
        self.0.insert(id.0, shadow);
    }

    pub(super) fn get(&self, id: BufferId) -> Option<&Shadow> {
        self.0.get(&id.0)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (BufferId, &Shadow)> {
        self.0.iter().map(|(&id, shadow)| (BufferId(id), shadow))
    }

    /// Checks that a view lies inside a known buffer.
    pub(super) fn check(&self, op: &'static str, view: View) -> Result<&Shadow, BackendError> {
        self.get(view.buffer)
            .filter(|shadow| {
                view.start.checked_add(view.len).is_some_and(|end| end <= shadow.info.len)
            })
            .ok_or(BackendError::OutOfRange { op, operand: "view" })
    }

    /// Notes that the host wrote a checked view.
    pub(super) fn written(&mut self, view: View) {
        self.mark(view, true);
    }

    /// Scratch means nothing any more; state stays.
    pub(super) fn forget_scratch(&mut self) {
        for shadow in self.0.values_mut().filter(|s| s.role == BufferRole::Scratch) {
            shadow.written.fill(false);
        }
    }

    /// Refuses an operand or host read that covers elements nothing was written to.
    pub(super) fn require_written(&self, who: &str, view: View) -> Result<(), BackendError> {
        let Some(shadow) = self.get(view.buffer) else { return Ok(()) };
        let Some(at) = shadow.first_unwritten(view) else { return Ok(()) };
        Err(BackendError::Protocol(format!(
            "{who} reads element {at} of buffer `{}`, to which nothing was written",
            shadow.label
        )))
    }

    /// Follows a checked operation: what it reads must hold something, what it writes then does.
    ///
    /// Indexed operands are not followed by element (poison shows their misuse), but a scattered
    /// buffer counts as written afterwards.
    pub(super) fn follow(&mut self, op: &Op, operands: &[Operand]) -> Result<(), BackendError> {
        for Operand { name, view, access } in operands {
            if matches!(access, Access::Read | Access::Update) {
                self.require_written(&format!("{}: operand `{name}`", op.name()), *view)?;
            }
        }
        for operand in operands.iter().filter(|o| o.access.writes()) {
            self.mark(operand.view, true);
        }
        for view in left_unspecified(op) {
            self.mark(view, false);
        }
        Ok(())
    }

    fn mark(&mut self, view: View, written: bool) {
        if let Some(shadow) = self.0.get_mut(&view.buffer.0) {
            shadow.mark(view, written);
        }
    }
}

/// Room an operation may write but promises nothing about.
fn left_unspecified(op: &Op) -> Vec<View> {
    match op {
        Op::GatedLinear(op) => vec![op.scratch],
        Op::Experts(op) => vec![op.hidden, op.partial],
        Op::HeadSample(op) => vec![op.sample.logits],
        Op::AttentionPart(op) if !op.ends => vec![op.whole.out],
        Op::GroupedLinear(op) => vec![op.gathered, op.products],
        _ => Vec::new(),
    }
}
