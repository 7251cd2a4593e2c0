//! The panels of a product with a packed weight, and where their sums go.

use super::packed_weight::{Interleaving, PackedWeight, VECTOR};
pub(crate) use super::product::MAX_PANELS;
use super::product::{ChannelMap, Product, RowMap};
use crate::simd::isa::{Isa, LANES};
use forerun_backend::op::Store;
use std::array::from_fn;
use std::ops::Range;

/// Rows of a tile of packed activations when there are `rows` in all: the next power of two, at most sixteen.
pub(crate) fn tile_rows(rows: usize) -> usize {
    rows.next_power_of_two().clamp(1, LANES)
}

/// A tile of packed rows.
#[derive(Clone, Copy)]
pub(crate) struct RowTile {
    pub(crate) index: usize,
    /// The tile that begins with the first row of the product.
    pub(crate) first: usize,
    /// Rows of every tile.
    pub(crate) rows: usize,
}

/// Places of the product's rows that lie in a tile.
pub(crate) fn rows_of(product: &Product<'_, PackedWeight>, tile: RowTile) -> Range<usize> {
    let start = product.rows.start + (tile.index - tile.first) * tile.rows;
    start..product.rows.end.min(start + tile.rows)
}

/// Where a panel is, and which of its sixteen channels are wanted.
#[derive(Clone)]
pub(crate) struct Panel {
    /// Codes, scales and offsets.
    pub(crate) planes: [*const u8; 3],
    lanes: Range<usize>,
    /// Output channel of the first wanted lane.
    channel: usize,
}

/// Consecutive panels with all channels wanted, or a single panel. Kernels take all of them in one call: the setup
/// before a short panel takes as long as a part of it.
pub(crate) struct Panels {
    pub(crate) first: Panel,
    /// Bytes from one panel to the next in codes, scales and offsets.
    pub(crate) strides: [usize; 3],
    pub(crate) count: usize,
}

impl Panels {
    /// All panels of the product's channels, where none is used in part.
    pub(crate) fn of(product: &Product<'_, PackedWeight>) -> Option<Self> {
        let ChannelMap::Offset(base) = product.channel_map else { return None };
        let Range { start: channel, end } = product.channels;
        let (first, end) = (base + channel, base + end);
        if first >= end || first % LANES != 0 || end % LANES != 0 {
            return None;
        }
        let planes = product.matrix.panel(first / LANES).map(<[u8]>::as_ptr);
        let (strides, count) = (product.matrix.panel_bytes(), (end - first) / LANES);
        Some(Self { first: Panel { planes, lanes: 0..LANES, channel }, strides, count })
    }

    /// Up to `most` of them, from panel `first` on.
    pub(crate) fn some(&self, first: usize, most: usize) -> Self {
        let channel = self.first.channel + first * LANES;
        Self {
            first: Panel { planes: self.at(first), lanes: 0..LANES, channel },
            strides: self.strides,
            count: most.min(self.count - first),
        }
    }

    /// Codes, scales and offsets of a panel.
    #[inline(always)]
    pub(crate) fn at(&self, panel: usize) -> [*const u8; 3] {
        let mut planes = self.first.planes;
        for plane in 0..3 {
            planes[plane] = planes[plane].wrapping_add(panel * self.strides[plane]);
        }
        planes
    }
}

/// f32 of scratch in which [`for_each_panels`] gathers single channels into a panel.
pub(crate) fn gathered_len(weight: &PackedWeight) -> usize {
    lens(weight).iter().sum()
}

/// f32 of a panel's codes, scales and offsets, in whole vectors.
fn lens(weight: &PackedWeight) -> [usize; 3] {
    weight.panel(0).map(|plane| plane.len().div_ceil(VECTOR) * LANES)
}

/// Calls `work` with every panel that the product's channels touch, up to `panels_at_once` at a time.
pub(crate) fn for_each_panels(
    product: &Product<'_, PackedWeight>,
    panels_at_once: usize,
    gathered: &mut [f32],
    mut work: impl FnMut(&[Panel]),
) {
    let channels = product.channels.clone();
    let base = match product.channel_map {
        ChannelMap::Offset(base) => base,
        ChannelMap::Gather(list) => return gathered_panels(product, list, gathered, work),
    };
    let (first, end) = (base + channels.start, base + channels.end);
    let (from, to) = (first / LANES, end.div_ceil(LANES));
    for start in (from..to).step_by(panels_at_once) {
        let count = panels_at_once.min(to - start);
        let panels: [Panel; MAX_PANELS] = from_fn(|i| {
            if i >= count {
                return Panel::NONE;
            }
            let at = (start + i) * LANES;
            Panel {
                planes: product.matrix.panel(start + i).map(<[u8]>::as_ptr),
                lanes: first.max(at) - at..(end - at).min(LANES),
                channel: first.max(at) - base,
            }
        });
        work(&panels[..count]);
    }
}

/// Channels that are rows `list` of the weight: sixteen at a time are gathered into a panel in `gathered`.
fn gathered_panels(
    product: &Product<'_, PackedWeight>,
    list: &[u32],
    gathered: &mut [f32],
    mut work: impl FnMut(&[Panel]),
) {
    let (weight, channels) = (product.matrix, product.channels.clone());
    let lens = lens(weight);
    for start in channels.clone().step_by(LANES) {
        let some = &list[start..channels.end.min(start + LANES)];
        let (codes, rest) = gathered.split_at_mut(lens[0]);
        let (scales, offsets) = rest.split_at_mut(lens[1]);
        for (target, &row) in some.iter().enumerate() {
            let (panel, source) = (weight.panel(row as usize / LANES), row as usize % LANES);
            let planes = panel.into_iter().zip([&mut *codes, scales, offsets]);
            for ((plane, to), lanes) in planes.zip(weight.lanes()) {
                copy_lane(plane, to, LaneCopy { source, target }, lanes);
            }
        }
        let planes = [&*codes, scales, offsets].map(|plane| plane.as_ptr().cast());
        work(&[Panel { planes, lanes: 0..some.len(), channel: start }]);
    }
}

/// Which lane of a panel goes where.
#[derive(Clone, Copy)]
struct LaneCopy {
    source: usize,
    target: usize,
}

/// Copies lane `source` of a panel's plane to lane `target` of another.
fn copy_lane(from: &[u8], to: &mut [f32], lane: LaneCopy, lanes: Interleaving) {
    // SAFETY: the slice is `4·len` bytes, every bit pattern of which is an f32; the exclusive borrow carries over.
    let to = unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<u8>(), to.len() * 4) };
    let LaneCopy { source, target } = lane;
    let (size, stride) = (lanes.size, LANES * lanes.stride());
    for (from, to) in from.chunks_exact(stride).zip(to.chunks_exact_mut(stride)) {
        to[target * size..][..size].copy_from_slice(&from[source * size..][..size]);
        let lines = from.chunks_exact(LANES).zip(to.chunks_exact_mut(LANES));
        lines.skip(size).for_each(|(from, to)| to[target] = from[source]);
    }
}

/// Where sums go as whole vectors.
#[derive(Clone, Copy)]
pub(crate) struct DirectOutput {
    /// The first row\'s first channel.
    pub(crate) first: *mut f32,
    /// f32 from one row to the next.
    pub(crate) stride: usize,
    /// Whether sums are added to what is there.
    pub(crate) add: bool,
}

impl Panel {
    const NONE: Self = Self { planes: [std::ptr::null(); 3], lanes: 0..0, channel: 0 };

    /// This panel alone.
    pub(crate) fn alone(&self) -> Panels {
        Panels { first: self.clone(), strides: [0; 3], count: 1 }
    }

    /// Index of the row's first wanted channel in the output's data.
    #[inline(always)]
    fn place(&self, product: &Product<'_, PackedWeight>, row: usize) -> usize {
        let out = &product.output;
        out.row_map.at(row) * out.stride + self.channel - out.first
    }

    /// Prefetches the output lines of rows for writing: rows of the output lie far apart, and each store would
    /// otherwise wait for its line.
    #[inline(always)]
    pub(crate) fn prefetch_outputs<S: Isa>(
        &self,
        simd: S,
        product: &Product<'_, PackedWeight>,
        rows: Range<usize>,
    ) {
        for row in rows {
            simd.prefetch_write(
                product.output.data.address(self.place(product, row), self.lanes.len()),
            );
        }
    }

    /// Where sums can be stored directly as whole vectors: no bias, no partial panel, rows equally far apart. Covers
    /// `rows` times this and the next `panels − 1` panels.
    #[inline(always)]
    pub(crate) fn direct_output(
        &self,
        product: &Product<'_, PackedWeight>,
        rows: &Range<usize>,
        panels: usize,
    ) -> Option<DirectOutput> {
        let out = &product.output;
        let straight = !matches!(out.row_map, RowMap::Gather { .. }) && self.lanes.len() == LANES;
        if !straight || !out.bias.is_empty() || rows.is_empty() {
            return None;
        }
        let len = (rows.len() - 1) * out.stride + panels * LANES;
        let first = out.data.address(self.place(product, rows.start), len);
        Some(DirectOutput { first, stride: out.stride, add: out.store == Store::Add })
    }

    /// Stores a row's sums of the wanted channels.
    ///
    /// # Safety
    /// No other thread reads or writes the outputs of the row at place `row` and this panel's channels meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn put(
        &self,
        product: &Product<'_, PackedWeight>,
        row: usize,
        sums: &[f32; LANES],
    ) {
        let (out, count) = (&product.output, self.lanes.len());
        // SAFETY: this thread has those outputs (contract above), and the index is checked against the output's length.
        let to = unsafe { out.data.part(self.place(product, row), count) };
        if let (Some(to), true) = (to.first_chunk_mut::<LANES>(), out.bias.is_empty()) {
            // Nearly always: a whole vector without bias.
            match out.store {
                Store::Add => to.iter_mut().zip(sums).for_each(|(to, sum)| *to += sum),
                Store::Set => *to = *sums,
            }
            return;
        }
        let bias = out.bias.get(self.channel..).unwrap_or(&[]);
        for (i, (to, &sum)) in to.iter_mut().zip(&sums[self.lanes.clone()]).enumerate() {
            let sum = if out.bias.is_empty() { sum } else { sum + bias[i] };
            *to = if out.store == Store::Add { *to + sum } else { sum };
        }
    }
}
