//! Leases: a sequence's key/value blocks and recurrent slot, owned together.

mod blocks;
mod store;

pub use store::{Admission, Lease, StateStore};
