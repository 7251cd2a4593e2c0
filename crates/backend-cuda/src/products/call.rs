//! Calls that multiply rows with one or several weights.

use super::layout::{BLOCK, PackedFormat, PackedLayout};
use super::rows::{ColumnOrder, ColumnSpec, Columns, ProductInput, level};
use super::{DeviceWeight, Precision, Products, sources};
use crate::driver::{Address, Args, Driver, DriverError, Launch};
use forerun_backend::op::Activation;

/// Columns of a step of the tensor core.
const STEP_COLUMNS: usize = 8;
/// Columns of a block of the general kernel where there are as many.
const WIDE_COLUMNS: usize = 32;
/// Most channels of a weight that is multiplied beside another.
const SIDE_CHANNELS: usize = 512;
/// CUDA's limit of a grid's y dimension.
const MOST_Y: usize = 65535;

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
    /// The next product's columns and their depth, written besides f32.
    pub(super) next: Option<(Address, usize)>,
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

impl WeightPart {
    pub(super) const NONE: Self =
        Self { at: Address::NULL, bias: None, out: Address::NULL, first: 0, stride: 0, rows: 0 };

    /// The fields of a kernel's `WeightPart` but for the last.
    pub(super) fn fields(&self, args: Args) -> Args {
        args.with(self.at)
            .with(self.bias.unwrap_or(Address::NULL))
            .with(self.out)
            .size(self.first)
            .size(self.stride)
            .size(self.rows)
    }
}

/// Columns multiplied with weights of one packed format, and beside them with a few rows of bfloat16.
///
/// Whoever launches it relies on this: `columns` were made by [`Products::split`] for this layout and hold
/// `shape.tokens` rows (divided by `shape.share`), or `rows` are [valid](super#safety) and as wide as the weights; each
/// part is a [valid](super#safety) output whose weight has the packed format of `layout`, and each of `side` one of a
/// single plane of bfloat16; `shape.groups` hold tiles, their count and a list of all pairs, as `product_route` writes
/// them; `shape.next` has `tokens · parts · depth` bf16.
#[derive(Clone, Copy)]
pub(super) struct ProductCall<'a> {
    pub(super) layout: &'a PackedLayout,
    pub(super) columns: Columns,
    pub(super) parts: &'a [WeightPart],
    pub(super) side: &'a [WeightPart],
    pub(super) shape: ProductSpec,
    /// Rows whose columns are still to be made, where the GEMV kernel does so.
    pub(super) rows: Option<ProductInput>,
}

/// What became of a gated product.
#[derive(Clone, Copy, Debug)]
pub enum GatedOutcome {
    /// Nothing was done: the two weights have no kernel in common.
    Apart,
    /// It was made, and perhaps the columns of the next product.
    Done(Option<Columns>),
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
        // Clamped gates were refused.
        Some(Activation::Silu | Activation::ClampedSilu { .. }) => 1,
        Some(Activation::GeluTanh) => 2,
        Some(Activation::Relu) => 3,
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
        self.begin_call();
        let mut x = x;
        let mut rest: Vec<&ProductOutput> =
            outputs.iter().filter(|output| output.channels > 0).collect();
        let planes =
            |output: &&ProductOutput| output.weight.layout.map(|layout| layout.kind.planes);
        if x.is_gated() && !rest.iter().all(|output| planes(output) == Some(1)) {
            // SAFETY: `x` is valid by the contract of this function.
            x = unsafe { self.change_rows(driver, x)? };
        }
        // The largest first: a small one may go along with it.
        rest.sort_by_key(|output| std::cmp::Reverse(output.weight.bytes));
        while let Some(first) = rest.first().copied() {
            let Some(layout) = first.weight.layout else {
                rest.remove(0);
                // SAFETY: `x` and `first` are valid by the contract of this function, and `first` has no layout.
                unsafe { self.plain(driver, x, first)? };
                x = x.changed();
                continue;
            };
            // Weights with the same kernels share a launch.
            let same = |output: &&ProductOutput| {
                output.add == first.add
                    && output.weight.layout.is_some_and(|other| other.kind == layout.kind)
            };
            let (now, later): (Vec<_>, Vec<_>) = rest.iter().partition(|output| same(output));
            rest = later;
            let shape = ProductSpec { tokens: x.rows, add: first.add, ..ProductSpec::default() };
            let parts: Vec<WeightPart> = now.into_iter().map(WeightPart::from).collect();
            let (beside, others): (Vec<_>, Vec<_>) =
                rest.iter().partition(|output| output.add == first.add && goes_beside(output));
            let side: Vec<WeightPart> = beside.into_iter().map(WeightPart::from).collect();
            let call = |columns, side, rows| ProductCall {
                layout: &layout,
                columns,
                parts: &parts,
                side,
                shape,
                rows,
            };
            let levels = levels(outputs, layout.kind.planes);
            let spec = ColumnSpec { levels, order: ColumnOrder::Tiled, precision };
            let alone = others.is_empty() && self.found(driver, x, &layout, spec).is_none();
            if let Some(columns) = x.in_place(&layout, precision).filter(|_| alone) {
                // SAFETY: `x` is valid by the contract of this function; `parts` are outputs with weights of this
                // packed format, `side` of one plane of bfloat16.
                if unsafe { self.gemv(driver, &call(columns, &side, Some(x)))? } {
                    return Ok(());
                }
            }
            // SAFETY: `x` is valid by the contract of this function.
            let columns = unsafe { self.split(driver, x, &layout, spec)? };
            x = x.changed();
            // SAFETY: as above, and `columns` are those of `x` for this layout's planes and tiles.
            unsafe {
                if !side.is_empty() && self.gemv(driver, &call(columns, &side, None))? {
                    rest = others;
                } else {
                    self.multiply(driver, &call(columns, &[], None))?;
                }
            }
        }
        Ok(())
    }

    /// `out = act(x Gᵀ) · (x Uᵀ)` with gate and up as `outputs`, f32 and, where it can be done in passing, as the
    /// columns of a product with a weight of the layout `next`.
    ///
    /// # Safety
    /// `x` and `outputs` are [valid](super#safety).
    pub unsafe fn gated(
        &mut self,
        driver: &mut dyn Driver,
        x: ProductInput,
        outputs: [ProductOutput; 2],
        activation: Activation,
        (precision, next): (Precision, Option<PackedLayout>),
    ) -> Result<GatedOutcome, DriverError> {
        let [gate, up] = outputs;
        let (Some(layout), Some(other)) = (gate.weight.layout, up.weight.layout) else {
            return Ok(GatedOutcome::Apart);
        };
        if layout.kind != other.kind {
            return Ok(GatedOutcome::Apart);
        }
        if x.rows == 0 || gate.channels == 0 {
            return Ok(GatedOutcome::Done(None));
        }
        self.begin_call();
        let parts = [WeightPart::from(&gate), WeightPart::from(&up)];
        let gate_of = Some(activation);
        let shape = ProductSpec { tokens: x.rows, gate: gate_of, ..ProductSpec::default() };
        let call = |columns, shape, rows| ProductCall {
            layout: &layout,
            columns,
            parts: &parts,
            side: &[],
            shape,
            rows,
        };
        let next = next.filter(|next| next.takes_columns_of(gate.channels));
        let levels = levels(&[gate], layout.kind.planes);
        let spec = ColumnSpec { levels, order: ColumnOrder::Tiled, precision };
        let alone = self.found(driver, x, &layout, spec).is_none();
        let made = x.in_place(&layout, precision).filter(|_| alone);
        let made = made.map(|columns| (columns, Some(x))).filter(|(columns, rows)| {
            self.takes_gemv(driver.properties(), &call(*columns, shape, *rows))
        });
        let (columns, rows) = match made {
            Some(made) => made,
            None => {
                // SAFETY: `x` is valid by the contract of this function.
                (unsafe { self.split(driver, x, &layout, spec)? }, None)
            }
        };
        let joins = self.takes_gemv(driver.properties(), &call(columns, shape, rows));
        let made = match next.filter(|_| joins) {
            Some(next) => Some(self.next_columns(driver, x.rows, &next, precision)?),
            None => None,
        };
        let shape = ProductSpec { next: made.map(|made| (made.at, made.depth)), ..shape };
        // SAFETY: `columns` were made of `x` for this layout, or `rows` are `x`; both parts are valid outputs of the
        // same packed format; `next` has a column for each limb of each row.
        unsafe { self.multiply(driver, &call(columns, shape, rows))? };
        Ok(GatedOutcome::Done(made))
    }

    /// Memory for the columns that one product leaves to the next.
    fn next_columns(
        &mut self,
        driver: &mut dyn Driver,
        rows: usize,
        next: &PackedLayout,
        precision: Precision,
    ) -> Result<Columns, DriverError> {
        let (parts, depth) = (precision.parts(), next.depth());
        let at = self.hidden.of(driver, rows * parts * depth * 2)?;
        Ok(Columns { at, sums: Address::NULL, ld: 0, depth, parts, tiles: None })
    }

    /// `out (+)= x Wᵀ (+ bias)` with the columns that [`Products::gated`] made of `rows` rows for this weight.
    ///
    /// # Safety
    /// `output` is [valid](super#safety), and nothing was multiplied since the columns were made.
    pub unsafe fn linear_of_columns(
        &mut self,
        driver: &mut dyn Driver,
        (columns, rows): (Columns, usize),
        output: &ProductOutput,
    ) -> Result<(), DriverError> {
        let Some(layout) = output.weight.layout.filter(|_| output.channels > 0) else {
            return Ok(());
        };
        let parts = [WeightPart::from(output)];
        let shape = ProductSpec { tokens: rows, add: output.add, ..ProductSpec::default() };
        let call = ProductCall::of(&layout, columns, &parts, shape);
        // SAFETY: the columns were made for this layout, and the output is valid by the contract of this function.
        unsafe { self.multiply(driver, &call) }
    }

    /// Multiplies columns with weights of one kind.
    ///
    /// # Safety
    /// `call` is as [`ProductCall`] says.
    pub(super) unsafe fn multiply(
        &mut self,
        driver: &mut dyn Driver,
        call: &ProductCall<'_>,
    ) -> Result<(), DriverError> {
        let ProductCall { layout, columns, shape, .. } = *call;
        if let Some(tiles) = columns.tiles {
            // SAFETY: the operands are this function's own, under the same contract; the columns are in tiles.
            return unsafe { self.gemm(driver, call, tiles) };
        }
        // SAFETY: the operands are this function's own, under the same contract.
        if unsafe { self.gemv(driver, call)? } {
            return Ok(());
        }
        let all = general_columns(shape.tokens * columns.parts);
        let most = shape.groups.map_or(all, |groups| groups.columns);
        let name = if most == WIDE_COLUMNS { "product_general_32" } else { "product_general_8" };
        let kernel = self.kernel(driver, &sources::GENERAL, name)?;
        let (args, units) = call.arguments();
        let tiles = shape
            .groups
            .map_or_else(|| shape.tokens.div_ceil(most / columns.parts), |groups| groups.most);
        let launch = Launch {
            grid: [units, tiles.min(MOST_Y) as u32, 1],
            ..Launch::line(kernel, 1, 32 * layout.segments() as u32, &args)
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
        // SAFETY: `x` is valid by the contract of this function.
        let rows = unsafe { self.change_rows(driver, x)? };
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
        unsafe { driver.launch(&Launch::line(kernel, blocks as u32, 128, &args)) }
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

/// Whether a weight is small, and of one plane of bfloat16: such a one may be multiplied beside a larger one of another
/// format.
fn goes_beside(output: &ProductOutput) -> bool {
    let plain = |layout: PackedLayout| layout.kind == PackedFormat::BF16 && layout.segments() == 1;
    output.weight.layout.is_some_and(plain) && output.channels <= SIDE_CHANNELS
}

impl<'a> ProductCall<'a> {
    /// A product of columns that were made.
    pub(super) const fn of(
        layout: &'a PackedLayout,
        columns: Columns,
        parts: &'a [WeightPart],
        shape: ProductSpec,
    ) -> Self {
        Self { layout, columns, parts, side: &[], shape, rows: None }
    }

    /// The fields of a kernel's `Product`, and its units of 16 rows.
    pub(super) fn arguments(&self) -> (Args, u32) {
        let Self { layout, columns, parts, shape, .. } = *self;
        let kind = layout.kind;
        debug_assert!(columns.depth.is_multiple_of(BLOCK), "blocks are whole");
        let mut args = Args::new();
        let mut units = 0;
        for i in 0..4 {
            let part = parts.get(i).copied().unwrap_or(WeightPart::NONE);
            args = part.fields(args).with(units);
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
}
