//! Why a checkpoint cannot be quantised.

use forerun_base::DType;
use forerun_weights::WeightsError;
use forerun_weights::config::Scheme;
use forerun_weights::quantize::EncodeError;
use forerun_weights::safetensors::WriteError;
use std::path::{Path, PathBuf};

/// See the module's text.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "fields are named in the messages")]
pub enum QuantizeError {
    /// A pattern that no module matches.
    #[error("--keep {keep}: no module matches; one of them is {example}")]
    NoMatch { keep: String, example: String },
    /// The new files would overwrite what is being read.
    #[error("{} is the source itself; give another folder", .0.display())]
    SameFolder(PathBuf),
    /// A folder with the first files of something else.
    #[error(
        "{} holds the beginning of another quantisation (other settings or another source); give \
         --force to start over, or another folder",
        .0.display()
    )]
    OtherQuantization(PathBuf),
    /// A folder that is in use.
    #[error("{} is not empty; give --force to replace a model in it", .0.display())]
    NotEmpty(PathBuf),
    /// A file that would be removed is being read.
    #[error("{} is a file of the source; give another folder", .0.display())]
    SourceFile(PathBuf),
    /// A family whose form in MLX is not written here.
    #[error("models of the family `{0}` are read, but not written; quantise with mlx-lm instead")]
    Family(&'static str),
    /// Two tensors would have one name.
    #[error("{0}: stored twice, under two names")]
    StoredTwice(String),
    /// A header that lies.
    #[error("{name}: shape {shape:?}{problem}")]
    Shape { name: String, shape: Vec<usize>, problem: &'static str },
    /// Gate and up are not two halves.
    #[error("{module}: {rows} rows do not divide into gate and up")]
    GateUp { module: String, rows: usize },
    /// A stack with a gap.
    #[error("{stack}: expert {expert} is missing, though there are {count}")]
    MissingExpert { stack: String, expert: usize, count: usize },
    /// Experts of several shapes.
    #[error("{module}: shape {shape:?}; others have {others:?}")]
    UnlikeExperts { module: String, shape: Vec<usize>, others: Vec<usize> },
    /// More bytes than a file can have.
    #[error("{0}: size overflows")]
    Size(String),
    /// Bits, groups and mode that MLX does not have.
    #[error("{target}: {scheme} is not a scheme of MLX")]
    UnknownScheme { target: String, scheme: Scheme },
    /// A width that is no multiple of the group.
    #[error("{target}: groups do not divide shape {shape:?}")]
    Groups { target: String, shape: Vec<usize> },
    /// A number without a counterpart, such as the logarithm of a negative one.
    #[error("{name}: {value} cannot be converted")]
    Number { name: String, value: f32 },
    /// Plain numbers of a type that is not written.
    #[error("{0} where F32, F16 or BF16 is expected")]
    Type(DType),
    /// A config that is not what it must be.
    #[error("config.json is no object")]
    Config,
    /// The name of what was being written goes before the cause.
    #[error("{place}")]
    At {
        place: String,
        #[source]
        cause: Box<QuantizeError>,
    },
    /// The operating system refused.
    #[error("{}", path.display())]
    File {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    /// The source cannot be read.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// Numbers cannot be encoded.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// A weight file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl QuantizeError {
    /// Gives an error of the operating system the path it is about.
    pub(crate) fn file(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |cause| Self::File { path: path.to_owned(), cause }
    }

    pub(crate) fn shape(name: &str, shape: &[usize], problem: &'static str) -> Self {
        Self::Shape { name: name.to_owned(), shape: shape.to_vec(), problem }
    }
}
