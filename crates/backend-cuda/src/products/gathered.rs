//! Products with single rows of a weight, chosen on the device.

use super::call::{Groups, Input, Order, Part, Shape, level};
use super::{Precision, Products, Weight};
use crate::driver::{Address, Driver, DriverError};

/// A product of `pairs` rows of a weight, each with a row of `x`.
#[derive(Clone, Copy, Debug)]
pub struct Gathered {
    /// The rows; `share` pairs that follow each other have the same.
    pub x: Input,
    /// The weight.
    pub weight: Weight,
    /// Pairs.
    pub pairs: usize,
    /// Pairs of a row.
    pub share: usize,
    /// A run for each pair (`PairTile` in `weight.cuh`): the weight's row, the pair's number, 1 and 0.
    pub tiles: Address,
    /// How many runs there are.
    pub count: Address,
    /// The pairs' numbers.
    pub list: Address,
    /// f32 `[pairs]`.
    pub out: Address,
}

impl Products {
    /// Multiplies pairs, with the bits that [`Products::linears`] gives them; false, and nothing done, where the weight is
    /// plain.
    ///
    /// # Safety
    /// As [`Products::linears`].
    pub unsafe fn gathered(
        &mut self,
        driver: &mut dyn Driver,
        op: &Gathered,
        precision: Precision,
    ) -> Result<bool, DriverError> {
        let Some(layout) = op.weight.layout else { return Ok(false) };
        if op.pairs == 0 {
            return Ok(true);
        }
        let Gathered { tiles, count, list, .. } = *op;
        let groups = Groups { tiles, count, list, most: op.pairs, columns: 8 };
        let (tokens, share) = (op.pairs, op.share);
        let shape = Shape { tokens, share, groups: Some(groups), ..Shape::default() };
        // An expert of one row is a row.
        let (at, out) = (op.weight.at, op.out);
        let part = Part { at, bias: None, out, first: 0, stride: 1, rows: 1 };
        let order = (level(layout.kind), Order::Steps);
        // SAFETY: the caller's promise, for both.
        unsafe {
            let columns = self.split(driver, op.x, &layout, order, precision)?;
            self.multiply(driver, &layout, columns, &[part], shape)?;
        }
        Ok(true)
    }
}
