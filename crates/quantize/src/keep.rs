//! Exceptions by name: `PATTERN=BITS` or `PATTERN=full`.

use std::fmt;
use std::str::FromStr;

/// Modules by name and what becomes of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keep {
    pattern: String,
    /// `None` stays unquantised.
    pub(super) bits: Option<usize>,
}

impl FromStr for Keep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("expected PATTERN=BITS or PATTERN=full, found `{text}`");
        let (pattern, bits) = text.rsplit_once('=').ok_or_else(wrong)?;
        let bits = match bits {
            "full" => None,
            "8" | "6" | "5" | "4" | "3" | "2" => bits.parse().ok(),
            _ => return Err(format!("`{bits}` is not 8, 6, 5, 4, 3, 2 or full")),
        };
        if pattern.is_empty() {
            return Err(wrong());
        }
        Ok(Self { pattern: pattern.to_owned(), bits })
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bits {
            Some(bits) => write!(f, "{}={bits}", self.pattern),
            None => write!(f, "{}=full", self.pattern),
        }
    }
}

impl Keep {
    /// Whether the pattern matches the full module path; `*` stands for any characters.
    pub(super) fn matches(&self, path: &str) -> bool {
        let mut pieces = self.pattern.split('*');
        let first = pieces.next().unwrap_or_default();
        let Some(mut rest) = path.strip_prefix(first) else { return false };
        let Some(last) = pieces.next_back() else { return rest.is_empty() };
        // Taking each piece where it first occurs leaves the most for those that follow.
        for piece in pieces {
            let Some(at) = rest.find(piece) else { return false };
            rest = &rest[at + piece.len()..];
        }
        rest.ends_with(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters_and_the_rest_for_itself() {
        let cases = [
            ("mtp.fc", "mtp.fc", true),
            ("mtp.fc", "mtp.fc2", false),
            ("mtp.*", "mtp.layers.0.mlp.gate", true),
            ("mtp.*", "model.mtp.fc", false),
            ("*.down_proj", "model.layers.3.mlp.down_proj", true),
            ("*.layers.1.*", "model.layers.11.mlp.down_proj", false),
            ("*.layers.1.*proj", "model.layers.1.mlp.down_proj", true),
            ("*", "anything", true),
            ("a*a", "a", false),
            ("a*b*c", "a-c-b-c", true),
            ("a*b*c", "a-c-b", false),
        ];
        for (pattern, path, expected) in cases {
            let keep: Keep = format!("{pattern}=8").parse().unwrap();
            assert_eq!(keep.matches(path), expected, "{pattern} on {path}");
        }
    }

    #[test]
    fn bits_are_a_width_of_affine_or_full() {
        assert_eq!("a=full".parse::<Keep>().unwrap().bits, None);
        assert_eq!("a.b=c=4".parse::<Keep>().unwrap().to_string(), "a.b=c=4");
        for wrong in ["a", "=4", "a=", "a=7", "a=16", "a=Full"] {
            assert!(wrong.parse::<Keep>().is_err(), "{wrong}");
        }
    }
}
