//! Sampling: ties, each filter alone and together, penalties, bias, history and the span's tokens.

use super::ConformCase;
use crate::conform::matrices::{fitting_columns, format_name, typical_formats};
use crate::conform::{ConformStage, Rng};
use crate::op::{HeadSample, HistoryEntry, Sample, SampleRow};
use crate::{BackendError, Op, View, WeightId};
use forerun_base::{DType, Format};

/// One way to sample; a case runs it over several rows with different logits and positions.
pub(super) struct SamplingWay {
    pub(super) name: &'static str,
    pub(super) row: SampleRow,
}

const HOT: SampleRow =
    SampleRow { temperature: 0.8, seed: 0x1234_5678_9abc_def0, ..SampleRow::GREEDY };

pub(super) const SAMPLING_WAYS: [SamplingWay; 12] = [
    SamplingWay { name: "greedy", row: SampleRow::GREEDY },
    SamplingWay { name: "plain", row: HOT },
    SamplingWay { name: "very hot", row: SampleRow { temperature: 30.0, ..HOT } },
    SamplingWay { name: "top 1", row: SampleRow { top_k: 1, ..HOT } },
    SamplingWay { name: "top 5", row: SampleRow { top_k: 5, ..HOT } },
    SamplingWay { name: "top k beyond all", row: SampleRow { top_k: 100_000, ..HOT } },
    SamplingWay { name: "top p", row: SampleRow { top_p: 0.6, ..HOT } },
    SamplingWay { name: "tiny top p", row: SampleRow { top_p: 1e-6, ..HOT } },
    SamplingWay { name: "min p", row: SampleRow { min_p: 0.2, ..HOT } },
    SamplingWay { name: "all", row: SampleRow { top_k: 9, top_p: 0.9, min_p: 0.05, ..HOT } },
    SamplingWay {
        name: "greedy with penalties",
        row: SampleRow { repetition: 1.7, presence: 0.9, frequency: 0.4, ..SampleRow::GREEDY },
    },
    SamplingWay {
        name: "all with penalties",
        row: SampleRow {
            top_k: 9,
            top_p: 0.9,
            min_p: 0.05,
            repetition: 1.3,
            presence: 0.5,
            frequency: 0.2,
            ..HOT
        },
    },
];

pub(super) fn cases() -> Vec<ConformCase> {
    let mut cases = Vec::new();
    for SamplingWay { name, row } in SAMPLING_WAYS {
        for (rows, vocabulary) in [(1, 1), (5, 33), (3, 1000), (0, 7)] {
            cases.push(sampled(name, row, rows, Sizes::all(vocabulary)));
        }
        // Histories and spans name tokens that are no candidates.
        for (rows, candidates, vocabulary) in [(4, 1, 9), (5, 12, 33), (3, 500, 1000)] {
            cases.push(sampled(name, row, rows, Sizes { candidates, vocabulary }));
        }
    }
    cases.push(sampled("plain", HOT, 66, Sizes::all(40)));
    cases.push(greedy_ties());
    cases.extend(SAMPLING_WAYS.map(|SamplingWay { name, row }| without_numbers(name, row)));
    cases.extend([false, true].map(heads_without_numbers));
    cases.push(drafts_see_the_tokens_before_them());
    cases.extend(heads());
    cases
}

/// Tokens that have logits, the first ones of a vocabulary.
#[derive(Clone, Copy)]
struct Sizes {
    candidates: usize,
    vocabulary: usize,
}

impl Sizes {
    const fn all(vocabulary: usize) -> Self {
        Self { candidates: vocabulary, vocabulary }
    }
}

/// Rows of logits for the first `candidates` tokens of a vocabulary.
fn sampled(
    name: &str,
    row: SampleRow,
    rows: usize,
    Sizes { candidates, vocabulary }: Sizes,
) -> ConformCase {
    let sizes = format!("{name}, {rows} rows of {candidates} of {vocabulary}");
    ConformCase::new("sample", sizes, rows, move |stage| {
        let logits: Vec<f32> =
            stage.rng.values(rows * candidates).iter().map(|v| 6.0 * v).collect();
        let SampleInputs { words, history, ids } =
            SampleInputs::new(&mut stage.rng, row, rows, vocabulary);
        Ok(Sample {
            logits: stage.input("logits", &logits)?,
            candidates,
            vocabulary,
            rows: stage.indices("rows", &words)?,
            history: stage.indices("history", &history)?,
            ids: stage.indices("ids", &ids)?,
            masks: stage.indices("masks", &[])?,
            out: stage.chosen("out", rows)?,
        }
        .into())
    })
}

/// How rows are sampled and what they point into.
pub(super) struct SampleInputs {
    pub(super) words: Vec<u32>,
    pub(super) history: Vec<u32>,
    pub(super) ids: Vec<u32>,
}

impl SampleInputs {
    /// Each row has a history of its own, so a row that reads another's shows.
    pub(super) fn new(rng: &mut Rng, row: SampleRow, rows: usize, vocabulary: usize) -> Self {
        const EACH: usize = 3;
        let mut history = Vec::new();
        let mut ids = vec![0; rows + 4];
        ids.iter_mut().for_each(|id| *id = rng.below(vocabulary) as u32);
        let mut words = Vec::new();
        for i in 0..rows {
            for j in 0..EACH {
                let generated = rng.below(4) as u32;
                let token = ((i + j * 7) % vocabulary) as u32;
                let bias = 2.0 * rng.signed();
                let seen = generated > 0 || rng.below(2) == 0;
                history.push(HistoryEntry { token, seen, generated, bias });
            }
            words.extend(
                SampleRow {
                    position: 10 + i as u32,
                    history_first: (i * EACH) as u32,
                    // One entry per token is what a history promises.
                    history_len: EACH.min(vocabulary) as u32,
                    ids_first: i as u32,
                    ids_len: 4,
                    ids_prompt: 1,
                    ..row
                }
                .words(),
            );
        }
        let history = history.into_iter().flat_map(HistoryEntry::words).collect();
        Self { words, history, ids }
    }
}

fn greedy_ties() -> ConformCase {
    const LOGITS: [[f32; 5]; 4] = [
        [1.0; 5],
        [0.0, 3.0, 1.0, 3.0, 3.0],
        [-5.0, -4.0, -6.0, -4.0, -5.0],
        [f32::NEG_INFINITY, f32::NEG_INFINITY, 0.0, 0.0, f32::NEG_INFINITY],
    ];
    ConformCase::new("sample", "greedy ties", LOGITS.len(), |stage| {
        let words: Vec<u32> = LOGITS.iter().flat_map(|_| SampleRow::GREEDY.words()).collect();
        Ok(Sample {
            logits: stage.input("logits", LOGITS.as_flattened())?,
            candidates: 5,
            vocabulary: 5,
            rows: stage.indices("rows", &words)?,
            history: stage.indices("history", &[])?,
            ids: stage.indices("ids", &[])?,
            masks: stage.indices("masks", &[])?,
            out: stage.chosen("out", LOGITS.len())?,
        }
        .into())
    })
}

/// Rows in which some logits are not numbers, or all: what is none cannot be sampled.
fn without_numbers(name: &str, row: SampleRow) -> ConformCase {
    let (rows, vocabulary) = (6, 50);
    let name = format!("{name}, {rows} rows that are not all numbers");
    ConformCase::new("sample", name, rows, move |stage| {
        let mut logits: Vec<f32> = stage.rng.values(rows * vocabulary);
        for (i, logits) in logits.chunks_exact_mut(vocabulary).enumerate() {
            // None, every third, all but the last, all; minus infinity alone, and beside such.
            let spoils =
                |t: usize| [false, t.is_multiple_of(3), t < vocabulary - 1, true][i.min(3)];
            let number = if i == 4 { f32::NEG_INFINITY } else { f32::NAN };
            let spoiled = logits.iter_mut().enumerate().filter(|(t, _)| spoils(*t));
            spoiled.for_each(|(_, logit)| *logit = number);
            if i == 5 {
                logits[7] = f32::NEG_INFINITY;
            }
        }
        let SampleInputs { words, history, ids } =
            SampleInputs::new(&mut stage.rng, row, rows, vocabulary);
        Ok(Sample {
            logits: stage.input("logits", &logits)?,
            candidates: vocabulary,
            vocabulary,
            rows: stage.indices("rows", &words)?,
            history: stage.indices("history", &history)?,
            ids: stage.indices("ids", &ids)?,
            masks: stage.indices("masks", &[])?,
            out: stage.chosen("out", rows)?,
        }
        .into())
    })
}

/// Heads over rows that hold an infinity or what is not a number, beside others.
fn heads_without_numbers(integers: bool) -> ConformCase {
    let (rows, vocabulary) = (5, 1000);
    let format = if integers { typical_formats()[2] } else { Format::Dense(DType::BF16) };
    let name = format!("{}, {rows} rows that are not all numbers", format_name(format));
    ConformCase::new("head_sample", name, rows, move |stage| {
        let k = fitting_columns(format, K);
        let weight = stage.matrix([vocabulary, k], format)?;
        let mut x = stage.rng.values(rows * k);
        x[k + 3] = f32::NAN;
        x[4 * k..].fill(f32::NAN);
        let x = stage.input("x", &x)?;
        plain_greedy(stage, (x, rows), weight, Sizes::all(vocabulary), None)
    })
}

/// Heads with their choice: plain greedy, where logits need not be kept, and others.
fn heads() -> Vec<ConformCase> {
    let mut cases = Vec::new();
    for format in typical_formats() {
        for (rows, candidates, vocabulary) in
            [(1, 40, 40), (3, 1000, 1000), (7, 333, 1000), (0, 7, 9)]
        {
            for cap in [None, Some(30.0)] {
                cases.push(head(format, rows, Sizes { candidates, vocabulary }, cap));
            }
        }
        cases.push(head(format, 70, Sizes::all(600), None));
    }
    cases.push(tied_head(1, Sizes::all(2000)));
    cases.push(tied_head(5, Sizes { candidates: 1501, vocabulary: 2000 }));
    for SamplingWay { name, row } in SAMPLING_WAYS {
        cases.push(unlike_head(name, row));
    }
    cases
}

/// Columns of these heads.
pub(super) const K: usize = 96;

fn head(
    format: Format,
    rows: usize,
    Sizes { candidates, vocabulary }: Sizes,
    cap: Option<f32>,
) -> ConformCase {
    let capped = if cap.is_some() { ", capped" } else { "" };
    let of = format_name(format);
    let name = format!("{of}, {rows} rows of {candidates} of {vocabulary}{capped}");
    ConformCase::new("head_sample", name, rows, move |stage| {
        let k = fitting_columns(format, K);
        let weight = stage.matrix([vocabulary, k], format)?;
        let x = stage.random("x", rows * k)?;
        plain_greedy(stage, (x, rows), weight, Sizes { candidates, vocabulary }, cap)
    })
}

/// Eight different rows over and over, so that every maximum is a tie.
fn tied_head(rows: usize, Sizes { candidates, vocabulary }: Sizes) -> ConformCase {
    let name = format!("ties, {rows} rows of {candidates} of {vocabulary}");
    ConformCase::new("head_sample", name, rows, move |stage| {
        let few = stage.rng.values(8 * K);
        let all: Vec<f32> = few.iter().copied().cycle().take(vocabulary * K).collect();
        let weight = stage.table([vocabulary, K], &all)?;
        let x = stage.random("x", rows * K)?;
        plain_greedy(stage, (x, rows), weight, Sizes { candidates, vocabulary }, None)
    })
}

fn plain_greedy(
    stage: &mut ConformStage<'_>,
    (x, rows): (View, usize),
    weight: WeightId,
    Sizes { candidates, vocabulary }: Sizes,
    cap: Option<f32>,
) -> Result<Op, BackendError> {
    let words: Vec<u32> = (0..rows).flat_map(|_| SampleRow::GREEDY.words()).collect();
    let sample = Sample {
        logits: stage.scratch("logits", rows * candidates)?,
        candidates,
        vocabulary,
        rows: stage.indices("rows", &words)?,
        history: stage.indices("history", &[])?,
        ids: stage.indices("ids", &[])?,
        masks: stage.indices("masks", &[])?,
        out: stage.chosen("out", rows)?,
    };
    Ok(HeadSample { x, weight, cap, sample }.into())
}

/// Rows of all kinds: every other one is plain greedy.
fn unlike_head(name: &str, row: SampleRow) -> ConformCase {
    let (rows, candidates, vocabulary) = (5, 70, 100);
    let name = format!("{name} beside plain greedy, {rows} rows of {candidates} of {vocabulary}");
    ConformCase::new("head_sample", name, rows, move |stage| {
        let weight = stage.matrix([vocabulary, K], Format::Dense(DType::BF16))?;
        let SampleInputs { mut words, history, ids } =
            SampleInputs::new(&mut stage.rng, row, rows, vocabulary);
        for plain in words.chunks_exact_mut(SampleRow::WORDS).skip(1).step_by(2) {
            plain.copy_from_slice(&SampleRow::GREEDY.words());
        }
        let sample = Sample {
            logits: stage.scratch("logits", rows * candidates)?,
            candidates,
            vocabulary,
            rows: stage.indices("rows", &words)?,
            history: stage.indices("history", &history)?,
            ids: stage.indices("ids", &ids)?,
            masks: stage.indices("masks", &[])?,
            out: stage.chosen("out", rows)?,
        };
        Ok(HeadSample { x: stage.random("x", rows * K)?, weight, cap: None, sample }.into())
    })
}

/// Flat logits and strong penalties: each row of a span avoids exactly the tokens up to it.
fn drafts_see_the_tokens_before_them() -> ConformCase {
    const IDS: [u32; 5] = [0, 1, 1, 2, 3];
    ConformCase::new("sample", "span tokens", IDS.len(), |stage| {
        let vocabulary = 8;
        let row = SampleRow { repetition: 2.0, presence: 1.0, frequency: 0.5, ..SampleRow::GREEDY };
        let words: Vec<u32> = (1..=IDS.len() as u32)
            .flat_map(|ids_len| SampleRow { ids_len, ids_prompt: 2, ..row }.words())
            .collect();
        // Falling slowly, so without penalties every row would sample token 0.
        let line: Vec<f32> = (0..vocabulary).map(|t| 2.0 - 0.01 * t as f32).collect();
        Ok(Sample {
            logits: stage.input("logits", &line.repeat(IDS.len()))?,
            candidates: vocabulary,
            vocabulary,
            rows: stage.indices("rows", &words)?,
            history: stage.indices("history", &[])?,
            ids: stage.indices("ids", &IDS)?,
            masks: stage.indices("masks", &[])?,
            out: stage.chosen("out", IDS.len())?,
        }
        .into())
    })
}
