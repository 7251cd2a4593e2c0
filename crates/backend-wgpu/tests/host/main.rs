//! What the host does around the kernels: long runs that others fail at, and devices that are lost.
#![cfg(test)]

#[path = "../common/device.rs"]
mod adapter;
mod common;
mod faults;
mod lost;
mod server;
#[path = "../common/stage.rs"]
mod stage;
