//! Embeddings of the last tokens together, added to the streams at the start of a block.
//!
//! ```text
//! e = table rows of the token and those before it       k = norm(key(e))       q = norm(x)
//! g_s = σ(f(k_s · q_s / √width)) · value(e)             x += g + silu(conv(norm(g)))
//! ```
//!
//! The convolution is depthwise and takes every `order`-th row; here it has zeros as taps between them.

use crate::forward::Pass;
use crate::loader::Loader;
use crate::{LayerState, ModelError, NgramSpec};
use forerun_backend::WeightId;
use forerun_backend::op::{
    GroupNorm, LinearPart, Linears, NgramEmbed, NgramGate, NgramHash, ShortConv, StreamUpdate,
    UpdateStreams,
};
use forerun_base::MatrixParts;

/// Weights of one such embedding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ngram {
    spec: NgramSpec,
    streams: usize,
    hash: NgramHash,
    table: WeightId,
    key: WeightId,
    value: WeightId,
    key_norm: WeightId,
    query_norm: WeightId,
    conv_norm: WeightId,
    conv: WeightId,
}

impl NgramSpec {
    /// Rows that the convolution spans, its own included.
    pub(super) fn reach(&self) -> usize {
        (self.taps - 1) * self.order + 1
    }

    /// Width of a head's row.
    fn row(&self) -> usize {
        self.width / ((self.order - 1) * self.heads)
    }

    /// How the published models find rows: a prime of its own for each head of each such layer, and factors that the
    /// seed gives.
    pub(crate) fn hash(&self) -> NgramHash {
        let heads = (self.order - 1) * self.heads;
        let first = self.index * heads;
        let primes = (self.base.max(2)..).filter(|&n| is_prime(n)).skip(first);
        let mut sizes = [0; NgramHash::MOST_HEADS];
        sizes.iter_mut().zip(primes).take(heads).for_each(|(size, prime)| *size = prime);
        let most = i64::MAX as u64 / (self.vocabulary as u64).max(1);
        let half = (most / 2).max(1);
        let seed = self.seed.wrapping_add(10007_u64.wrapping_mul(self.index as u64));
        let mut multipliers = [0; NgramHash::MOST_TOKENS];
        for (i, factor) in multipliers.iter_mut().enumerate().take(self.order) {
            *factor =
                2 * (split_mix(seed.wrapping_add(GAMMA.wrapping_mul(i as u64 + 1))) % half) + 1;
        }
        NgramHash {
            order: self.order,
            heads: self.heads,
            multipliers,
            sizes,
            boundary: self.boundary,
        }
    }
}

const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// One number of SplitMix64.
fn split_mix(state: u64) -> u64 {
    let z = state.wrapping_add(GAMMA);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn is_prime(n: u32) -> bool {
    let root = n.isqrt();
    n >= 2
        && (n == 2 || !n.is_multiple_of(2))
        && (3..=root).step_by(2).all(|d| !n.is_multiple_of(d))
}

impl Ngram {
    pub(super) fn load(
        loader: &mut Loader<'_>,
        path: &str,
        spec: NgramSpec,
        streams: usize,
    ) -> Result<Self, ModelError> {
        let at = |name: &str| format!("{path}.{name}");
        let (hash, hidden) = (spec.hash(), spec.hidden);
        let wide = streams * hidden;
        check_stored(loader, &at("ple_embedding"), &hash)?;
        let table = load_table(loader, &at("ple_embedding.ngram_embedding"), &spec, &hash)?;
        let norm = |loader: &mut Loader<'_>, name: &str| loader.norm(&at(name), wide);
        Ok(Self {
            spec,
            streams,
            hash,
            table,
            key: loader.matrix(&at("key_proj"), [wide, spec.width])?,
            value: loader.matrix(&at("value_proj"), [hidden, spec.width])?,
            key_norm: norm(loader, "norm_key")?,
            query_norm: norm(loader, "norm_query")?,
            conv_norm: norm(loader, "norm_conv")?,
            conv: load_kernel(loader, &at("conv1d.weight"), wide, &spec)?,
        })
    }

    /// Adds to the streams.
    pub(super) fn forward(&self, pass: &mut Pass<'_>, state: &LayerState) {
        let Self { spec, streams, .. } = *self;
        let (dim, eps) = (spec.hidden, pass.sizes.eps);
        let wide = streams * dim;
        let [projected, embedded, keys, values, queries, gated, mixed] =
            pass.frame_scratch([wide, spec.width, wide, dim, wide, wide, wide]);
        let [conv_window, conv_log, window, log] = state.last_views();
        let (x, spans) = (pass.rows_of(pass.space.streams, wide), pass.span_table());
        pass.push(NgramEmbed {
            ids: pass.inputs.embedded,
            table: self.table,
            hash: self.hash,
            width: spec.row(),
            window,
            log,
            spans,
            out: embedded,
        });
        let part = |weight, out| Some(LinearPart { weight, bias: None, out });
        let parts = [part(self.key, projected), part(self.value, values), None, None];
        pass.push(Linears { x: embedded, norm: None, parts });
        let norm = |x, weight, out| GroupNorm { x, weight, out, dim: wide, group: dim, eps };
        pass.push(norm(projected, self.key_norm, keys));
        pass.push(norm(x, self.query_norm, queries));
        pass.push(NgramGate { keys, queries, values, streams, dim, out: gated });
        pass.push(norm(gated, self.conv_norm, keys));
        pass.push(ShortConv {
            x: keys,
            gates: None,
            weight: self.conv,
            bias: None,
            silu: true,
            channels: wide,
            window: conv_window,
            log: conv_log,
            spans,
            out: mixed,
        });
        for y in [gated, mixed] {
            pass.push(UpdateStreams { y, update: StreamUpdate::Add, streams: 1, dim: wide, x });
        }
    }
}

/// Refuses a checkpoint whose stored numbers are not those that its config gives.
fn check_stored(loader: &Loader<'_>, path: &str, hash: &NgramHash) -> Result<(), ModelError> {
    let heads = hash.all_heads();
    let sizes: Vec<i64> = hash.sizes[..heads].iter().map(|&size| i64::from(size)).collect();
    let offset = |h: usize| sizes[..h].iter().sum();
    let multipliers = hash.multipliers[..hash.order].iter().map(|&m| m as i64).collect();
    for (name, expected) in [
        ("layer_multipliers", multipliers),
        ("ngram_heads_offsets", (0..heads).map(offset).collect()),
        ("ngram_heads_vocab_sizes", sizes.clone()),
    ] {
        let name = format!("{path}.{name}");
        if loader.checkpoint.contains(&name) && loader.integers(&name)? != expected {
            return Err(ModelError::Layout(format!(
                "{name}: holds other numbers than seed, vocab_size and ngram_vocab_size_base give"
            )));
        }
    }
    Ok(())
}

/// The table, whole or in numbered shards.
fn load_table(
    loader: &mut Loader<'_>,
    path: &str,
    spec: &NgramSpec,
    hash: &NgramHash,
) -> Result<WeightId, ModelError> {
    let rows = hash.rows().next_multiple_of(spec.divisor);
    if loader.checkpoint.has_matrix(path) {
        return loader.matrix(path, [rows, spec.row()]);
    }
    let mut shards: Vec<MatrixParts> = Vec::with_capacity(spec.parts);
    for i in 0..spec.parts {
        let shard = format!("{path}.shard_{i}");
        let info = loader.checkpoint.info(&format!("{shard}.weight"))?;
        let rows = info.shape.first().copied().unwrap_or(0);
        shards.push(loader.checkpoint.parts(&shard, &[rows, spec.row()])?);
    }
    let found: usize = shards.iter().map(MatrixParts::rows).sum();
    let wrong = |why: String| ModelError::Layout(format!("{path}: {why}"));
    if found != rows {
        return Err(wrong(format!("has {found} rows in its shards, expected {rows}")));
    }
    let whole = MatrixParts::stack(&shards);
    loader.upload(path, whole.ok_or_else(|| wrong("differs in format by shard".to_owned()))?)
}

/// The kernel with zeros between its taps.
fn load_kernel(
    loader: &mut Loader<'_>,
    name: &str,
    channels: usize,
    spec: &NgramSpec,
) -> Result<WeightId, ModelError> {
    let (taps, reach) = (spec.taps, spec.reach());
    let stored = loader.checkpoint.values(name, &[channels, 1, taps])?;
    let mut kernel = vec![0.0; channels * reach];
    for (kernel, stored) in kernel.chunks_exact_mut(reach).zip(stored.chunks_exact(taps)) {
        stored.iter().enumerate().for_each(|(i, &tap)| kernel[i * spec.order] = tap);
    }
    loader.numbers(name, channels, &kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn primes_and_factors_are_the_published_ones() {
        let spec = NgramSpec {
            hidden: 64,
            width: 64,
            taps: 4,
            order: 3,
            heads: 2,
            vocabulary: 400,
            base: 200,
            seed: 1234,
            index: 0,
            divisor: 8,
            parts: 2,
            boundary: 381,
        };
        assert_eq!(spec.hash().sizes[..5], [211, 223, 227, 229, 0]);
        let second = NgramSpec { index: 1, ..spec };
        assert_eq!(second.hash().sizes[..4], [233, 239, 241, 251]);
        // SplitMix64 of state 0.
        assert_eq!(split_mix(0), 0xE220_A839_7B1D_CDAF);
    }
}
