//! What the host does around the kernels: long runs that others fail at, and devices that are lost.
#![cfg(test)]

mod common;
mod faults;
mod lost;
