//! Any bytes as a safetensors file: an accepted header describes only bytes that exist.
#![no_main]

use forerun_weights::safetensors::parse_header;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(header) = parse_header(bytes, bytes.len() as u64) else { return };
    for info in header.tensors.values() {
        let elements: usize = info.shape.iter().product();
        assert_eq!(bytes[info.range.clone()].len(), elements * info.dtype.size());
    }
});
