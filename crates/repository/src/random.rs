//! Random numbers for names and pauses. Keys have another source.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

/// Returns a number that no other call returns, in this process or another, but by chance.
pub fn number() -> u64 {
    RandomState::new().build_hasher().finish()
}
