//! The one error type of the crate.

use std::path::PathBuf;

/// Why a text file of a model, a prompt or a request option cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The file system said no. The operator acts.
    #[error("cannot read {}: {source}; check that the model folder is complete", path.display())]
    Read {
        /// The requested file.
        path: PathBuf,
        /// What the system answered.
        source: std::io::Error,
    },
    /// An input is larger than this crate will take in.
    #[error("{what} has {bytes} bytes; at most {max} are accepted")]
    TooLarge {
        /// The file or input.
        what: String,
        /// Its size.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// A file is not JSON of the expected shape.
    #[error("{file} is not usable JSON: {cause}; download the file again")]
    Json {
        /// The file.
        file: String,
        /// What the parser said, with line and column.
        cause: String,
    },
    /// One value in a JSON file is wrong.
    #[error("{file}: `{key}` is {value}, expected {expected}; correct or remove the key")]
    Field {
        /// The file.
        file: String,
        /// The key within it.
        key: String,
        /// The offending value, shortened.
        value: String,
        /// What would have been accepted.
        expected: &'static str,
    },
    /// The tokenizer library refused the file or the input.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The tokenizer tables of a GGUF file cannot be used. The sentence says which and why.
    #[error("GGUF vocabulary: {0}")]
    Vocabulary(String),
    /// The chat template does not compile, refused the conversation or ran past its limits.
    #[error("chat template{}: {message}", line.map(|n| format!(" line {n}")).unwrap_or_default())]
    Template {
        /// Line in the template, where known.
        line: Option<usize>,
        /// The cause; for `raise_exception` the template's own words.
        message: String,
    },
    /// A message or tool of a client cannot be given to the model.
    #[error("{path}: {problem}")]
    Message {
        /// Where in the request, such as `messages[3].content[1].type`.
        path: String,
        /// What is wrong there and what would do.
        problem: String,
    },
    /// A text has more tokens than the context holds, whatever they are.
    #[error(
        "prompt is too long: at least {at_least} tokens > {context} maximum; shorten it or serve a longer context"
    )]
    PromptTooLong {
        /// Tokens it has at least, by its bytes.
        at_least: usize,
        /// What the context holds.
        context: usize,
    },
    /// A stop string of no characters would match everywhere.
    #[error("stop string {index} is empty; remove it")]
    EmptyStop {
        /// Its place in the list.
        index: usize,
    },
}
