//! Files that are damaged, foreign or made up.

use super::*;
use proptest::prelude::*;

const IDENTITY: [u8; 32] = [7; 32];

fn record(tail: bool) -> Record {
    let count = if tail { 5 } else { KV_BLOCK as u32 };
    Record {
        parent: Key::root(&IDENTITY, None),
        tokens: (0..count).collect(),
        kv: vec![vec![1; 30].into(), vec![3; 10].into()],
        tail: tail.then(|| TailBytes { state: vec![2; 30].into(), filled: 3 }),
    }
}

fn bytes(record: &Record) -> Vec<u8> {
    let mut bytes = Vec::new();
    record.write(&IDENTITY, &mut bytes).expect("a vector takes everything");
    bytes
}

fn parse(bytes: Vec<u8>) -> Result<Record, FileError> {
    Record::parse(&bytes.into(), &IDENTITY)
}

#[test]
fn what_is_written_is_read() {
    for tail in [false, true] {
        let record = record(tail);
        let bytes = bytes(&record);
        assert_eq!(bytes.len() as u64, record.len());
        let read = parse(bytes).expect("an entry");
        assert_eq!(read.key(), record.key());
        assert_eq!(read.tokens, record.tokens);
        let joined = |record: &Record| record.kv.iter().flat_map(|part| part.to_vec()).collect();
        let [found, expected]: [Vec<u8>; 2] = [joined(&read), joined(&record)];
        assert_eq!(found, expected);
        let tail = |record: &Record| record.tail.as_ref().map(|t| (t.state.to_vec(), t.filled));
        assert_eq!(tail(&read), tail(&record));
    }
}

#[test]
fn every_changed_byte_and_every_cut_is_noticed() {
    let whole = bytes(&record(true));
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        assert!(parse(changed).is_err(), "byte {at}");
        assert!(parse(whole[..at].to_vec()).is_err(), "cut at {at}");
    }
    assert!(parse([&whole[..], &[0]].concat()).is_err(), "one more");
    let foreign = Record::parse(&whole.into(), &[8; 32]).expect_err("another model's");
    assert!(foreign.to_string().contains("another model"), "{foreign}");
}

#[test]
fn absurd_sizes_are_refused_before_anything_is_read() {
    let mut bytes = bytes(&record(true));
    let sizes = HEADER - 16;
    bytes[sizes..HEADER].fill(0xff);
    assert_eq!(parse(bytes).expect_err("refused"), FileError::Header("absurd sizes"));
}

#[test]
fn a_block_that_claims_a_state_is_refused() {
    let mut bytes = bytes(&record(false));
    let (keys, state) = (HEADER - 16, HEADER - 8);
    bytes[keys..state].copy_from_slice(&10u64.to_le_bytes());
    bytes[state..HEADER].copy_from_slice(&30u64.to_le_bytes());
    let end = bytes.len() - HASH;
    let hash = Sha256::digest(&bytes[..end]);
    bytes[end..].copy_from_slice(&hash);
    let refused = parse(bytes.clone()).expect_err("no block has a state");
    assert_eq!(refused, FileError::Header("a state where no entry has one"));
    assert!(CacheFile::parse(bytes).is_err());
}

#[test]
fn a_file_that_is_looked_at_tells_what_it_holds() {
    for tail in [false, true] {
        let record = record(tail);
        let file = CacheFile::parse(bytes(&record)).expect("an entry");
        assert_eq!((file.tokens(), file.has_state()), (&record.tokens[..], tail));
        assert_eq!((file.name(), file.bytes()), (record.key().name(), bytes(&record)));
    }
}

#[test]
fn keys_cover_every_token_the_order_and_the_kind() {
    let root = Key::root(&IDENTITY, None);
    let keys = [
        root,
        Key::root(&[8; 32], None),
        root.next(false, &[1, 2]),
        root.next(true, &[1, 2]),
        root.next(false, &[2, 1]),
        root.next(false, &[1]).next(false, &[2]),
    ];
    for (i, key) in keys.iter().enumerate() {
        assert!(!keys[..i].contains(key), "number {i}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_it_panic(
        noise in prop::collection::vec(any::<u8>(), 0..400),
        start in 0usize..200,
        keep in any::<bool>(),
    ) {
        let mut bytes = if keep { bytes(&record(true)) } else { noise.clone() };
        let start = start.min(bytes.len());
        let end = (start + noise.len() / 8).min(bytes.len());
        bytes[start..end].copy_from_slice(&noise[..end - start]);
        // What it says does not matter; that it says something does.
        let whole = parse(bytes.clone());
        let header = Header::parse(&bytes, bytes.len() as u64);
        prop_assert!(header.is_ok() || whole.is_err());
    }
}
