//! Grammars over the bundled model: compiled, walked at random, and followed by answers.

mod answers;
mod compiling;
mod gate;
mod loosening;
mod schemas;
mod setup;
mod spelling;
mod tools;
mod valid;
mod walks;
