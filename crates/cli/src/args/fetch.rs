//! Options about models that are given by name.

use clap::Args;

#[derive(Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Model")]
pub(crate) struct FetchArgs {
    /// Use no network: a model given by name is in the hub's cache, or an error
    ///
    /// Otherwise a model that is not there is fetched; at a terminal you are asked first.
    #[arg(long)]
    pub(crate) offline: bool,
}
