//! Soft wrapping: a text that comes in pieces, broken between words at the width of a terminal.
//!
//! A word is held back until what follows shows that it is whole, so that nothing on the screen is moved. Blocks of
//! code (between lines that begin with three backquotes) pass as they are: a line that is copied from one has no breaks
//! of ours in it.

use console::measure_text_width;

const FENCE: &str = "```";

/// Where a text stands on the screen.
#[derive(Debug, Default)]
pub(crate) struct Wrap {
    /// Columns of the screen; `None` does not wrap.
    width: Option<usize>,
    column: usize,
    /// White space before the word, written once the word stays on its line.
    gap: String,
    word: String,
    /// Whether the word goes on from what is written of it.
    goes_on: bool,
    /// Beginning of the line, as far as it takes to see a fence.
    opening: String,
    in_code: bool,
}

impl Wrap {
    pub(crate) fn at(width: Option<usize>) -> Self {
        Self { width: width.filter(|&columns| columns > 1), ..Self::default() }
    }

    /// Takes the next piece; gives what can be written of it.
    pub(crate) fn push(&mut self, text: &str) -> String {
        if self.width.is_none() {
            return text.to_owned();
        }
        let mut out = String::new();
        for c in text.chars() {
            self.take(c, &mut out);
        }
        out
    }

    /// The text ends: gives what was held back, and begins anew on a fresh line.
    pub(crate) fn end(&mut self) -> String {
        let mut out = String::new();
        self.settle(&mut out);
        *self = Self::at(self.width);
        out
    }

    fn take(&mut self, c: char, out: &mut String) {
        if c == '\n' {
            self.settle(out);
            self.gap.clear();
            self.goes_on = false;
            if self.opening.starts_with(FENCE) {
                self.in_code = !self.in_code;
            }
            self.opening.clear();
            self.column = 0;
            out.push(c);
            return;
        }
        if self.opening.len() < FENCE.len() && !(self.opening.is_empty() && c == ' ') {
            self.opening.push(c);
        }
        if self.in_code {
            out.push(c);
        } else if c == ' ' || c == '\t' {
            self.settle(out);
            self.goes_on = false;
            self.gap.push(c);
        } else {
            self.word.push(c);
            let wide = measure_text_width(c.encode_utf8(&mut [0; 4])) > 1;
            let whole = self.width.is_some_and(|width| measure_text_width(&self.word) >= width);
            // Scripts with wide characters have no spaces: a line may end after any of them.
            if wide || whole {
                self.settle(out);
                self.goes_on = !wide;
            }
        }
    }

    /// Writes the word that is whole, on the next line where it does not fit on this one.
    fn settle(&mut self, out: &mut String) {
        let Some(width) = self.width else { return };
        if self.word.is_empty() {
            return;
        }
        let (gap, word) = (measure_text_width(&self.gap), measure_text_width(&self.word));
        if self.goes_on {
            // The terminal goes on in the next line once one is full, and not before there is more.
            self.column = (self.column + word - 1) % width + 1;
        } else if self.column > 0 && self.column + gap + word > width {
            out.push('\n');
            self.column = word;
        } else {
            out.push_str(&self.gap);
            self.column += gap + word;
        }
        self.gap.clear();
        out.push_str(&self.word);
        self.word.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapped(width: usize, pieces: &[&str]) -> String {
        let mut wrap = Wrap::at(Some(width));
        let shown: String = pieces.iter().map(|piece| wrap.push(piece)).collect();
        shown + &wrap.end()
    }

    #[test]
    fn lines_end_between_words_however_the_text_is_cut() {
        let text = "The quick brown fox\n\n  jumps over it";
        let expected = "The quick\nbrown fox\n\n  jumps\nover it";
        assert_eq!(wrapped(10, &[text]), expected);
        let letters: Vec<String> = text.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        assert_eq!(wrapped(10, &letters), expected);
        assert_eq!(wrapped(9, &["The quick"]), "The quick", "a full line is no reason to break");
    }

    #[test]
    fn a_word_longer_than_a_line_is_left_to_the_terminal() {
        assert_eq!(wrapped(4, &["a abcdefgh b"]), "a\nabcdefgh\nb");
    }

    #[test]
    fn wide_characters_take_two_columns_and_break_anywhere() {
        assert_eq!(wrapped(5, &["日本語文"]), "日本\n語文");
    }

    #[test]
    fn code_passes_as_it_is() {
        let code = "see\n```sh\none two three\n```\nand then";
        assert_eq!(wrapped(5, &[code]), "see\n```sh\none two three\n```\nand\nthen");
    }

    #[test]
    fn without_a_width_nothing_is_changed_or_held_back() {
        let mut wrap = Wrap::at(None);
        assert_eq!(wrap.push("a  b"), "a  b");
        assert_eq!(wrap.end(), "");
    }
}
