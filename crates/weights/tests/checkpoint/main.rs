//! Checkpoints on disk, good and bad: what opens, what it decodes to, what is refused and how.

mod formats;
mod gguf_files;
mod gguf_hostile;
mod gguf_values;
mod hostile;
mod opening;
mod translated;
mod written;
