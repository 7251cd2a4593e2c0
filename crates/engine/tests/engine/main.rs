//! The engine over real models on several devices.

mod assistant;
mod common;
mod golden;
mod invariants;
mod mtp;
mod schedule;
mod shapes;
mod speculation;
