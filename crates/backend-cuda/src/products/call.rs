//! Calls that multiply rows with one or several weights.

use super::after;
use super::gemm::ColumnTiles;
use super::layout::{BLOCK, PackedFormat, PackedLayout};
use super::{DeviceWeight, Precision, Products, sources};
use crate::driver::{Address, Args, Driver, DriverError, Launch};
use forerun_backend::op::Activation;

/// Columns of a step of the tensor core.
const STEP_COLUMNS: usize = 8;
/// Columns of a block of the general kernel where there are as many.
const WIDE_COLUMNS: usize = 32;
/// CUDA's limit of a grid's y dimension.
const MOST_Y: usize = 65535;

/// Rows to be multiplied.
#[derive(Clone, Copy, Debug)]
pub struct ProductInput {
    /// f32 `[rows, dim]`.
    pub at: Address,
    /// How many there are.
    pub rows: usize,
    /// Their width.
    pub dim: usize,
    /// The RMS norm that is applied first.
    pub norm: Option<ProductNorm>,
}

/// `x / sqrt(mean(x²) + eps) · weight`.
#[derive(Clone, Copy, Debug)]
pub struct ProductNorm {
    /// f32 `[dim]`.
    pub weight: Address,
    /// Added to the mean square.
    pub eps: f32,
}

/// One weight of a call, and where its product goes.
#[derive(Clone, Copy, Debug)]
pub struct ProductOutput {
    /// `[N, dim]`.
    pub weight: DeviceWeight,
    /// f32, one for each channel.
    pub bias: Option<Address>,
    /// The first so many channels.
    pub channels: usize,
    /// f32 `[rows, channels]`.
    pub at: Address,
    /// Whether the product is added to `at`.
    pub add: bool,
}

/// Columns made of rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns {
    pub(super) at: Address,
    pub(super) sums: Address,
    /// Columns of a row of sums (leading dimension).
    pub(super) ld: usize,
    pub(super) depth: usize,
    pub(super) parts: usize,
    /// Tiles, where the columns are in the order of the kernel for many.
    pub(super) tiles: Option<ColumnTiles>,
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
pub(super) enum ColumnOrder {
    /// As the steps of the tensor core take them: every kernel but that for many.
    Steps,
    /// In tiles, where the kernel for many is the one.
    Tiled,
}

/// How rows of activations become columns.
#[derive(Clone, Copy, Debug)]
pub(super) struct ColumnSpec {
    /// Which sums of groups are made: bit `i` for groups of `16 << i`.
    pub(super) levels: u32,
    pub(super) order: ColumnOrder,
    pub(super) precision: Precision,
}

impl ColumnSpec {
    /// For every kernel but that for many columns, and weights of one packed format.
    pub(super) const fn steps(format: PackedFormat, precision: Precision) -> Self {
        Self { levels: level(format), order: ColumnOrder::Steps, precision }
    }
}

/// What a product computes besides the sums: gate, accumulation, pairs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProductSpec {
    /// Rows, or pairs of a row and an expert.
    pub(super) tokens: usize,
    /// The function between the two weights of a pair.
    pub(super) gate: Option<Activation>,
    pub(super) add: bool,
    pub(super) groups: Option<PairGroups>,
    /// Tokens that share a row: the experts that a row chose. None is one.
    pub(super) share: usize,
}

/// Pairs of a row and an expert, sorted by expert.
#[derive(Clone, Copy, Debug)]
pub(super) struct PairGroups {
    pub(super) tiles: Address,
    pub(super) count: Address,
    pub(super) list: Address,
    /// There are no more tiles than this.
    pub(super) most: usize,
    /// Columns of a tile in the general kernel.
    pub(super) columns: usize,
}

/// One weight of a launch, as `WeightPart` in `product.cuh`.
#[derive(Clone, Copy, Debug)]
pub(super) struct WeightPart {
    pub(super) at: Address,
    pub(super) bias: Option<Address>,
    pub(super) out: Address,
    pub(super) first: usize,
    pub(super) stride: usize,
    pub(super) rows: usize,
}

impl From<&ProductOutput> for WeightPart {
    fn from(output: &ProductOutput) -> Self {
        let ProductOutput { weight, bias, channels, at, .. } = *output;
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
    /// `x` and `outputs` are [valid](super#safety).
    pub unsafe fn linears(
        &mut self,
        driver: &mut dyn Driver,
        x: ProductInput,
        outputs: &[ProductOutput],
        precision: Precision,
    ) -> Result<(), DriverError> {
        if x.rows == 0 {
            return Ok(());
        }
        let mut rest: Vec<&ProductOutput> =
            outputs.iter().filter(|output| output.channels > 0).collect();
        let mut columns: Option<(usize, Columns)> = None;
        while let Some(first) = rest.first().copied() {
            let Some(layout) = first.weight.layout else {
                rest.remove(0);
                // SAFETY: `x` and `first` are valid by the contract of this function, and `first` has no layout.
                unsafe { self.plain(driver, x, first)? };
                continue;
            };
            // Weights with the same kernels share a launch.
            let kind = layout.kind;
            let same = |output: &&ProductOutput| {
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
                    // SAFETY: `x` is valid by the contract of this function.
                    unsafe {
                        self.split(
                            driver,
                            x,
                            &layout,
                            ColumnSpec { levels, order: ColumnOrder::Tiled, precision },
                        )?
                    }
                }
            };
            columns = Some((kind.planes, made));
            let shape = ProductSpec { tokens: x.rows, add: first.add, ..ProductSpec::default() };
            let parts: Vec<WeightPart> = now.into_iter().map(WeightPart::from).collect();
            // SAFETY: `made` are the columns of `x` for this layout's planes and tiles; `parts` are outputs with
            // weights of this packed format, valid by the contract of this function.
            unsafe { self.multiply(driver, &layout, made, &parts, shape)? };
        }
        Ok(())
    }

    /// `out = act(x Gᵀ) · (x Uᵀ)` with gate and up as `outputs`; false, and nothing done, where the two weights have no
    /// kernel in common.
    ///
    /// # Safety
    /// `x` and `outputs` are [valid](super#safety).
    pub unsafe fn gated(
        &mut self,
        driver: &mut dyn Driver,
        x: ProductInput,
        outputs: [ProductOutput; 2],
        activation: Activation,
        precision: Precision,
    ) -> Result<bool, DriverError> {
        let [gate, up] = outputs;
        let (Some(layout), Some(other)) = (gate.weight.layout, up.weight.layout) else {
            return Ok(false);
        };
        if layout.kind != other.kind {
            return Ok(false);
        }
        if x.rows > 0 && gate.channels > 0 {
            let levels = levels(&[gate], layout.kind.planes);
            // SAFETY: `x` is valid by the contract of this function.
            let columns = unsafe {
                self.split(
                    driver,
                    x,
                    &layout,
                    ColumnSpec { levels, order: ColumnOrder::Tiled, precision },
                )?
            };
            let gate_of = Some(activation);
            let shape = ProductSpec { tokens: x.rows, gate: gate_of, ..ProductSpec::default() };
            let parts = [WeightPart::from(&gate), WeightPart::from(&up)];
            // SAFETY: `columns` were made of `x` for this layout; both parts are valid outputs of the same packed
            // format.
            unsafe { self.multiply(driver, &layout, columns, &parts, shape)? };
        }
        Ok(true)
    }

    /// Makes the columns of a product from rows.
    ///
    /// # Safety
    /// `x` is [valid](super#safety) and `x.dim` is the layout's `cols`.
    pub(super) unsafe fn split(
        &mut self,
        driver: &mut dyn Driver,
        x: ProductInput,
        layout: &PackedLayout,
        spec: ColumnSpec,
    ) -> Result<Columns, DriverError> {
        let ColumnSpec { levels, order, precision } = spec;
        let (depth, parts) = (layout.depth(), precision.parts());
        let columns = x.rows * parts;
        let tiles = match order {
            ColumnOrder::Tiled => self.tiles(layout, columns, parts, driver.properties()),
            ColumnOrder::Steps => None,
        };
        let ld = tiles.map_or(columns.next_multiple_of(STEP_COLUMNS), |tiles| tiles.padded_rows());
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
        // SAFETY: `at` has `ld · depth` bf16 and `sums` the four levels of groups; `x` is valid by the contract of this
        // function.
        unsafe { driver.launch(&after(kernel, x.rows as u32, 256, &args))? };
        Ok(Columns { at, sums, ld, depth, parts, tiles })
    }

    /// Multiplies columns with weights of one kind.
    ///
    /// # Safety
    /// `columns` were made by [`Products::split`] for this layout and hold `shape.tokens` rows (divided by
    /// `shape.share`); each part is a [valid](super#safety) output whose weight has the packed format of `layout`;
    /// `shape.groups` hold tiles, their count and a list of all pairs, as `product_route` writes them.
    pub(super) unsafe fn multiply(
        &mut self,
        driver: &mut dyn Driver,
        layout: &PackedLayout,
        columns: Columns,
        parts: &[WeightPart],
        shape: ProductSpec,
    ) -> Result<(), DriverError> {
        if let Some(tiles) = columns.tiles {
            // SAFETY: the operands are this function's own, under the same contract; the columns are in tiles.
            return unsafe { self.gemm(driver, layout, (columns, tiles), parts, shape) };
        }
        // SAFETY: the operands are this function's own, under the same contract.
        if unsafe { self.gemv(driver, layout, columns, parts, shape)? } {
            return Ok(());
        }
        let all = general_columns(shape.tokens * columns.parts);
        let most = shape.groups.map_or(all, |groups| groups.columns);
        let name = if most == WIDE_COLUMNS { "product_general_32" } else { "product_general_8" };
        let kernel = self.kernel(driver, &sources::GENERAL, name)?;
        let (args, units) = arguments(layout, columns, parts, shape);
        let tiles = shape
            .groups
            .map_or_else(|| shape.tokens.div_ceil(most / columns.parts), |groups| groups.most);
        let launch = Launch {
            grid: [units, tiles.min(MOST_Y) as u32, 1],
            ..after(kernel, 1, 32 * layout.segments() as u32, &args)
        };
        // SAFETY: `arguments` writes `Product` with the operands, which are valid by the contract of this function;
        // `grid.x` are the units of all parts.
        unsafe { driver.launch(&launch) }
    }

    /// A product with a plain weight.
    ///
    /// # Safety
    /// `x` and `output` are [valid](super#safety), and the weight has no layout: it is f32, row-major.
    unsafe fn plain(
        &mut self,
        driver: &mut dyn Driver,
        x: ProductInput,
        output: &ProductOutput,
    ) -> Result<(), DriverError> {
        let mut rows = x;
        if x.norm.is_some() {
            let at = self.columns.of(driver, x.rows * x.dim * 4)?;
            let kernel = self.kernel(driver, &sources::SPLIT, "product_norm")?;
            let norm = x.norm.map_or((Address::NULL, 0.0), |norm| (norm.weight, norm.eps));
            let args = Args::new().with(x.at).with(norm.0).with(at).size(x.dim).with(norm.1);
            // SAFETY: `at` has `rows · dim` f32; `x` is valid by the contract of this function.
            unsafe { driver.launch(&after(kernel, x.rows as u32, 256, &args))? };
            rows.at = at;
        }
        let kernel = self.kernel(driver, &sources::GENERAL, "product_plain")?;
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
        // SAFETY: `rows` and `output` are valid, and the grid has one warp for each of the `channels · rows` results.
        unsafe { driver.launch(&after(kernel, blocks as u32, 128, &args)) }
    }
}

/// Columns that a block of the general kernel has, for so many in all.
pub(super) const fn general_columns(columns: usize) -> usize {
    if columns < WIDE_COLUMNS { STEP_COLUMNS } else { WIDE_COLUMNS }
}

/// Which sums of groups the weights of so many planes need.
fn levels(outputs: &[ProductOutput], planes: usize) -> u32 {
    let kinds = outputs.iter().filter_map(|output| output.weight.layout).map(|layout| layout.kind);
    let kinds = kinds.filter(|kind| kind.planes == planes);
    kinds.fold(0, |levels, kind| levels | level(kind))
}

pub(super) const fn level(kind: PackedFormat) -> u32 {
    if kind.offset { 1 << (kind.group / 16).trailing_zeros() } else { 0 }
}

/// The fields of a kernel's `Product`, and its units of 16 rows.
pub(super) fn arguments(
    layout: &PackedLayout,
    columns: Columns,
    parts: &[WeightPart],
    shape: ProductSpec,
) -> (Args, u32) {
    let kind = layout.kind;
    debug_assert!(columns.depth.is_multiple_of(BLOCK), "blocks are whole");
    let mut args = Args::new();
    let mut units = 0;
    for i in 0..4 {
        let part = parts.get(i).copied();
        let none = WeightPart {
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
            units += DeviceWeight::units(part.rows);
        }
    }
    if shape.gate.is_some() {
        units = DeviceWeight::units(parts[0].rows);
    }
    let groups = shape.groups;
    let address = |of: fn(&PairGroups) -> Address| groups.as_ref().map_or(Address::NULL, of);
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
