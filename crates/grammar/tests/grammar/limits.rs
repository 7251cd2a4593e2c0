//! What a grammar may cost: the same whatever was looked at before, and told.

use crate::schemas::schema;
use crate::setup::{Luck, VOCABULARY, engine, folder, grammars, is_done, tokenizer};
use forerun_base::Token;
use forerun_engine::{Allowed, Depth, Event, Request, Sampling, Speculation};
use forerun_grammar::{GrammarError, GrammarSource, Grammars};
use serde_json::json;
use std::time::{Duration, Instant};

fn refused(source: GrammarSource) -> String {
    let name: String = format!("{source:?}").chars().take(80).collect();
    let begun = Instant::now();
    let said = match grammars().compile(&source) {
        Ok(_) => panic!("{name} compiles"),
        Err(error) => error.to_string(),
    };
    assert!(begun.elapsed() < Duration::from_secs(20), "{name} took {:?}", begun.elapsed());
    said
}

fn lark(text: &str) -> GrammarSource {
    GrammarSource::Lark(text.to_owned())
}

#[test]
fn a_language_without_an_answer_is_refused_before_it_is_asked_for() {
    for source in [
        lark("start: start"),
        lark("start: \"a\" start"),
        lark("start: \"a\" x\nx: \"b\" x | \"c\" x"),
        lark("start: \"a\" X\nX: /b/ & /c/"),
        lark("start: X\nX: /b/ & /c/"),
        GrammarSource::JsonSchema(json!({"enum": []})),
        GrammarSource::JsonSchema(json!({
            "type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]
        })),
    ] {
        let said = refused(source.clone());
        assert!(!said.is_empty() && !said.contains("breaks"), "{source:?}: {said}");
    }
}

#[test]
fn what_is_over_a_limit_is_refused_with_the_limit() {
    let steps =
        |steps: f64| GrammarSource::JsonSchema(json!({"type": "number", "multipleOf": steps}));
    let inside = format!("start: %json {}", json!({"items": {"multiple\u{4f}f": 999_983}}));
    let meet = json!({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]});
    for (source, limit) in [
        (steps(999_983.0), "at most 20000"),
        (steps(9999.83), "at most 20000"),
        (lark(&inside), "at most 20000"),
        (GrammarSource::JsonSchema(meet), "at most 20000"),
        (GrammarSource::Regex("(((a{100}){100}){100})".to_owned()), "60000"),
        (GrammarSource::Regex("a".repeat(262_000)), "60000"),
        (
            GrammarSource::JsonSchema(
                json!({"type": "array", "minItems": 1_000_000_000, "items": {"type": "null"}}),
            ),
            "50000",
        ),
    ] {
        let said = refused(source);
        assert!(said.contains(limit), "{limit}: {said}");
    }
    // Several that never meet are each for themselves.
    let apart = json!({"properties": {"a": {"multipleOf": 997}, "b": {"multipleOf": 991}}});
    grammars().compile(&GrammarSource::JsonSchema(apart)).expect("compiled");
    grammars().compile(&steps(0.01)).expect("compiled");
}

#[test]
fn an_end_token_that_a_grammar_names_may_come_and_ends_the_answer() {
    for text in ["start: <|im_end|>", "start: <[2]>"] {
        let mut constraint = grammars().compile(&lark(text)).expect("compiled");
        let mut mask = vec![0; VOCABULARY.div_ceil(32)];
        assert_eq!(constraint.mask(&mut mask), Ok(Allowed::Some), "{text}");
        assert_eq!((mask[0], mask[1..].iter().max()), (1 << 2, Some(&0)), "{text}");
        assert!(constraint.take(2) && is_done(&mut *constraint), "{text}");
        constraint.back(1);
        assert!(!is_done(&mut *constraint) && constraint.take(2), "{text}");
    }
}

#[test]
fn kept_grammars_are_limited_in_bytes() {
    let grammars = Grammars::new(tokenizer(), VOCABULARY, &[0, 2]).expect("the vocabulary");
    for i in 0..60 {
        let step = 19_001 + 2 * i;
        let schema = json!({"type": "integer", "multipleOf": step});
        grammars.compile(&GrammarSource::JsonSchema(schema)).expect("compiled");
        let (count, bytes) = grammars.kept();
        assert!(bytes <= 64 << 20, "{count} grammars hold {bytes} bytes");
    }
    let (count, bytes) = grammars.kept();
    assert!((1..60).contains(&count) && bytes > 1 << 20, "{count} grammars hold {bytes} bytes");
}

#[test]
fn a_grammar_that_nobody_waits_for_is_let_go() {
    let fields = (0..900).map(|i| (format!("field {i}"), json!({"type": "integer"})));
    let schema = json!({"properties": fields.collect::<serde_json::Map<_, _>>()});
    let source = GrammarSource::JsonSchema(schema);
    let said = grammars().compile_while(&source, &|| false).err();
    assert!(matches!(said, Some(GrammarError::Abandoned { .. })), "{said:?}");
    grammars().compile(&source).expect("compiled for whoever waits");
}

/// Grammars that come near a limit in the middle of an answer, or over it.
fn near_limits(luck: &mut Luck) -> GrammarSource {
    let n = 2 + luck.below(60);
    let m = 1 + luck.below(40);
    match luck.below(9) {
        0 => GrammarSource::Regex(format!("[a-z ]*e[a-z ]{{{n}}}")),
        1 => GrammarSource::Regex(format!("(.*[aeiou].*){{1,{n}}}")),
        2 => GrammarSource::Regex(format!("(\\w{{1,{}}} ?){{1,{}}}", 10 * n, 10 * m)),
        3 => GrammarSource::Regex(format!("([a-z ]*[st][a-z ]{{{m}}}|[a-z ]*n[a-z ]{{{n}}})*")),
        4 => lark("start: e\ne: e e | W\nW: /[a-z ]/"),
        5 => lark("start: e\ne: e \" \" e | W\nW: /[a-z]+/"),
        6 => lark(&format!("start: /[a-z ]*a[a-z ]{{{n}}}/ /[a-z ]*o[a-z ]{{{m}}}/")),
        7 => {
            let pattern = format!("^([a-z ]*e[a-z ]{{{n}}})+$");
            GrammarSource::JsonSchema(json!({"items": {"type": "string", "pattern": pattern}}))
        }
        _ => GrammarSource::JsonSchema(schema(luck)),
    }
}

/// The text of an answer and how it ended.
fn answer(source: &GrammarSource, depth: Depth, seed: u64, tokens: usize) -> (Vec<Token>, String) {
    let mut engine = engine(1, Speculation { text: true, ..Speculation::mtp(8) });
    let request = Request {
        constraint: Some(grammars().compile(source).expect("compiled")),
        depth,
        sampling: Sampling { temperature: 0.9, seed, ..Sampling::default() },
        ..Request::greedy(
            tokenizer().encode("Once upon a time there was", false).expect("tokens"),
            tokens,
        )
    };
    engine.submit(request).expect("accepted");
    let (mut events, mut said, mut end) = (Vec::new(), Vec::new(), None);
    while end.is_none() {
        engine.step(&mut events);
        for event in events.drain(..) {
            match event {
                Event::Token { token, .. } => said.push(token),
                Event::Finished { reason, .. } => end = Some(format!("{reason:?}")),
                Event::Started { .. } => {}
            }
        }
    }
    assert_eq!(engine.states().free(), engine.states().size());
    (said, end.expect("it ended"))
}

#[test]
fn speculation_changes_neither_an_answer_nor_where_a_limit_ends_it() {
    assert!(folder().exists());
    let mut luck = Luck(21);
    let (mut refusals, mut rounds) = (0, 0);
    while rounds < 14 {
        let source = near_limits(&mut luck);
        if grammars().compile(&source).is_err() {
            continue;
        }
        rounds += 1;
        let seed = luck.below(1000) as u64;
        let off = answer(&source, Depth::Fixed(0), seed, 90);
        refusals += usize::from(off.1.starts_with("Refused"));
        let depths = [Depth::Fixed(1), Depth::Fixed(3), Depth::Fixed(8), Depth::Auto];
        for depth in depths {
            assert_eq!(answer(&source, depth, seed, 90), off, "{source:?}, {depth:?}");
        }
    }
    assert!(refusals > 0, "no grammar came to a limit");
}
