//! Options of the device that computes.

use super::engine::threads;
use clap::{Args, ValueEnum};

#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct DeviceArgs {
    /// CPU threads [default: one per fast core of one socket]
    #[arg(long, value_name = "N", value_parser = threads, help_heading = "Engine")]
    pub(crate) threads: Option<usize>,

    /// What activations become where they meet quantised weights
    #[arg(long, value_enum, default_value_t, help_heading = "Engine")]
    pub(crate) compute: Compute,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compute {
    /// Nothing else: products are as exact as f32
    #[default]
    Exact,
    /// Rounded to 8 bits by blocks, as other engines do: prompts and batches are read faster, and
    /// answers differ. Drafts, chunks and batches still change nothing
    Int8,
}
