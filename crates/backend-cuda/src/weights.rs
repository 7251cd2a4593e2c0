//! Weights by their ids.

use crate::driver::{Address, Args};
use crate::products::DeviceWeight;
use crate::queue::Queue;
use forerun_backend::{BackendError, WeightId, WeightInfo};
use forerun_base::MatrixParts;

/// All weights of the device.
#[derive(Debug, Default)]
pub(crate) struct DeviceWeights {
    kept: Vec<(WeightInfo, DeviceWeight)>,
}

impl DeviceWeights {
    pub(crate) fn info(&self, id: WeightId) -> Option<WeightInfo> {
        self.kept.get(id.0 as usize).map(|(info, _)| *info)
    }

    /// A weight that the desc of an operation has found.
    pub(crate) fn get(&self, id: WeightId) -> DeviceWeight {
        self.kept[id.0 as usize].1
    }

    pub(crate) fn upload(
        &mut self,
        queue: &mut Queue,
        label: &str,
        matrix: &MatrixParts,
    ) -> Result<WeightId, BackendError> {
        let weight = DeviceWeight::upload(queue.driver_mut(), matrix);
        let weight = weight.map_err(|error| Queue::named(label, error))?;
        let (rows, cols, format) = (matrix.rows(), matrix.cols(), matrix.format());
        let info = WeightInfo { rows, cols, format, bytes: weight.bytes };
        self.kept.push((info, weight));
        Ok(WeightId(self.kept.len() as u32 - 1))
    }

    /// A small weight's elements as f32, row by row.
    pub(crate) fn small(&self, op: &'static str, id: WeightId) -> Result<Address, BackendError> {
        let weight = self.get(id);
        let what = "a weight that is kept as f32 has one row or at most 16 columns";
        let plain = weight.layout.is_none().then_some(weight.at);
        plain.ok_or(BackendError::Parameter { op, what })
    }

    /// The fields of `DeviceWeight` in `weight.cuh`.
    pub(crate) fn fields(&self, args: Args, id: WeightId) -> Args {
        self.get(id).fields(args)
    }
}
