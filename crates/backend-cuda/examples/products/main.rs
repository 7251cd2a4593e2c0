//! Products on a GPU: their bits, and their time next to a copy's.
//!
//! `products check` prints a hash of every product and compares kernels; `products check emulated` prints the same
//! hashes from the kernels on the CPU. `products bench` prints microseconds and GB/s for each format, shape and number
//! of rows.

mod bench;
mod check;
mod formats;
mod graph;

use forerun_backend_cuda::driver::{Emulated, Gpu};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["check"] => check::run(&mut Gpu::open(0)?, true),
        ["check", "emulated"] => {
            let folder = std::env::temp_dir().join("forerun-emulated");
            check::run(&mut Emulated::new(&folder), false)
        }
        ["bench", ref only @ ..] => bench::run(&mut Gpu::open(0)?, only),
        _ => Err("products check [emulated] | products bench [format…]".into()),
    }
}
