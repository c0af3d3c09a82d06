//! Space that is set aside beside a repository, so that a collect can work on a full disk.
//!
//! A collect frees space, but needs some first: for its list, the reflog and the head. So the state folder has a file that is
//! as large, which a collect removes where the disk is full. The file is made again once there is room.

use std::io;
use std::path::Path;

use esker_store::{Disk, persist_with};

use crate::random;

const FILE: &str = "reserve";
/// Size of the file: the list of 190,000 objects.
const BYTES: u64 = 4 << 20;
/// Number of bytes in one write.
const PIECE: usize = 64 << 10;

/// Sets the space aside, unless it is, or the disk has little more than that. Without it, everything but a collect on a full
/// disk works.
pub fn keep(disk: &dyn Disk, state: &Path) {
    let path = state.join(FILE);
    if disk.facts(&path).is_ok() || free(state).is_none_or(|free| free < 2 * BYTES) {
        return;
    }
    if let Err(error) = persist_with(disk, &path, |write| {
        let mut piece = vec![0; PIECE];
        for _ in 0..BYTES / PIECE as u64 {
            // File systems that compress set nothing aside for equal bytes.
            piece.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random::number().to_le_bytes()));
            write(&piece)?;
        }
        Ok(())
    }) {
        tracing::debug!(%error, "no space is set aside for a collect");
    }
}

/// Gives the space up; false if none was set aside.
pub fn release(disk: &dyn Disk, state: &Path) -> io::Result<bool> {
    match disk.remove(&state.join(FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        removed => removed.map(|()| true),
    }
}

fn free(folder: &Path) -> Option<u64> {
    let facts = rustix::fs::statvfs(folder).ok()?;
    Some(facts.f_bavail.saturating_mul(facts.f_frsize))
}
