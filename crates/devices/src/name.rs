//! Names of devices, as they are typed and printed.

use std::fmt;
use std::str::FromStr;

/// A device by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceName {
    /// A GPU if there is one, else the CPU.
    Auto,
    /// The CPU.
    #[default]
    Cpu,
    /// A CUDA device by its number.
    Cuda(usize),
}

impl FromStr for DeviceName {
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

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names_and_gpus_numbers() {
        for (text, name) in [
            ("auto", Some(DeviceName::Auto)),
            ("cpu", Some(DeviceName::Cpu)),
            ("cuda", Some(DeviceName::Cuda(0))),
            ("cuda:3", Some(DeviceName::Cuda(3))),
            ("cuda:", None),
            ("cuda:+1", None),
            ("cpu:1", None),
            ("gpu", None),
            ("", None),
        ] {
            assert_eq!(text.parse().ok(), name, "{text}");
        }
        assert_eq!(DeviceName::Cuda(3).to_string(), "cuda:3");
    }
}
