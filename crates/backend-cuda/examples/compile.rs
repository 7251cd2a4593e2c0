//! Compiles every family of kernels for the architectures that are named, with the NVRTC that the loader finds; no GPU
//! is needed. `compile sm_80 sm_90a`; with a folder as `--keep FOLDER`, machine code is left there for tools that look
//! into it.

use forerun_backend_cuda::driver::compile;
use forerun_backend_cuda::families_of;
use std::path::PathBuf;
use std::time::Instant;
use std::{env, fs, process};

fn main() {
    let mut args = env::args().skip(1);
    let (mut archs, mut keep) = (Vec::new(), None);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--keep" => keep = args.next().map(PathBuf::from),
            _ => archs.push(arg),
        }
    }
    let mut failed = archs.is_empty();
    for arch in &archs {
        let (start, mut bytes) = (Instant::now(), 0);
        for (i, family) in families_of(arch).iter().enumerate() {
            match compile(family, arch) {
                Ok(code) => {
                    bytes += code.len();
                    if let Some(folder) = &keep {
                        let file = folder.join(format!("{arch}-{i}-{}.cubin", family.name));
                        failed |= fs::write(file, code).is_err();
                    }
                }
                Err(why) => {
                    eprintln!("{why}");
                    failed = true;
                }
            }
        }
        println!("{arch}: {bytes} bytes, {:.1} s", start.elapsed().as_secs_f64());
    }
    process::exit(i32::from(failed));
}
