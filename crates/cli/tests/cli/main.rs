//! The real binary, run as a person or a script would.
#![cfg(test)]

mod bench;
#[cfg(target_os = "linux")]
mod chatting;
mod doctor;
mod errors;
mod formats;
mod forms;
mod golden;
mod inspecting;
mod memory;
mod optimistic;
mod options;
mod pages;
mod program;
mod pull;
mod quantizing;
mod quantizing_gguf;
#[cfg(target_os = "linux")]
mod reasoning;
mod roofline;
mod running;
mod sampling;
mod scoring;
mod serving;
mod shells;
mod synth;
mod verify;
#[cfg(feature = "wgpu")]
mod wgpu;
