//! Stores sequences on disk, beside the cache, so that they outlive the process.
//!
//! ```text
//!  0  "ESKERTR1"
//!  8  number of paths (4, little endian); for each the length of the prefix shared with the one before (2), the length of
//!     the rest (2), the rest
//!  …  number of sequences (4), the one that was read last first; for each the number of steps (4), for each the number
//!     of its path (4) and the part (4)
//!  …  XXH3-128 of all bytes before (16)
//! ```
//!
//! Each process that recorded something writes the file whole, under another name first, and merged with what other
//! processes have written before; no request waits for the disk. Damaged files and other formats are ignored. The folder
//! belongs to the cache, into which other users can't write; and if they could, the file only decides which files of the
//! repository are prefetched, within limits.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_store::{RealDisk, make_dirs, read_file, remove_unfinished, replace};
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_128;

use super::{NamedStep, Observation, PATH_MAX, PATHS_MAX, STEPS_MAX, Sequences, Step};

const MAGIC: &[u8; 8] = b"ESKERTR1";
/// Maximum size of the file in bytes, more than is ever written.
const FILE_MAX: u64 = 16 << 20;

/// File in which sequences are stored; `None` if they are not stored.
#[derive(Debug, Default)]
pub struct SequenceStore {
    file: Option<PathBuf>,
    /// Sequences that were delivered with the tree.
    brought: Vec<Vec<NamedStep>>,
}

/// The folder and its files are accessible to their owner only.
const DISK: RealDisk = RealDisk::PRIVATE;

impl SequenceStore {
    /// Stores sequences in this file.
    pub fn new(file: Option<PathBuf>) -> Self {
        Self { file, brought: Vec::new() }
    }

    /// Adds sequences that came with a tree, in the format of the file. Other formats are ignored.
    pub fn with(self, brought: &[u8]) -> Self {
        Self { brought: decode(brought).unwrap_or_default(), ..self }
    }

    /// Loads the stored sequences for this kind of observation; empty if they can't be read.
    pub fn load(&self, observation: Observation) -> Sequences {
        let mut learned = Sequences::new(observation);
        if let Some((folder, name)) =
            self.file.as_deref().and_then(|file| file.parent().zip(file.file_name()))
        {
            // Left by a crash. Another process that is writing just now saves its sequences later.
            let _ = remove_unfinished(&DISK, folder, |unfinished| name == unfinished);
        }
        learned.join(&self.read());
        learned.join(&self.brought);
        learned.order();
        learned
    }

    /// Saves new steps, merged with what other processes stored. Steps that can't be saved are recorded again.
    pub fn save(&self, learned: &mut Sequences) {
        self.save_shared(&Mutex::new(learned));
    }

    /// Saves shared sequences, which are not locked during disk I/O.
    pub fn save_shared(&self, learned: &Mutex<impl AsMut<Sequences>>) {
        let Some(file) = &self.file else { return };
        if !std::mem::take(&mut learned.lock().as_mut().changed) {
            return;
        }
        let others = self.read();
        let bytes = {
            let mut learned = learned.lock();
            learned.as_mut().join(&others);
            learned.as_mut().encode()
        };
        let written = replace(&DISK, file, &bytes).or_else(|_| {
            // The folder may not exist yet.
            make_dirs(&DISK, file.parent().unwrap_or(Path::new(".")))?;
            replace(&DISK, file, &bytes)
        });
        // If the folder is not writable, the cache can't store objects either, which is reported elsewhere.
        let _ = written;
    }

    fn read(&self) -> Vec<Vec<NamedStep>> {
        let bytes = self.file.as_deref().and_then(|file| read_file(&DISK, file, FILE_MAX).ok().flatten());
        bytes.as_deref().and_then(decode).unwrap_or_default()
    }
}

impl AsMut<Sequences> for Sequences {
    fn as_mut(&mut self) -> &mut Sequences {
        self
    }
}

impl Sequences {
    /// Returns the number of recorded steps.
    pub fn steps(&self) -> usize {
        self.locations.len()
    }

    /// Returns true if there are unsaved steps.
    pub fn is_changed(&self) -> bool {
        self.changed
    }

    fn join(&mut self, others: &[Vec<NamedStep>]) {
        others.iter().for_each(|steps| self.add(steps));
    }

    /// Sets the times of sequences that were just loaded, the newest first.
    fn order(&mut self) {
        for sequence in self.sequences.iter_mut().rev() {
            self.clock += 1;
            sequence.used = self.clock;
        }
    }

    /// Encodes all sequences in the format of the file.
    pub fn encode(&self) -> Vec<u8> {
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
        let mut sequences: Vec<_> = self.sequences.iter().collect();
        sequences.sort_by_key(|sequence| std::cmp::Reverse(sequence.used));
        number(&mut bytes, sequences.len());
        for sequence in sequences {
            number(&mut bytes, sequence.steps.len());
            for Step { file, part } in &sequence.steps {
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
    let mut pause = body.strip_prefix(MAGIC)?;
    let mut paths: Vec<Arc<[u8]>> = Vec::new();
    let mut bytes_left = PATHS_MAX;
    for _ in 0..take_u32(&mut pause)? {
        let (shared, more) = (take_u16(&mut pause)?, take_u16(&mut pause)?);
        let before: &[u8] = paths.last().map_or(&[], |path| path);
        let path = [before.get(..shared)?, pause.split_off(..more)?].concat();
        bytes_left = bytes_left.checked_sub(path.len())?;
        if path.len() > PATH_MAX || path.first() != Some(&b'/') {
            return None;
        }
        paths.push(path.into());
    }
    let mut sequences = Vec::new();
    let mut steps_left = STEPS_MAX;
    for _ in 0..take_u32(&mut pause)? {
        let count = take_u32(&mut pause)? as usize;
        if count == 0 {
            return None;
        }
        steps_left = steps_left.checked_sub(count)?;
        let mut step = || {
            let (file, part) = (take_u32(&mut pause)?, take_u32(&mut pause)?);
            Some((Arc::clone(paths.get(file as usize)?), part))
        };
        sequences.push((0..count).map(|_| step()).collect::<Option<Vec<NamedStep>>>()?);
    }
    pause.is_empty().then_some(sequences)
}

fn take_u16(pause: &mut &[u8]) -> Option<usize> {
    let (number, after) = pause.split_first_chunk::<2>()?;
    *pause = after;
    Some(usize::from(u16::from_le_bytes(*number)))
}

fn take_u32(pause: &mut &[u8]) -> Option<u32> {
    let (number, after) = pause.split_first_chunk::<4>()?;
    *pause = after;
    Some(u32::from_le_bytes(*number))
}
