//! Cache of recently encoded directories. Evicted ones are encoded again from the tree.

use std::sync::Arc;

use foldhash::{HashMap, HashMapExt};
use parking_lot::Mutex;

use crate::encoded_directory::EncodedDirectory;

/// Encoded directories by the block of their inode, in two generations: entries not used while one generation
/// fills are dropped with the next.
pub(crate) struct DirectoryCache {
    half: usize,
    generations: Mutex<Generations>,
}

#[derive(Default)]
struct Generations {
    young: HashMap<u64, Arc<EncodedDirectory>>,
    cost: usize,
    old: HashMap<u64, Arc<EncodedDirectory>>,
}

impl DirectoryCache {
    /// Creates a cache of about `bytes` bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { half: bytes / 2, generations: Mutex::default() }
    }

    pub(crate) fn get(&self, block: u64) -> Option<Arc<EncodedDirectory>> {
        let mut all = self.generations.lock();
        if let Some(contents) = all.young.get(&block) {
            return Some(Arc::clone(contents));
        }
        let contents = all.old.remove(&block)?;
        self.add(&mut all, block, Arc::clone(&contents));
        Some(contents)
    }

    pub(crate) fn put(&self, block: u64, contents: Arc<EncodedDirectory>) {
        self.add(&mut self.generations.lock(), block, contents);
    }

    fn add(&self, all: &mut Generations, block: u64, contents: Arc<EncodedDirectory>) {
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
