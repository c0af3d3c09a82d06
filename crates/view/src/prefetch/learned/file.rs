//! Trails on disk, beside the cache, so that they outlive the process.
//!
//! ```text
//!  0  "ESKERTR1"
//!  8  number of paths (4, little endian); of each how much of it is as in the one before (2), the length of the rest
//!     (2), the rest
//!  …  number of trails (4), the one that was read last first; of each the number of steps (4), of each the number of
//!     its path (4) and the part (4)
//!  …  XXH3-128 of all bytes before (16)
//! ```
//!
//! It is written by whoever has learned something, whole and under another name first, and joined with what others have
//! written before; nothing waits for the disk. What is not as it was written, or of another form, is not read. The
//! folder is the cache's, into which other users can't write; and if they could, the file decides no more than which
//! files of the repository are fetched ahead, within limits.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_store::{Disk, RealDisk, read_file, remove_unfinished, replace};
use xxhash_rust::xxh3::xxh3_128;

use super::{Learned, NamedStep, PATH_MAX, PATHS_MAX, STEPS_MAX, Step};

const MAGIC: &[u8; 8] = b"ESKERTR1";
/// More than the most that is written.
const FILE_MAX: u64 = 16 << 20;

/// Where trails are kept; nowhere if there is no file.
pub(crate) struct Keeper {
    file: Option<PathBuf>,
}

/// The folder and its files are for their owner only.
const DISK: RealDisk = RealDisk::PRIVATE;

impl Keeper {
    /// Keeps them in this file.
    pub(crate) fn new(file: Option<PathBuf>) -> Self {
        Self { file }
    }

    /// What was learned before; nothing if that can't be told.
    pub(crate) fn load(&self) -> Learned {
        let mut learned = Learned::default();
        if let Some((folder, name)) =
            self.file.as_deref().and_then(|file| file.parent().zip(file.file_name()))
        {
            // What a crash left. Another process that is writing just now saves it later.
            let _ = remove_unfinished(&DISK, folder, |unfinished| name == unfinished);
        }
        self.join(&mut learned);
        learned.order();
        learned
    }

    /// Saves what was learned since, with what others have learned. What can't be saved is learned again.
    pub(crate) fn save(&self, learned: &mut Learned) {
        let Some(file) = &self.file else { return };
        if !std::mem::take(&mut learned.changed) {
            return;
        }
        self.join(learned);
        let written = replace(&DISK, file, &learned.encode()).or_else(|_| {
            // Perhaps it is the first.
            DISK.make_dir(file.parent().unwrap_or(Path::new(".")))?;
            replace(&DISK, file, &learned.encode())
        });
        // Whoever can't write here can't keep objects either, which is told elsewhere.
        let _ = written;
    }

    fn join(&self, learned: &mut Learned) {
        let Some(file) = &self.file else { return };
        let bytes = read_file(&DISK, file, FILE_MAX).ok().flatten();
        for steps in bytes.as_deref().and_then(decode).unwrap_or_default() {
            learned.add(&steps);
        }
    }
}

impl Learned {
    /// Whether there is something to save.
    pub(crate) fn is_changed(&self) -> bool {
        self.changed
    }

    /// Puts trails that were just read from a file, the newest first, on the clock.
    fn order(&mut self) {
        for trail in self.trails.iter_mut().rev() {
            self.clock += 1;
            trail.used = self.clock;
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let number = |bytes: &mut Vec<u8>, number: usize| {
            bytes.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
        };
        number(&mut bytes, self.files.len());
        let mut before: &[u8] = &[];
        for path in &self.files {
            let shared = path.iter().zip(before).take_while(|(a, b)| a == b).count();
            for len in [shared, path.len() - shared] {
                bytes.extend_from_slice(&u16::try_from(len).unwrap_or(u16::MAX).to_le_bytes());
            }
            bytes.extend_from_slice(&path[shared..]);
            before = path;
        }
        let mut trails: Vec<_> = self.trails.iter().collect();
        trails.sort_by_key(|trail| std::cmp::Reverse(trail.used));
        number(&mut bytes, trails.len());
        for trail in trails {
            number(&mut bytes, trail.steps.len());
            for Step { file, part } in &trail.steps {
                bytes.extend_from_slice(&file.to_le_bytes());
                bytes.extend_from_slice(&part.to_le_bytes());
            }
        }
        let digest = xxh3_128(&bytes);
        bytes.extend_from_slice(&digest.to_le_bytes());
        bytes
    }
}

pub(super) fn decode(bytes: &[u8]) -> Option<Vec<Vec<NamedStep>>> {
    let (body, digest) = bytes.split_last_chunk::<16>()?;
    if xxh3_128(body) != u128::from_le_bytes(*digest) {
        return None;
    }
    let mut rest = body.strip_prefix(MAGIC)?;
    let mut paths: Vec<Arc<[u8]>> = Vec::new();
    let mut bytes_left = PATHS_MAX;
    for _ in 0..take_u32(&mut rest)? {
        let (shared, more) = (take_u16(&mut rest)?, take_u16(&mut rest)?);
        let before: &[u8] = paths.last().map_or(&[], |path| path);
        let path = [before.get(..shared)?, rest.split_off(..more)?].concat();
        bytes_left = bytes_left.checked_sub(path.len())?;
        if path.len() > PATH_MAX || path.first() != Some(&b'/') {
            return None;
        }
        paths.push(path.into());
    }
    let mut trails = Vec::new();
    let mut steps_left = STEPS_MAX;
    for _ in 0..take_u32(&mut rest)? {
        let count = take_u32(&mut rest)? as usize;
        if count == 0 {
            return None;
        }
        steps_left = steps_left.checked_sub(count)?;
        let mut step = || {
            let (file, part) = (take_u32(&mut rest)?, take_u32(&mut rest)?);
            Some((Arc::clone(paths.get(file as usize)?), part))
        };
        trails.push((0..count).map(|_| step()).collect::<Option<Vec<NamedStep>>>()?);
    }
    rest.is_empty().then_some(trails)
}

fn take_u16(rest: &mut &[u8]) -> Option<usize> {
    let (number, after) = rest.split_first_chunk::<2>()?;
    *rest = after;
    Some(usize::from(u16::from_le_bytes(*number)))
}

fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    let (number, after) = rest.split_first_chunk::<4>()?;
    *rest = after;
    Some(u32::from_le_bytes(*number))
}
