//! Checkpoints on disk, good and bad: what opens, what it decodes to, what is refused and how.

mod formats;
mod hostile;
mod opening;
mod written;
