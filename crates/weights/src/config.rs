//! `config.json`: kept as JSON for the model crate, read here only for how weights are packed.
//!
//! Two keys matter: MLX's `quantization` and everybody else's `quantization_config`. Both
//! are checked when the checkpoint is opened, so an unreadable scheme is refused before
//! any weight is touched.

use forerun_base::null_for_non_finite;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::fmt;

/// FP8 block edges when the config names none.
const DEFAULT_BLOCK: [usize; 2] = [128, 128];

/// A parsed `config.json`.
#[derive(Clone, Debug)]
pub struct WeightsConfig {
    value: Value,
    packing: Option<Packing>,
    block: [usize; 2],
}

/// Why a config cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

/// The element format of an MLX-packed weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are MLX's own")]
pub enum QuantMode {
    Affine,
    Mxfp4,
    Nvfp4,
    Mxfp8,
}

/// How an MLX module is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// The element format.
    pub mode: QuantMode,
    /// Bits per code.
    pub bits: usize,
    /// Columns that share a scale.
    pub group: usize,
}

/// What the config says about one module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declared {
    /// The config has no `quantization`.
    Nothing,
    /// Named as not quantised.
    Plain,
    /// Named, with a scheme.
    Listed(Scheme),
    /// Not named; the file's default scheme.
    Default(Scheme),
}

#[derive(Clone, Debug)]
struct Packing {
    default: Scheme,
    /// `None` for a module that stays plain.
    modules: HashMap<String, Option<Scheme>>,
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, bits, group } = self;
        write!(f, "{mode} with {bits} bits in groups of {group}")
    }
}

impl fmt::Display for QuantMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Affine => "affine",
            Self::Mxfp4 => "mxfp4",
            Self::Nvfp4 => "nvfp4",
            Self::Mxfp8 => "mxfp8",
        })
    }
}

/// Parses a config. `Infinity`, `-Infinity` and `NaN`, which Python writes although JSON
/// has no such words, become `null`.
pub fn parse(bytes: &[u8]) -> Result<WeightsConfig, ConfigError> {
    let value: Value = serde_json::from_slice(&null_for_non_finite(bytes))
        .map_err(|e| ConfigError(e.to_string()))?;
    check(value)
}

/// A config that did not come from a file.
pub(crate) fn check(value: Value) -> Result<WeightsConfig, ConfigError> {
    let Some(root) = value.as_object() else {
        return Err(ConfigError("expected a JSON object".into()));
    };
    let packing = match root.get("quantization") {
        None | Some(Value::Null) => None,
        Some(Value::Object(entries)) => Some(Packing::parse(entries)?),
        Some(other) => {
            return Err(ConfigError(format!("`quantization` is {other}; expected an object")));
        }
    };
    let nested = || root.get("text_config").and_then(|text| text.get("quantization_config"));
    let stated = |config: &&Value| !config.is_null();
    let foreign = root.get("quantization_config").filter(stated).or_else(nested);
    // MLX repeats its own `quantization` under the other name.
    let block = match foreign {
        Some(foreign) if packing.is_none() => check_foreign(foreign)?,
        _ => DEFAULT_BLOCK,
    };
    Ok(WeightsConfig { packing, block, value })
}

impl WeightsConfig {
    /// The config of a checkpoint that has none.
    pub(crate) fn absent() -> Self {
        Self { value: Value::Null, packing: None, block: DEFAULT_BLOCK }
    }

    /// The whole config.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// What the config says about the module at `path`.
    pub fn declared(&self, path: &str) -> Declared {
        let Some(packing) = &self.packing else { return Declared::Nothing };
        match packing.modules.get(path) {
            Some(Some(scheme)) => Declared::Listed(*scheme),
            Some(None) => Declared::Plain,
            None => Declared::Default(packing.default),
        }
    }

    /// Whether MLX's `quantization` is present.
    pub fn is_mlx_packed(&self) -> bool {
        self.packing.is_some()
    }

    /// Rows and columns that share an FP8 scale.
    pub fn fp8_block(&self) -> [usize; 2] {
        self.block
    }
}

impl Packing {
    fn parse(entries: &Map<String, Value>) -> Result<Self, ConfigError> {
        let default = Scheme::parse("quantization", entries)?;
        let mut modules = HashMap::new();
        for (path, entry) in entries {
            let scheme = match entry {
                Value::Bool(false) => None,
                Value::Bool(true) => Some(default),
                // An entry replaces the defaults as a whole: it inherits neither mode nor group.
                Value::Object(own) => Some(Scheme::parse(&format!("quantization.`{path}`"), own)?),
                // `bits`, `group_size`, `mode` and other remarks that name no module.
                _ => continue,
            };
            modules.insert(path.clone(), scheme);
        }
        Ok(Self { default, modules })
    }
}

impl Scheme {
    /// Reads a scheme; `place` names it in errors. Absent numbers are MLX's defaults.
    fn parse(place: &str, entry: &Map<String, Value>) -> Result<Self, ConfigError> {
        let mode = match entry.get("mode").unwrap_or(&Value::Null) {
            Value::Null => QuantMode::Affine,
            Value::String(name) => QuantMode::parse(name).ok_or_else(|| {
                ConfigError(format!(
                    "{place}: unknown mode `{name}`; known are affine, mxfp4, nvfp4, mxfp8"
                ))
            })?,
            other => return Err(ConfigError(format!("{place}: mode is {other}"))),
        };
        let number = |key: &str, default: usize| match entry.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => value
                .as_u64()
                .and_then(|n| usize::try_from(n).ok())
                .ok_or_else(|| ConfigError(format!("{place}: {key} is {value}"))),
        };
        let usual = mode.usual();
        let scheme = Self {
            mode,
            bits: number("bits", usual.bits)?,
            group: number("group_size", usual.group)?,
        };
        if !scheme.is_known() {
            return Err(ConfigError(format!("{place}: {scheme} is not a scheme of MLX")));
        }
        Ok(scheme)
    }

    /// Whether MLX can write this combination.
    pub fn is_known(self) -> bool {
        match self.mode {
            QuantMode::Affine => {
                matches!(self.bits, 2 | 3 | 4 | 5 | 6 | 8) && matches!(self.group, 32 | 64 | 128)
            }
            other => self == other.usual(),
        }
    }
}

impl QuantMode {
    fn parse(name: &str) -> Option<Self> {
        [Self::Affine, Self::Mxfp4, Self::Nvfp4, Self::Mxfp8]
            .into_iter()
            .find(|mode| mode.to_string() == name)
    }

    /// MLX's default for affine; the only possibility for the others.
    pub fn usual(self) -> Scheme {
        let (bits, group) = match self {
            Self::Affine => (4, 64),
            Self::Mxfp4 => (4, 32),
            Self::Nvfp4 => (4, 16),
            Self::Mxfp8 => (8, 32),
        };
        Scheme { mode: self, bits, group }
    }
}

/// Accepts FP8 and refuses every other method; gives the block edges.
fn check_foreign(config: &Value) -> Result<[usize; 2], ConfigError> {
    if config.is_null() {
        return Ok(DEFAULT_BLOCK);
    }
    let refuse = |why: String| Err(ConfigError(format!("`quantization_config`: {why}")));
    match config.get("quant_method").and_then(Value::as_str) {
        Some("fp8") => {}
        Some(other) => return refuse(format!("quant_method `{other}` is not supported; use fp8")),
        None => return refuse("no quant_method; expected fp8".into()),
    }
    if let Some(fmt) = config.get("fmt").and_then(Value::as_str)
        && fmt != "e4m3"
    {
        return refuse(format!("fmt `{fmt}` is not supported; use e4m3"));
    }
    let block = match config.get("weight_block_size") {
        None | Some(Value::Null) => return Ok(DEFAULT_BLOCK),
        Some(block) => block,
    };
    let edge =
        |i: usize| block.get(i).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
    match (edge(0), edge(1), block.get(2)) {
        (Some(rows), Some(cols), None) if rows > 0 && cols > 0 && cols % 16 == 0 => {
            Ok([rows, cols])
        }
        _ => refuse(format!(
            "weight_block_size is {block}; expected [rows, columns], columns a multiple of 16"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn affine(bits: usize, group: usize) -> Scheme {
        Scheme { mode: QuantMode::Affine, bits, group }
    }

    #[test]
    fn a_module_entry_replaces_the_defaults_as_a_whole() {
        let config = parse(
            br#"{"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4",
                "a.gate": {"group_size": 64, "bits": 8}, "a.norm": false, "a.same": true}}"#,
        )
        .unwrap();
        let mxfp4 = Scheme { mode: QuantMode::Mxfp4, bits: 4, group: 32 };
        assert_eq!(config.declared("a.gate"), Declared::Listed(affine(8, 64)));
        assert_eq!(config.declared("a.norm"), Declared::Plain);
        assert_eq!(config.declared("a.same"), Declared::Listed(mxfp4));
        assert_eq!(config.declared("a.other"), Declared::Default(mxfp4));
        assert_eq!(parse(b"{}").unwrap().declared("a"), Declared::Nothing);
    }

    #[test]
    fn foreign_methods_are_refused_by_name() {
        for method in ["gptq", "awq", "bitsandbytes", "compressed-tensors", "mxfp4"] {
            for text in [
                format!(r#"{{"quantization_config": {{"quant_method": "{method}"}}}}"#),
                format!(
                    r#"{{"quantization_config": null,
                        "text_config": {{"quantization_config": {{"quant_method": "{method}"}}}}}}"#
                ),
            ] {
                let error = parse(text.as_bytes()).unwrap_err().to_string();
                assert!(error.contains(method), "{error}");
            }
        }
    }

    #[test]
    fn bad_schemes_are_refused_with_their_place() {
        let cases = [
            (r#"{"quantization": {"bits": 7}}"#, "7 bits"),
            (r#"{"quantization": {"bits": -4}}"#, "bits is -4"),
            (r#"{"quantization": {"group_size": 16}}"#, "groups of 16"),
            (r#"{"quantization": {"mode": "q4"}}"#, "`q4`"),
            (r#"{"quantization": {"m.x": {"mode": "mxfp8", "bits": 4}}}"#, "`m.x`"),
            (r#"{"quantization": 4}"#, "expected an object"),
            (r#"{"quantization_config": {}}"#, "no quant_method"),
            (r#"{"quantization_config": {"quant_method": "fp8", "fmt": "e5m2"}}"#, "e5m2"),
            (
                r#"{"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 100]}}"#,
                "[128,100]",
            ),
            ("[]", "expected a JSON object"),
        ];
        for (text, words) in cases {
            let error = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn pythons_non_finite_words_become_null_outside_strings_only() {
        let config = parse(br#"{"a": [0.0, Infinity, -Infinity, NaN], "b": "\"NaN\\"}"#).unwrap();
        assert_eq!(config.value()["a"], serde_json::json!([0.0, null, null, null]));
        assert_eq!(config.value()["b"], "\"NaN\\");
    }
}
