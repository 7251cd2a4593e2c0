//! Residuals of several streams, and thresholds: `streams.cu`.

use super::Done;
use crate::cuda::Device;
use crate::driver::{Address, Args};
use crate::kernels::STREAMS;
use forerun_backend::op::{CorrectStreams, MatchRms, PredictStreams, Store, Streams, Threshold};

/// A block for each of `rows` rows.
fn each(device: &mut Device, name: &'static str, rows: usize, args: &Args) -> Done {
    device.queue.run((&STREAMS, name), [rows, 1, 1], 256, args)
}

fn streams(device: &Device, streams: &Streams, scaled: bool) -> Args {
    let at = |view: &Option<_>| view.map_or(Address::NULL, |view| device.memory.at(view));
    let args = streams.views.iter().fold(Args::new(), |args, view| args.with(at(view)));
    args.size(streams.count()).size(streams.active).size(streams.dim).with(u32::from(scaled))
}

pub(crate) fn predict_streams(device: &mut Device, op: PredictStreams) -> Done {
    let args = streams(device, &op.streams, false)
        .with(device.memory.at(op.router))
        .with(device.weights.small("predict_streams", op.weight)?)
        .with(device.memory.at(op.out));
    each(device, "predict_streams", op.out.len / op.streams.dim, &args)
}

pub(crate) fn correct_streams(device: &mut Device, op: CorrectStreams) -> Done {
    let weight = |id| device.weights.small("correct_streams", id);
    let scale = op.scale.map(weight).transpose()?.unwrap_or(Address::NULL);
    let args = streams(device, &op.streams, op.scale.is_some())
        .with(device.memory.at(op.x))
        .with(device.memory.at(op.router))
        .with(weight(op.weight)?)
        .with(scale)
        .with(device.memory.at(op.out));
    each(device, "correct_streams", op.out.len / op.streams.dim, &args)
}

pub(crate) fn match_rms(device: &mut Device, op: MatchRms) -> Done {
    let args = Args::new()
        .with(device.memory.at(op.x))
        .with(device.memory.at(op.like))
        .with(device.memory.at(op.out))
        .size(op.dim)
        .with(u32::from(op.store == Store::Add))
        .with(op.floor)
        .with(op.scale);
    each(device, "match_rms", op.x.len / op.dim, &args)
}

pub(crate) fn threshold(device: &mut Device, op: Threshold) -> Done {
    let args = Args::new().with(device.memory.at(op.x)).size(op.dim).with(op.deviations);
    each(device, "threshold", op.x.len / op.dim, &args)
}
