//! The experts that rows chose.

use super::after;
use super::call::{Columns, Groups, Input, Order, Part, Shape, any_columns, level};
use super::chosen::{Chosen, aligned};
use super::layout::Layout;
use super::{Precision, Products, Weight, sources};
use crate::driver::{Address, Args, Driver, DriverError};
use forerun_backend::op::Activation;

/// Rows up to which experts are not sorted: they rarely choose the same.
const FEW_ROWS: usize = 8;
/// Most experts of a layer.
pub(super) const MOST_EXPERTS: usize = 1024;

/// Where an expert's matrix lies in a stack: rows `first + e·stride ..`.
#[derive(Clone, Copy, Debug)]
pub struct ExpertStack {
    /// The stack.
    pub weight: Weight,
    /// First row of expert 0.
    pub first: usize,
    /// Rows from one expert to the next.
    pub stride: usize,
}

impl ExpertStack {
    fn part(&self, out: Address, rows: usize) -> Part {
        let Self { weight, first, stride } = *self;
        Part { at: weight.at, bias: None, out, first, stride, rows }
    }
}

/// `out[r] (+)= Σ_j weights[r][j] · down_e(act(gate_e x[r]) · (up_e x[r]))`, `e = chosen[r][j]`.
#[derive(Clone, Copy, Debug)]
pub struct Experts {
    /// The rows.
    pub x: Input,
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
    /// Where a kernel notes an expert that is none, and as what.
    pub fault: (Address, u32),
}

impl Experts {
    /// Gate and up.
    fn first(&self) -> [Part; 2] {
        [self.gate, self.up].map(|stack| stack.part(self.hidden, self.ffn))
    }

    fn second(&self) -> [Part; 1] {
        [self.down.part(self.partial, self.x.dim)]
    }

    /// The rows between the two.
    fn inner(&self) -> Input {
        Input { at: self.hidden, rows: self.x.rows * self.top_k, dim: self.ffn, norm: None }
    }

    /// The first product's, without its groups.
    fn shape(&self) -> Shape {
        let (tokens, gate) = (self.x.rows * self.top_k, Some(self.activation));
        Shape { tokens, gate, add: false, groups: None, share: self.top_k }
    }
}

impl Products {
    /// The experts' weighted sum; false, and nothing done, where the stacks have no kernel in common.
    ///
    /// # Safety
    /// The addresses hold what their descriptions say.
    pub unsafe fn experts(
        &mut self,
        driver: &mut dyn Driver,
        op: &Experts,
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
        let fast = self.chooses(driver.properties())
            && [op.gate, op.up, op.down].iter().all(|stack| aligned(stack.first, stack.stride));
        // SAFETY: the caller's promise, for both; hidden and partial have room for a row of each pair.
        unsafe {
            if fast {
                self.fast_experts(driver, op, (&gate, &down), precision)?;
            } else {
                self.any_experts(driver, op, (&gate, &down), precision)?;
            }
            self.combine(driver, op)?;
        }
        Ok(true)
    }

    /// Experts by the general kernel.
    ///
    /// # Safety
    /// As [`Products::experts`].
    unsafe fn any_experts(
        &mut self,
        driver: &mut dyn Driver,
        op: &Experts,
        (gate, down): (&Layout, &Layout),
        precision: Precision,
    ) -> Result<(), DriverError> {
        // SAFETY: the caller's promise, for all of these.
        unsafe {
            let columns = any_columns(op.x.rows * op.top_k * precision.parts());
            let groups = Some(self.route(driver, op, (columns, precision.parts()))?);
            let order = (level(gate.kind), Order::Steps);
            let columns = self.split(driver, op.x, gate, order, precision)?;
            self.multiply(driver, gate, columns, &op.first(), Shape { groups, ..op.shape() })?;
            let order = (level(down.kind), Order::Steps);
            let columns = self.split(driver, op.inner(), down, order, precision)?;
            let shape = Shape { gate: None, share: 1, groups, ..op.shape() };
            self.multiply(driver, down, columns, &op.second(), shape)
        }
    }

    /// Experts by the kernel for a few rows. Up to [`FEW_ROWS`] every pair reads its expert; beyond, pairs with the same expert
    /// read it together.
    ///
    /// # Safety
    /// As [`Products::experts`].
    unsafe fn fast_experts(
        &mut self,
        driver: &mut dyn Driver,
        op: &Experts,
        (gate, down): (&Layout, &Layout),
        precision: Precision,
    ) -> Result<(), DriverError> {
        let (pairs, parts) = (op.x.rows * op.top_k, precision.parts());
        let direct = op.x.rows <= FEW_ROWS;
        let columns = if parts == 1 || direct { 8 } else { 16 };
        // What comes out of the first product can be the second's columns where nothing else is made of it.
        let joined = down.kind.planes == 1 && !down.kind.offset && down.depth() == op.ffn;
        // SAFETY: the caller's promise, for all of these.
        unsafe {
            let groups =
                if direct { None } else { Some(self.route(driver, op, (columns, parts))?) };
            let order = (level(gate.kind), Order::Steps);
            let x = self.split(driver, op.x, gate, order, precision)?;
            let mut chosen = Chosen {
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
            let shape = Shape { groups, ..op.shape() };
            self.chosen(driver, (gate, x), &op.first(), shape, chosen)?;
            let hidden = match chosen.next.take() {
                Some((at, depth)) => {
                    Columns { at, sums: Address::NULL, ld: 0, depth, parts, tiles: None }
                }
                None => {
                    let order = (level(down.kind), Order::Steps);
                    self.split(driver, op.inner(), down, order, precision)?
                }
            };
            let shape = Shape { gate: None, share: 1, groups, ..op.shape() };
            let chosen = Chosen { early: joined, ..chosen };
            self.chosen(driver, (down, hidden), &op.second(), shape, chosen)
        }
    }

    /// Sorts pairs by expert, in tiles of so many columns, of which a pair has `parts`.
    ///
    /// # Safety
    /// As [`Products::experts`].
    unsafe fn route(
        &mut self,
        driver: &mut dyn Driver,
        op: &Experts,
        (columns, parts): (usize, usize),
    ) -> Result<Groups, DriverError> {
        let most = columns / parts;
        let pairs = op.x.rows * op.top_k;
        let tiles = pairs.min(pairs / most + op.experts);
        let at = self.route.of(driver, 256 + tiles * 16 + pairs * 4)?;
        let groups = Groups {
            count: at,
            tiles: at.offset(256),
            list: at.offset(256 + tiles as u64 * 16),
            most: tiles,
            columns,
        };
        let kernel = self.kernel(driver, &sources::EXPERTS, "product_route")?;
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
        // SAFETY: the lists have the room that was just made; the rest is the caller's promise.
        unsafe { driver.launch(&after(kernel, 1, 1024, &args))? };
        Ok(groups)
    }

    /// Adds the experts' rows up in the order chosen; nothing where there are no rows.
    ///
    /// # Safety
    /// As [`Products::experts`]; `partial` holds the experts' rows.
    pub unsafe fn combine(
        &mut self,
        driver: &mut dyn Driver,
        op: &Experts,
    ) -> Result<(), DriverError> {
        if op.x.rows == 0 {
            return Ok(());
        }
        let kernel = self.kernel(driver, &sources::EXPERTS, "product_combine")?;
        let args = Args::new()
            .with(op.partial)
            .with(op.weights)
            .with(op.out)
            .size(op.x.rows)
            .size(op.x.dim)
            .size(op.top_k)
            .with(u32::from(op.add));
        let blocks = (op.x.rows * op.x.dim).div_ceil(256) as u32;
        // SAFETY: the caller's promise.
        unsafe { driver.launch(&after(kernel, blocks, 256, &args)) }
    }
}
