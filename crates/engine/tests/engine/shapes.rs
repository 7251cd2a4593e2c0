//! Checkpoints of other shapes: devices agree, chunks and drafts change nothing.

use crate::common::{ByHand, Device, babble, built, finish};
use forerun_base::DType;
use forerun_engine::{Depth, Engine, Request, Settings, Speculation};
use forerun_model::Blueprint;
use forerun_testkit::tiny::{Family, Gemma, Tiny, TinyAssistant, TinyExperts, TinyLinear};
use forerun_testkit::tolerance::{assert_close, assert_same_bits};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Clusters of a separate drafter's vocabulary.
const CLUSTERS: usize = 12;

/// A model, and a separate drafter where it has one.
#[derive(Clone, Debug)]
struct ModelShape {
    tiny: Tiny,
    drafter: Option<TinyAssistant>,
}

fn tiny(families: &'static [Family]) -> impl Strategy<Value = Tiny> {
    let trunk = (0..families.len(), any::<u64>(), 1usize..5, 1usize..4, 1usize..4, 1usize..4);
    let rest = (1usize..4, 1usize..4, 2usize..6, any::<[bool; 3]>(), 1usize..4, 1usize..6);
    (trunk, rest).prop_map(|((family, seed, layers, kv, group, dim), rest)| {
        let (key_heads, ratio, taps, [tied, mtp, wide], shards, experts) = rest;
        let family = families[family];
        Tiny {
            seed,
            // Widths that no tile divides. The channels of Granite's Mamba-2 expand the stream.
            hidden: match family {
                Family::Granite => key_heads * ratio * (20 - 4 * dim),
                _ => 40 + 12 * dim,
            },
            layers,
            heads: kv * group,
            kv_heads: kv,
            head_dim: 8 * dim,
            ffn: 72 + layers,
            dense_layers: Vec::new(),
            conv_bias: mtp,
            linear: TinyLinear {
                key_heads,
                value_heads: key_heads * ratio,
                key_dim: 8 + 4 * dim,
                value_dim: 20 - 4 * dim,
                taps,
                interval: 2,
            },
            experts: TinyExperts {
                count: experts + 1,
                top_k: experts.min(3),
                ffn: 24 + dim,
                shared_ffn: 20,
            },
            vocabulary: if family.is_gemma() { CLUSTERS * (7 + layers) } else { 101 + layers },
            tied: tied || family.is_gemma(),
            mtp,
            dtype: if wide { DType::F32 } else { DType::BF16 },
            shards,
            ..Tiny::new(family)
        }
    })
}

/// What a Gemma model adds; for others it is drawn and not looked at.
fn shape(families: &'static [Family]) -> impl Strategy<Value = ModelShape> {
    let windows = (5usize..40, any::<[bool; 5]>(), 0usize..4, 0usize..3, 1usize..4);
    let rest = (any::<[bool; 6]>(), 1usize..5);
    (tiny(families), windows, rest).prop_map(|(tiny, windows, rest)| {
        let (window, whole, sharing, keys, dim) = windows;
        let ([capped, wide, per_layer, experts, drafted, clustered], best) = rest;
        let mut kinds = whole[..tiny.layers].to_vec();
        // The last layer of Gemma 4 sees everything whatever its config says.
        kinds[tiny.layers - 1] |= tiny.family == Family::Gemma4;
        // A layer can only share with an earlier one of its kind that has keys.
        let fits = |n: &usize| {
            let (own, sharing) = kinds.split_at(tiny.layers - n);
            sharing.iter().all(|kind| own.contains(kind))
        };
        let sharing = (0..=sharing.min(tiny.layers - 1)).rev().find(fits).unwrap_or(0);
        let own = &kinds[..tiny.layers - sharing];
        let gemma = Gemma {
            window,
            whole: (0..tiny.layers).filter(|&i| kinds[i]).collect(),
            cap: capped.then_some(20.0),
            query_scalar: 9.0 + window as f64,
            rope_factor: wide.then_some(8.0),
            whole_head_dim: 8 * dim,
            keys_as_values: [None, Some(1), Some(tiny.heads)][keys],
            sharing,
            double_wide: wide,
            per_layer: if per_layer { 4 + 3 * dim } else { 0 },
            experts,
        };
        // The drafter has a layer of each kind that the model has keys of.
        let whole = [true, false].iter().filter(|&kind| own.contains(kind)).count();
        let first_whole = usize::from(own.contains(&false));
        let drafter = TinyAssistant {
            hidden: 28,
            layers: whole,
            whole: (first_whole..whole).collect(),
            ffn: 50,
            clusters: clustered.then_some((CLUSTERS, best)),
        };
        let drafted = drafted && tiny.family == Family::Gemma4;
        ModelShape { tiny: Tiny { gemma, ..tiny }, drafter: drafted.then_some(drafter) }
    })
}

/// The promises over a text of `len` tokens, of which `cut` are fed at a time in one of the ways.
fn keeps_the_promises(shape: &ModelShape, len: usize, cut: usize, settings: Settings) {
    let folder = tempfile::tempdir().expect("a folder");
    let beside = tempfile::tempdir().expect("a folder");
    shape.tiny.write(folder.path());
    let mut blueprint = Blueprint::open(folder.path()).expect("a model");
    if let Some(drafter) = &shape.drafter {
        drafter.write(&shape.tiny, beside.path());
        blueprint.attach_drafter(beside.path()).expect("a fitting drafter");
    }
    let tokens = babble(len, shape.tiny.vocabulary);
    let by_chunks = |device, settings: &Settings, cut: usize| -> Vec<f32> {
        let mut by_hand = ByHand::new(built(&blueprint, device, settings));
        tokens.chunks(cut).flat_map(|chunk| by_hand.feed(chunk, 0, chunk.len())).collect()
    };
    let chunk = settings.prefill_chunk;
    let tuned = by_chunks(Device::Tuned, &settings, chunk);
    let plain = by_chunks(Device::Plain, &settings, chunk);
    assert_close("tuned against plain", &plain, &tuned, 2e-3);
    assert_same_bits("recorded", &tuned, &by_chunks(Device::Recorded, &settings, chunk));
    assert_same_bits("cut", &tuned, &by_chunks(Device::Cut, &settings, chunk));
    assert_same_bits("chunks", &tuned, &by_chunks(Device::Tuned, &settings, cut));
    let at_once = Settings { prefill_chunk: len, ..settings };
    assert_same_bits("at once", &tuned, &by_chunks(Device::Tuned, &at_once, len));
    let text = |depth| {
        let mut engine = Engine::new(built(&blueprint, Device::Tuned, &settings));
        if shape.drafter.is_some() {
            assert_eq!(engine.speculation_off(), None, "an attached drafter drafts");
        }
        engine.submit(Request { depth, ..Request::greedy(tokens.clone(), 30) }).expect("accepted");
        finish(&mut engine).remove(0).0
    };
    let plain = text(Depth::Fixed(0));
    assert_eq!(plain, text(Depth::Fixed(4)));
    assert_eq!(plain, text(Depth::Auto));
}

fn settings(context: usize, prefill_chunk: usize) -> Settings {
    let speculation = Speculation { text: true, ..Speculation::mtp(4) };
    Settings { context, prefill_chunk, speculation, kv: DType::F32, ..Settings::default() }
}

/// The same shapes every time: against the plain device a close choice of experts may turn.
fn fixed(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(7),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(fixed(80))]

    #[test]
    fn other_shapes_keep_the_promises(shape in shape(&Family::ALL), cut in 1usize..20) {
        keeps_the_promises(&shape, 40, cut, settings(96, 40));
    }
}

proptest! {
    #![proptest_config(fixed(12))]

    /// Texts of several rings: two or three blocks where the context has eight.
    #[test]
    fn other_shapes_keep_the_promises_beyond_their_rings(
        shape in shape(&[Family::Gemma3, Family::Gemma4]),
        cut in 1usize..40,
        chunk in 40usize..90,
    ) {
        keeps_the_promises(&shape, 300, cut, settings(512, chunk));
    }
}
