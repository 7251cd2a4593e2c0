//! Any bytes as a GGUF file: an accepted header describes only bytes that exist, each of them
//! for one tensor, and every key answers every question.
#![no_main]

use forerun_weights::gguf::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(header) = parse(bytes) else { return };
    let mut ranges = Vec::new();
    for tensor in header.tensors.values() {
        let Some([values, size]) = tensor.storage.block() else { continue };
        let elements: usize = tensor.shape.iter().product();
        assert_eq!(bytes[tensor.range.clone()].len(), elements / values * size);
        ranges.push(tensor.range.clone());
    }
    ranges.sort_by_key(|range| range.start);
    assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
    let metadata = &header.metadata;
    for key in metadata.keys() {
        let scalars = [metadata.count(key).is_some(), metadata.flag(key).is_some()];
        let lists = [metadata.texts(key).is_some(), metadata.flags(key).is_some()];
        let whole = metadata.integers(key).map(|numbers| numbers.len());
        let wide = metadata.numbers(key).map(|numbers| numbers.len());
        assert!(whole.is_none() || whole == wide);
        let one = metadata.number(key).is_some() || metadata.text(key).is_some() || scalars[1];
        let many = wide.is_some() || lists.contains(&true);
        assert!(!(one && many));
        assert!(!scalars[0] || metadata.number(key).is_some());
    }
});
