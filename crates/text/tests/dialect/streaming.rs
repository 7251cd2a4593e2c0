//! Any text, cut anywhere.

use super::*;
use proptest::prelude::*;

const FRAGMENTS: [&str; 32] = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<function=now>",
    "<function=weather>\n",
    "<parameter=city>",
    "<parameter=days>\n",
    "\n</parameter>",
    "</function>",
    "<|tool_call>",
    "<tool_call|>",
    "call:f{",
    "<|\"|>",
    "<|channel>thought",
    "<channel|>",
    "{\"name\": \"now\"",
    "\"arguments\": ",
    "\"parameters\": {",
    ", ",
    "}",
    "{",
    "\"",
    ":",
    "\\",
    "[",
    "]",
    " \n",
    ";",
    "<",
    "é猫",
    "12",
];

fn text() -> impl Strategy<Value = String> {
    let fragment = prop_oneof![
        4 => prop::sample::select(FRAGMENTS.to_vec()).prop_map(str::to_owned),
        1 => "[ -~\n]{0,6}",
        1 => any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(fragment, 0..24).prop_map(|fragments| fragments.concat())
}

fn cut(text: &str, places: &[prop::sample::Index]) -> Vec<String> {
    let mut bounds: Vec<usize> = places.iter().map(|place| place.index(text.len() + 1)).collect();
    bounds.retain(|&at| text.is_char_boundary(at));
    bounds.extend([0, text.len()]);
    bounds.sort_unstable();
    bounds.windows(2).map(|pair| text[pair[0]..pair[1]].to_owned()).collect()
}

/// What is neither white space nor a mark of reasoning.
fn ink(text: &str) -> String {
    let mut ink: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    loop {
        let marks = ["<think>", "</think>", "<|channel>thought", "<channel|>"];
        let bare = marks.iter().fold(ink.clone(), |text, mark| text.replace(mark, ""));
        if bare == ink {
            return ink;
        }
        ink = bare;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_cutting_of_an_answer_gives_the_same_pieces(
        text in text(),
        places in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        inside in any::<bool>(),
    ) {
        let tools = tools();
        for source in ALL {
            let parser = AnswerParser::new(&dialect_of(source), inside, &tools);
            let whole = read_in(&mut parser.clone(), [text.as_str()]);
            let cut = cut(&text, &places);
            prop_assert_eq!(&whole, &read_in(&mut parser.clone(), cut.iter().map(String::as_str)));
            let single: Vec<String> = text.chars().map(String::from).collect();
            prop_assert_eq!(&whole, &read_in(&mut parser.clone(), single.iter().map(String::as_str)));
        }
    }

    #[test]
    fn an_answer_without_calls_loses_nothing_but_its_marks(text in text(), inside in any::<bool>()) {
        for source in ALL {
            let pieces = read_in(&mut AnswerParser::new(&dialect_of(source), inside, &[]), [&*text]);
            let texts = pieces.iter().map(|piece| match piece {
                Piece::Content(part) | Piece::Reasoning(part) => part.as_str(),
                other => panic!("{other:?}"),
            });
            prop_assert_eq!(ink(&texts.collect::<String>()), ink(&text), "{:?}", pieces);
        }
    }

    #[test]
    fn arguments_of_complete_calls_in_tags_and_channels_are_json(text in text()) {
        for source in [TAGS, CHANNELS] {
            let pieces = read_in(&mut AnswerParser::new(&dialect_of(source), false, &tools()), [&*text]);
            for run in pieces.windows(2) {
                if let [Piece::ToolArguments(json), Piece::ToolEnd] = run {
                    prop_assert!(serde_json::from_str::<Value>(json).is_ok(), "{} in {}", json, text);
                }
            }
        }
    }
}

/// Dialects are found once; finding one tries its template out.
fn dialect_of(source: &'static str) -> Dialect {
    use std::sync::OnceLock;
    static FOUND: OnceLock<Vec<(&str, Dialect)>> = OnceLock::new();
    let found = FOUND.get_or_init(|| ALL.iter().map(|s| (*s, dialect(s))).collect());
    found.iter().find(|(known, _)| *known == source).unwrap().1.clone()
}

#[test]
fn a_long_hostile_answer_takes_time_in_proportion() {
    let hostile = [
        "<tool_call>{\"a\": \"",
        "<tool_call>{\"name\": \"now\", \"arguments\": {",
        "<function=weather><parameter=days>",
        "<|tool_call>call:f{a:[",
        "<tool_call",
        "          ",
        "<think>",
        "{\"name\": \"now\", \"x\": ",
    ];
    for unit in hostile {
        let text = unit.repeat(400_000 / unit.len());
        for source in ALL {
            let mut parser = AnswerParser::new(&dialect_of(source), false, &tools());
            // A reader that looks back over what it has would not come to an end here.
            let pieces = read_in(&mut parser, [text.as_str()]);
            assert!(!pieces.is_empty());
        }
    }
}
