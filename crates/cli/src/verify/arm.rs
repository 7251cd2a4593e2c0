//! The ways in which the same requests are answered again.

use forerun_engine::{Depth, Speculation};

/// Most drafts in a round.
const DEEPEST: usize = 8;
/// What users run: n-gram drafts where it repeats, else from the MTP head.
const CHAIN: Speculation = Speculation { text: true, ..Speculation::mtp(DEEPEST) };
/// The chunk of the baseline.
pub(super) const CHUNK: usize = 512;

/// Arms that share an engine.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) speculation: Speculation,
    pub(super) prefill_chunk: usize,
    pub(super) arms: Vec<Arm>,
}

/// One row of the table.
#[derive(Clone, Debug)]
pub(super) struct Arm {
    pub(super) name: String,
    pub(super) play: Play,
}

/// What is done with the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Play {
    /// Each alone.
    Alone(Depth),
    /// All in one batch.
    Together,
    /// A second turn on a kept state.
    Continued(Depth),
    /// The finished texts are scored.
    Scored,
}

impl Group {
    fn new(speculation: Speculation, prefill_chunk: usize, arms: Vec<Arm>) -> Self {
        Self { speculation, prefill_chunk, arms }
    }

    /// Whether there is nothing to draft with unless the model has an MTP head.
    pub(super) fn needs_head(&self) -> bool {
        self.speculation.mtp && !self.speculation.text
    }

    /// Whether drafts are made at all.
    pub(super) fn speculates(&self) -> bool {
        self.speculation != Speculation::OFF
    }
}

/// Every arm, by engine. The first group's engine is also that of the baseline.
pub(super) fn groups(quick: bool) -> Vec<Group> {
    let arm = |name: &str, play| Arm { name: name.to_owned(), play };
    let (off, auto) = (Depth::Fixed(0), Depth::Auto);
    let mut groups = vec![Group::new(
        Speculation::OFF,
        CHUNK,
        vec![
            arm("plain again", Play::Alone(off)),
            arm("batch, plain", Play::Together),
            arm("continued, plain", Play::Continued(off)),
            arm("scored, chunk 512", Play::Scored),
        ],
    )];
    for chunk in if quick { vec![3] } else { vec![1, 3, 64] } {
        let mut arms = vec![arm(&format!("plain, chunk {chunk}"), Play::Alone(off))];
        if chunk == 3 {
            arms.push(arm("scored, chunk 3", Play::Scored));
        }
        groups.push(Group::new(Speculation::OFF, chunk, arms));
    }
    let depths = if quick { vec![1, 3, DEEPEST] } else { (1..=DEEPEST).collect() };
    let fixed = |n: &usize| arm(&format!("MTP depth {n}"), Play::Alone(Depth::Fixed(*n)));
    let mut mtp: Vec<Arm> = depths.iter().map(fixed).collect();
    mtp.push(arm("MTP auto", Play::Alone(auto)));
    groups.push(Group::new(Speculation::mtp(DEEPEST), CHUNK, mtp));
    let text = vec![arm("n-gram depth 8", Play::Alone(Depth::Fixed(DEEPEST)))];
    groups.push(Group::new(Speculation::text(DEEPEST), CHUNK, text));
    let chain = vec![
        arm("n-gram then MTP, auto", Play::Alone(auto)),
        arm("batch, speculative", Play::Together),
        arm("continued, speculative", Play::Continued(Depth::Fixed(3))),
    ];
    groups.push(Group::new(CHAIN, CHUNK, chain));
    if !quick {
        let small = vec![arm("batch, speculative, chunk 7", Play::Together)];
        groups.push(Group::new(CHAIN, 7, small));
    }
    groups
}
