//! Parameters and bytes by part and by format, counted over stored tensors.
//!
//! A packed weight is several tensors: codes, scales, perhaps biases. Its parameters are those of
//! the matrix it stands for; all its bytes count, under the codes' format.

use super::part::NetworkPart;
use forerun_base::DType;
use forerun_weights::config::{Declared, Scheme};
use forerun_weights::{Checkpoint, Info, Storage, config, scaled_weight};
use std::collections::BTreeMap;

/// Parameters and the bytes that hold them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) parameters: u64,
    /// In the files.
    pub(super) bytes: u64,
    /// Once loaded: some packed types take more room in the layout that kernels read.
    pub(super) loaded: u64,
}

impl Amount {
    fn add(&mut self, other: Self) {
        self.parameters += other.parameters;
        self.bytes += other.bytes;
        self.loaded += other.loaded;
    }
}

#[derive(Debug, Default)]
pub(super) struct Inventory {
    pub(super) parts: BTreeMap<NetworkPart, Amount>,
    pub(super) formats: BTreeMap<String, Amount>,
}

impl Inventory {
    pub(super) fn take(checkpoint: &Checkpoint) -> anyhow::Result<Self> {
        let mut inventory = Self::default();
        for name in checkpoint.names() {
            let info = checkpoint.info(name)?;
            let parameters = parameters(checkpoint, name, &info)?;
            let loaded = match info.storage {
                Storage::Plain(_) => info.bytes,
                Storage::Block(block) => block.loaded_bytes(parameters).unwrap_or(info.bytes),
            };
            let amount = Amount { parameters, bytes: info.bytes, loaded };
            let format = format_of(checkpoint, name, &info)?;
            inventory.parts.entry(NetworkPart::of(name)).or_default().add(amount);
            inventory.formats.entry(format).or_default().add(amount);
        }
        Ok(inventory)
    }

    /// Everything the text model uses, MTP included.
    pub(super) fn used(&self) -> Amount {
        let mut sum = Amount::default();
        self.parts
            .iter()
            .filter(|(part, _)| **part != NetworkPart::Other)
            .for_each(|(_, a)| sum.add(*a));
        sum
    }
}

fn parameters(checkpoint: &Checkpoint, name: &str, info: &Info) -> anyhow::Result<u64> {
    if scaled_weight(checkpoint, name).is_some() {
        return Ok(0);
    }
    let stored = info.shape.iter().map(|&n| n as u64).product::<u64>();
    Ok(match scheme(checkpoint, name, info)? {
        Some(scheme) => stored * 32 / scheme.bits as u64,
        None => stored,
    })
}

fn format_of(checkpoint: &Checkpoint, name: &str, info: &Info) -> anyhow::Result<String> {
    if let Some(weight) = scaled_weight(checkpoint, name) {
        return format_of(checkpoint, &weight, &checkpoint.info(&weight)?);
    }
    Ok(match (scheme(checkpoint, name, info)?, info.storage) {
        (Some(Scheme { mode, bits, group }), _) => {
            format!("mlx {mode} {bits} bit, groups of {group}")
        }
        (None, Storage::Plain(DType::F8E4M3)) => "fp8 e4m3".to_owned(),
        (None, Storage::Plain(dtype)) => dtype.to_string().to_lowercase(),
        (None, Storage::Block(block)) => block.to_string(),
    })
}

/// How a weight is packed, if it is: what the config says where the shapes bear it out, else the
/// first scheme that fits the shapes.
fn scheme(checkpoint: &Checkpoint, name: &str, info: &Info) -> anyhow::Result<Option<Scheme>> {
    let Some(path) = name.strip_suffix(".weight") else { return Ok(None) };
    let scales = format!("{path}.scales");
    if info.storage != Storage::Plain(DType::U32) || !checkpoint.contains(&scales) {
        return Ok(None);
    }
    let scales = checkpoint.info(&scales)?;
    let (words, groups) = (info.shape.last(), scales.shape.last());
    let (Some(&words), Some(&groups)) = (words, groups) else { return Ok(None) };
    let affine = scales.storage != Storage::Plain(DType::U8);
    let fits = |s: &Scheme| {
        s.is_known()
            && (s.mode == config::QuantMode::Affine) == affine
            && words * 32 == s.bits * s.group * groups
    };
    let said = match checkpoint.parsed_config().declared(path) {
        Declared::Listed(scheme) | Declared::Default(scheme) => Some(scheme),
        Declared::Plain | Declared::Nothing => None,
    };
    Ok(said.filter(fits).or_else(|| every_scheme().find(fits)))
}

/// All schemes, the usual ones first.
fn every_scheme() -> impl Iterator<Item = Scheme> {
    use config::QuantMode::{Affine, Mxfp4, Mxfp8, Nvfp4};
    let pairs = [64, 32, 128, 16]
        .into_iter()
        .flat_map(|group| [4, 8, 6, 5, 3, 2].into_iter().map(move |bits| (bits, group)));
    pairs.flat_map(|(bits, group)| {
        [Affine, Mxfp4, Nvfp4, Mxfp8].into_iter().map(move |mode| Scheme { mode, bits, group })
    })
}
