//! What a JSON text comes to in memory, counted before anything is built of it.
//!
//! A parsed object takes a hundred times the bytes of `{}`, so a limit on the bytes of a body alone does not bound what
//! it takes. One pass over the text counts what allocates: objects, lists, their entries, texts. Whether the text is
//! JSON at all is the parser's to say; the count is never less than what the parser could have built of it.

use crate::error::ServerError;

/// Levels of lists and objects; the parser refuses deeper ones, but builds what comes before them.
const DEPTH: usize = 128;
/// Objects and lists of a body: each message, part of content, call, tool and property of a schema is one or a few.
const CONTAINERS: usize = 65_536;

/// Bytes of a `serde_json::Value` and of what it owns, allocated sizes included (64-bit, `preserve_order`): a map has
/// room for four entries at once, lists and maps double.
const OBJECT: usize = 640;
const ENTRY: usize = 208;
const LIST: usize = 96;
const ELEMENT: usize = 144;
const TEXT: usize = 48;

/// What a text comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct JsonMemory {
    /// Bytes once parsed.
    pub(crate) bytes: usize,
    containers: usize,
    depth: usize,
}

impl JsonMemory {
    /// Counts.
    pub(crate) fn of(text: &[u8]) -> Self {
        let mut weight = Self { bytes: text.len(), ..Self::default() };
        // One bit for each level: whether it is an object.
        let (mut depth, mut objects) = (0usize, 0u128);
        let mut rest = text.iter();
        while let Some(&byte) = rest.next() {
            match byte {
                b'"' => {
                    weight.bytes += TEXT;
                    while let Some(&byte) = rest.next()
                        && byte != b'"'
                    {
                        if byte == b'\\' {
                            rest.next();
                        }
                    }
                }
                b'{' | b'[' => {
                    let is_object = byte == b'{';
                    depth += 1;
                    objects = objects << 1 | u128::from(is_object);
                    weight.depth = weight.depth.max(depth);
                    weight.containers += 1;
                    weight.bytes += if is_object { OBJECT } else { LIST };
                }
                b'}' | b']' => {
                    depth = depth.saturating_sub(1);
                    objects >>= 1;
                }
                b',' => weight.bytes += if objects & 1 == 1 { ENTRY } else { ELEMENT },
                _ => {}
            }
        }
        weight
    }

    /// Refuses what is too much for one body.
    pub(crate) fn check(&self, most_bytes: usize) -> Result<(), ServerError> {
        if self.depth > DEPTH {
            let message = format!("the body has {} levels; at most {DEPTH} are taken", self.depth);
            return Err(ServerError::Invalid { param: None, message });
        }
        let too_many = |what, found, most| Err(ServerError::TooMany { what, found, most });
        if self.containers > CONTAINERS {
            let what = "objects and lists (messages, parts of content, tools and what is in them)";
            return too_many(what, self.containers, CONTAINERS);
        }
        if self.bytes > most_bytes {
            return too_many("bytes once it is parsed", self.bytes, most_bytes);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_inside_texts_does_not_count() {
        let plain = JsonMemory::of(br#"{"a":"xxxxxxxxxx","b":["y"]}"#);
        let tricky = JsonMemory::of(br#"{"a":"{[,\",]}\\","b":["y"]}"#);
        assert_eq!(plain, tricky);
        assert_eq!((plain.containers, plain.depth), (2, 2));
        assert_eq!(plain.bytes, 28 + OBJECT + ENTRY + LIST + 4 * TEXT);
    }

    #[test]
    fn entries_count_by_what_they_are_entries_of() {
        let weight = JsonMemory::of(b"[1,{},[2,3],4]");
        assert_eq!(weight.bytes, 14 + 2 * LIST + OBJECT + 4 * ELEMENT);
        let weight = JsonMemory::of(br#"{"a":[1,2],"b":3}"#);
        assert_eq!(weight.bytes, 17 + OBJECT + LIST + ELEMENT + ENTRY + 2 * TEXT);
    }

    #[test]
    fn what_is_no_json_is_counted_and_not_judged() {
        for text in [&b""[..], b"]]]}", b"\"", b"\"\\", b"{{{", b"\xff,\"\xff"] {
            assert!(JsonMemory::of(text).check(1 << 20).is_ok(), "{text:?}");
        }
    }

    #[test]
    fn each_limit_is_named() {
        let parts = [b"[".to_vec(), b"{},".repeat(CONTAINERS), b"0]".to_vec()].concat();
        for (text, most, named) in [
            (vec![b'['; DEPTH + 1], usize::MAX, "128"),
            (parts, usize::MAX, "65536"),
            (b"[0,0,0]".to_vec(), 100, "100"),
        ] {
            let refused = JsonMemory::of(&text).check(most).unwrap_err();
            assert!(refused.to_string().contains(named), "{refused}");
        }
        assert!(JsonMemory::of(&[b'['; DEPTH]).check(usize::MAX).is_ok());
    }
}
