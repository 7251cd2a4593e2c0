//! The panels of a product with a repacked weight, and where their sums go.

use super::isa::{Isa, LANES};
pub(super) use super::product::TOGETHER;
use super::product::{Places, Product, Source};
use super::tiled::{Lanes, Tiled, VECTOR};
use forerun_backend::op::Store;
use std::array::from_fn;
use std::ops::Range;

/// Rows of a tile of packed activations when there are `rows` in all.
pub(super) fn class(rows: usize) -> usize {
    rows.next_power_of_two().clamp(1, LANES)
}

/// Places of the product's rows in tile `tile` of `class` rows, `first` being the tile of its first row.
pub(super) fn rows_of(
    product: &Product<'_, Tiled>,
    [tile, first, class]: [usize; 3],
) -> Range<usize> {
    let start = product.rows.start + (tile - first) * class;
    start..product.rows.end.min(start + class)
}

/// Where a panel is and which of its lanes are wanted.
#[derive(Clone)]
pub(super) struct Panel {
    /// Codes, scales and offsets.
    pub(super) planes: [*const u8; 3],
    lanes: Range<usize>,
    /// Channel of the first wanted lane.
    channel: usize,
}

/// Panels that follow each other, all of whose lanes are wanted, or one: all in one call, since what is done before a short one takes as long as a part of it.
pub(super) struct Panels {
    pub(super) first: Panel,
    /// Bytes from one to the next in codes, scales and offsets.
    pub(super) strides: [usize; 3],
    pub(super) count: usize,
}

impl Panels {
    /// All panels of the product's channels, where none is used in part.
    pub(super) fn of(product: &Product<'_, Tiled>) -> Option<Self> {
        let Source::From(base) = product.source else { return None };
        let Range { start: channel, end } = product.channels;
        let (first, end) = (base + channel, base + end);
        if first >= end || first % LANES != 0 || end % LANES != 0 {
            return None;
        }
        let planes = product.matrix.panel(first / LANES).map(<[u8]>::as_ptr);
        let (strides, count) = (product.matrix.panel_bytes(), (end - first) / LANES);
        Some(Self { first: Panel { planes, lanes: 0..LANES, channel }, strides, count })
    }

    /// Up to `most` of them from one on.
    pub(super) fn some(&self, first: usize, most: usize) -> Self {
        let channel = self.first.channel + first * LANES;
        Self {
            first: Panel { planes: self.at(first), lanes: 0..LANES, channel },
            strides: self.strides,
            count: most.min(self.count - first),
        }
    }

    /// Codes, scales and offsets of one.
    #[inline(always)]
    pub(super) fn at(&self, panel: usize) -> [*const u8; 3] {
        let mut planes = self.first.planes;
        for plane in 0..3 {
            planes[plane] = planes[plane].wrapping_add(panel * self.strides[plane]);
        }
        planes
    }
}

/// f32 of room in which [`walk`] brings picked channels together.
pub(super) fn room_len(tiled: &Tiled) -> usize {
    lens(tiled).iter().sum()
}

/// f32 of a panel's codes, scales and offsets, in whole vectors.
fn lens(tiled: &Tiled) -> [usize; 3] {
    tiled.panel(0).map(|plane| plane.len().div_ceil(VECTOR) * LANES)
}

/// Gives every panel that the product's channels touch to `work`, up to `together` at a time.
pub(super) fn walk(
    product: &Product<'_, Tiled>,
    together: usize,
    room: &mut [f32],
    mut work: impl FnMut(&[Panel]),
) {
    let channels = product.channels.clone();
    let base = match product.source {
        Source::From(base) => base,
        Source::Picked(list) => return picked(product, list, room, work),
    };
    let (first, end) = (base + channels.start, base + channels.end);
    let (from, to) = (first / LANES, end.div_ceil(LANES));
    for start in (from..to).step_by(together) {
        let count = together.min(to - start);
        let panels: [Panel; TOGETHER] = from_fn(|i| {
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

/// Channels that are rows `list` of the weight: their lanes are brought together in `room`.
fn picked(
    product: &Product<'_, Tiled>,
    list: &[u32],
    room: &mut [f32],
    mut work: impl FnMut(&[Panel]),
) {
    let (tiled, channels) = (product.matrix, product.channels.clone());
    let lens = lens(tiled);
    for start in channels.clone().step_by(LANES) {
        let some = &list[start..channels.end.min(start + LANES)];
        let (codes, rest) = room.split_at_mut(lens[0]);
        let (scales, offsets) = rest.split_at_mut(lens[1]);
        for (lane, &row) in some.iter().enumerate() {
            let (panel, from) = (tiled.panel(row as usize / LANES), row as usize % LANES);
            let planes = panel.into_iter().zip([&mut *codes, scales, offsets]);
            for ((plane, to), lanes) in planes.zip(tiled.lanes()) {
                copy_lane(plane, to, [from, lane], lanes);
            }
        }
        let planes = [&*codes, scales, offsets].map(|plane| plane.as_ptr().cast());
        work(&[Panel { planes, lanes: 0..some.len(), channel: start }]);
    }
}

/// Copies one channel of sixteen.
fn copy_lane(from: &[u8], to: &mut [f32], [source, target]: [usize; 2], lanes: Lanes) {
    // SAFETY: f32 are four bytes each, any of which may be written.
    let to = unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<u8>(), to.len() * 4) };
    let (size, turn) = (lanes.size, LANES * lanes.turn());
    for (from, to) in from.chunks_exact(turn).zip(to.chunks_exact_mut(turn)) {
        to[target * size..][..size].copy_from_slice(&from[source * size..][..size]);
        let lines = from.chunks_exact(LANES).zip(to.chunks_exact_mut(LANES));
        lines.skip(size).for_each(|(from, to)| to[target] = from[source]);
    }
}

impl Panel {
    const NONE: Self = Self { planes: [std::ptr::null(); 3], lanes: 0..0, channel: 0 };

    /// This and no other.
    pub(super) fn alone(&self) -> Panels {
        Panels { first: self.clone(), strides: [0; 3], count: 1 }
    }

    /// Where the sums of the row at place `row` go, in the output's data.
    #[inline(always)]
    fn place(&self, product: &Product<'_, Tiled>, row: usize) -> usize {
        let out = &product.output;
        out.places.at(row) * out.stride + self.channel - out.first
    }

    /// Asks for the lines to which the sums of rows will go: rows of the output are far apart, and each would be waited for.
    #[inline(always)]
    pub(super) fn expect<S: Isa>(&self, simd: S, product: &Product<'_, Tiled>, rows: Range<usize>) {
        for row in rows {
            simd.expect(product.output.data.address(self.place(product, row), self.lanes.len()));
        }
    }

    /// Where the sums of `rows` with this and the next panels go, `panels` in all, if that is whole vectors, rows of which are equally far apart, and nothing but
    /// they go there: the first, how far apart they are, and whether sums are added to what is there.
    #[inline(always)]
    pub(super) fn vectors(
        &self,
        product: &Product<'_, Tiled>,
        rows: &Range<usize>,
        panels: usize,
    ) -> Option<(*mut f32, usize, bool)> {
        let out = &product.output;
        let straight = !matches!(out.places, Places::Picked { .. }) && self.lanes.len() == LANES;
        if !straight || !out.bias.is_empty() || rows.is_empty() {
            return None;
        }
        let len = (rows.len() - 1) * out.stride + panels * LANES;
        let first = out.data.address(self.place(product, rows.start), len);
        Some((first, out.stride, out.store == Store::Add))
    }

    /// Stores a row's sums of the wanted lanes.
    ///
    /// # Safety
    /// As for [`Product::run`], for the row at place `row`.
    #[inline(always)]
    pub(super) unsafe fn put(&self, product: &Product<'_, Tiled>, row: usize, sums: &[f32; LANES]) {
        let (out, count) = (&product.output, self.lanes.len());
        // SAFETY: the caller's promise; each place is written by one row.
        let to = unsafe { out.data.part(self.place(product, row), count) };
        if let (Some(to), true) = (to.first_chunk_mut::<LANES>(), out.bias.is_empty()) {
            // Nearly always: whole vectors.
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
