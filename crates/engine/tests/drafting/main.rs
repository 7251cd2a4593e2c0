//! Draft depths over recordings: `auto` against every fixed depth, on an engine whose device is a recording.
//!
//! No clock is read: times are those of the recording, so the outcome is the same on every machine.

mod replay;
mod trace;

use forerun_engine::Depth;
use replay::{DEPTH, engine, seconds};
use std::sync::Arc;
use trace::{Costs, TracedText, texts};

/// What `auto` may lose against the best fixed depth.
const LEAST: f64 = 0.70;

const TEXTS: &str = include_str!("traces/tales-28m.json");
const COSTS: [&str; 7] = [
    include_str!("traces/epyc-2-threads.json"),
    include_str!("traces/h200-27b.json"),
    include_str!("traces/h200-35b-a3b.json"),
    include_str!("traces/bytes-30b-a3b.json"),
    include_str!("traces/metal-27b.json"),
    include_str!("traces/cuda-27b-q4.json"),
    include_str!("traces/stairs.json"),
];

fn recorded() -> (Vec<Arc<TracedText>>, Vec<Arc<Costs>>) {
    let texts = texts(TEXTS).into_iter().map(Arc::new).collect();
    (texts, COSTS.iter().map(|json| Arc::new(Costs::new(json))).collect())
}

/// How `auto` does against the best fixed depth, and which that is.
fn against_best(costs: &Arc<Costs>, batch: &[Arc<TracedText>]) -> (f64, usize, Vec<f64>) {
    let of = |depth| seconds(&mut engine(costs, batch.len()), batch, depth);
    let fixed: Vec<f64> = (0..=DEPTH).map(|depth| of(Depth::Fixed(depth))).collect();
    let best = (0..=DEPTH).min_by(|&a, &b| fixed[a].total_cmp(&fixed[b])).expect("depths");
    let gains = fixed.iter().map(|seconds| fixed[0] / seconds).collect();
    (fixed[best] / of(Depth::Auto), best, gains)
}

#[test]
fn auto_is_about_as_fast_as_the_best_fixed_depth_on_every_recording() {
    let (texts, devices) = recorded();
    let mut slow = Vec::new();
    for costs in &devices {
        let alone = texts.iter().map(|text| vec![Arc::clone(text)]);
        let four = texts.windows(4).step_by(3).map(<[_]>::to_vec);
        let sixteen = [texts.iter().cycle().take(16).cloned().collect()];
        for batch in alone.chain(four).chain(sixteen).filter(|batch| costs.knows(batch.len())) {
            let (share, best, gains) = against_best(costs, &batch);
            let label = &batch[0].label;
            let line = format!(
                "{share:.3} of depth {best}, {} sequences, {label}, {}: {gains:.2?}",
                batch.len(),
                costs.device
            );
            println!("{line}");
            if share < LEAST {
                slow.push(line);
            }
        }
    }
    assert!(slow.is_empty(), "{} recordings below {LEAST}:\n{}", slow.len(), slow.join("\n"));
}
