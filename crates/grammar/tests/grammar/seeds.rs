//! Grammars that once ended the server, made everyone wait or took all memory: the seeds of the fuzz target, each
//! refused or followed, with drafts that lead nowhere and without.

use crate::setup::{Luck, VOCABULARY, grammars, is_done};
use forerun_base::Token;
use forerun_engine::Constraint;
use forerun_grammar::GrammarSource;
use std::path::Path;
use std::time::{Duration, Instant};

fn source(text: &str) -> GrammarSource {
    let (kind, rest) = text.split_once('\n').expect("a kind and a grammar");
    match kind {
        "lark" => GrammarSource::Lark(rest.to_owned()),
        "regex" => GrammarSource::Regex(rest.to_owned()),
        "json" => GrammarSource::JsonSchema(serde_json::from_str(rest).expect("JSON")),
        other => panic!("{other} is no kind of grammar"),
    }
}

fn mask(constraint: &mut dyn Constraint) -> Result<Vec<Token>, String> {
    let mut mask = vec![0; VOCABULARY.div_ceil(32)];
    constraint.mask(&mut mask)?;
    let bit = |t: &Token| (mask[*t as usize / 32] >> (t % 32)) & 1 == 1;
    Ok((0..VOCABULARY as Token).filter(bit).collect())
}

#[test]
fn every_seed_is_refused_or_followed_and_drafts_change_nothing() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/grammar");
    let (mut luck, mut followed, mut refused) = (Luck(5), 0, 0);
    for entry in folder.read_dir().expect("the seeds") {
        let path = entry.expect("a seed").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let source = source(&std::fs::read_to_string(&path).expect("text"));
        let begun = Instant::now();
        let Ok(mut straight) = grammars().compile(&source) else {
            assert!(begun.elapsed() < Duration::from_secs(20), "{name} took {:?}", begun.elapsed());
            refused += 1;
            continue;
        };
        let mut looking = grammars().compile(&source).expect("the same again");
        for _ in 0..40 {
            let known = mask(&mut *straight);
            let mut ahead = 0;
            for _ in 0..luck.below(4) {
                let Ok(all) = mask(&mut *looking) else { break };
                if is_done(&mut *looking) || !looking.take(all[luck.below(all.len())]) {
                    break;
                }
                ahead += 1;
            }
            looking.back(ahead);
            assert_eq!(mask(&mut *looking), known, "{name}");
            let Ok(all) = known else { break };
            let token = all[luck.below(all.len())];
            assert!(straight.take(token), "{name}: {token} was in the mask");
            assert!(looking.take(token), "{name}: {token} was in the mask");
            assert_eq!(is_done(&mut *straight), is_done(&mut *looking), "{name}");
            if is_done(&mut *straight) {
                break;
            }
        }
        followed += 1;
    }
    assert!(followed >= 8 && refused >= 6, "{followed} followed, {refused} refused");
}
