//! Masks: rows that may sample only some tokens, beside rows that may sample any.

use super::ConformCase;
use super::sample::{K, SAMPLING_WAYS, SampleInputs, SamplingWay};
use crate::View;
use crate::conform::matrices::{fitting_columns, format_name, typical_formats};
use crate::conform::{ConformStage, Rng};
use crate::op::{HeadSample, Sample, SampleRow};
use forerun_base::{DType, Format};

/// What the masks of a case allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Allows {
    /// Every other token, by chance.
    Half,
    /// Few tokens, one at least.
    Few,
    /// One token.
    One,
    /// Every token.
    All,
    /// The last token alone, which may be no candidate.
    Last,
}

const KINDS: [Allows; 5] = [Allows::Half, Allows::Few, Allows::One, Allows::All, Allows::Last];

/// Rows, candidates, vocabulary: whole words and not, and fewer candidates than tokens.
const SIZES: [(usize, [usize; 2]); 5] =
    [(5, [70, 70]), (1, [1, 1]), (3, [64, 64]), (4, [33, 100]), (3, [1000, 1001])];

pub(super) fn cases() -> Vec<ConformCase> {
    let mut cases = Vec::new();
    for SamplingWay { name, row } in SAMPLING_WAYS {
        for allows in KINDS {
            for (rows, sizes) in SIZES {
                cases.push(sampled(name, row, allows, (rows, sizes)));
            }
        }
    }
    for format in typical_formats() {
        for (rows, sizes) in [(3, [333, 1000]), (7, [1000, 1000]), (70, [600, 600])] {
            let plain = SamplingWay { name: "greedy", row: SampleRow::GREEDY };
            cases.push(head(plain, format, Allows::Few, (rows, sizes)));
        }
    }
    for allows in KINDS {
        for SamplingWay { name, row } in SAMPLING_WAYS {
            let way = SamplingWay { name, row };
            cases.push(head(way, Format::Dense(DType::BF16), allows, (5, [70, 100])));
        }
    }
    cases
}

fn sampled(
    name: &'static str,
    row: SampleRow,
    allows: Allows,
    (rows, [candidates, vocabulary]): (usize, [usize; 2]),
) -> ConformCase {
    let sizes = format!("{name}, masked {allows:?}, {rows} rows of {candidates} of {vocabulary}");
    ConformCase::new("sample", sizes, rows, move |stage| {
        let logits: Vec<f32> =
            stage.rng.values(rows * candidates).iter().map(|v| 6.0 * v).collect();
        let logits = stage.input("logits", &logits)?;
        let choice = MaskCase { row, allows, rows, sizes: [candidates, vocabulary] };
        Ok(choice.over(stage, logits)?.into())
    })
}

fn head(
    SamplingWay { name, row }: SamplingWay,
    format: Format,
    allows: Allows,
    (rows, [candidates, vocabulary]): (usize, [usize; 2]),
) -> ConformCase {
    let of = format_name(format);
    let sizes =
        format!("{name}, masked {allows:?}, {of}, {rows} rows of {candidates} of {vocabulary}");
    ConformCase::new("head_sample", sizes, rows, move |stage| {
        let k = fitting_columns(format, K);
        let weight = stage.matrix([vocabulary, k], format)?;
        let x = stage.random("x", rows * k)?;
        let logits = stage.scratch("logits", rows * candidates)?;
        let choice = MaskCase { row, allows, rows, sizes: [candidates, vocabulary] };
        let sample = choice.over(stage, logits)?;
        Ok(HeadSample { x, weight, cap: Some(30.0), sample }.into())
    })
}

struct MaskCase {
    row: SampleRow,
    allows: Allows,
    rows: usize,
    sizes: [usize; 2],
}

impl MaskCase {
    /// Every third row has no mask; the others have one each, in falling order.
    fn over(
        self,
        stage: &mut ConformStage<'_>,
        logits: View,
    ) -> Result<Sample, crate::BackendError> {
        let Self { row, allows, rows, sizes: [candidates, vocabulary] } = self;
        let SampleInputs { mut words, history, ids } =
            SampleInputs::new(&mut stage.rng, row, rows, vocabulary);
        for (i, words) in words.chunks_exact_mut(SampleRow::WORDS).enumerate() {
            let mask = if i % 3 == 2 { 0 } else { (rows - i) as u32 };
            let row = SampleRow { mask, ..SampleRow::from_words(words) };
            // Plain greedy rows have nothing behind them, which is a path of its own on some devices.
            let plain = row.temperature == 0.0 && !row.has_penalties();
            let row = SampleRow { history_len: if plain { 0 } else { row.history_len }, ..row };
            words.copy_from_slice(&row.words());
        }
        let masks = masks(&mut stage.rng, allows, rows, vocabulary);
        Ok(Sample {
            logits,
            candidates,
            vocabulary,
            rows: stage.indices("rows", &words)?,
            history: stage.indices("history", &history)?,
            ids: stage.indices("ids", &ids)?,
            masks: stage.indices("masks", &masks)?,
            out: stage.chosen("out", rows)?,
        })
    }
}

fn masks(rng: &mut Rng, allows: Allows, count: usize, vocabulary: usize) -> Vec<u32> {
    let wide = Sample::mask_words(vocabulary);
    let mut words = vec![0; count * wide];
    for mask in words.chunks_exact_mut(wide) {
        let mut allow = |token: usize| mask[token / 32] |= 1 << (token % 32);
        match allows {
            Allows::Half => (0..vocabulary).filter(|_| rng.below(2) == 0).for_each(&mut allow),
            Allows::Few => (0..vocabulary).filter(|_| rng.below(40) == 0).for_each(&mut allow),
            Allows::One | Allows::Last => {}
            Allows::All => (0..vocabulary).for_each(&mut allow),
        }
        match allows {
            Allows::Last => allow(vocabulary - 1),
            Allows::All => {}
            Allows::Half | Allows::Few | Allows::One => allow(rng.below(vocabulary)),
        }
    }
    words
}
