//! Any bytes as a file of the prefix cache, as they are and with what a writer would have put right: an accepted file
//! is the file that its contents would be written as.
#![no_main]

use forerun_engine::CacheFile;
use libfuzzer_sys::fuzz_target;
use sha2::{Digest, Sha256};

const HASH: usize = 32;
/// Magic and version.
const BEGINNING: &[u8] = b"FRPREFIX\x01\0\0\0";
/// Where the numbers are: tokens, and bytes of keys and values and of state.
const TOKENS: usize = 80;
const KEYS: usize = 88;
const STATE: usize = 96;
const HEADER: usize = 104;

fuzz_target!(|bytes: &[u8]| {
    check(bytes.to_vec());
    if bytes.len() >= HEADER + HASH {
        check(sound(bytes.to_vec()));
    }
});

fn check(bytes: Vec<u8>) {
    let Ok(file) = CacheFile::parse(bytes.clone()) else { return };
    assert_eq!(file.bytes(), bytes);
    assert_eq!(file.name().len(), 2 * HASH);
    assert!(file.tokens().len() <= bytes.len() / 4);
    assert!(file.has_state() || !file.tokens().is_empty());
}

/// The same with a beginning, sizes and a hash that fit.
fn sound(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes[..BEGINNING.len()].copy_from_slice(BEGINNING);
    let tokens = u32::from_le_bytes(bytes[TOKENS..TOKENS + 4].try_into().expect("four bytes"));
    let keys = u64::from_le_bytes(bytes[KEYS..KEYS + 8].try_into().expect("eight bytes"));
    let room = (bytes.len() - HEADER - HASH) as u64;
    let rest = room.saturating_sub(4 * u64::from(tokens));
    // A block, whose kind is 0, has no state.
    let keys = if bytes[12..16] == [0; 4] { rest } else { keys.min(rest) };
    bytes[KEYS..KEYS + 8].copy_from_slice(&keys.to_le_bytes());
    bytes[STATE..STATE + 8].copy_from_slice(&(rest - keys).to_le_bytes());
    let end = bytes.len() - HASH;
    let hash = Sha256::digest(&bytes[..end]);
    bytes[end..].copy_from_slice(&hash);
    bytes
}
