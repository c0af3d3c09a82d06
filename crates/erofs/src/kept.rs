//! What was written down of directories lately. What isn't here any more is asked for again.

use std::sync::Arc;

use foldhash::{HashMap, HashMapExt};
use parking_lot::Mutex;

use crate::contents::Contents;

/// Directories by the block of their inode, in two generations: what isn't asked for while one grows up is dropped with the
/// next.
pub(crate) struct Kept {
    half: usize,
    generations: Mutex<Generations>,
}

#[derive(Default)]
struct Generations {
    young: HashMap<u64, Arc<Contents>>,
    cost: usize,
    old: HashMap<u64, Arc<Contents>>,
}

impl Kept {
    /// Keeps about so many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { half: bytes / 2, generations: Mutex::default() }
    }

    pub(crate) fn get(&self, block: u64) -> Option<Arc<Contents>> {
        let mut all = self.generations.lock();
        if let Some(contents) = all.young.get(&block) {
            return Some(Arc::clone(contents));
        }
        let contents = all.old.remove(&block)?;
        self.add(&mut all, block, Arc::clone(&contents));
        Some(contents)
    }

    pub(crate) fn put(&self, block: u64, contents: Arc<Contents>) {
        self.add(&mut self.generations.lock(), block, contents);
    }

    fn add(&self, all: &mut Generations, block: u64, contents: Arc<Contents>) {
        let cost = contents.cost();
        if all.cost + cost > self.half && !all.young.is_empty() {
            all.old = std::mem::replace(&mut all.young, HashMap::new());
            all.cost = 0;
        }
        if all.young.insert(block, contents).is_none() {
            all.cost += cost;
        }
    }
}
