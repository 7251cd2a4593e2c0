//! The pool of key/value blocks.

/// Hands out block ids; lowest first after start, most recently returned first later.
#[derive(Clone, Debug)]
pub(super) struct BlockPool {
    free: Vec<u32>,
    size: usize,
}

impl BlockPool {
    pub(super) fn new(blocks: usize) -> Self {
        Self { free: (0..blocks as u32).rev().collect(), size: blocks }
    }

    /// All blocks.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Blocks not lent out.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// Moves `count` blocks to `to`, or none if there are too few.
    pub(super) fn lend(&mut self, count: usize, to: &mut Vec<u32>) -> bool {
        if count > self.free.len() {
            return false;
        }
        to.extend((0..count).filter_map(|_| self.free.pop()));
        true
    }

    /// Has all blocks again but those that are lent out.
    pub(super) fn rebuild<'a>(&mut self, lent: impl Iterator<Item = &'a u32>) {
        let mut free = vec![true; self.size];
        lent.for_each(|&block| free[block as usize] = false);
        self.free.clear();
        self.free.extend((0..self.size as u32).rev().filter(|&block| free[block as usize]));
    }

    /// Takes blocks back.
    pub(super) fn take_back(&mut self, blocks: &mut Vec<u32>) {
        self.free.append(blocks);
    }
}
