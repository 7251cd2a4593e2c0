//! Why a checkpoint cannot be run.

use forerun_backend::BackendError;
use forerun_weights::WeightsError;
use std::path::PathBuf;

/// A model that this version cannot load or run, or a device that refused it.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The config names a kind of model we do not know.
    #[error("model_type `{0}` is not supported; supported are {supported}", supported = crate::family::SUPPORTED)]
    UnknownFamily(String),
    /// The config lacks something or holds nonsense.
    #[error("config.json: `{key}` {problem}")]
    Config {
        /// The key, with its parents.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The config asks for something this version does not do.
    #[error("config.json: `{key}` = {value} is not supported by this version")]
    Unsupported {
        /// The key, with its parents.
        key: String,
        /// What it says.
        value: String,
    },
    /// Tensors that do not fit together.
    #[error("{0}")]
    Layout(String),
    /// A weight that no arithmetic can use.
    #[error(
        "the weight `{tensor}` holds NaN or an infinite number ({plane}, row {row}); fetch or convert the file again"
    )]
    NotFinite {
        /// The weight, by module path.
        tensor: String,
        /// Which of its planes: values, scales or offsets.
        plane: &'static str,
        /// The row of the matrix.
        row: usize,
    },
    /// A device that lacks an operation of a part of the network.
    #[error(
        "{device} cannot run {part}: it does not have the operation `{op}`; --device cpu has all of them"
    )]
    Missing {
        /// The device.
        device: String,
        /// The part, in words.
        part: String,
        /// The operation.
        op: &'static str,
    },
    /// A drafter where a model is expected.
    #[error("{path} is a drafter; give it with --drafter beside the model it was made for", path = .0.display())]
    IsDrafter(PathBuf),
    /// A model without a drafter where one is expected.
    #[error("{path} holds neither a separate drafter nor an MTP head", path = .0.display())]
    NotADrafter(PathBuf),
    /// A drafter of another model.
    #[error("the drafter {0}")]
    Drafter(String),
    /// A GGUF file that cannot be read as a model.
    #[error("GGUF: {0}")]
    Gguf(String),
    /// A weight is missing or malformed.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The device refused.
    #[error(transparent)]
    Backend(#[from] BackendError),
}
