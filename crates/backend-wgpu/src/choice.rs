//! Names of adapters, as they are typed and printed. Part of every build, so that a build without the device can say
//! what it lacks.

use std::fmt;
use std::str::FromStr;

/// An interface of the operating system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Api {
    /// Whatever there is.
    #[default]
    Any,
    /// Vulkan.
    Vulkan,
    /// Metal, of macOS.
    Metal,
    /// Direct3D 12, of Windows.
    Dx12,
}

impl Api {
    /// Every interface, by name.
    pub const ALL: [Self; 4] = [Self::Any, Self::Vulkan, Self::Metal, Self::Dx12];
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "wgpu",
            Self::Vulkan => "vulkan",
            Self::Metal => "metal",
            Self::Dx12 => "dx12",
        })
    }
}

/// One of the adapters of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdapterSelector {
    /// The first discrete or Apple GPU, else the first that is no software.
    #[default]
    Best,
    /// By its number among the adapters of the interface.
    Number(usize),
    /// The first that is software, which no other choice takes unless it names its number.
    Software,
}

/// An adapter by interface and place: `wgpu`, `metal`, `vulkan:1`, `wgpu:software`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdapterChoice {
    /// The interface.
    pub api: Api,
    /// Which of its adapters.
    pub selector: AdapterSelector,
}

impl FromStr for AdapterChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (api, selector) =
            text.split_once(':').map_or((text, None), |(api, selector)| (api, Some(selector)));
        let wrong =
            || "expected wgpu, vulkan, metal or dx12, and perhaps :N or :software".to_owned();
        let api = Api::ALL.into_iter().find(|known| known.to_string() == api).ok_or_else(wrong)?;
        let selector = match selector {
            None => AdapterSelector::Best,
            Some("software") => AdapterSelector::Software,
            Some(number) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                AdapterSelector::Number(number.parse().map_err(|_| wrong())?)
            }
            Some(_) => return Err(wrong()),
        };
        Ok(Self { api, selector })
    }
}

impl fmt::Display for AdapterChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.selector {
            AdapterSelector::Best => write!(f, "{}", self.api),
            AdapterSelector::Number(number) => write!(f, "{}:{number}", self.api),
            AdapterSelector::Software => write!(f, "{}:software", self.api),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_written_as_it_is_read() {
        for (text, api, selector) in [
            ("wgpu", Api::Any, AdapterSelector::Best),
            ("metal", Api::Metal, AdapterSelector::Best),
            ("dx12:0", Api::Dx12, AdapterSelector::Number(0)),
            ("vulkan:12", Api::Vulkan, AdapterSelector::Number(12)),
            ("wgpu:software", Api::Any, AdapterSelector::Software),
        ] {
            let choice = AdapterChoice { api, selector };
            assert_eq!(text.parse(), Ok(choice));
            assert_eq!(choice.to_string(), text);
        }
        for text in ["", "gl", "wgpu:", "wgpu:+1", "metal:fast", "vulkan:99999999999999999999"] {
            assert!(text.parse::<AdapterChoice>().is_err(), "{text}");
        }
    }
}
