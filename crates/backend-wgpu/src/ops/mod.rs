//! Operations as launches of kernels.

mod attention;
mod delta;
mod elementwise;
mod norm;
mod products;
mod rows;
mod sample;

use crate::device::Device;
use crate::kernels;
use crate::launch::{Words, folded};
use crate::pipelines::Call;
use forerun_backend::{BackendError, Op, WeightId};

/// What lowering leaves beside launches.
pub(crate) type Lowered = Result<(), BackendError>;

/// Lays down the launches of an operation, which was checked.
pub(crate) fn lower(device: &mut Device, op: Op) -> Lowered {
    match op {
        Op::Embed(op) => products::embed(device, op),
        Op::RmsNorm(op) => norm::rms_norm(device, op),
        Op::AddNorm(op) => norm::add_norm(device, op),
        Op::JoinNorm(op) => norm::join_norm(device, op),
        Op::Linear(op) => products::linear(device, op),
        Op::Linears(op) => {
            let (norm, mut products) = op.parts();
            norm.map_or(Ok(()), |norm| norm::rms_norm(device, norm))?;
            products.try_for_each(|part| products::linear(device, part))
        }
        Op::GatedLinear(op) => {
            let (norm, products, glu) = op.parts();
            norm.map_or(Ok(()), |norm| norm::rms_norm(device, norm))?;
            products.into_iter().try_for_each(|part| products::linear(device, part))?;
            elementwise::glu(device, glu)
        }
        Op::RopeTable(op) => rows::rope_table(device, op),
        Op::AttentionInputs(op) => attention::attention_inputs(device, op),
        Op::Attention(op) => attention::attention(device, op),
        Op::AttentionPart(_) | Op::ShortConv(_) | Op::DeltaGates(_) => {
            Err(BackendError::Parameter { op: op.name(), what: "not on this device yet" })
        }
        Op::DeltaInputs(op) => delta::delta_inputs(device, op),
        Op::DeltaRule(op) => delta::delta_rule(device, op),
        Op::GatedNorm(op) => norm::gated_norm(device, op),
        Op::GateMul(op) => elementwise::gate_mul(device, op),
        Op::Glu(op) => elementwise::glu(device, op),
        Op::Softcap(op) => elementwise::softcap(device, op),
        Op::Router(op) => rows::router(device, op),
        Op::Experts(op) => products::experts(device, op),
        Op::AddGated(op) => elementwise::add_gated(device, op),
        Op::ClusterHead(op) => products::cluster_head(device, op),
        Op::GatherRows(op) => rows::gather_rows(device, op),
        Op::ScatterRows(op) => rows::scatter_rows(device, op),
        Op::ScatterWords(op) => rows::scatter_words(device, op),
        Op::Sample(op) => sample::sample(device, op),
        Op::HeadSample(op) => {
            let (product, cap, choice) = op.parts();
            products::linear(device, product)?;
            cap.map_or(Ok(()), |cap| elementwise::softcap(device, cap))?;
            sample::sample(device, choice)
        }
    }
}

impl Device {
    /// A launch of the operation that is being lowered.
    pub(crate) fn launch(
        queue_fault: &wgpu::Buffer,
        (pipelines, launches): (&mut crate::pipelines::Pipelines, &mut Vec<crate::launch::Launch>),
        call: Call<'_>,
    ) -> Lowered {
        launches.extend(pipelines.launch(queue_fault, call)?);
        Ok(())
    }

    /// A weight's numbers in f32, row by row. They are made when first asked for, ahead of whatever runs.
    pub(crate) fn plain(&mut self, id: WeightId) -> Result<wgpu::Buffer, BackendError> {
        let weight = self.weights.get(id);
        if let Some(plain) = &weight.plain {
            return Ok(plain.clone());
        }
        let (rows, cols) = (weight.info.rows, weight.info.cols);
        let plain = self.queue.storage("numbers of a weight", 4 * (rows * cols) as u64)?;
        for piece in &weight.pieces {
            let constants: Vec<_> =
                weight.constants.iter().copied().chain([("NAMED", 0)]).collect();
            let words = Words::of(&[0, 0, rows, cols, rows, piece.first, piece.channels, 0])
                .and_then(|words| Some(words.sizes(&weight.planes(piece))?.float(1.0)));
            let call = Call {
                kernel: &kernels::EMBED,
                constants: &constants,
                operands: &[Some(&piece.buffer), None, Some(&plain)],
                words,
                grid: folded(rows),
            };
            if let Some(launch) = self.pipelines.launch(&self.queue.fault, call)? {
                self.queue.push(launch);
            }
        }
        self.weights.get_mut(id).plain = Some(plain.clone());
        Ok(plain)
    }

    /// Scratch memory number `number` of at least so many bytes. Whoever was given a smaller one keeps that.
    pub(crate) fn scratch(
        &mut self,
        number: usize,
        bytes: usize,
    ) -> Result<wgpu::Buffer, BackendError> {
        if let Some(buffer) = &self.scratch[number]
            && buffer.size() >= bytes as u64
        {
            return Ok(buffer.clone());
        }
        let most = self.queue.device.limits().max_storage_buffer_binding_size;
        let rounded = (bytes as u64).next_multiple_of(1 << 20);
        let rounded = if rounded > most { bytes as u64 } else { rounded };
        let buffer = self.queue.storage("scratch", rounded)?;
        self.scratch[number] = Some(buffer.clone());
        Ok(buffer)
    }
}
