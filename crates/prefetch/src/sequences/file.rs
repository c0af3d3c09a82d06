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

use esker_store::{RealDisk, make_dirs, read_file, remove_unfinished, replace};
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_128;

use super::{NamedStep, Observation, PATH_MAX, PATHS_MAX, STEPS_MAX, Sequences, Step};

const MAGIC: &[u8; 8] = b"ESKERTR1";
/// More than the most that is written.
const FILE_MAX: u64 = 16 << 20;

/// Where trails are kept; nowhere if there is no file.
#[derive(Debug, Default)]
pub struct SequenceStore {
    file: Option<PathBuf>,
    /// What came with the tree.
    brought: Vec<Vec<NamedStep>>,
}

/// The folder and its files are for their owner only.
const DISK: RealDisk = RealDisk::PRIVATE;

impl SequenceStore {
    /// Keeps them in this file.
    pub fn new(file: Option<PathBuf>) -> Self {
        Self { file, brought: Vec::new() }
    }

    /// One that knows what others have learned and given away with a tree, in the form of the file, too. What is of
    /// another form is nothing.
    pub fn with(self, brought: &[u8]) -> Self {
        Self { brought: decode(brought).unwrap_or_default(), ..self }
    }

    /// What was learned before, of readers who are seen as told; nothing if that can't be told.
    pub fn load(&self, observation: Observation) -> Sequences {
        let mut learned = Sequences::new(observation);
        if let Some((folder, name)) =
            self.file.as_deref().and_then(|file| file.parent().zip(file.file_name()))
        {
            // What a crash left. Another process that is writing just now saves it later.
            let _ = remove_unfinished(&DISK, folder, |unfinished| name == unfinished);
        }
        learned.join(&self.read());
        learned.join(&self.brought);
        learned.order();
        learned
    }

    /// Saves what was learned since, with what others have learned. What can't be saved is learned again.
    pub fn save(&self, learned: &mut Sequences) {
        self.save_shared(&Mutex::new(learned));
    }

    /// The same for what others may want at any time: it is not locked while the disk is waited for.
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
            // Perhaps it is the first.
            make_dirs(&DISK, file.parent().unwrap_or(Path::new(".")))?;
            replace(&DISK, file, &bytes)
        });
        // Whoever can't write here can't keep objects either, which is told elsewhere.
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
    /// How many steps are known.
    pub fn steps(&self) -> usize {
        self.locations.len()
    }

    /// Whether there is something to save.
    pub fn is_changed(&self) -> bool {
        self.changed
    }

    fn join(&mut self, others: &[Vec<NamedStep>]) {
        others.iter().for_each(|steps| self.add(steps));
    }

    /// Puts trails that were just read from a file, the newest first, on the clock.
    fn order(&mut self) {
        for sequence in self.sequences.iter_mut().rev() {
            self.clock += 1;
            sequence.used = self.clock;
        }
    }

    /// Everything in the form of the file.
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
