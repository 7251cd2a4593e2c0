//! The MTP head as a file of its own: `model-mtp.safetensors`, which the weights crate reads beside
//! a model.

use forerun_weights::safetensors::TensorInfo;
use serde_json::{Map, Value, json};

/// The sidecar's name.
pub(crate) const FILE: &str = "model-mtp.safetensors";

/// A safetensors header for these tensors, in this order, with data that follows at once. `source`
/// says where they come from.
pub(crate) fn header(tensors: &[(String, TensorInfo)], source: &str) -> Vec<u8> {
    let mut entries = Map::new();
    entries.insert("__metadata__".into(), json!({ "format": "pt", "source": source }));
    let mut at = 0;
    for (name, info) in tensors {
        let end = at + info.range.len();
        let entry = json!({
            "dtype": info.dtype.to_string(),
            "shape": info.shape,
            "data_offsets": [at, end],
        });
        entries.insert(name.clone(), entry);
        at = end;
    }
    let mut text = Value::Object(entries).to_string();
    // Readers that map the file like its data aligned.
    text += &" ".repeat(text.len().next_multiple_of(8) - text.len());
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_base::DType;
    use forerun_weights::safetensors::parse_header;

    #[test]
    fn a_written_header_reads_back() {
        let info =
            |range, shape: &[usize]| TensorInfo { dtype: DType::BF16, shape: shape.into(), range };
        let tensors =
            [("mtp.b".to_owned(), info(100..112, &[2, 3])), ("mtp.a".into(), info(50..54, &[2]))];
        let header = header(&tensors, "o/n@c");
        assert_eq!(header.len() % 8, 0);
        let read = parse_header(&header, header.len() as u64 + 16).unwrap();
        let start = header.len();
        assert_eq!(read.tensors["mtp.b"].range, start..start + 12);
        assert_eq!(read.tensors["mtp.a"].range, start + 12..start + 16);
        assert_eq!(read.tensors["mtp.b"].shape, [2, 3]);
        assert_eq!(read.metadata["source"], "o/n@c");
    }
}
