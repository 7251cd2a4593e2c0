//! Parts of JSON output that several commands share.

pub(crate) use forerun_report::{MemoryItem, MemoryReport, SamplingReport, bytes_text, count_text};
