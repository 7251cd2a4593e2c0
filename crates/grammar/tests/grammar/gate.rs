//! Thoughts before a grammar.

use crate::setup::{ENDS, VOCABULARY, allowed, grammars, is_done, tokenizer};
use forerun_base::Token;
use forerun_grammar::{GrammarError, GrammarSource};

fn encode(text: &str) -> Vec<Token> {
    tokenizer().encode(text, false).expect("tokens")
}

#[test]
fn anything_may_be_thought_and_then_the_grammar_holds() {
    let grammars = grammars();
    let inner =
        || grammars.compile(&GrammarSource::Choice(vec!["yes".to_owned()])).expect("compiled");
    let mut gate = grammars.after_reasoning("</think>", None, Some(inner())).expect("a gate");
    let all = allowed(&mut *gate).expect("only an end is left out");
    assert_eq!(all.len(), VOCABULARY - ENDS.len());
    assert!(!gate.take(ENDS[0]) && !gate.take(ENDS[1]), "no end before the answer");
    let thoughts = encode("Once upon a time {\"a\"");
    assert!(thoughts.iter().all(|&token| gate.take(token)));
    assert!(!is_done(&mut *gate));
    let mark = encode("</think>");
    assert!(mark.iter().all(|&token| gate.take(token)));
    let yes = encode("yes");
    assert_eq!(allowed(&mut *gate), Some(vec![yes[0]]), "forced by the grammar");
    assert!(yes.iter().all(|&token| gate.take(token)));
    assert!(is_done(&mut *gate));
    // Back into the thoughts, and out again.
    gate.back(yes.len() + mark.len() + 2);
    assert_eq!(allowed(&mut *gate).expect("a say").len(), VOCABULARY - ENDS.len());
    assert!(mark.iter().chain(&yes).all(|&token| gate.take(token)));
    assert!(is_done(&mut *gate));
}

#[test]
fn a_mark_is_found_in_whatever_tokens_it_comes() {
    let grammars = grammars();
    for (mark, said) in
        [("END.", "the END."), ("END.", "thE E ND.END. of"), ("</think>", "x</think>")]
    {
        let inner = grammars.compile(&GrammarSource::Regex("[0-9]".to_owned())).expect("compiled");
        let mut gate = grammars.after_reasoning(mark, None, Some(inner)).expect("a gate");
        // Letter by letter, which no tokenizer would do.
        let whole = said.find(mark).expect("it is there") + mark.len();
        for (at, letter) in said[..whole].char_indices() {
            assert_eq!(allowed(&mut *gate).expect("a say").len(), VOCABULARY - ENDS.len(), "{at}");
            for token in encode(&letter.to_string()) {
                assert!(gate.take(token));
            }
        }
        assert!(allowed(&mut *gate).expect("a say").len() <= 10, "{said}: digits");
    }
}

#[test]
fn a_budget_forces_the_mark() {
    let grammars = grammars();
    for mark in ["</think>", "\n\nThat is all.</think>"] {
        for budget in [0, 3] {
            let mut gate = grammars.after_reasoning(mark, Some(budget), None).expect("a gate");
            for _ in 0..budget {
                assert_eq!(allowed(&mut *gate), None, "anything may come");
                assert!(gate.take(300));
            }
            let tokens = encode(mark);
            let mut forced = Vec::new();
            gate.forced(100, &mut forced);
            assert_eq!(forced, tokens);
            for &token in &tokens {
                assert_eq!(allowed(&mut *gate), Some(vec![token]));
                assert!(!gate.take(301), "nothing else");
                assert!(gate.take(token));
            }
            assert_eq!(allowed(&mut *gate), None, "free again");
            assert!(gate.take(301) && !is_done(&mut *gate));
            gate.back(tokens.len() + 1);
            forced.clear();
            gate.forced(1, &mut forced);
            assert_eq!(forced, tokens[..1]);
        }
    }
}

#[test]
fn a_mark_of_nothing_is_refused() {
    let error = grammars().after_reasoning("", None, None).err().expect("refused");
    assert!(matches!(error, GrammarError::EmptyMark), "{error}");
}
