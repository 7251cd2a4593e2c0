//! Why bytes are not a GGUF file.

/// Why bytes are not a GGUF file that can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GgufError {
    /// Another kind of file.
    #[error("begins with the bytes {found:02x?}; a GGUF file begins with `GGUF`")]
    Magic {
        /// The first bytes, fewer than four when there are no more.
        found: Vec<u8>,
    },
    /// Written for machines of the other byte order.
    #[error("a big-endian GGUF file; only little-endian files are read, convert it")]
    BigEndian,
    /// Another version of the container.
    #[error("GGUF version {found}; versions 2 and 3 are read, convert the model again")]
    Version {
        /// The version stated.
        found: u32,
    },
    /// The file is too short for what it says it holds.
    #[error("the file ends inside {place}: {expected} bytes are needed, {found} are left")]
    Ends {
        /// What was being read.
        place: String,
        /// Bytes needed.
        expected: u64,
        /// Bytes left.
        found: u64,
    },
    /// A key or tensor that contradicts itself, another one, or the file.
    #[error("{place}: {why}")]
    Fault {
        /// The key or tensor.
        place: String,
        /// Expected and found.
        why: String,
    },
}
