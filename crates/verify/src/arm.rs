//! The ways in which the same requests are answered again.

use forerun_engine::{Depth, Speculation};

/// Most drafts in a round.
const DEEPEST: usize = 8;
/// What users run: n-gram drafts where it repeats, else from the MTP head.
const CHAIN: Speculation = Speculation { text: true, ..Speculation::mtp(DEEPEST) };
/// The chunk of the baseline.
pub(crate) const CHUNK: usize = 512;

/// Arms that share an engine.
#[derive(Clone, Debug)]
pub(crate) struct ArmGroup {
    pub(crate) speculation: Speculation,
    pub(crate) prefill_chunk: usize,
    pub(crate) arms: Vec<VerifyArm>,
}

/// One row of the table.
#[derive(Clone, Debug)]
pub(crate) struct VerifyArm {
    pub(crate) name: String,
    pub(crate) play: ArmMethod,
}

/// What is done with the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArmMethod {
    /// Each alone.
    Alone(Depth),
    /// All in one batch.
    Together,
    /// A second turn on a kept state.
    Continued(Depth),
    /// The finished texts are scored.
    Scored,
}

impl ArmGroup {
    fn new(speculation: Speculation, prefill_chunk: usize, arms: Vec<VerifyArm>) -> Self {
        Self { speculation, prefill_chunk, arms }
    }

    /// Whether there is nothing to draft with unless the model has an MTP head.
    pub(crate) fn needs_head(&self) -> bool {
        self.speculation.mtp && !self.speculation.text
    }

    /// Whether drafts are made at all.
    pub(crate) fn speculates(&self) -> bool {
        self.speculation != Speculation::OFF
    }
}

/// Every arm, by engine. The first group's engine is also that of the baseline.
pub(crate) fn groups(quick: bool) -> Vec<ArmGroup> {
    let arm = |name: &str, play| VerifyArm { name: name.to_owned(), play };
    let (off, auto) = (Depth::Fixed(0), Depth::Auto);
    let mut groups = vec![ArmGroup::new(
        Speculation::OFF,
        CHUNK,
        vec![
            arm("plain again", ArmMethod::Alone(off)),
            arm("batch, plain", ArmMethod::Together),
            arm("continued, plain", ArmMethod::Continued(off)),
            arm("scored, chunk 512", ArmMethod::Scored),
        ],
    )];
    for chunk in if quick { vec![3] } else { vec![1, 3, 64] } {
        let mut arms = vec![arm(&format!("plain, chunk {chunk}"), ArmMethod::Alone(off))];
        if chunk == 3 {
            arms.push(arm("scored, chunk 3", ArmMethod::Scored));
        }
        groups.push(ArmGroup::new(Speculation::OFF, chunk, arms));
    }
    let depths = if quick { vec![1, 3, DEEPEST] } else { (1..=DEEPEST).collect() };
    let fixed = |n: &usize| arm(&format!("MTP depth {n}"), ArmMethod::Alone(Depth::Fixed(*n)));
    let mut mtp: Vec<VerifyArm> = depths.iter().map(fixed).collect();
    mtp.push(arm("MTP auto", ArmMethod::Alone(auto)));
    groups.push(ArmGroup::new(Speculation::mtp(DEEPEST), CHUNK, mtp));
    let text = vec![arm("n-gram depth 8", ArmMethod::Alone(Depth::Fixed(DEEPEST)))];
    groups.push(ArmGroup::new(Speculation::text(DEEPEST), CHUNK, text));
    let chain = vec![
        arm("n-gram then MTP, auto", ArmMethod::Alone(auto)),
        arm("batch, speculative", ArmMethod::Together),
        arm("continued, speculative", ArmMethod::Continued(Depth::Fixed(3))),
    ];
    groups.push(ArmGroup::new(CHAIN, CHUNK, chain));
    if !quick {
        let small = vec![arm("batch, speculative, chunk 7", ArmMethod::Together)];
        groups.push(ArmGroup::new(CHAIN, 7, small));
    }
    groups
}
