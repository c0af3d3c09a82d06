//! Cache of the results that were made last.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

/// A bounded cache; the entry that was used longest ago leaves first.
pub(crate) struct Recent<K, V> {
    most: usize,
    entries: Mutex<VecDeque<(K, Arc<V>)>>,
}

impl<K: Clone + PartialEq, V> Recent<K, V> {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, entries: Mutex::default() }
    }

    /// Returns the result for a key; makes one if there is none, and keeps it if it is final.
    pub(crate) fn get_or<E>(
        &self,
        key: &K,
        is_final: impl FnOnce(&V) -> bool,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<Arc<V>, E> {
        if let Some(found) = self.get(key) {
            return Ok(found);
        }
        let made = Arc::new(make()?);
        if is_final(&made) {
            let mut entries = self.entries.lock();
            entries.push_front((key.clone(), made.clone()));
            entries.truncate(self.most);
        }
        Ok(made)
    }

    fn get(&self, key: &K) -> Option<Arc<V>> {
        let mut entries = self.entries.lock();
        let at = entries.iter().position(|(known, _)| known == key)?;
        let entry = entries.remove(at)?;
        let found = entry.1.clone();
        entries.push_front(entry);
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_kept_if_final_and_used() {
        let recent = Recent::<u32, u32>::new(2);
        let get =
            |key: u32, made: u32| *recent.get_or(&key, |made| *made < 10, || Ok::<_, ()>(made)).unwrap();
        assert_eq!([get(1, 1), get(1, 2), get(2, 3), get(1, 4), get(3, 5), get(2, 6)], [1, 1, 3, 1, 5, 6]);
        assert_eq!([get(4, 11), get(4, 12)], [11, 12]);
        assert!(recent.get_or(&5, |_| true, || Err(())).is_err());
    }
}
