//! The bundled model, its vocabulary and a little luck.

use forerun_backend::Backend;
use forerun_backend_cpu::tuned;
use forerun_base::Token;
use forerun_engine::{Allowed, Constraint, Engine, ModelRunner, Settings, Speculation};
use forerun_grammar::{GrammarSource, Grammars};
use forerun_model::{Blueprint, Model};
use forerun_text::Tokenizer;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// Tokens of the bundled model.
pub(crate) const VOCABULARY: usize = 8192;
/// The tokens that end its answers.
pub(crate) const ENDS: [Token; 2] = [0, 2];

pub(crate) fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/tales-28m")
}

pub(crate) fn tokenizer() -> &'static Tokenizer {
    static ONE: OnceLock<Tokenizer> = OnceLock::new();
    ONE.get_or_init(|| Tokenizer::open(&folder()).expect("the bundled tokenizer"))
}

pub(crate) fn grammars() -> &'static Grammars {
    static ONE: OnceLock<Grammars> = OnceLock::new();
    ONE.get_or_init(|| {
        Grammars::new(tokenizer(), VOCABULARY, &ENDS).expect("the bundled vocabulary")
    })
}

pub(crate) fn engine(sequences: usize, speculation: Speculation) -> Engine<ModelRunner> {
    let blueprint = Blueprint::open(&folder()).expect("the bundled model");
    let mut backend: Box<dyn Backend> = Box::new(tuned(Some(2)));
    let model = Model::load(&blueprint, &mut *backend, &mut |_| {}).expect("the bundled model");
    let settings = Settings { context: 512, sequences, speculation, ..Settings::default() };
    Engine::new(ModelRunner::new(backend, model, &settings).expect("memory"))
}

/// SplitMix64: the same luck on every machine.
pub(crate) struct Luck(pub(crate) u64);

impl Luck {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }

    pub(crate) fn once_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// The tokens that may come next; `None` where any may.
pub(crate) fn allowed(constraint: &mut dyn Constraint) -> Option<Vec<Token>> {
    allowed_of(constraint, VOCABULARY)
}

/// The same of a vocabulary of another size.
pub(crate) fn allowed_of(constraint: &mut dyn Constraint, size: usize) -> Option<Vec<Token>> {
    let mut mask = vec![0; size.div_ceil(32)];
    let said = constraint.mask(&mut mask).expect("a mask");
    let bit = |t: &Token| (mask[*t as usize / 32] >> (t % 32)) & 1 == 1;
    (said == Allowed::Some).then(|| (0..size as Token).filter(bit).collect())
}

/// Whether an answer is whole, however long it takes to know.
pub(crate) fn is_done(constraint: &mut dyn Constraint) -> bool {
    assert!(constraint.ready(Duration::from_secs(60)), "a minute is enough");
    constraint.is_done()
}

/// The text of an answer that takes any of the allowed tokens each time; `None` if it does not end soon.
pub(crate) fn stroll(
    source: &GrammarSource,
    grammars: &Grammars,
    luck: &mut Luck,
) -> Option<String> {
    let tokens = stroll_tokens(source, grammars, luck)?;
    Some(tokenizer().decode(&tokens, true).expect("text"))
}

/// The tokens of such an answer, without the one that ends it.
pub(crate) fn stroll_tokens(
    source: &GrammarSource,
    grammars: &Grammars,
    luck: &mut Luck,
) -> Option<Vec<Token>> {
    let mut constraint = grammars.compile(source).unwrap_or_else(|e| panic!("{source:?}: {e}"));
    let mut tokens = Vec::new();
    while tokens.len() < 400 {
        let all = allowed(&mut *constraint).expect("a grammar always has a say");
        let token = all[luck.below(all.len())];
        assert!(constraint.take(token), "{source:?}: {token} was in the mask");
        if ENDS.contains(&token) {
            break;
        }
        tokens.push(token);
        if is_done(&mut *constraint) {
            break;
        }
    }
    is_done(&mut *constraint).then_some(tokens)
}
