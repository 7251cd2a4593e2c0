//! Every golden checkpoint: logits, greedy text and state as the reference implementations have them.

use crate::common::{Device, engine, finish, remembered, retained, score};
use forerun_base::{DType, LeaseId};
use forerun_engine::{Engine, ModelRunner, Settings};
use forerun_testkit::tolerance::assert_close;
use forerun_testkit::{GOLDENS, Golden};

fn settings(kv: DType) -> Settings {
    Settings { context: 256, prefill_chunk: 48, kv, ..Settings::default() }
}

/// Folders whose closest choice of experts is a tie to within 1e-4: rounding keys to f16 turns it.
const CLOSE_ROUTERS: [&str; 3] = ["gemma4_moe", "gguf_gemma4_moe_q4_0", "mlx_gemma4_moe_8bit"];

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.iter().map(|x| x.to_bits()).eq(b.iter().map(|x| x.to_bits()))
}

#[test]
fn logits_and_greedy_text_match_on_every_device() {
    for name in GOLDENS {
        let golden = Golden::open(name);
        let (prompt, expected) = (golden.tokens("input_ids"), golden.logits());
        let mut whole: Vec<Vec<f32>> = Vec::new();
        for device in Device::ALL {
            for (kv, limit) in [(DType::F32, 2e-3), (DType::F16, 2e-2)] {
                if kv == DType::F16 && CLOSE_ROUTERS.contains(&name) {
                    continue;
                }
                let mut engine = engine(name, device, &settings(kv));
                let scores = score(&mut engine, &expected.text);
                let what = format!("{name} on {device:?}, kv {kv}");
                assert_close(&what, &expected.values, &expected.of(&scores), limit);
                match device {
                    Device::Tuned => whole.push(scores),
                    Device::Cut => {
                        let uncut = whole.remove(0);
                        assert!(same_bits(&scores, &uncut), "{what}: a cut changed bits");
                    }
                    Device::Plain | Device::Recorded => {}
                }
                engine.submit(retained(prompt.clone(), 32)).expect("accepted");
                let (text, _) = finish(&mut engine).remove(0);
                assert_eq!(text, golden.tokens("greedy.ids"), "{what}");
            }
        }
    }
}

#[test]
fn coarser_caches_work() {
    // Dense models only: rounding may turn a close choice of experts.
    for name in ["llama", "qwen3", "qwen3_5", "mlx_qwen3_5_4bit"] {
        let golden = Golden::open(name);
        let expected = golden.logits();
        for device in Device::ALL {
            for (kv, limit) in [(DType::BF16, 0.2), (DType::I8, 0.4)] {
                let all = score(&mut engine(name, device, &settings(kv)), &expected.text);
                let what = format!("{name} on {device:?}, kv {kv}");
                assert_close(&what, &expected.values, &expected.of(&all), limit);
            }
        }
    }
}

#[test]
fn state_matches_after_the_prompt_and_after_the_text() {
    for name in GOLDENS {
        for device in Device::ALL {
            for (tokens, when) in [(1, "state"), (32, "state_end")] {
                let golden = Golden::open(name);
                let mut engine = engine(name, device, &settings(DType::F32));
                engine.submit(retained(golden.tokens("input_ids"), tokens)).expect("accepted");
                finish(&mut engine);
                check_state(&golden, &mut engine, when, &format!("{name} on {device:?}"));
            }
        }
    }
}

fn check_state(golden: &Golden, engine: &mut Engine<ModelRunner>, when: &str, what: &str) {
    let states = engine.states().clone();
    let runner = engine.runner();
    let mut seen = 0;
    for layer in 0..runner.model().spec.layers.len() {
        let parts = remembered(runner, &states, LeaseId(0), layer).parts;
        let parts = parts.into_iter().flat_map(|part| halves(golden, when, layer, part));
        for (part, found) in parts {
            let name = match part {
                // Folders of models with several convolutions number them.
                "conv" if golden.has(&format!("{when}.{layer}.conv.0")) => "conv.0",
                "ngram conv" => "conv.1",
                "ngram tokens" => "conv.2",
                "kv window" => "k",
                "recurrent" if golden.has(&format!("{when}.{layer}.recurrent.0")) => "recurrent.0",
                other => other,
            };
            let name = format!("{when}.{layer}.{name}");
            // Not every folder records every state; what is there is counted below.
            if !golden.has(&name) {
                continue;
            }
            let stored = golden.f32(&name);
            let (expected, found) = match part {
                // One key is its own value, and the library drops none of either.
                "kv window" => {
                    let values = golden.f32(&format!("{when}.{layer}.v"));
                    assert_eq!(values.values, stored.values, "{what}: {name}");
                    seen += 1;
                    newest_keys(&stored.values, &stored.shape, &found)
                }
                "conv" | "ngram conv" => {
                    let kept = found.len() / stored.shape[0];
                    (newest_rows(&stored.values, &stored.shape, kept), found)
                }
                "k" | "v" => newest_keys(&stored.values, &stored.shape, &found),
                _ => (stored.values, found),
            };
            // Values reach about ten; the library against itself scatters by up to 2.4e-4.
            assert_close(&format!("{what}: {name}"), &expected, &found, 2e-3);
            seen += 1;
        }
    }
    let recorded = golden.names().filter(|n| n.starts_with(&format!("{when}."))).count();
    assert_eq!(seen, recorded, "{what}: everything recorded was compared");
}

/// Rows `[rope key | latent]` as the library names their halves: the latent `k`, the rope key `v`.
fn halves(
    golden: &Golden,
    when: &str,
    layer: usize,
    (part, found): (&'static str, Vec<f32>),
) -> Vec<(&'static str, Vec<f32>)> {
    let name = format!("{when}.{layer}.v");
    if part != "latent" || !golden.has(&name) {
        return vec![(part, found)];
    }
    let (rope, latent) = (golden.f32(&name), golden.f32(&format!("{when}.{layer}.k")));
    let (rope, latent) = (rope.shape[2], latent.shape[2]);
    let rows = || found.chunks_exact(rope + latent);
    let latents = rows().flat_map(|row| &row[rope..]).copied().collect();
    vec![("k", latents), ("v", rows().flat_map(|row| &row[..rope]).copied().collect())]
}

/// `[heads, rows, width]` twice, of which both sides may have dropped the oldest rows: the rows both hold.
fn newest_keys(stored: &[f32], shape: &[usize], found: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let [heads, rows, width] = *shape else { panic!("keys have three axes") };
    let both = (rows * width).min(found.len() / heads);
    let newest = |values: &[f32]| {
        let of_head = values.chunks_exact(values.len() / heads);
        of_head.flat_map(|head| &head[head.len() - both..]).copied().collect()
    };
    assert!(both > 0, "nothing to compare");
    (newest(stored), newest(found))
}

/// `[channels, K]`, newest column last, as our `[kept, channels]`.
fn newest_rows(stored: &[f32], shape: &[usize], kept: usize) -> Vec<f32> {
    let [channels, taps] = *shape else { panic!("conv state has two axes") };
    let rows = taps - kept..taps;
    rows.flat_map(|t| (0..channels).map(move |c| stored[c * taps + t])).collect()
}
