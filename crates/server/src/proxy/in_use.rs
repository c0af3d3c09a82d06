//! Knows the large objects that are being sent. Evicting them would free nothing: a removed file takes its room until it is closed.

use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, Weak};

use esker_format::object::ObjectName;
use parking_lot::Mutex;

/// Minimum length of a tracked object; thousands of smaller ones take little space.
const LEN_MIN: u64 = 1 << 20;

/// The large objects that are being sent.
#[derive(Debug, Default)]
pub(super) struct InUse(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    files: HashMap<ObjectName, Weak<File>>,
    /// Number of entries at which those that are not in use any more are looked for.
    most: usize,
}

impl InUse {
    /// Records that an object is in use as long as its file is open.
    pub(super) fn open(&self, name: ObjectName, file: File, len: u64) -> Arc<File> {
        let file = Arc::new(file);
        if len >= LEN_MIN {
            let mut known = self.0.lock();
            if known.files.len() >= known.most {
                known.files.retain(|_, file| file.strong_count() > 0);
                known.most = 2 * known.files.len() + 64;
            }
            known.files.insert(name, Arc::downgrade(&file));
        }
        file
    }

    /// Returns true if the object is being sent.
    pub(super) fn has(&self, name: ObjectName) -> bool {
        self.0.lock().files.get(&name).is_some_and(|file| file.strong_count() > 0)
    }
}

#[cfg(test)]
mod tests {
    use esker_format::hash::{ContentHash, HashAlgorithm};
    use esker_format::object::ObjectKind;

    use super::*;

    #[test]
    fn large_objects_are_in_use_while_they_are_open() {
        let in_use = InUse::default();
        let name = |number: u32| {
            ObjectName::new(ContentHash::of(HashAlgorithm::Sha1, &number.to_le_bytes()), ObjectKind::File)
        };
        let file = || tempfile::tempfile().expect("a file");
        let open = in_use.open(name(0), file(), LEN_MIN);
        let _small = in_use.open(name(1), file(), LEN_MIN - 1);
        assert!(in_use.has(name(0)) && !in_use.has(name(1)));
        for number in 2..2000 {
            in_use.open(name(number), file(), LEN_MIN);
        }
        assert!(in_use.0.lock().files.len() < 200, "those that are closed are forgotten");
        assert!(in_use.has(name(0)));
        drop(open);
        assert!(!in_use.has(name(0)));
    }
}
