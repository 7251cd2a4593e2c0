//! The operations as functions over host memory; the reference implementation is the default body of each.

use crate::{Memory, Weight, reference};
use forerun_backend::{BackendError, CutSizes, for_each_operation, op};
use forerun_base::MatrixParts;

/// What every operation returns.
pub(crate) type OpResult = Result<(), BackendError>;

macro_rules! kernels {
    ($($name:ident: $op:ident),* $(,)?) => {
        /// One function per operation. Operands were checked against the operation's declaration before the call; an
        /// override may only be faster than the definition, never mean something else.
        pub trait Kernels: Send {
            /// A name for people.
            fn name(&self) -> String;

            /// What results depend on besides operands, as [`forerun_backend::Backend::arithmetic`] says.
            fn arithmetic(&self) -> String {
                self.name()
            }

            /// How finely a row is cut, as [`forerun_backend::Backend::cut_sizes`] says.
            fn cut_sizes(&self, block: usize) -> CutSizes {
                CutSizes { keys: block, channels: 1 }
            }

            /// Brings a matrix to the form in which the kernels want it; called once for each.
            fn keep(&mut self, parts: &MatrixParts) -> Weight {
                Weight::canonical(parts)
            }
            $(
                /// See the operation's own text.
                fn $name(&mut self, memory: &mut Memory, op: op::$op) -> OpResult {
                    reference::$name(memory, op)
                }
            )*
        }
    };
}

for_each_operation! { kernels }

/// The reference kernels alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl Kernels for Plain {
    fn name(&self) -> String {
        "cpu (plain reference)".to_owned()
    }
}
