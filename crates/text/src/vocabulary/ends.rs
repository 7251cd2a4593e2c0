//! Which tokens end an answer.
//!
//! Files name one or two, and often only the one that ends a document. The others are known by
//! their spelling, as in llama.cpp.

use super::{TokenKind, Vocabulary};
use forerun_base::Token;
use std::collections::HashSet;

/// Spellings that end a turn, a message or a document in every vocabulary that has them.
const ENDS: [&str; 25] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
    "[e~[",
    // What comes after a completed middle: padding, the next file, the next repository.
    "<|fim_pad|>",
    "<|file_sep|>",
    "<|repo_name|>",
    "</s>",
];

impl Vocabulary {
    /// The tokens that end an answer: those the file names, then the others in order.
    pub(super) fn end_tokens(&self) -> Vec<Token> {
        let named = [self.eos_or_default(), self.eot, self.eom];
        let all = named.into_iter().flatten().chain(self.ends_by_spelling());
        let mut seen = HashSet::new();
        all.filter(|&id| seen.insert(id)).collect()
    }

    /// Tokens whose spelling says that they end something.
    pub(super) fn ends_by_spelling(&self) -> Vec<Token> {
        let ends: Vec<(usize, &str)> = self
            .tokens
            .iter()
            .enumerate()
            .filter(|(_, text)| ENDS.contains(&text.as_str()))
            .map(|(id, text)| (id, text.as_str()))
            .collect();
        let has = |wanted: &str| ends.iter().any(|(_, text)| *text == wanted);
        // With these beside it, `<|end|>` ends a part of an answer and not the answer.
        let has_parts =
            has("<|return|>") && has("<|call|>") || has("<|flush|>") && has("<|calls|>");
        let has_tools = has("<|tool_response>");
        let ends_answer = |id: usize, text: &str| match text {
            "<|end|>" => !has_parts,
            // Also a piece of HTML: in many vocabularies an ordinary token.
            "</s>" => self.kind(id) == TokenKind::Control && !has_tools,
            _ => true,
        };
        let ends = ends.iter().filter(|(id, text)| ends_answer(*id, text));
        // Checked vocabularies have far fewer tokens; for others the last ids do not matter.
        ends.filter_map(|(id, _)| Token::try_from(*id).ok()).collect()
    }
}
