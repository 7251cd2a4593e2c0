//! Writes every golden checkpoint with all its weights to `target/goldens`.

use forerun_testkit::{GOLDENS, Golden};

fn main() {
    for name in GOLDENS.into_iter().chain(["gemma4_assistant", "gemma4_assistant_2"]) {
        println!("{}", Golden::open(name).checkpoint().display());
    }
}
