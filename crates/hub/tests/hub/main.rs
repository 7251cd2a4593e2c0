//! The client against a real server on this machine, with everything that goes wrong on the way.
#![cfg(test)]

mod faults;
mod grafting;
mod pulling;
mod setup;
