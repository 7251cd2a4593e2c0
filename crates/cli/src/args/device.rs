//! Options of the device that computes.

use super::engine::threads;
use clap::{Args, ValueEnum};
use std::fmt;
use std::str::FromStr;

#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct DeviceArgs {
    /// Where to run: cpu, cuda, cuda:N for GPU number N, or auto for a GPU if there is one
    #[arg(long, value_name = "DEVICE", default_value_t, help_heading = "Engine")]
    pub(crate) device: DeviceChoice,

    /// CPU threads [default: one per fast core of one socket]
    #[arg(long, value_name = "N", value_parser = threads, help_heading = "Engine")]
    pub(crate) threads: Option<usize>,

    /// What activations become where they meet quantised weights
    #[arg(long, value_enum, default_value_t, help_heading = "Engine")]
    pub(crate) compute: Compute,
}

/// A device by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DeviceChoice {
    /// A GPU if there is one, else the CPU.
    Auto,
    #[default]
    Cpu,
    /// A CUDA device by its number.
    Cuda(usize),
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "auto" => Ok(Self::Auto),
            None if text == "cpu" => Ok(Self::Cpu),
            None if text == "cuda" => Ok(Self::Cuda(0)),
            Some(("cuda", number)) if number.bytes().all(|b| b.is_ascii_digit()) => {
                number.parse().map(Self::Cuda).map_err(|why| why.to_string())
            }
            _ => Err("expected auto, cpu, cuda or cuda:N".to_owned()),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names_and_gpus_numbers() {
        for (text, choice) in [
            ("auto", Some(DeviceChoice::Auto)),
            ("cpu", Some(DeviceChoice::Cpu)),
            ("cuda", Some(DeviceChoice::Cuda(0))),
            ("cuda:3", Some(DeviceChoice::Cuda(3))),
            ("cuda:", None),
            ("cuda:+1", None),
            ("cpu:1", None),
            ("gpu", None),
            ("", None),
        ] {
            assert_eq!(text.parse().ok(), choice, "{text}");
        }
        assert_eq!(DeviceChoice::Cuda(3).to_string(), "cuda:3");
    }
}
