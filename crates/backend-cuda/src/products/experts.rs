//! The experts that rows chose.

use super::call::{PairGroups, ProductCall, ProductSpec, WeightPart, general_columns};
use super::expert_gemv::{ExpertGemv, aligned};
use super::layout::PackedLayout;
use super::rows::{ColumnSpec, Columns, ProductInput};
use super::{DeviceWeight, Precision, Products, sources};
use crate::driver::{Address, Args, Driver, DriverError, Launch};
use forerun_backend::op::Activation;

/// Rows up to which pairs are not sorted by expert: few rows rarely choose the same one.
const FEW_ROWS: usize = 8;
/// Most experts of a layer.
pub(super) const MOST_EXPERTS: usize = 1024;

/// The rows of a stack that are expert `e`: `first + e·stride ..`.
#[derive(Clone, Copy, Debug)]
pub struct ExpertStack {
    /// The stack.
    pub weight: DeviceWeight,
    /// First row of expert 0.
    pub first: usize,
    /// Rows from one expert to the next.
    pub stride: usize,
}

impl ExpertStack {
    fn part(&self, out: Address, rows: usize) -> WeightPart {
        let Self { weight, first, stride } = *self;
        WeightPart { at: weight.at, bias: None, out, first, stride, rows }
    }
}

/// `out[r] (+)= Σ_j weights[r][j] · down_e(act(gate_e x[r]) · (up_e x[r]))`, `e = chosen[r][j]`.
#[derive(Clone, Copy, Debug)]
pub struct ExpertsCall {
    /// The rows.
    pub x: ProductInput,
    /// u32 `[rows, top_k]`.
    pub chosen: Address,
    /// f32 `[rows, top_k]`.
    pub weights: Address,
    /// `[ffn, dim]` each.
    pub gate: ExpertStack,
    /// `[ffn, dim]` each.
    pub up: ExpertStack,
    /// `[dim, ffn]` each.
    pub down: ExpertStack,
    /// Experts in the layer.
    pub experts: usize,
    /// Experts chosen per row.
    pub top_k: usize,
    /// Width inside an expert.
    pub ffn: usize,
    /// f32 `[rows, top_k, ffn]`, left unspecified.
    pub hidden: Address,
    /// f32 `[rows, top_k, dim]`, left unspecified.
    pub partial: Address,
    /// f32 `[rows, dim]`.
    pub out: Address,
    /// Added to what is there.
    pub add: bool,
    /// The function on the gates.
    pub activation: Activation,
    /// The fault report for an expert out of range, and the operand's number.
    pub fault: (Address, u32),
}

impl ExpertsCall {
    /// Gate and up.
    fn first(&self) -> [WeightPart; 2] {
        [self.gate, self.up].map(|stack| stack.part(self.hidden, self.ffn))
    }

    fn second(&self) -> [WeightPart; 1] {
        [self.down.part(self.partial, self.x.dim)]
    }

    /// The rows between the two.
    fn inner(&self) -> ProductInput {
        ProductInput::plain(self.hidden, self.x.rows * self.top_k, self.ffn)
    }

    /// The first product's, without its groups.
    fn shape(&self) -> ProductSpec {
        let (tokens, gate) = (self.x.rows * self.top_k, Some(self.activation));
        ProductSpec { tokens, gate, share: self.top_k, ..ProductSpec::default() }
    }
}

impl Products {
    /// The experts' weighted sum; false, and nothing done, where the stacks have no kernel in common.
    ///
    /// # Safety
    /// `op` is [valid](super#safety).
    pub unsafe fn experts(
        &mut self,
        driver: &mut dyn Driver,
        op: &ExpertsCall,
        precision: Precision,
    ) -> Result<bool, DriverError> {
        let layouts = [op.gate, op.up, op.down].map(|stack| stack.weight.layout);
        let [Some(gate), Some(up), Some(down)] = layouts else { return Ok(false) };
        if gate.kind != up.kind || op.experts > MOST_EXPERTS {
            return Ok(false);
        }
        if op.x.rows == 0 {
            return Ok(true);
        }
        self.begin_call();
        let fast = self.has_expert_gemv(driver.properties())
            && [op.gate, op.up, op.down].iter().all(|stack| aligned(stack.first, stack.stride));
        // SAFETY: `op` is valid by the contract of this function, and the three stacks are packed. `combine` runs after
        // `partial` was written.
        unsafe {
            if fast {
                self.gemv_experts(driver, op, &gate, &down, precision)?;
            } else {
                self.general_experts(driver, op, &gate, &down, precision)?;
            }
            self.combine(driver, op)?;
        }
        Ok(true)
    }

    /// Experts by the general kernel.
    ///
    /// # Safety
    /// As [`Products::experts`]; `gate` is the layout of the gate and up stacks, `down` that of the down stack.
    unsafe fn general_experts(
        &mut self,
        driver: &mut dyn Driver,
        op: &ExpertsCall,
        gate: &PackedLayout,
        down: &PackedLayout,
        precision: Precision,
    ) -> Result<(), DriverError> {
        // SAFETY: `op` is valid by the contract of this function; columns are made for the layout they are multiplied
        // with, the first product writes `op.hidden` (or the next columns), which the second reads, and the second
        // writes `op.partial`.
        unsafe {
            let columns = general_columns(op.x.rows * op.top_k * precision.parts());
            let groups = Some(self.route(driver, op, columns, precision.parts())?);
            let spec = ColumnSpec::steps(gate.kind, precision);
            let columns = self.split(driver, op.x, gate, spec)?;
            let shape = ProductSpec { groups, ..op.shape() };
            self.multiply(driver, &ProductCall::of(gate, columns, &op.first(), shape))?;
            let spec = ColumnSpec::steps(down.kind, precision);
            let columns = self.split(driver, op.inner(), down, spec)?;
            let shape = ProductSpec { gate: None, share: 1, groups, ..op.shape() };
            self.multiply(driver, &ProductCall::of(down, columns, &op.second(), shape))
        }
    }

    /// Experts by the GEMV kernel. Up to [`FEW_ROWS`] every pair reads its expert; beyond, pairs with the same expert
    /// read it together.
    ///
    /// # Safety
    /// As [`Products::experts`]; `gate` is the layout of the gate and up stacks, `down` that of the down stack, and
    /// every expert begins with a tile.
    unsafe fn gemv_experts(
        &mut self,
        driver: &mut dyn Driver,
        op: &ExpertsCall,
        gate: &PackedLayout,
        down: &PackedLayout,
        precision: Precision,
    ) -> Result<(), DriverError> {
        let (pairs, parts) = (op.x.rows * op.top_k, precision.parts());
        let direct = op.x.rows <= FEW_ROWS;
        let columns = if parts == 1 || direct { 8 } else { 16 };
        // The first product can write the second's columns directly where the second needs no group sums and no
        // padding.
        let joined = down.takes_columns_of(op.ffn);
        // SAFETY: `op` is valid by the contract of this function; columns are made for the layout they are multiplied
        // with, the first product writes `op.hidden` (or the next columns), which the second reads, and the second
        // writes `op.partial`.
        unsafe {
            let groups = if direct { None } else { Some(self.route(driver, op, columns, parts)?) };
            let spec = ColumnSpec::steps(gate.kind, precision);
            let x = self.split(driver, op.x, gate, spec)?;
            let mut chosen = ExpertGemv {
                chosen: op.chosen,
                fault: op.fault,
                experts: op.experts,
                next: None,
                early: false,
                columns,
            };
            if joined {
                let at = self.hidden.of(driver, pairs * parts * op.ffn * 2)?;
                chosen.next = Some((at, op.ffn));
            }
            let shape = ProductSpec { groups, ..op.shape() };
            let first = op.first();
            let call = ProductCall::of(gate, x, &first, shape);
            self.expert_gemv(driver, &call, chosen)?;
            let hidden = match chosen.next.take() {
                Some((at, depth)) => {
                    Columns { at, sums: Address::NULL, ld: 0, depth, parts, tiles: None }
                }
                None => {
                    let spec = ColumnSpec::steps(down.kind, precision);
                    self.split(driver, op.inner(), down, spec)?
                }
            };
            let shape = ProductSpec { gate: None, share: 1, groups, ..op.shape() };
            let chosen = ExpertGemv { early: joined, ..chosen };
            let second = op.second();
            let call = ProductCall::of(down, hidden, &second, shape);
            self.expert_gemv(driver, &call, chosen)
        }
    }

    /// Sorts pairs by expert, in tiles of so many columns, of which a pair has `parts`.
    ///
    /// # Safety
    /// `op.chosen` holds `x.rows · top_k` u32, and `op.fault` is a fault report.
    unsafe fn route(
        &mut self,
        driver: &mut dyn Driver,
        op: &ExpertsCall,
        columns: usize,
        parts: usize,
    ) -> Result<PairGroups, DriverError> {
        let most = columns / parts;
        let pairs = op.x.rows * op.top_k;
        let tiles = pairs.min(pairs / most + op.experts);
        let at = self.route.of(driver, 256 + tiles * 16 + pairs * 4)?;
        let groups = PairGroups {
            count: at,
            tiles: at.offset(256),
            list: at.offset(256 + tiles as u64 * 16),
            most: tiles,
            columns,
        };
        let kernel = self.kernel(driver, &sources::ROUTE, "product_route")?;
        let args = Args::new()
            .with(op.chosen)
            .with(groups.list)
            .with(groups.tiles)
            .with(groups.count)
            .with(op.fault.0)
            .with(op.fault.1)
            .size(pairs)
            .size(op.experts)
            .size(most);
        // SAFETY: `at` has 256 bytes for the count, 16 for each tile and 4 for each pair; `op.chosen` is valid by the
        // contract of this function, and the kernel checks the experts in it.
        unsafe { driver.launch(&Launch::line(kernel, 1, 1024, &args))? };
        Ok(groups)
    }

    /// Adds the experts' rows up in the order chosen; nothing where there are no rows.
    ///
    /// # Safety
    /// `op` is [valid](super#safety), and `partial` holds the experts' rows.
    pub unsafe fn combine(
        &mut self,
        driver: &mut dyn Driver,
        op: &ExpertsCall,
    ) -> Result<(), DriverError> {
        if op.x.rows == 0 {
            return Ok(());
        }
        let kernel = self.kernel(driver, &sources::ROUTE, "product_combine")?;
        let args = Args::new()
            .with(op.partial)
            .with(op.weights)
            .with(op.out)
            .size(op.x.rows)
            .size(op.x.dim)
            .size(op.top_k)
            .with(u32::from(op.add));
        let blocks = (op.x.rows * op.x.dim).div_ceil(256) as u32;
        // SAFETY: `partial`, `weights` and `out` have the sizes that their fields state, and the grid has a thread for
        // each f32 of `out`.
        unsafe { driver.launch(&Launch::line(kernel, blocks, 256, &args)) }
    }
}
