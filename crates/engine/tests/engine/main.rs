//! The engine over real models on several devices.

mod assistant;
mod cache;
mod cache_disk;
mod cache_traces;
mod common;
mod constraints;
mod fair_steps;
mod finite;
mod gguf;
mod golden;
mod invariants;
mod lag;
mod late;
mod lost;
mod mtp;
mod optimistic;
mod rings;
mod schedule;
mod shapes;
mod speculation;
mod stashes;
mod submissions;
