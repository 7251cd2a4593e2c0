//! Residuals of several streams, and thresholds of rows.

use super::ConformCase;
use crate::conform::ConformStage;
use crate::op::{CorrectStreams, MatchRms, PredictStreams, Store, Streams, Threshold};
use crate::{BackendError, View};

pub(super) fn cases() -> Vec<ConformCase> {
    let mut cases = Vec::new();
    for rows in [0, 1, 3, 66] {
        // Rows of one number last: of those a part is whole rows, and what tries refusals takes the first cases.
        for dim in [7, 64, 131, 1] {
            for (count, active) in [(1, 0), (3, 1), (4, 0), (Streams::MOST, 7)] {
                cases.push(predict(rows, dim, [count, active]));
                cases.push(correct(rows, dim, [count, active]));
            }
            for store in [Store::Set, Store::Add] {
                cases.push(match_rms(rows, dim, store));
            }
            for deviations in [0.0, 1.2815516] {
                cases.push(threshold(rows, dim, deviations));
            }
        }
    }
    // Rows that several threads or blocks share.
    cases.push(predict(2, 2560, [4, 0]));
    cases.push(correct(2, 2560, [4, 0]));
    cases.push(match_rms(2, 2560, Store::Set));
    cases.push(threshold(2, 9000, 1.5));
    cases
}

/// Streams of random rows, and what the router says of them: beyond ±1, where the tangent bends.
fn streams(
    stage: &mut ConformStage<'_>,
    [rows, dim]: [usize; 2],
    [count, active]: [usize; 2],
) -> Result<(Streams, View), BackendError> {
    const LABELS: [&str; Streams::MOST] = ["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7"];
    let mut views = [None; Streams::MOST];
    for (view, label) in views.iter_mut().zip(LABELS).take(count) {
        let before = stage.rng.values(rows * dim);
        *view = Some(stage.updated(label, &before)?);
    }
    let router: Vec<f32> = stage.rng.values(rows * count).iter().map(|v| 3.0 * v).collect();
    Ok((Streams { views, dim, active }, stage.input("router", &router)?))
}

fn matrix(
    stage: &mut ConformStage<'_>,
    shape: [usize; 2],
) -> Result<crate::WeightId, BackendError> {
    stage.matrix(shape, forerun_base::Format::Dense(forerun_base::DType::F32))
}

fn predict(rows: usize, dim: usize, which: [usize; 2]) -> ConformCase {
    let name = format!("{rows} rows of {dim}, {} streams, active {}", which[0], which[1]);
    ConformCase::new("predict_streams", name, rows, move |stage| {
        let (streams, router) = streams(stage, [rows, dim], which)?;
        let count = which[0];
        let weight = matrix(stage, [count * count, count])?;
        let out = stage.output("out", rows * dim)?;
        Ok(PredictStreams { streams, router, weight, out }.into())
    })
}

fn correct(rows: usize, dim: usize, which: [usize; 2]) -> ConformCase {
    let scaled = which[0].is_multiple_of(2);
    let scale = if scaled { "scaled" } else { "not scaled" };
    let name = format!("{rows} rows of {dim}, {} streams, active {}, {scale}", which[0], which[1]);
    ConformCase::new("correct_streams", name, rows, move |stage| {
        let (streams, router) = streams(stage, [rows, dim], which)?;
        let x = stage.random("x", rows * dim)?;
        let weight = matrix(stage, [which[0]; 2])?;
        let scale = if scaled { Some(stage.norm_weight(dim)?) } else { None };
        let out = stage.output("out", rows * dim)?;
        Ok(CorrectStreams { streams, x, router, weight, scale, out }.into())
    })
}

/// A third of the rows of `x` are so small that the floor holds.
fn match_rms(rows: usize, dim: usize, store: Store) -> ConformCase {
    let name = format!("{rows} rows of {dim}, {store:?}");
    ConformCase::new("match_rms", name, rows, move |stage| {
        let mut x = stage.rng.values(rows * dim);
        for row in x.chunks_exact_mut(dim).step_by(3) {
            row.iter_mut().for_each(|x| *x *= 1e-4);
        }
        let x = stage.input("x", &x)?;
        let like = stage.random("like", rows * dim)?;
        let out = match store {
            Store::Set => stage.output("out", rows * dim)?,
            Store::Add => {
                let before = stage.rng.values(rows * dim);
                stage.updated("out", &before)?
            }
        };
        Ok(MatchRms { x, like, out, dim, floor: 1e-5, scale: 0.25, store }.into())
    })
}

fn threshold(rows: usize, dim: usize, deviations: f32) -> ConformCase {
    let name = format!("{rows} rows of {dim}, {deviations} deviations");
    ConformCase::new("threshold", name, rows, move |stage| {
        // Far from zero, so that a mean of squares less the square of the mean would have lost most of its digits.
        let before: Vec<f32> = stage.rng.values(rows * dim).iter().map(|x| x + 3.0).collect();
        let x = stage.updated("x", &before)?;
        Ok(Threshold { x, dim, deviations }.into())
    })
}
