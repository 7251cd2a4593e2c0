//! Checkpoints of other shapes: devices agree, chunks and guesses change nothing.

use crate::common::{ByHand, Device, finish, runner};
use forerun_base::{DType, Token};
use forerun_engine::{Depth, Engine, Request, Settings, Speculation};
use forerun_testkit::tiny::{Experts, Family, Linear, Tiny};
use forerun_testkit::tolerance::{assert_close, assert_same_bits};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

fn shape() -> impl Strategy<Value = Tiny> {
    let trunk = (0usize..6, any::<u64>(), 1usize..5, 1usize..4, 1usize..4, 1usize..4);
    let rest = (1usize..4, 1usize..4, 2usize..6, any::<[bool; 3]>(), 1usize..4, 1usize..6);
    (trunk, rest).prop_map(|((family, seed, layers, kv, group, dim), rest)| {
        let (key_heads, ratio, taps, [tied, mtp, wide], shards, experts) = rest;
        let family = Family::ALL[family];
        Tiny {
            seed,
            // Widths that no tile divides.
            hidden: 40 + 12 * dim,
            layers,
            heads: kv * group,
            kv_heads: kv,
            head_dim: 8 * dim,
            ffn: 72 + layers,
            dense_layers: Vec::new(),
            linear: Linear {
                key_heads,
                value_heads: key_heads * ratio,
                key_dim: 8 + 4 * dim,
                value_dim: 20 - 4 * dim,
                taps,
                interval: 2,
            },
            experts: Experts {
                count: experts + 1,
                top_k: experts.min(3),
                ffn: 24 + dim,
                shared_ffn: 20,
            },
            vocabulary: 101 + layers,
            tied,
            mtp,
            dtype: if wide { DType::F32 } else { DType::BF16 },
            shards,
            ..Tiny::new(family)
        }
    })
}

proptest! {
    // The same shapes every time: against the plain device a close choice of experts may turn.
    #![proptest_config(ProptestConfig {
        cases: 60,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(7),
        ..ProptestConfig::default()
    })]

    #[test]
    fn other_shapes_keep_the_promises(tiny in shape(), cut in 1usize..20) {
        let folder = tempfile::tempdir().expect("a folder");
        tiny.write(folder.path());
        let tokens: Vec<Token> = (0..40u32).map(|i| (i * 31 + 7) % tiny.vocabulary as u32).collect();
        let speculation = Speculation { text: true, ..Speculation::mtp(4) };
        let settings = Settings {
            context: 96,
            prefill_chunk: 40,
            speculation,
            kv: DType::F32,
            ..Settings::default()
        };
        let whole = |device| ByHand::new(runner(folder.path(), device, &settings)).feed(&tokens, 0, 40);
        let tuned = whole(Device::Tuned);
        assert_close("tuned against plain", &whole(Device::Plain), &tuned, 2e-3);
        assert_same_bits("recorded", &tuned, &whole(Device::Recorded));
        let mut pieces = ByHand::new(runner(folder.path(), Device::Tuned, &settings));
        let logits: Vec<f32> =
            tokens.chunks(cut).flat_map(|chunk| pieces.feed(chunk, 0, chunk.len())).collect();
        assert_same_bits("chunks", &tuned, &logits);
        let text = |depth| {
            let mut engine = Engine::new(runner(folder.path(), Device::Tuned, &settings));
            engine.submit(Request { depth, ..Request::greedy(tokens.clone(), 30) }).expect("accepted");
            finish(&mut engine).remove(0).0
        };
        let plain = text(Depth::Fixed(0));
        prop_assert_eq!(&plain, &text(Depth::Fixed(4)));
        prop_assert_eq!(&plain, &text(Depth::Auto));
    }
}
