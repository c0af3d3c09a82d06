//! What a file announces: the bundle that a publisher wrote beside it.
//!
//! The specification is any publisher's word, so all it can do is bounded: by what [`Bundle`] takes, by the objects and
//! catalogs of one cluster, and by a credit that all bundles of a view share.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_format::bundle::{self, Bundle, BundleRead};
use esker_format::catalog::{Chunk, EntryKind, Flags, Row};
use esker_format::hash::ContentHash;
use esker_store::{Handle, ObjectRequest};
use esker_vfs::NodeKey;

use crate::catalogs::WantedCatalog;
use crate::core::Core;
use crate::failure::Blocked;
use crate::lookup::{Scene, join, split};
use crate::mounted::Mounted;
use crate::payload::Notes;

use super::arriving::Arrival;
use super::{Event, objects};
use esker_trails::{NamedStep, PART};

/// A trigger that is read again after less than this announces nothing new.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Most triggers of which we remember when they announced something.
const RECENT_MAX: usize = 4096;
/// Most objects of one cluster.
const OBJECTS_MAX: usize = 32_768;
/// Most catalogs fetched for one cluster, and the largest.
const CATALOGS_MAX: usize = 128;
const CATALOG_BYTES_MAX: u64 = 64 << 20;
/// Reads that are resolved before something else has its turn: some milliseconds.
const SLICE: usize = 1024;
/// Most chunks looked at for one cluster, however often it names the same large file.
const CHUNKS_MAX: usize = 1 << 20;

/// When triggers announced something last.
#[derive(Default)]
pub(super) struct Recent(HashMap<NodeKey, Instant>);

impl Recent {
    /// Whether what a trigger announces is to be fetched now.
    pub(super) fn begin(&mut self, trigger: NodeKey, now: Instant) -> bool {
        if self.0.len() >= RECENT_MAX {
            self.0.retain(|_, last| now.duration_since(*last) < AGAIN_AFTER);
            if self.0.len() >= RECENT_MAX {
                return false;
            }
        }
        let is_due = self.0.get(&trigger).is_none_or(|last| now.duration_since(*last) >= AGAIN_AFTER);
        if is_due {
            self.0.insert(trigger, now);
        }
        is_due
    }

    /// What a trigger announces was not to be had, so the next read of it is as good as the first.
    pub(super) fn forget(&mut self, trigger: &NodeKey) {
        self.0.remove(trigger);
    }
}

/// Fetches the specification beside a trigger. False, and nothing happens, if there is none; else the planner hears what
/// came of it, once.
pub(super) fn fetch_spec(core: &Arc<Core>, trigger: NodeKey, notes: &Notes) -> bool {
    let revision = core.current.load();
    let Some((wanted, directory)) = find_spec(&Scene::new(core, &revision), notes) else { return false };
    objects::open(core, wanted, move |handle| Event::Spec { trigger, directory, handle });
    true
}

/// The object of the specification beside a trigger, and the directory they are in.
fn find_spec(scene: &Scene<'_>, trigger: &Notes) -> Option<(ObjectRequest, Vec<u8>)> {
    let path = scene.path_of(trigger).ok()?;
    let (directory, name) = split(&path)?;
    let name = bundle::name_for(name)?;
    let mount = scene.resolve(directory).ok()?;
    let row = mount.find(mount.key_of_child(directory, &name)).ok()??;
    if row.size() > bundle::BYTES_MAX as u64 {
        return None;
    }
    // In one object: the reference knows no other kind either.
    Some((objects::whole(&row, &join(directory, &name))?, directory.to_vec()))
}

/// Files that are read after another one, on the way to become objects.
pub(crate) struct Cluster {
    /// The order among clusters.
    pub(super) serial: u64,
    /// Whether it was learned here, or announced by a publisher.
    pub(super) learned: bool,
    files: Vec<Vec<u8>>,
    reads: Vec<BundleRead>,
    /// Reads that nobody has looked at yet, and those that wait for a catalog.
    next: usize,
    waiting: Vec<usize>,
    /// Catalogs that are to be asked for, and all that ever were.
    missing: Vec<WantedCatalog>,
    asked: HashSet<ContentHash>,
    objects_left: usize,
    chunks_left: usize,
}

/// An object of a cluster, and its place in it.
pub(super) struct Announced {
    pub(super) place: (usize, usize),
    pub(super) wanted: ObjectRequest,
    pub(super) size: u64,
    /// The bytes of it that are read.
    pub(super) range: Range<u64>,
    /// The same of the file.
    pub(super) arrival: Arrival,
    /// Whether it is a part of the file.
    pub(super) chunk: bool,
}

/// What a turn at a cluster came to.
pub(super) struct Turn {
    pub(super) objects: Vec<Announced>,
    pub(super) next: Next,
}

/// What a cluster needs to go on.
pub(super) enum Next {
    /// Another turn.
    Turn,
    /// These catalogs, then another turn.
    Catalogs(Vec<WantedCatalog>),
    /// Nothing: it is done.
    Done,
}

impl Cluster {
    /// Reads a specification that lies in a directory; none if it makes no sense.
    pub(super) fn of_spec(serial: u64, handle: &Handle, directory: &[u8]) -> Option<Self> {
        let bytes = handle.read_all().ok()?;
        let Bundle { files, reads, .. } = Bundle::parse(&bytes, directory).ok()?;
        Some(Self::new(serial, files, reads))
    }

    /// What is to be read after what was learned; parts that follow each other in a file are one read.
    pub(super) fn of_steps(serial: u64, steps: &[NamedStep]) -> Self {
        let (mut files, mut reads) = (Vec::<Vec<u8>>::new(), Vec::<BundleRead>::new());
        for (path, part) in steps {
            let start = u64::from(*part) * PART;
            let range = start..start + PART;
            if files.last().is_some_and(|last| **last == **path) {
                if let Some(BundleRead { range: Some(last), .. }) = reads.last_mut()
                    && last.end == range.start
                {
                    last.end = range.end;
                    continue;
                }
            } else {
                files.push(path.to_vec());
            }
            reads.push(BundleRead { file: files.len() - 1, range: Some(range) });
        }
        Self { learned: true, ..Self::new(serial, files, reads) }
    }

    /// The files that are read.
    pub(super) fn files(&self) -> impl Iterator<Item = &[u8]> {
        self.files.iter().map(Vec::as_slice)
    }

    fn new(serial: u64, files: Vec<Vec<u8>>, reads: Vec<BundleRead>) -> Self {
        Self {
            serial,
            learned: false,
            files,
            reads,
            next: 0,
            waiting: Vec::new(),
            missing: Vec::new(),
            asked: HashSet::new(),
            objects_left: OBJECTS_MAX,
            chunks_left: CHUNKS_MAX,
        }
    }

    /// Looks at the next reads, or once more at those that waited for catalogs, which have come by now or never will.
    pub(super) fn turn(&mut self, scene: &Scene<'_>) -> Turn {
        let mut objects = Vec::new();
        let fresh = self.next..self.reads.len().min(self.next + SLICE);
        self.next = fresh.end;
        let waited = if fresh.is_empty() { std::mem::take(&mut self.waiting) } else { Vec::new() };
        for number in waited.into_iter().chain(fresh) {
            if self.objects_left == 0 {
                return Turn { objects, next: Next::Done };
            }
            // What is damaged, or not there any more, is for whoever asks for it.
            if let Err(Blocked::On(catalog)) = self.resolve(scene, number, &mut objects) {
                self.wait_for(catalog, number);
            }
        }
        let next = if self.next < self.reads.len() {
            Next::Turn
        } else if self.missing.is_empty() {
            Next::Done
        } else {
            Next::Catalogs(std::mem::take(&mut self.missing))
        };
        Turn { objects, next }
    }

    /// Keeps a read until a catalog has come, unless it did not come when it was asked for.
    fn wait_for(&mut self, catalog: WantedCatalog, number: usize) {
        let is_small = catalog.size.is_none_or(|size| size <= CATALOG_BYTES_MAX);
        if is_small && self.asked.len() < CATALOGS_MAX && self.asked.insert(catalog.hash) {
            self.missing.push(catalog);
            self.waiting.push(number);
        } else if self.missing.iter().any(|missing| missing.hash == catalog.hash) {
            self.waiting.push(number);
        }
    }

    fn resolve(
        &mut self,
        scene: &Scene<'_>,
        number: usize,
        objects: &mut Vec<Announced>,
    ) -> Result<(), Blocked> {
        let Some(BundleRead { file, range }) = self.reads.get(number).cloned() else { return Ok(()) };
        let Some(path) = self.files.get(file).cloned() else { return Ok(()) };
        let Some((directory, name)) = split(&path) else { return Ok(()) };
        let mount = scene.resolve(directory)?;
        let Some(row) = mount.find(mount.key_of_child(directory, name))? else { return Ok(()) };
        let found = self.objects_of(mount, &row, range, (number, &path))?;
        self.objects_left = self.objects_left.saturating_sub(found.len());
        objects.extend(found);
        Ok(())
    }

    /// The objects of a file, or of a part of it, which is the read of this number.
    fn objects_of(
        &mut self,
        mount: &Mounted,
        row: &Row<'_>,
        range: Option<Range<u64>>,
        (number, path): (usize, &[u8]),
    ) -> Result<Vec<Announced>, Blocked> {
        if row.size() == 0 {
            return Ok(Vec::new());
        }
        let range = range.unwrap_or(0..row.size());
        if !row.flags().has(Flags::CHUNKED) {
            let (place, size) = ((number, 0), row.size());
            let arrival = Arrival { path: path.into(), range: range.clone(), ends: range.end >= size };
            let whole = objects::whole(row, path).map(|wanted| Announced {
                place,
                wanted,
                size,
                range,
                arrival,
                chunk: false,
            });
            return Ok(whole.into_iter().collect());
        }
        let is_file = row.kind() == EntryKind::File && !row.flags().has(Flags::EXTERNAL);
        let Some(compression) = row.compression().filter(|_| is_file) else { return Ok(Vec::new()) };
        if self.chunks_left == 0 {
            return Ok(Vec::new());
        }
        let chunks = mount.chunks(row)?;
        self.chunks_left = self.chunks_left.saturating_sub(chunks.len());
        let is_in = |chunk: &&Chunk| chunk.offset < range.end && chunk.offset + chunk.size > range.start;
        let what = String::from_utf8_lossy(path);
        let of_chunk = |(part, chunk): (usize, &Chunk)| {
            let wanted = objects::chunk(chunk, compression, &what);
            let within = |at: u64| at.saturating_sub(chunk.offset).min(chunk.size);
            let (place, range) = ((number, part), within(range.start)..within(range.end));
            let of_file = range.start + chunk.offset..range.end + chunk.offset;
            let arrival = Arrival { path: path.into(), ends: of_file.end >= row.size(), range: of_file };
            Announced { place, wanted, size: chunk.size, range, arrival, chunk: true }
        };
        Ok(chunks.iter().filter(is_in).take(self.objects_left).enumerate().map(of_chunk).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trigger_announces_once_in_a_while() {
        let mut recent = Recent::default();
        let now = Instant::now();
        let key = |number: usize| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&number.to_le_bytes());
            NodeKey(bytes)
        };
        assert!(recent.begin(key(1), now) && !recent.begin(key(1), now));
        assert!(recent.begin(key(2), now));
        recent.forget(&key(2));
        assert!(recent.begin(key(2), now), "it was not to be had");
        assert!(!recent.begin(key(1), now + AGAIN_AFTER / 2), "nothing new");
        assert!(recent.begin(key(1), now + AGAIN_AFTER), "and that puts nothing off");
        for number in 3..RECENT_MAX + 10 {
            recent.begin(key(number), now + AGAIN_AFTER);
        }
        assert!(recent.0.len() <= RECENT_MAX, "what is old made room, and no more is taken");
        assert!(!recent.begin(key(RECENT_MAX + 100), now + AGAIN_AFTER));
        assert!(recent.begin(key(RECENT_MAX + 100), now + 3 * AGAIN_AFTER));
    }
}
