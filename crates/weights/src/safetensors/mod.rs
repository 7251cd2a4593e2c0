//! The safetensors container: an 8-byte little-endian header length, a JSON header, data.
//!
//! [`parse_header`] checks what others wrote; [`Writer`] writes files of known sizes as their
//! numbers come.

mod read;
mod write;

pub use read::{HeaderError, SafetensorsHeader, TensorInfo, parse_header};
pub use write::{NewTensor, WriteError, Writer, header};

use forerun_base::DType;

/// Every element type and its name in a header.
const DTYPES: [(DType, &str); 15] = [
    (DType::F64, "F64"),
    (DType::F32, "F32"),
    (DType::F16, "F16"),
    (DType::BF16, "BF16"),
    (DType::F8E4M3, "F8_E4M3"),
    (DType::F8E5M2, "F8_E5M2"),
    (DType::U64, "U64"),
    (DType::I64, "I64"),
    (DType::U32, "U32"),
    (DType::I32, "I32"),
    (DType::U16, "U16"),
    (DType::I16, "I16"),
    (DType::U8, "U8"),
    (DType::I8, "I8"),
    (DType::Bool, "BOOL"),
];

fn dtype(name: &str) -> Option<DType> {
    DTYPES.iter().find(|(_, known)| *known == name).map(|(dtype, _)| *dtype)
}

fn dtype_name(dtype: DType) -> &'static str {
    let found = DTYPES.iter().find(|(known, _)| *known == dtype);
    found.map(|(_, name)| *name).expect("the table holds every type")
}
