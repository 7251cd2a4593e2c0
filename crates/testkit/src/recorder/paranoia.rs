//! Memory an operation was not told about must not change: full copies before, compared after.

use super::queue::QueuedCommand;
use super::shadow::Shadows;
use forerun_backend::{
    Backend, BackendError, BufferId, BufferInfo, HostDataMut, View, submit_and_wait,
};
use std::collections::BTreeMap;

/// The bits of every buffer as of the last check.
#[derive(Debug, Default)]
pub(super) struct Snapshots(BTreeMap<u32, Vec<u32>>);

impl Snapshots {
    /// Runs what is queued on the inner device, compares everything outside `written`, and keeps
    /// the new contents.
    pub(super) fn check(
        &mut self,
        inner: &mut dyn Backend,
        shadows: &Shadows,
        command: &QueuedCommand,
        written: &[View],
    ) -> Result<(), BackendError> {
        submit_and_wait(inner)?;
        for (id, shadow) in shadows.iter() {
            let now = bits(inner, id, shadow.info)?;
            let changed = self.0.get(&id.0).and_then(|before| {
                let differs = |i: &usize| before[*i] != now[*i] && !covers(written, id, *i);
                (0..now.len()).find(differs)
            });
            if let Some(at) = changed {
                return Err(BackendError::Protocol(format!(
                    "{} changed element {at} of buffer `{}`, which it does not declare as written",
                    command.name(),
                    shadow.label
                )));
            }
            self.0.insert(id.0, now);
        }
        Ok(())
    }

    /// Takes the contents as they are now; for changes the recorder made itself.
    pub(super) fn refresh(
        &mut self,
        inner: &mut dyn Backend,
        shadows: &Shadows,
    ) -> Result<(), BackendError> {
        submit_and_wait(inner)?;
        for (id, shadow) in shadows.iter() {
            self.0.insert(id.0, bits(inner, id, shadow.info)?);
        }
        Ok(())
    }
}

fn covers(views: &[View], id: BufferId, at: usize) -> bool {
    views.iter().any(|v| v.buffer == id && (v.start..v.start + v.len).contains(&at))
}

/// The bits of each element.
fn bits(inner: &mut dyn Backend, id: BufferId, info: BufferInfo) -> Result<Vec<u32>, BackendError> {
    let size = info.dtype.size();
    let mut bytes = vec![0; info.len * size];
    inner.read(View::head(id, info.len), HostDataMut::Bytes(&mut bytes))?;
    let element =
        |bytes: &[u8]| bytes.iter().rev().fold(0, |bits, &byte| bits << 8 | u32::from(byte));
    Ok(bytes.chunks_exact(size).map(element).collect())
}
