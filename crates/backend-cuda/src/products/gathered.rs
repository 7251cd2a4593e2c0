//! Products with single rows of a weight, chosen on the device.

use super::call::{PairGroups, ProductCall, ProductSpec, WeightPart};
use super::rows::{ColumnSpec, ProductInput};
use super::{DeviceWeight, Precision, Products};
use crate::driver::{Address, Driver, DriverError};

/// A product of `pairs` rows of a weight, each with a row of `x`.
#[derive(Clone, Copy, Debug)]
pub struct GatheredRows {
    /// The rows; `share` pairs that follow each other have the same.
    pub x: ProductInput,
    /// The weight.
    pub weight: DeviceWeight,
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
    /// Multiplies pairs, with the bits that [`Products::linears`] gives them; false, and nothing done, where the weight
    /// is plain.
    ///
    /// # Safety
    /// `op` is [valid](super#safety).
    pub unsafe fn gathered(
        &mut self,
        driver: &mut dyn Driver,
        op: &GatheredRows,
        precision: Precision,
    ) -> Result<bool, DriverError> {
        let Some(layout) = op.weight.layout else { return Ok(false) };
        if op.pairs == 0 {
            return Ok(true);
        }
        self.begin_call();
        let GatheredRows { tiles, count, list, .. } = *op;
        let groups = PairGroups { tiles, count, list, most: op.pairs, columns: 8 };
        let (tokens, share) = (op.pairs, op.share);
        let shape = ProductSpec { tokens, share, groups: Some(groups), ..ProductSpec::default() };
        // An expert of one row is a row.
        let (at, out) = (op.weight.at, op.out);
        let part = WeightPart { at, bias: None, out, first: 0, stride: 1, rows: 1 };
        let spec = ColumnSpec::steps(layout.kind, precision);
        // SAFETY: `op.x` is valid by the contract of this function and as wide as the weight; the columns are made of
        // it for this layout, and the part writes `op.pairs` f32 at `op.out`.
        unsafe {
            let columns = self.split(driver, op.x, &layout, spec)?;
            self.multiply(driver, &ProductCall::of(&layout, columns, &[part], shape))?;
        }
        Ok(true)
    }
}
