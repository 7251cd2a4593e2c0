//! NVRTC: kernel text to machine code, with no device.

use super::{DriverError, KernelSource};
use cudarc::nvrtc;
use std::ffi::{CStr, CString};

/// How kernels are compiled for either driver's arithmetic: see `prelude.cuh`.
pub(super) const OPTIONS: [&str; 3] =
    ["--std=c++17", "--fmad=false", "--device-as-default-execution-space"];
fn compiler() -> Result<(), DriverError> {
    // SAFETY: the question only opens a library of the system.
    if !unsafe { nvrtc::sys::is_culib_present() } {
        return Err(DriverError::Missing {
            library: "NVRTC (libnvrtc)",
            hint: "install the CUDA 13 toolkit's nvrtc, or PyPI's nvidia-cuda-nvrtc, and let the loader find it \
                   (LD_LIBRARY_PATH)",
        });
    }
    Ok(())
}

/// Compiles a source to machine code of an architecture such as `sm_90a`; no device is needed.
pub fn compile(source: &KernelSource, arch: &str) -> Result<Vec<u8>, DriverError> {
    compiler()?;
    let why = |call: &str, error: nvrtc::result::NvrtcError| DriverError::call(call, error);
    let text = CString::new(source.text()).map_err(|e| DriverError::call("the text", e))?;
    let program = nvrtc::result::create_program(&text, None)
        .map_err(|error| why("nvrtcCreateProgram", error))?;
    let mut options: Vec<String> = OPTIONS.map(str::to_owned).into();
    options.push(format!("--gpu-architecture={arch}"));
    // SAFETY: the program was just made, and is destroyed at the end.
    let compiled = unsafe { nvrtc::result::compile_program(program, &options) };
    let code = compiled.map_err(|_| DriverError::Compile {
        name: source.name.to_owned(),
        arch: arch.to_owned(),
        log: log(program),
    });
    let code = code.and_then(|()| {
        let mut len = 0;
        // SAFETY: the program is compiled, and `code` has the size that NVRTC returned for it.
        unsafe {
            let size = nvrtc::sys::nvrtcGetCUBINSize(program, &mut len).result();
            size.map_err(|error| why("nvrtcGetCUBINSize", error))?;
            let mut code = vec![0_u8; len];
            let got = nvrtc::sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast()).result();
            got.map_err(|error| why("nvrtcGetCUBIN", error))?;
            Ok(code)
        }
    });
    // SAFETY: the program is not used again.
    unsafe { nvrtc::result::destroy_program(program) }
        .map_err(|error| why("nvrtcDestroyProgram", error))?;
    code
}

fn log(program: nvrtc::sys::nvrtcProgram) -> String {
    // SAFETY: `program` was created and not destroyed.
    unsafe { nvrtc::result::get_program_log(program) }.map_or_else(
        |error| error.to_string(),
        // SAFETY: NVRTC ends its log with a zero byte.
        |log| unsafe { CStr::from_ptr(log.as_ptr()) }.to_string_lossy().into_owned(),
    )
}

pub(super) fn version() -> Result<String, DriverError> {
    compiler()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both are written.
    unsafe { nvrtc::sys::nvrtcVersion(&mut major, &mut minor) }
        .result()
        .map_err(|error| DriverError::call("nvrtcVersion", error))?;
    Ok(format!("{major}.{minor}"))
}
