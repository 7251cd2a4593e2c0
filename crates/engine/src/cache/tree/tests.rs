//! Matching and eviction, without a device.

use super::*;

fn tokens(range: std::ops::Range<u32>) -> Vec<Token> {
    range.collect()
}

fn stash(bytes: usize) -> Stash {
    Stash { id: StashId(1), bytes }
}

fn block(tokens: Vec<Token>) -> Payload {
    Payload { tokens, kv: vec![stash(100)], tail: None }
}

fn tail(tokens: Vec<Token>) -> Payload {
    let tail = Tail { state: Some(stash(50)), filled: 0 };
    Payload { tokens, kv: vec![stash(60), stash(40)], tail: Some(tail) }
}

fn shape(states: bool) -> StateShape {
    StateShape { block: 100, recurrent: usize::from(states), ..StateShape::default() }
}

const BLOCK: u64 = 100 + 4 * 64 + OVERHEAD as u64;

/// A block of 0..64, a tail of 64..74 and one of nothing after it.
fn small(states: bool) -> Tree {
    let mut tree = Tree::new(1 << 20, &shape(states));
    let first = tree.insert(ROOT, block(tokens(0..64)), false);
    tree.insert(first, tail(tokens(64..74)), false);
    if states {
        tree.insert(first, tail(Vec::new()), false);
    }
    tree
}

#[test]
fn the_longest_restore_point_before_the_last_token_is_found() {
    struct Case {
        prompt: Vec<Token>,
        states: bool,
        position: usize,
        agreed: usize,
        expected: Option<Token>,
    }
    let with = |range: std::ops::Range<u32>, last: Token| [tokens(range), vec![last]].concat();
    let case = |prompt, states, position, agreed, expected| Case {
        prompt,
        states,
        position,
        agreed,
        expected,
    };
    let cases = [
        case(vec![9], true, 0, 0, Some(0)),
        case(tokens(0..200), true, 74, 74, None),
        case(tokens(0..75), true, 74, 74, None),
        // One token must be left to read.
        case(tokens(0..74), true, 64, 74, None),
        case(tokens(0..74), false, 73, 74, None),
        case(with(0..70, 999), true, 64, 70, Some(70)),
        case(with(0..70, 999), false, 70, 70, Some(70)),
        case(with(0..30, 999), true, 0, 30, Some(30)),
        case(with(0..30, 999), false, 30, 30, Some(30)),
        case(tokens(0..64), true, 0, 64, Some(64)),
        case(tokens(0..64), false, 63, 64, Some(64)),
        case(tokens(0..65), false, 64, 65, Some(65)),
    ];
    for Case { prompt, states, position, agreed, expected } in cases {
        let found = small(states).find(None, &prompt);
        let what = format!("{} tokens, states {states}", prompt.len());
        assert_eq!((found.position, found.agreed), (position, agreed), "{what}");
        assert_eq!(found.expected, expected, "{what}");
        assert_eq!(found.last.is_some(), position > 0, "{what}");
    }
}

#[test]
fn the_least_recently_used_go_first_and_nothing_loses_what_it_stands_on() {
    let mut tree = Tree::new(4 * BLOCK, &shape(true));
    let a = tree.insert(ROOT, block(tokens(0..64)), false);
    let b = tree.insert(a, block(tokens(64..128)), false);
    tree.touch(b, false);
    let c = tree.insert(ROOT, block(tokens(500..564)), false);
    let d = tree.insert(ROOT, block(tokens(600..664)), false);
    tree.touch(c, false);
    tree.touch(d, false);
    tree.touch(b, false);
    // Oldest is c, then d, then b before a.
    for left in [&[a, b, d][..], &[a, b], &[a], &[]] {
        let room = 4 * BLOCK - left.len() as u64 * BLOCK;
        assert!(tree.make_room(room, u64::MAX));
        let mut known: Vec<EntryId> = tree.order.values().copied().collect();
        known.sort_unstable();
        assert_eq!(known, left);
    }
    assert_eq!((tree.bytes(), tree.evictions()), (0, 4));
    let dropped: Vec<EntryId> = tree.take_dropped().into_iter().map(|(id, _)| id).collect();
    assert_eq!(dropped, [c, d, b, a], "whoever holds their bytes hears of it");
}

#[test]
fn what_is_in_use_or_to_be_kept_outlives_the_rest() {
    let mut tree = Tree::new(3 * BLOCK, &shape(true));
    let kept = tree.insert(ROOT, block(tokens(0..64)), true);
    let since = tree.now();
    let used = tree.insert(ROOT, block(tokens(100..164)), false);
    tree.insert(ROOT, block(tokens(200..264)), false);
    assert!(tree.make_room(BLOCK, u64::MAX), "the older of two that need not be kept goes");
    assert!(tree.entries[kept].is_some() && tree.entries[used].is_none());
    assert!(!tree.make_room(3 * BLOCK, since), "what is used since stays");
    assert!(tree.entries[kept].is_none(), "what is to be kept goes before what is in use");
}

#[test]
fn without_states_a_longer_entry_replaces_the_tails_it_begins_with() {
    let mut tree = Tree::new(1 << 20, &shape(false));
    tree.insert(ROOT, tail(tokens(0..10)), false);
    tree.insert(ROOT, tail(tokens(0..20)), false);
    assert_eq!(tree.counts(), (0, 1));
    assert!(tree.tail(ROOT, &tokens(0..15)).is_some(), "a longer one serves");
    tree.insert(ROOT, block(tokens(0..64)), false);
    assert_eq!(tree.counts(), (1, 0));
    assert_eq!(tree.bytes(), BLOCK);
}

/// A head pairs the last position of a block with the token after it.
#[test]
fn a_block_that_was_followed_by_another_token_is_another_block() {
    let shape = StateShape { block: 100, hidden: 8, ..StateShape::default() };
    let mut tree = Tree::new(1 << 20, &shape);
    let first = tree.insert(ROOT, block(tokens(0..65)), false);
    tree.insert(first, tail(tokens(64..80)), false);
    tree.insert(ROOT, tail(tokens(0..64)), false);
    assert_eq!(tree.find(None, &tokens(0..90)).position, 80);
    let other = [tokens(0..64), vec![999], tokens(65..90)].concat();
    let found = tree.find(None, &other);
    assert_eq!((found.position, found.agreed, found.expected), (64, 64, Some(64)));
    assert_eq!(tree.leading(ROOT, &other), (ROOT, 0));
    assert_eq!(tree.leading(ROOT, &tokens(0..64)), (ROOT, 0), "nobody knows what follows");
    assert_eq!(tree.leading(ROOT, &tokens(0..65)), (first, 1));
}

/// A root of its own is an entry like any other: it counts, and goes once nothing follows it.
#[test]
fn what_lies_under_a_salt_is_found_under_no_other_and_roots_do_not_pile_up() {
    let root = Payload::cost_of(0, 0);
    let mut tree = Tree::new(2 * (root + BLOCK), &shape(false));
    for number in 0..1000u32 {
        let salt = CacheSalt([(number % 250) as u8; 32]);
        let since = tree.now();
        let at = tree.open_root(Some(&salt), since).expect("room");
        assert!(tree.is_empty(Some(&salt)), "{number}");
        tree.touch(at, false);
        assert!(tree.make_room(BLOCK, since), "{number}");
        let entry = tree.insert(at, block(tokens(0..64)), false);
        tree.touch(entry, false);
        assert_eq!(tree.find(Some(&salt), &tokens(0..65)).position, 64);
        for other in [None, Some(CacheSalt([251; 32]))] {
            let found = tree.find(other.as_ref(), &tokens(0..65));
            assert_eq!(found, Match::default(), "{number}");
            assert!(tree.is_empty(other.as_ref()));
        }
        assert!(tree.roots.len() <= 3 && tree.bytes() <= tree.limit(), "{number}");
    }
    assert_eq!(tree.counts().0, 2);
    let evicted = tree.find(Some(&CacheSalt([7; 32])), &tokens(0..65));
    assert!(evicted.evicted && evicted.agreed == 0);
    assert!(!tree.find(Some(&CacheSalt([251; 32])), &tokens(0..65)).evicted);
}

#[test]
fn what_is_forgotten_is_handed_over_once_and_nothing_before_what_follows_it() {
    let mut tree = small(true);
    let (first, tails) = (1, [2, 3]);
    tree.forget(first);
    assert!(tree.take_dropped().is_empty(), "something follows it");
    tails.into_iter().chain([first, first, ROOT]).for_each(|id| tree.forget(id));
    let dropped = tree.take_dropped();
    assert_eq!(dropped.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [2, 3, 1]);
    assert_eq!((tree.bytes(), tree.counts(), tree.evictions()), (0, (0, 0), 0));
    let mut tree = small(true);
    tree.clear();
    let held = tree.take_dropped().into_iter().flat_map(|(_, payload)| payload.kv);
    assert_eq!(held.map(|stash| stash.bytes).sum::<usize>(), 300);
}
