//! Calls that multiply rows with one or several weights.

use super::after;
use super::layout::{BLOCK, Kind, Layout};
use super::many::Tiles;
use super::{Precision, Products, Weight, sources};
use crate::driver::{Address, Args, Driver, DriverError, Launch};
use forerun_backend::op::Activation;

/// Columns of a step of the tensor core.
const STEP_COLUMNS: usize = 8;
/// Columns of a block of the general kernel where there are as many.
const WIDE_COLUMNS: usize = 32;
/// Most blocks along y of a grid.
const MOST_Y: usize = 65535;

/// Rows to be multiplied.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    /// f32 `[rows, dim]`.
    pub at: Address,
    /// How many there are.
    pub rows: usize,
    /// Their width.
    pub dim: usize,
    /// The norm that makes them those that are multiplied.
    pub norm: Option<Norm>,
}

/// `x / sqrt(mean(x²) + eps) · weight`.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    /// f32 `[dim]`.
    pub weight: Address,
    /// Added to the mean square.
    pub eps: f32,
}

/// One weight of a call, and where its product goes.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// `[N, dim]`.
    pub weight: Weight,
    /// f32, one for each channel.
    pub bias: Option<Address>,
    /// The first so many channels.
    pub channels: usize,
    /// f32 `[rows, channels]`.
    pub at: Address,
    /// Added to what is there.
    pub add: bool,
}

/// Columns made of rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns {
    pub(super) at: Address,
    pub(super) sums: Address,
    /// Columns that sums of a group have room for.
    pub(super) ld: usize,
    pub(super) depth: usize,
    pub(super) parts: usize,
    /// Tiles, where the columns are in the order of the kernel for many.
    pub(super) tiles: Option<Tiles>,
}

impl Columns {
    /// Sums of groups of this width.
    fn sums_of(&self, group: usize) -> Address {
        let level = (group / 16).trailing_zeros() as usize;
        self.sums.offset((level * (self.depth / 16) * self.ld * 4) as u64)
    }
}

/// In which order columns may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// As the steps of the tensor core take them: every kernel but that for many.
    Steps,
    /// In tiles, where the kernel for many is the one.
    Tiled,
}

/// What a launch does besides multiplying.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shape {
    /// Rows, or pairs of a row and an expert.
    pub(super) tokens: usize,
    /// The function between the two weights of a pair.
    pub(super) gate: Option<Activation>,
    pub(super) add: bool,
    pub(super) groups: Option<Groups>,
    /// Tokens that share a row: the experts that a row chose. None is one.
    pub(super) share: usize,
}

/// Pairs of a row and an expert, sorted by expert.
#[derive(Clone, Copy, Debug)]
pub(super) struct Groups {
    pub(super) tiles: Address,
    pub(super) count: Address,
    pub(super) list: Address,
    /// There are no more tiles than this.
    pub(super) most: usize,
    /// Columns of a tile in the general kernel.
    pub(super) columns: usize,
}

/// A weight's part of a launch, as the kernel has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) at: Address,
    pub(super) bias: Option<Address>,
    pub(super) out: Address,
    pub(super) first: usize,
    pub(super) stride: usize,
    pub(super) rows: usize,
}

impl From<&Output> for Part {
    fn from(output: &Output) -> Self {
        let Output { weight, bias, channels, at, .. } = *output;
        Self { at: weight.at, bias, out: at, first: 0, stride: 0, rows: channels }
    }
}

pub(super) const fn gate_number(gate: Option<Activation>) -> u32 {
    match gate {
        None => 0,
        Some(Activation::Silu) => 1,
        Some(Activation::GeluTanh) => 2,
    }
}

impl Products {
    /// `out_i (+)= x W_iᵀ (+ bias_i)`.
    ///
    /// # Safety
    /// The addresses hold what their descriptions say.
    pub unsafe fn linears(
        &mut self,
        driver: &mut dyn Driver,
        x: Input,
        outputs: &[Output],
        precision: Precision,
    ) -> Result<(), DriverError> {
        if x.rows == 0 {
            return Ok(());
        }
        let mut rest: Vec<&Output> = outputs.iter().filter(|output| output.channels > 0).collect();
        let mut columns: Option<(usize, Columns)> = None;
        while let Some(first) = rest.first().copied() {
            let Some(layout) = first.weight.layout else {
                rest.remove(0);
                // SAFETY: the caller's promise.
                unsafe { self.plain(driver, x, first)? };
                continue;
            };
            // Weights with the same kernels share a launch.
            let kind = layout.kind;
            let same = |output: &&Output| {
                output.add == first.add && output.weight.layout.is_some_and(|l| l.kind == kind)
            };
            let (now, later): (Vec<_>, Vec<_>) = rest.iter().partition(|output| same(output));
            rest = later;
            let count = x.rows * precision.parts();
            let tiles = self.tiles(&layout, count, precision.parts(), driver.properties());
            let made = match columns {
                Some((planes, columns)) if planes == kind.planes && columns.tiles == tiles => {
                    columns
                }
                _ => {
                    let levels = levels(outputs, kind.planes);
                    // SAFETY: the caller's promise.
                    unsafe { self.split(driver, x, &layout, (levels, Order::Tiled), precision)? }
                }
            };
            columns = Some((kind.planes, made));
            let shape = Shape { tokens: x.rows, add: first.add, ..Shape::default() };
            let parts: Vec<Part> = now.into_iter().map(Part::from).collect();
            // SAFETY: the caller's promise.
            unsafe { self.multiply(driver, &layout, made, &parts, shape)? };
        }
        Ok(())
    }

    /// `out = act(x Gᵀ) · (x Uᵀ)`; false, and nothing done, where the two weights have no kernel in common.
    ///
    /// # Safety
    /// As [`Products::linears`].
    pub unsafe fn gated(
        &mut self,
        driver: &mut dyn Driver,
        x: Input,
        [gate, up]: [Output; 2],
        (activation, precision): (Activation, Precision),
    ) -> Result<bool, DriverError> {
        let (Some(layout), Some(other)) = (gate.weight.layout, up.weight.layout) else {
            return Ok(false);
        };
        if layout.kind != other.kind {
            return Ok(false);
        }
        if x.rows > 0 && gate.channels > 0 {
            let levels = levels(&[gate], layout.kind.planes);
            // SAFETY: the caller's promise.
            let columns =
                unsafe { self.split(driver, x, &layout, (levels, Order::Tiled), precision)? };
            let gate_of = Some(activation);
            let shape = Shape { tokens: x.rows, gate: gate_of, ..Shape::default() };
            let parts = [Part::from(&gate), Part::from(&up)];
            // SAFETY: the caller's promise.
            unsafe { self.multiply(driver, &layout, columns, &parts, shape)? };
        }
        Ok(true)
    }

    /// Makes the columns of a product from rows.
    ///
    /// # Safety
    /// As [`Products::linears`].
    pub(super) unsafe fn split(
        &mut self,
        driver: &mut dyn Driver,
        x: Input,
        layout: &Layout,
        (levels, order): (u32, Order),
        precision: Precision,
    ) -> Result<Columns, DriverError> {
        let (depth, parts) = (layout.depth(), precision.parts());
        let columns = x.rows * parts;
        let tiles = match order {
            Order::Tiled => self.tiles(layout, columns, parts, driver.properties()),
            Order::Steps => None,
        };
        let ld = tiles.map_or(columns.next_multiple_of(STEP_COLUMNS), |tiles| tiles.room());
        let at = self.columns.of(driver, ld * depth * 2)?;
        let sums = if levels == 0 { 0 } else { 4 * (depth / 16) * ld * 4 };
        let sums = self.sums.of(driver, sums)?;
        let kernel = self.kernel(driver, &sources::SPLIT, "product_split")?;
        let args = Args::new()
            .with(x.at)
            .with(x.norm.map_or(Address::NULL, |norm| norm.weight))
            .with(at)
            .with(sums)
            .size(x.dim)
            .size(depth)
            .size(layout.kind.planes)
            .size(parts)
            .size(ld)
            .with(levels)
            .with(u32::from(tiles.is_some()))
            .with(x.norm.map_or(0.0, |norm| norm.eps));
        // SAFETY: the columns and their sums have the room that was just made; the rest is the caller's promise.
        unsafe { driver.launch(&after(kernel, x.rows as u32, 256, &args))? };
        Ok(Columns { at, sums, ld, depth, parts, tiles })
    }

    /// Multiplies columns with weights of one kind.
    ///
    /// # Safety
    /// As [`Products::linears`].
    pub(super) unsafe fn multiply(
        &mut self,
        driver: &mut dyn Driver,
        layout: &Layout,
        columns: Columns,
        parts: &[Part],
        shape: Shape,
    ) -> Result<(), DriverError> {
        if let Some(tiles) = columns.tiles {
            // SAFETY: the caller's promise.
            return unsafe { self.many(driver, layout, (columns, tiles), parts, shape) };
        }
        // SAFETY: the caller's promise.
        if unsafe { self.few(driver, layout, columns, parts, shape)? } {
            return Ok(());
        }
        let all = any_columns(shape.tokens * columns.parts);
        let most = shape.groups.map_or(all, |groups| groups.columns);
        let name = if most == WIDE_COLUMNS { "product_any_32" } else { "product_any_8" };
        let kernel = self.kernel(driver, &sources::ANY, name)?;
        let (args, units) = arguments(layout, columns, parts, shape);
        let tiles = shape
            .groups
            .map_or_else(|| shape.tokens.div_ceil(most / columns.parts), |groups| groups.most);
        let launch = Launch {
            grid: [units, tiles.min(MOST_Y) as u32, 1],
            ..after(kernel, 1, 32 * layout.segments() as u32, &args)
        };
        // SAFETY: the caller's promise.
        unsafe { driver.launch(&launch) }
    }

    /// A product with a plain weight.
    ///
    /// # Safety
    /// As [`Products::linears`].
    unsafe fn plain(
        &mut self,
        driver: &mut dyn Driver,
        x: Input,
        output: &Output,
    ) -> Result<(), DriverError> {
        let mut rows = x;
        if x.norm.is_some() {
            let at = self.columns.of(driver, x.rows * x.dim * 4)?;
            let kernel = self.kernel(driver, &sources::SPLIT, "product_norm")?;
            let norm = x.norm.map_or((Address::NULL, 0.0), |norm| (norm.weight, norm.eps));
            let args = Args::new().with(x.at).with(norm.0).with(at).size(x.dim).with(norm.1);
            // SAFETY: the rows have the room that was just made; the rest is the caller's promise.
            unsafe { driver.launch(&after(kernel, x.rows as u32, 256, &args))? };
            rows.at = at;
        }
        let kernel = self.kernel(driver, &sources::ANY, "product_plain")?;
        let args = Args::new()
            .with(output.weight.at)
            .with(output.bias.unwrap_or(Address::NULL))
            .with(rows.at)
            .with(output.at)
            .size(output.channels)
            .size(x.dim)
            .size(x.rows)
            .with(u32::from(output.add));
        let blocks = (output.channels * x.rows).div_ceil(4);
        // SAFETY: the caller's promise.
        unsafe { driver.launch(&after(kernel, blocks as u32, 128, &args)) }
    }
}

/// Columns that a block of the general kernel has, for so many in all.
pub(super) const fn any_columns(columns: usize) -> usize {
    if columns < WIDE_COLUMNS { STEP_COLUMNS } else { WIDE_COLUMNS }
}

/// Which sums of groups the weights of so many planes need.
fn levels(outputs: &[Output], planes: usize) -> u32 {
    let kinds = outputs.iter().filter_map(|output| output.weight.layout).map(|layout| layout.kind);
    let kinds = kinds.filter(|kind| kind.planes == planes);
    kinds.fold(0, |levels, kind| levels | level(kind))
}

pub(super) const fn level(kind: Kind) -> u32 {
    if kind.offset { 1 << (kind.group / 16).trailing_zeros() } else { 0 }
}

/// The fields of a kernel's `Product`, and its units of 16 rows.
pub(super) fn arguments(
    layout: &Layout,
    columns: Columns,
    parts: &[Part],
    shape: Shape,
) -> (Args, u32) {
    let kind = layout.kind;
    debug_assert!(columns.depth.is_multiple_of(BLOCK), "blocks are whole");
    let mut args = Args::new();
    let mut units = 0;
    for i in 0..4 {
        let part = parts.get(i).copied();
        let none = Part {
            at: Address::NULL,
            bias: None,
            out: Address::NULL,
            first: 0,
            stride: 0,
            rows: 0,
        };
        let part = part.unwrap_or(none);
        args = args
            .with(part.at)
            .with(part.bias.unwrap_or(Address::NULL))
            .with(part.out)
            .size(part.first)
            .size(part.stride)
            .size(part.rows)
            .with(units);
        // The two weights of a pair share their units.
        if shape.gate.is_none() || i == 0 {
            units += Weight::units(part.rows);
        }
    }
    if shape.gate.is_some() {
        units = Weight::units(parts[0].rows);
    }
    let groups = shape.groups;
    let address = |of: fn(&Groups) -> Address| groups.as_ref().map_or(Address::NULL, of);
    let args = args
        .with(columns.at)
        .with(columns.sums_of(kind.group))
        .with(address(|g| g.tiles))
        .with(address(|g| g.count))
        .with(address(|g| g.list))
        .size(parts.len())
        .size(shape.tokens)
        .size(columns.parts)
        .size(columns.depth)
        .size(layout.segments())
        .size(columns.ld)
        .size(kind.group)
        .with(kind.scales as u32)
        .with(u32::from(kind.offset))
        .with(kind.family as u32)
        .with(kind.bias)
        .with(gate_number(shape.gate))
        .with(u32::from(shape.add))
        .size(shape.share.max(1));
    (args, units)
}
