//! Embedding and products with weights: `embed.wgsl`, `product*.wgsl`.

use super::{Lowered, elementwise, norm};
use crate::gpu::kernels::{
    EMBED, GATED_FOUR, GATED_GROUPED, GATED_ONE, Kernel, PRODUCT_FOUR, PRODUCT_GROUPED,
    PRODUCT_ONE, PRODUCT_TILE, PRODUCTS_FOUR, PRODUCTS_ONE, site,
};
use crate::gpu::launch::{BoundOperand, Call, Words, folded};
use crate::gpu::layout::{PANEL, WeightLayout};
use crate::gpu::lowering::{Lowering, bound, plain};
use forerun_backend::op::{
    Activation, Channels, Embed, ExpertRows, GatedLinear, InputNorm, Linear, LinearPart, Linears,
    RmsNorm, Store,
};
use forerun_backend::{BackendError, Cost, View, WeightId};

/// Rows of an invocation where there are more than one.
pub(super) const ROWS: usize = 4;
/// With more rows than this a norm is a call of its own: each workgroup of a product would make it again.
const NORMED_ROWS: usize = 16;
/// With more rows than this a product goes through tiles of rows and channels, and each weight is a call of its own.
const FEW_ROWS: usize = 16;
/// Rows and channels of a tile, and channels below which most of a tile would be idle.
const TILE: [usize; 2] = [32, 64];
const TILED_CHANNELS: usize = 32;

/// Bits of `flags` in the kernels' text.
const NORMED: usize = 1;
pub(super) const ADD: usize = 2;
const GELU: usize = 4;
const RELU: usize = 8;
const HAS_BIAS: usize = 16;
const NAMING_AT: usize = 16;
/// The bit of `style` that tells an embedding that rows are named.
const NAMED: usize = 1;

pub(super) fn embed(to: &mut Lowering<'_>, op: Embed) -> Lowered {
    let layout = to.layout(op.table);
    let (rows, info) = (op.ids.len, layout.info);
    for (number, piece) in layout.pieces.iter().enumerate() {
        let site = site("embed") as usize;
        let style = layout.style | NAMED;
        let shape = [rows, info.cols, info.rows, piece.first, piece.channels, site, style];
        let words = Words::of(&[op.ids.start, op.out.start]);
        let words = words.and_then(|words| words.sizes(&shape)?.sizes(&layout.planes(piece)));
        to.calls.push(Call {
            kernel: &EMBED,
            constants: layout.constants.clone(),
            operands: vec![
                bound(op.ids),
                bound(op.out),
                BoundOperand::WeightPiece(op.table, number),
            ],
            words: words.map(|words| words.float(op.scale)),
            grid: folded(rows),
            work: to.elements(rows * info.cols),
        });
    }
    Ok(())
}

/// An operand and the first element of it that takes part.
#[derive(Clone, Copy)]
pub(super) struct At(pub(super) BoundOperand, pub(super) usize);

impl From<View> for At {
    fn from(view: View) -> Self {
        Self(bound(view), view.start)
    }
}

/// Which channels of a weight a row meets.
#[derive(Clone, Copy)]
pub(super) enum Naming {
    /// So many from this one on.
    From(usize),
    /// Those of the expert that the row names.
    Expert { names: At, at: ExpertRows, experts: usize },
    /// Those that the row lists.
    Listed { names: At },
}

impl Naming {
    /// The number in the kernels' text.
    pub(super) fn number(self) -> usize {
        match self {
            Self::From(_) => 0,
            Self::Expert { .. } => 1,
            Self::Listed { .. } => 2,
        }
    }

    pub(super) fn names(self) -> At {
        match self {
            Self::From(_) => At(BoundOperand::Absent, 0),
            Self::Expert { names, .. } | Self::Listed { names } => names,
        }
    }

    /// First channel, channels from one expert to the next.
    pub(super) fn base(self) -> [usize; 2] {
        match self {
            Self::From(first) => [first, 0],
            Self::Expert { at, .. } => [at.first, at.stride],
            Self::Listed { .. } => [0, 0],
        }
    }
}

/// Rows on their way into a product.
#[derive(Clone, Copy)]
pub(super) struct ProductInput {
    pub(super) x: At,
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Rows of the product share a row of `x` so many by so many.
    pub(super) share: usize,
    pub(super) norm: Option<(WeightId, f32)>,
    /// Places of rows in tiles of one expert each; `rows` counts the places then.
    pub(super) order: Option<BoundOperand>,
}

impl ProductInput {
    pub(super) fn new(x: impl Into<At>, rows: usize, cols: usize) -> Self {
        Self { x: x.into(), rows, cols, share: 1, norm: None, order: None }
    }

    /// The rows of a fused product; many rows are normed by a call of their own.
    fn normed(
        to: &mut Lowering<'_>,
        x: View,
        rows: usize,
        cols: usize,
        norm: Option<InputNorm>,
    ) -> Result<Self, BackendError> {
        let Some(InputNorm { weight, dim, eps, room }) = norm else {
            return Ok(Self::new(x, rows, cols));
        };
        if rows <= NORMED_ROWS {
            return Ok(Self { norm: Some((weight, eps)), ..Self::new(x, rows, cols) });
        }
        norm::rms_norm(to, RmsNorm { x, weight, out: room, dim, eps })?;
        Ok(Self::new(room, rows, cols))
    }

    /// Whether there are so many rows that tiles are worth their while.
    fn is_tiled(&self) -> bool {
        let vectors = self.cols.is_multiple_of(4);
        self.rows > FEW_ROWS && vectors && self.norm.is_none() && self.order.is_none()
    }

    /// The words that all kernels of products begin with.
    pub(super) fn words(
        &self,
        layout: &WeightLayout,
        naming: usize,
        flags: usize,
        cap: f32,
    ) -> Option<Words> {
        let normed = if self.norm.is_some() { NORMED } else { 0 };
        let WeightLayout { code_words, scale_words, style, .. } = *layout;
        let flags = flags | normed | style | naming << NAMING_AT;
        let words = Words::of(&[self.x.1, self.rows, self.cols, code_words, scale_words, flags])?;
        Some(words.float(self.norm.map_or(0.0, |(_, eps)| eps)).float(cap))
    }

    pub(super) fn operands(&self) -> Vec<BoundOperand> {
        vec![self.x.0, plain(self.norm.map(|(weight, _)| weight))]
    }

    /// What a product of the rows with so many channels does; each row reads its own where it names them.
    pub(super) fn work(
        &self,
        to: &Lowering<'_>,
        weight: WeightId,
        channels: usize,
        named: bool,
    ) -> Cost {
        let (rows, cols) = (self.rows as u64, self.cols as u64);
        let reads = match (named, self.order) {
            (false, _) => 1,
            (true, None) => rows,
            (true, Some(_)) => rows / ROWS as u64,
        };
        let weights = to.info(weight).bytes_of(channels) * reads;
        let bytes = weights + 4 * rows * (cols + channels as u64);
        Cost { bytes, weights, state: 0, flops: 2 * rows * cols * channels as u64 }
    }
}

/// Some workgroups of a product: blocks of 16 channels, and rows.
pub(super) struct Tile {
    pub(super) block: usize,
    pub(super) row: usize,
    pub(super) grid: [usize; 3],
    pub(super) work: Cost,
}

/// The workgroups of a product of `blocks` times `rows`, in calls that a dispatch may hold.
pub(super) fn tiles(
    to: &Lowering<'_>,
    work: Cost,
    blocks: usize,
    [rows, each]: [usize; 2],
) -> Vec<Tile> {
    let mut tiles = Vec::new();
    for block in to.shares(work, blocks, 1) {
        for row in to.shares(block.work, rows, each) {
            tiles.push(Tile {
                block: block.first,
                row: row.first,
                grid: [block.count, row.count.div_ceil(each), 1],
                work: row.work,
            });
        }
    }
    tiles
}

/// Some rows times some channels of one weight.
pub(super) struct ProductCall {
    pub(super) input: ProductInput,
    pub(super) weight: WeightId,
    /// Channels of a row of `out`.
    pub(super) height: usize,
    pub(super) naming: Naming,
    pub(super) bias: Option<WeightId>,
    pub(super) out: At,
    pub(super) add: bool,
    pub(super) cap: Option<f32>,
}

pub(super) fn product(to: &mut Lowering<'_>, product: &ProductCall) -> Lowered {
    let ProductCall { input, weight, height, naming, bias, out, add, cap } = *product;
    let layout = to.layout(weight);
    let At(names, names_at) = naming.names();
    let [base, stride] = naming.base();
    let limit = match naming {
        Naming::From(_) => 0,
        Naming::Expert { experts, .. } => experts,
        Naming::Listed { .. } => layout.info.rows,
    };
    let in_order = naming.number() == 0;
    let many = in_order && input.rows > 1;
    let (kernel, [each, wide]): (&'static Kernel, _) = match (input.order, many) {
        (Some(_), _) => (&PRODUCT_GROUPED, [ROWS, PANEL]),
        (None, true) if input.is_tiled() && height >= TILED_CHANNELS => (&PRODUCT_TILE, TILE),
        (None, true) => (&PRODUCT_FOUR, [ROWS, PANEL]),
        (None, false) => (&PRODUCT_ONE, [1, PANEL]),
    };
    let flags = if add { ADD } else { 0 } | if bias.is_some() { HAS_BIAS } else { 0 };
    for (number, piece) in layout.pieces.iter().enumerate() {
        // Where channels are named, any piece may have one.
        let (first, last) = if in_order {
            let end = (piece.first + piece.channels).min(base + height);
            (piece.first.max(base) - base, end.saturating_sub(base))
        } else {
            (0, height)
        };
        if first >= last {
            continue;
        }
        let words = input.words(layout, naming.number(), flags, cap.unwrap_or(0.0));
        let work = input.work(to, weight, last - first, !in_order);
        for tile in tiles(to, work, (last - first).div_ceil(wide), [input.rows, each]) {
            let sizes = [
                [out.1, height, piece.scales_at, piece.offsets_at],
                [names_at, input.share, base, stride],
                [0, 0, limit, site("experts") as usize],
                [piece.first, piece.channels, first + tile.block * wide, tile.row],
            ];
            let words = words.clone().and_then(|words| words.sizes(sizes.as_flattened()));
            let operands = [names, BoundOperand::WeightPiece(weight, number), plain(bias), out.0];
            to.calls.push(Call {
                kernel,
                constants: layout.constants.clone(),
                operands: input.operands().into_iter().chain(operands).chain(input.order).collect(),
                words,
                grid: tile.grid,
                work: tile.work,
            });
        }
    }
    Ok(())
}

fn linear_of(to: &Lowering<'_>, op: &Linear) -> ProductCall {
    let info = to.info(op.weight);
    let Channels { first, count } = op.channels.unwrap_or(Channels::head(info.rows));
    ProductCall {
        input: ProductInput::new(op.x, op.x.len / info.cols, info.cols),
        weight: op.weight,
        height: count,
        naming: Naming::From(first),
        bias: op.bias,
        out: op.out.into(),
        add: op.store == Store::Add,
        cap: None,
    }
}

pub(super) fn linear(to: &mut Lowering<'_>, op: Linear) -> Lowered {
    if op.x.len == 0 || op.out.len == 0 {
        return Ok(());
    }
    product(to, &linear_of(to, &op))
}

/// A product whose logits are capped on their way out.
pub(super) fn head(to: &mut Lowering<'_>, op: Linear, cap: Option<f32>) -> Lowered {
    if op.x.len == 0 || op.out.len == 0 {
        return Ok(());
    }
    product(to, &ProductCall { cap, ..linear_of(to, &op) })
}

pub(super) fn linears(to: &mut Lowering<'_>, op: Linears) -> Lowered {
    let parts: Vec<LinearPart> = op.parts.into_iter().flatten().collect();
    let Some(first) = parts.first().filter(|_| op.x.len > 0) else { return Ok(()) };
    let cols = to.info(first.weight).cols;
    let rows = op.x.len / cols;
    let input = ProductInput::normed(to, op.x, rows, cols, op.norm)?;
    // Weights of one format, each in one piece, are one call.
    let mut groups: Vec<Vec<LinearPart>> = Vec::new();
    for part in parts.into_iter().filter(|part| part.out.len > 0) {
        let layout = to.layout(part.weight);
        let alike = |group: &&mut Vec<LinearPart>| {
            rows <= FEW_ROWS && layout.joins(to.layout(group[0].weight))
        };
        match groups.iter_mut().find(alike) {
            Some(group) => group.push(part),
            None => groups.push(vec![part]),
        }
    }
    groups.iter().try_for_each(|group| match group[..] {
        [LinearPart { weight, bias, out }] => {
            let (height, naming) = (to.info(weight).rows, Naming::From(0));
            let (out, add, cap) = (out.into(), false, None);
            product(to, &ProductCall { input, weight, height, naming, bias, out, add, cap })
        }
        _ => side_by_side(to, &input, group),
    })
}

/// Products with weights of one format, each in one piece.
fn side_by_side(to: &mut Lowering<'_>, input: &ProductInput, group: &[LinearPart]) -> Lowered {
    let layouts: Vec<_> = group.iter().map(|part| to.layout(part.weight)).collect();
    let (kernel, each): (&'static Kernel, _) =
        if input.rows > 1 { (&PRODUCTS_FOUR, ROWS) } else { (&PRODUCTS_ONE, 1) };
    let (mut flags, mut blocks, mut work) = (0, 0, Cost::default());
    let mut sizes = [[0; 4]; Linears::MOST];
    let mut operands = input.operands();
    for (i, (part, layout)) in group.iter().zip(&layouts).enumerate() {
        let (height, piece) = (layout.info.rows, &layout.pieces[0]);
        sizes[i] = [part.out.start, height, piece.scales_at, piece.offsets_at];
        flags |= if part.bias.is_some() { HAS_BIAS << i } else { 0 };
        blocks += height.div_ceil(PANEL);
        work = work + input.work(to, part.weight, height, false);
        operands.extend([
            BoundOperand::WeightPiece(part.weight, 0),
            plain(part.bias),
            bound(part.out),
        ]);
    }
    operands.resize(2 + 3 * Linears::MOST, BoundOperand::Absent);
    let words = input.words(layouts[0], 0, flags, 0.0);
    let words = words.and_then(|words| words.sizes(sizes.as_flattened()));
    for tile in tiles(to, work, blocks, [input.rows, each]) {
        let place = [input.share, tile.block * PANEL, tile.row];
        to.calls.push(Call {
            kernel,
            constants: layouts[0].constants.clone(),
            operands: operands.clone(),
            words: words.clone().and_then(|words| words.sizes(&place)),
            grid: tile.grid,
            work: tile.work,
        });
    }
    Ok(())
}

pub(super) fn gated_linear(to: &mut Lowering<'_>, op: GatedLinear) -> Lowered {
    let info = to.info(op.gate);
    let rows = op.x.len / info.cols;
    if rows == 0 || info.rows == 0 {
        return Ok(());
    }
    let input = ProductInput::normed(to, op.x, rows, info.cols, op.norm)?;
    let gated = GatedProduct {
        input,
        weights: [op.gate, op.up],
        naming: [Naming::From(0); 2],
        height: info.rows,
        out: op.out,
        activation: op.activation,
    };
    if gated.is_one_call(to) {
        return gated.lower(to);
    }
    let (_, products, glu) = op.parts();
    for Linear { weight, out, .. } in products {
        let (height, naming, bias) = (info.rows, Naming::From(0), None);
        let (out, add, cap) = (out.into(), false, None);
        product(to, &ProductCall { input, weight, height, naming, bias, out, add, cap })?;
    }
    elementwise::glu(to, glu)
}

/// A gate and what it gates.
pub(super) struct GatedProduct {
    pub(super) input: ProductInput,
    pub(super) weights: [WeightId; 2],
    pub(super) naming: [Naming; 2],
    pub(super) height: usize,
    pub(super) out: View,
    pub(super) activation: Activation,
}

impl GatedProduct {
    /// Whether one kernel has both: weights of one format, each in one piece.
    pub(super) fn is_one_call(&self, to: &Lowering<'_>) -> bool {
        let [gate, up] = self.weights.map(|weight| to.layout(weight));
        let tiled = self.naming[0].number() == 0 && self.input.is_tiled();
        gate.joins(up) && !tiled
    }

    pub(super) fn lower(&self, to: &mut Lowering<'_>) -> Lowered {
        let Self { input, weights, naming: [gate, up], height, out, activation } = *self;
        let layouts = weights.map(|weight| to.layout(weight));
        let pieces = layouts.map(|layout| layout.pieces[0]);
        let At(names, names_at) = gate.names();
        let limit = match gate {
            Naming::Expert { experts, .. } => experts,
            Naming::From(_) | Naming::Listed { .. } => 0,
        };
        let many = gate.number() == 0 && input.rows > 1;
        let (kernel, each) = match (input.order, many) {
            (Some(_), _) => (&GATED_GROUPED, ROWS),
            (None, true) => (&GATED_FOUR, ROWS),
            (None, false) => (&GATED_ONE, 1),
        };
        let flags = match activation {
            Activation::Silu | Activation::ClampedSilu { .. } => 0,
            Activation::GeluTanh => GELU,
            Activation::Relu => RELU,
        };
        let words = input.words(layouts[0], gate.number(), flags, 0.0);
        let named = gate.number() != 0;
        let work = weights.map(|weight| input.work(to, weight, height, named));
        for tile in tiles(to, work[0] + work[1], height.div_ceil(PANEL), [input.rows, each]) {
            let [[base0, stride0], [base1, stride1]] = [gate.base(), up.base()];
            let sizes = [
                [out.start, height, pieces[0].scales_at, pieces[0].offsets_at],
                [0, height, pieces[1].scales_at, pieces[1].offsets_at],
                [names_at, input.share, base0, stride0],
                [base1, stride1, limit, site("experts") as usize],
                [0, layouts[0].info.rows, tile.block * PANEL, tile.row],
            ];
            let operands = [
                names,
                BoundOperand::WeightPiece(weights[0], 0),
                BoundOperand::Absent,
                bound(out),
                BoundOperand::WeightPiece(weights[1], 0),
                BoundOperand::Absent,
                BoundOperand::Absent,
            ];
            to.calls.push(Call {
                kernel,
                constants: layouts[0].constants.clone(),
                operands: input.operands().into_iter().chain(operands).chain(input.order).collect(),
                words: words.clone().and_then(|words| words.sizes(sizes.as_flattened())),
                grid: tile.grid,
                work: tile.work,
            });
        }
        Ok(())
    }
}
