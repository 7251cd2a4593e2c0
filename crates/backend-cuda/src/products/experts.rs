//! The experts that rows chose.

use super::after;
use super::call::{Groups, Input, Order, Part, Shape, level};
use super::{Precision, Products, Weight, sources};
use crate::driver::{Address, Args, Driver, DriverError};
use forerun_backend::op::Activation;

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
    /// A word that is set where an expert is none.
    pub error: Option<Address>,
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
        let (rows, dim) = (op.x.rows, op.x.dim);
        let pairs = rows * op.top_k;
        // SAFETY: the caller's promise, for all of these; hidden and partial have room for a row of each pair.
        unsafe {
            let groups = self.route(driver, op, 8 / precision.parts())?;
            let columns =
                self.split(driver, op.x, &gate, (level(gate.kind), Order::Steps), precision)?;
            let shape = Shape {
                tokens: pairs,
                gate: Some(op.activation),
                add: false,
                groups: Some(groups),
            };
            let parts = [op.gate.part(op.hidden, op.ffn), op.up.part(op.hidden, op.ffn)];
            self.multiply(driver, &gate, columns, &parts, shape)?;
            let hidden = Input { at: op.hidden, rows: pairs, dim: op.ffn, norm: None };
            let columns =
                self.split(driver, hidden, &down, (level(down.kind), Order::Steps), precision)?;
            let groups = Groups { share: 1, ..groups };
            let shape = Shape { tokens: pairs, gate: None, add: false, groups: Some(groups) };
            let parts = [op.down.part(op.partial, dim)];
            self.multiply(driver, &down, columns, &parts, shape)?;
            self.combine(driver, op)?;
        }
        Ok(true)
    }

    /// Sorts pairs by expert, in tiles of at most `most`.
    ///
    /// # Safety
    /// As [`Products::experts`].
    unsafe fn route(
        &mut self,
        driver: &mut dyn Driver,
        op: &Experts,
        most: usize,
    ) -> Result<Groups, DriverError> {
        let pairs = op.x.rows * op.top_k;
        let tiles = pairs.min(pairs / most + op.experts);
        let at = self.route.of(driver, 256 + tiles * 16 + pairs * 4)?;
        let groups = Groups {
            count: at,
            tiles: at.offset(256),
            list: at.offset(256 + tiles as u64 * 16),
            most: tiles,
            share: op.top_k,
        };
        let kernel = self.kernel(driver, &sources::EXPERTS, "product_route")?;
        let args = Args::new()
            .with(op.chosen)
            .with(groups.list)
            .with(groups.tiles)
            .with(groups.count)
            .with(op.error.unwrap_or(Address::NULL))
            .size(pairs)
            .size(op.experts)
            .size(most);
        // SAFETY: the lists have the room that was just made; the rest is the caller's promise.
        unsafe { driver.launch(&after(kernel, 1, 1024, &args))? };
        Ok(groups)
    }

    /// # Safety
    /// As [`Products::experts`].
    unsafe fn combine(&mut self, driver: &mut dyn Driver, op: &Experts) -> Result<(), DriverError> {
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
