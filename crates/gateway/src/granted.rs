//! Objects that publishers were told to store in the storage themselves, and have not been seen there yet.

use std::collections::BTreeMap;

use esker_format::object::ObjectName;
use parking_lot::Mutex;

use crate::token::Token;

/// Most objects of a lease that are not there yet; a publisher sends more of them in packs.
const OBJECTS_MAX: usize = 20_000;

/// Right to store an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Length of the object.
    pub(crate) len: u64,
    /// Path of the file that is stored, if the storage doesn't compare it with the name of the object.
    pub(crate) staged: Option<String>,
}

/// Rights of leases to store objects. After a restart there are none, and publishers send packs.
#[derive(Debug, Default)]
pub(crate) struct Granted(Mutex<BTreeMap<Token, BTreeMap<ObjectName, Grant>>>);

impl Granted {
    /// Returns those of some objects that the lease has no right for yet, as many as it may have.
    pub(crate) fn new_of(&self, lease: &Token, objects: &[(ObjectName, u64)]) -> Vec<(ObjectName, u64)> {
        let all = self.0.lock();
        let known = all.get(lease);
        let room = OBJECTS_MAX - known.map_or(0, BTreeMap::len).min(OBJECTS_MAX);
        let is_new = |(name, _): &&(ObjectName, u64)| !known.is_some_and(|known| known.contains_key(name));
        objects.iter().filter(is_new).take(room).copied().collect()
    }

    pub(crate) fn add(&self, lease: &Token, name: ObjectName, grant: Grant) {
        self.0.lock().entry(lease.clone()).or_default().insert(name, grant);
    }

    pub(crate) fn get(&self, lease: &Token, name: &ObjectName) -> Option<Grant> {
        self.0.lock().get(lease)?.get(name).cloned()
    }

    /// Takes the right for an object from a lease, because the object is stored, or comes in a pack.
    pub(crate) fn take(&self, lease: &Token, name: &ObjectName) -> Option<Grant> {
        self.0.lock().get_mut(lease)?.remove(name)
    }

    /// Forgets leases that are gone.
    pub(crate) fn forget(&self, is_gone: impl Fn(&Token) -> bool) {
        self.0.lock().retain(|lease, _| !is_gone(lease));
    }
}

#[cfg(test)]
mod tests {
    use esker_format::hash::{ContentHash, HashAlgorithm};
    use esker_format::object::ObjectKind;

    use super::*;

    fn object(number: usize) -> (ObjectName, u64) {
        let hash = ContentHash::of(HashAlgorithm::Sha1, &number.to_le_bytes());
        (ObjectName::new(hash, ObjectKind::File), number as u64)
    }

    #[test]
    fn rights_are_those_of_one_lease_and_bounded() {
        let (granted, lease) = (Granted::default(), Token::named("a"));
        let all: Vec<_> = (0..OBJECTS_MAX + 9).map(object).collect();
        for (name, len) in granted.new_of(&lease, &all) {
            granted.add(&lease, name, Grant { len, staged: None });
        }
        assert_eq!(granted.new_of(&lease, &all), []);
        assert_eq!(granted.new_of(&Token::named("b"), &all[..3]), all[..3]);
        assert_eq!(granted.take(&Token::named("b"), &all[1].0), None);
        assert_eq!(granted.take(&lease, &all[1].0), Some(Grant { len: 1, staged: None }));
        assert_eq!(granted.take(&lease, &all[1].0), None);
        assert_eq!(granted.new_of(&lease, &all), all[1..2]);
        granted.forget(|token| *token == lease);
        assert_eq!(granted.new_of(&lease, &all).len(), OBJECTS_MAX);
    }
}
