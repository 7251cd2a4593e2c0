//! Answers that take any allowed token: whatever a model says, what comes out fits.

use crate::schemas::schema;
use crate::setup::{Luck, allowed, grammars, is_done, stroll, tokenizer};
use crate::valid::is_valid;
use forerun_grammar::GrammarSource;
use serde_json::{Value, json};

#[test]
fn any_way_through_a_schema_is_a_value_it_describes() {
    let (grammars, mut luck) = (grammars(), Luck(1));
    let mut ended = 0;
    for _ in 0..150 {
        let schema = schema(&mut luck);
        let source = GrammarSource::JsonSchema(schema.clone());
        for _ in 0..3 {
            // Numbers may go on forever at random; whatever ends must fit.
            let Some(text) = stroll(&source, grammars, &mut luck) else { continue };
            let value: Value =
                serde_json::from_str(&text).unwrap_or_else(|e| panic!("{schema}: {text}: {e}"));
            assert!(is_valid(&schema, &value), "{schema}: {text}");
            ended += 1;
        }
    }
    assert!(ended > 400, "{ended} of 450 ended");
}

#[test]
fn objects_regular_expressions_choices_and_lark_are_followed() {
    let (grammars, mut luck) = (grammars(), Luck(2));
    let choices = ["yes", "no", "maybe (not)", "a/b", "[x]", "größe", "\n", "a\\d+"];
    let choice = GrammarSource::Choice(choices.map(str::to_owned).to_vec());
    let regex = GrammarSource::Regex(r"^[a-c]{3}-\d\d/(x|yy)$".to_owned());
    let lark = "start: greeting \" \" name\ngreeting: \"Hello\" | \"Bye\"\nname: /[A-Z][a-z]{1,5}/";
    let lark = GrammarSource::Lark(lark.to_owned());
    for _ in 0..40 {
        let text = stroll(&choice, grammars, &mut luck).expect("an end");
        assert!(choices.contains(&text.as_str()), "{text:?}");
        let text = stroll(&regex, grammars, &mut luck).expect("an end");
        let (letters, rest) = text.split_at(3);
        assert!(letters.bytes().all(|b| (b'a'..=b'c').contains(&b)), "{text}");
        assert!(rest.starts_with('-') && (rest.ends_with("/x") || rest.ends_with("/yy")), "{text}");
        let text = stroll(&lark, grammars, &mut luck).expect("an end");
        let (greeting, name) = text.split_once(' ').expect("a space");
        assert!(["Hello", "Bye"].contains(&greeting) && name.len() <= 6, "{text}");
        if let Some(text) = stroll(&GrammarSource::JsonObject, grammars, &mut luck) {
            let value: Value = serde_json::from_str(&text).expect("JSON");
            assert!(value.is_object(), "{text}");
        }
    }
}

#[test]
fn looking_ahead_and_back_changes_nothing() {
    let (grammars, mut luck) = (grammars(), Luck(3));
    for round in 0..30 {
        let source = GrammarSource::JsonSchema(schema(&mut luck));
        let mut straight = grammars.compile(&source).expect("compiled");
        let mut looking = grammars.compile(&source).expect("compiled");
        for step in 0..60 {
            let mut ahead = 0;
            for _ in 0..luck.below(6) {
                if is_done(&mut *looking) {
                    break;
                }
                let all = allowed(&mut *looking).expect("a say");
                assert!(looking.take(all[luck.below(all.len())]));
                ahead += 1;
            }
            looking.back(ahead);
            let all = allowed(&mut *straight).expect("a say");
            assert_eq!(allowed(&mut *looking).expect("a say"), all, "round {round}, step {step}");
            let (mut forced, mut again) = (Vec::new(), Vec::new());
            straight.forced(8, &mut forced);
            looking.forced(8, &mut again);
            assert_eq!(forced, again, "round {round}, step {step}");
            if let Some(first) = forced.first() {
                assert_eq!(all, [*first], "what is forced is all there is");
            }
            let token = all[luck.below(all.len())];
            assert!(!looking.take(1), "a token of the template is never text");
            assert!(straight.take(token) && looking.take(token));
            assert_eq!(is_done(&mut *straight), is_done(&mut *looking));
            if is_done(&mut *straight) {
                break;
            }
        }
    }
}

#[test]
fn forced_tokens_are_those_of_the_tokenizer() {
    let grammars = grammars();
    let text = r#"{"a rather long name":"and a constant of some length"}"#;
    let value: Value = serde_json::from_str(text).expect("JSON");
    let schema = json!({"const": value});
    let mut constraint = grammars.compile(&GrammarSource::JsonSchema(schema)).expect("compiled");
    let mut tokens = Vec::new();
    while !is_done(&mut *constraint) {
        let all = allowed(&mut *constraint).expect("a say");
        assert_eq!(all.len(), 1, "nothing is left to choose");
        assert!(constraint.take(all[0]));
        tokens.push(all[0]);
    }
    assert_eq!(tokens, tokenizer().encode(text, false).expect("tokens"));
}

#[test]
fn a_mask_is_not_taken_for_that_of_another_way_to_the_same_row() {
    // Both ways lead to a row of the same number, with the same lexeme next, and differ in what follows it.
    let text = "start: \"a\" e | \"b\" f\ne: X \"he\"\nf: X \"in\"\nX: /[a-z]/";
    let source = GrammarSource::Lark(text.to_owned());
    let token = |text: &str| tokenizer().encode(text, false).expect("tokens")[0];
    let after = |way: &[&str]| {
        let mut constraint = grammars().compile(&source).expect("compiled");
        let (last, before) = way.split_last().expect("a way");
        for text in before {
            assert!(constraint.take(token(text)) && allowed(&mut *constraint).is_some());
            constraint.back(1);
        }
        assert!(constraint.take(token(last)));
        allowed(&mut *constraint).expect("a say")
    };
    let (a, b) = (after(&["a"]), after(&["b"]));
    assert_ne!(a, b, "some token has more than one letter");
    assert_eq!((after(&["b", "a"]), after(&["a", "b"])), (a, b));
}
