//! The table of pre-tokenizers: what a name under `tokenizer.ggml.pre` stands for.
//!
//! A byte-level vocabulary is cut into words before it is merged, and a GGUF file says how only
//! by name. Each entry gives the cuts in order (each one applies within the pieces of the one
//! before), written as the model's own tokenizer has them, and the settings beside them. Names
//! that mean the same share an entry.

/// How the text of one family is prepared.
#[derive(Debug)]
pub(super) struct PreTokenizer {
    /// The names files use for it.
    pub(super) names: &'static [&'static str],
    pub(super) cuts: &'static [WordSplit],
    /// Whether text is composed (Unicode NFC) first.
    pub(super) nfc: bool,
    /// Whether a word that is a token by itself is taken without looking at merges.
    pub(super) whole_words: bool,
    /// Whether a text starts with BOS where the file does not say.
    pub(super) bos: bool,
}

/// One way to cut a piece in smaller ones. What lies between two matches is a piece too.
#[derive(Clone, Copy, Debug)]
pub(super) enum WordSplit {
    /// Each match of a regular expression is a piece.
    Matches(&'static str),
    /// Digits in groups of three, counted from their end.
    Thousands,
}

use WordSplit::{Matches, Thousands};

macro_rules! contractions {
    () => {
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    };
}
macro_rules! white_space {
    () => {
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    };
}
/// A word with its capitals in front, as the 200k vocabularies of OpenAI cut it.
macro_rules! cased_word {
    ($end:expr) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            $end,
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            $end
        )
    };
}
/// The same word without Chinese characters, which Kimi cuts on their own.
macro_rules! cased_word_not_han {
    () => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
            r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
            contractions!(),
            r"?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
            r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
            contractions!(),
            r"?"
        )
    };
}
macro_rules! word_number_sign {
    ($number:expr) => {
        concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|",
            $number,
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*",
            white_space!()
        )
    };
}

const GPT_2: WordSplit =
    Matches(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+");
const ONE_DIGIT: WordSplit = Matches(r"\p{N}");
const THREE_DIGITS: WordSplit = Matches(r"\p{N}{1,3}");
const LLAMA_3: WordSplit = Matches(word_number_sign!(r"\p{N}{1,3}"));
const QWEN_2: WordSplit = Matches(word_number_sign!(r"\p{N}"));
const QWEN_3_5: WordSplit = Matches(concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    white_space!()
));
const GPT_4O: WordSplit = Matches(concat!(
    cased_word!(concat!(contractions!(), "?")),
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*",
    white_space!()
));
const TEKKEN: WordSplit =
    Matches(concat!(cased_word!(""), r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*", white_space!()));
const KIMI_K2: WordSplit = Matches(concat!(
    r"\p{Han}+|",
    cased_word_not_han!(),
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    white_space!()
));
const BLOOM: WordSplit = Matches(r" ?[^(\s|.,!?…。，、।۔،)]+");
const CHINESE_OR_JAPANESE: WordSplit =
    Matches(r"[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+");
const CHINESE_OR_KOREAN: WordSplit =
    Matches(r"[\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+");
const DEEPSEEK_V3: WordSplit = Matches(concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*",
    white_space!()
));
/// Letters with case as of the Unicode version DeepSeek's first tokenizer was made with.
const DEEPSEEK_LETTERS: WordSplit = Matches(concat!(
    r"\s?[A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293}",
    r"\x{295}-\x{2af}\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a}",
    r"\x{38c}\x{38e}-\x{3a1}\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556}",
    r"\x{10a0}-\x{10c5}\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf}",
    r"\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d}",
    r"\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}\x{1f5d}",
    r"\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}",
    r"\x{1fc6}-\x{1fcc}\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}",
    r"\x{1ff6}-\x{1ffc}\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124}",
    r"\x{2126}\x{2128}\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f}",
    r"\x{2145}-\x{2149}\x{214e}\x{2183}\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}",
    r"\x{2ceb}-\x{2cee}\x{2cf2}\x{2cf3}\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f}",
    r"\x{a771}-\x{a787}\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}",
    r"\x{ff21}-\x{ff3a}\x{ff41}-\x{ff5a}\x{10400}-\x{1044f}\x{104b0}-\x{104d3}",
    r"\x{104d8}-\x{104fb}\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2}\x{118a0}-\x{118df}",
    r"\x{1e900}-\x{1e943}]+"
));
const DEEPSEEK_SIGNS: WordSplit =
    Matches(r"\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+");

/// An entry with no settings; the ones below change what differs.
const PLAIN: PreTokenizer =
    PreTokenizer { names: &[], cuts: &[], nfc: false, whole_words: false, bos: false };

static TABLE: &[PreTokenizer] = &[
    PreTokenizer {
        names: &["default"],
        cuts: &[
            Matches(r"[\p{P}\$\+<=>\^~\|]+"),
            GPT_2,
            Matches(r"\p{N}+"),
            Matches(r"[0-9][0-9][0-9]"),
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &[
            "gpt-2",
            "phi-2",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "gigachat",
            "mellum",
            "a.x-4.0",
        ],
        cuts: &[GPT_2],
        ..PLAIN
    },
    PreTokenizer { names: &["olmo", "mpt"], cuts: &[GPT_2], nfc: true, ..PLAIN },
    PreTokenizer {
        names: &["starcoder", "refact", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"],
        cuts: &[ONE_DIGIT, GPT_2],
        ..PLAIN
    },
    PreTokenizer { names: &["command-r"], cuts: &[ONE_DIGIT, GPT_2], nfc: true, ..PLAIN },
    PreTokenizer {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "lfm2",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
        ],
        cuts: &[LLAMA_3],
        whole_words: true,
        bos: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"],
        cuts: &[LLAMA_3],
        ..PLAIN
    },
    PreTokenizer {
        names: &["minicpm5"],
        cuts: &[THREE_DIGITS, Matches(word_number_sign!(r"\p{N}+"))],
        whole_words: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "f2llmv2"],
        cuts: &[QWEN_2],
        nfc: true,
        ..PLAIN
    },
    PreTokenizer { names: &["solar-open", "grok-2", "kormo"], cuts: &[QWEN_2], ..PLAIN },
    PreTokenizer { names: &["qwen35"], cuts: &[QWEN_3_5], nfc: true, ..PLAIN },
    PreTokenizer {
        names: &["gpt-4o", "llama4", "minimax-m2", "kanana2"],
        cuts: &[GPT_4O],
        ..PLAIN
    },
    PreTokenizer { names: &["tekken"], cuts: &[TEKKEN], whole_words: true, bos: true, ..PLAIN },
    PreTokenizer { names: &["kimi-k2"], cuts: &[KIMI_K2], ..PLAIN },
    PreTokenizer {
        names: &["deepseek-llm"],
        cuts: &[
            Matches(r"[\r\n]"),
            DEEPSEEK_LETTERS,
            DEEPSEEK_SIGNS,
            Matches(r"\s+$"),
            CHINESE_OR_KOREAN,
            Matches(r"\p{N}+"),
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-coder"],
        cuts: &[
            Matches(r"[\r\n]"),
            Matches(r"\s?\p{L}+"),
            Matches(r"\s?\p{P}+"),
            CHINESE_OR_KOREAN,
            ONE_DIGIT,
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm"],
        cuts: &[THREE_DIGITS, CHINESE_OR_JAPANESE, DEEPSEEK_V3],
        ..PLAIN
    },
    PreTokenizer {
        names: &["falcon"],
        cuts: &[Matches(r"[\p{P}\$\+<=>\^~\|`]+"), GPT_2, Matches(r"[0-9][0-9][0-9]")],
        ..PLAIN
    },
    PreTokenizer { names: &["bloom", "poro-chat", "gpt3-finnish"], cuts: &[BLOOM], ..PLAIN },
    PreTokenizer { names: &["viking"], cuts: &[BLOOM, ONE_DIGIT], ..PLAIN },
    PreTokenizer { names: &["superbpe"], cuts: &[Matches(r"\p{N}+"), Thousands], ..PLAIN },
    PreTokenizer {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        cuts: &[Matches(concat!(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}",
            r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
        ))],
        ..PLAIN
    },
    PreTokenizer {
        names: &["seed-coder"],
        cuts: &[Matches(concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+",
            white_space!()
        ))],
        ..PLAIN
    },
];

/// The entry a file's name stands for.
pub(super) fn find(name: &str) -> Option<&'static PreTokenizer> {
    TABLE.iter().find(|entry| entry.names.contains(&name))
}

/// All names, for an error that has to list them.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().flat_map(|entry| entry.names).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_name_stands_for_one_entry() {
        let all: Vec<_> = names().collect();
        let distinct: HashSet<_> = all.iter().collect();
        assert_eq!(all.len(), distinct.len());
        for name in all {
            assert!(find(name).is_some_and(|entry| !entry.cuts.is_empty()), "{name}");
        }
        assert!(find("").is_none() && find("QWEN2").is_none());
    }
}
