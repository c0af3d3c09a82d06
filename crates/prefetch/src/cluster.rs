//! Resolves the files of bundles and of learned sequences into objects.
//!
//! Any publisher can write a specification, so its effect is bounded: by what [`Bundle`] accepts, by the objects and
//! catalogs of one cluster, and by a budget that all bundles of a view share.

use std::collections::HashSet;
use std::ops::Range;

use esker_format::bundle::{Bundle, BundleRead};
use esker_format::catalog::Chunk;
use esker_format::compress::Compression;
use esker_format::hash::ContentHash;
use esker_store::{Handle, ObjectRequest};

use crate::objects;
use crate::pending::Arrival;
use crate::sequences::{NamedStep, PART};

/// Maximum number of objects of one cluster.
const OBJECTS_MAX: usize = 32_768;
/// Maximum number of catalogs fetched for one cluster, and maximum size of each in bytes.
const CATALOGS_MAX: usize = 128;
const CATALOG_BYTES_MAX: u64 = 64 << 20;
/// Number of reads resolved in one turn, which takes some milliseconds.
const SLICE: usize = 1024;
/// Maximum number of chunks listed for one cluster, including repeated ones.
const CHUNKS_MAX: usize = 1 << 20;

/// A catalog that has to be fetched before files in it can be found.
pub trait CatalogRequest {
    /// Returns the hash of the catalog.
    fn hash(&self) -> ContentHash;

    /// Returns the size of the catalog in bytes, if its parent catalog records it.
    fn size(&self) -> Option<u64>;
}

/// The tree in which the files of a cluster are found.
pub trait FileLookup {
    /// The request for a catalog that is not attached.
    type Catalog;

    /// Finds the objects of a regular file in attached catalogs; `Err` if a catalog has to be fetched first. A chunked file
    /// is only found if the caller `wants_chunks`. Damaged and missing files are not found.
    fn find(&self, path: &[u8], wants_chunks: bool) -> Result<Option<FileObjects>, Self::Catalog>;
}

/// The objects that a regular file consists of.
pub struct FileObjects {
    /// Size of the file in bytes.
    pub size: u64,
    /// Objects of the file.
    pub content: FileContent,
}

/// One object or many.
pub enum FileContent {
    /// The file is one object.
    Whole(ObjectRequest),
    /// The file is a sequence of chunks with this compression.
    Chunked(Vec<Chunk>, Compression),
}

/// Files that are read after another file, and their state of resolution into objects.
pub struct Cluster<C> {
    /// Order among the clusters of bundles.
    pub serial: u64,
    /// True if the cluster was learned on this node; false if a publisher announced it.
    pub learned: bool,
    files: Vec<Vec<u8>>,
    reads: Vec<BundleRead>,
    /// Number of the next unresolved read, and the reads that wait for a catalog.
    next: usize,
    waiting: Vec<usize>,
    /// Catalogs to request, and the hashes of all catalogs requested so far.
    missing: Vec<C>,
    asked: HashSet<ContentHash>,
    objects_left: usize,
    chunks_left: usize,
}

/// An object of a cluster, and its position in the cluster.
pub struct BundleObject {
    /// Number of the read, and of the object in the file.
    pub place: (usize, usize),
    /// Request for the object.
    pub wanted: ObjectRequest,
    /// Plain bytes of the object.
    pub size: u64,
    /// Range of the object that is read.
    pub range: Range<u64>,
    /// Position of that range in the file.
    pub arrival: Arrival,
    /// True if the object is a chunk of the file.
    pub chunk: bool,
}

/// Result of one turn of resolution.
pub struct ResolutionStep<C> {
    /// Objects that were found.
    pub objects: Vec<BundleObject>,
    /// Next step of the cluster.
    pub next: Next<C>,
}

/// Next step in the resolution of a cluster.
pub enum Next<C> {
    /// The cluster needs another turn.
    Turn,
    /// The cluster needs these catalogs, then another turn.
    Catalogs(Vec<C>),
    /// All reads are resolved.
    Done,
}

impl<C: CatalogRequest> Cluster<C> {
    /// Parses the specification of a bundle in a directory; `None` if it is invalid.
    pub fn of_spec(serial: u64, handle: &Handle, directory: &[u8]) -> Option<Self> {
        let bytes = handle.read_all().ok()?;
        let Bundle { files, reads, .. } = Bundle::parse(&bytes, directory).ok()?;
        Some(Self::new(serial, files, reads))
    }

    /// Returns the cluster of learned steps; consecutive parts of a file become one read.
    pub fn of_steps(steps: &[NamedStep]) -> Self {
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
        Self { learned: true, ..Self::new(0, files, reads) }
    }

    /// Returns the paths of the files that are read.
    pub fn files(&self) -> impl Iterator<Item = &[u8]> {
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

    /// Resolves the next reads, or retries those that waited for catalogs, which have arrived or failed by now.
    pub fn turn(&mut self, files: &(impl FileLookup<Catalog = C> + ?Sized)) -> ResolutionStep<C> {
        let mut objects = Vec::new();
        let fresh = self.next..self.reads.len().min(self.next + SLICE);
        self.next = fresh.end;
        let waited = if fresh.is_empty() { std::mem::take(&mut self.waiting) } else { Vec::new() };
        for number in waited.into_iter().chain(fresh) {
            if self.objects_left == 0 {
                return ResolutionStep { objects, next: Next::Done };
            }
            // Damaged and missing files are reported to the programs that read them.
            if let Err(catalog) = self.resolve(files, number, &mut objects) {
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
        ResolutionStep { objects, next }
    }

    /// Keeps a read until its catalog has arrived, unless that catalog was requested before and failed.
    fn wait_for(&mut self, catalog: C, number: usize) {
        let is_small = catalog.size().is_none_or(|size| size <= CATALOG_BYTES_MAX);
        if is_small && self.asked.len() < CATALOGS_MAX && self.asked.insert(catalog.hash()) {
            self.missing.push(catalog);
            self.waiting.push(number);
        } else if self.missing.iter().any(|missing| missing.hash() == catalog.hash()) {
            self.waiting.push(number);
        }
    }

    fn resolve(
        &mut self,
        files: &(impl FileLookup<Catalog = C> + ?Sized),
        number: usize,
        objects: &mut Vec<BundleObject>,
    ) -> Result<(), C> {
        let Some(BundleRead { file, range }) = self.reads.get(number).cloned() else { return Ok(()) };
        let Some(path) = self.files.get(file).cloned() else { return Ok(()) };
        let Some(found) = files.find(&path, self.chunks_left > 0)? else { return Ok(()) };
        let found = self.objects_of(found, range, (number, &path));
        self.objects_left = self.objects_left.saturating_sub(found.len());
        objects.extend(found);
        Ok(())
    }

    /// Returns the objects of a file, or of the range that the read of this number covers.
    fn objects_of(
        &mut self,
        FileObjects { size: file_size, content }: FileObjects,
        range: Option<Range<u64>>,
        (number, path): (usize, &[u8]),
    ) -> Vec<BundleObject> {
        if file_size == 0 {
            return Vec::new();
        }
        let range = range.unwrap_or(0..file_size);
        let (chunks, compression) = match content {
            FileContent::Whole(wanted) => {
                let arrival =
                    Arrival { path: path.into(), range: range.clone(), ends: range.end >= file_size };
                let place = (number, 0);
                return vec![BundleObject { place, wanted, size: file_size, range, arrival, chunk: false }];
            }
            FileContent::Chunked(chunks, compression) => (chunks, compression),
        };
        self.chunks_left = self.chunks_left.saturating_sub(chunks.len());
        let is_in = |chunk: &&Chunk| chunk.offset < range.end && chunk.offset + chunk.size > range.start;
        let what = String::from_utf8_lossy(path);
        let of_chunk = |(part, chunk): (usize, &Chunk)| {
            let wanted = objects::chunk(chunk, compression, &what);
            let within = |at: u64| at.saturating_sub(chunk.offset).min(chunk.size);
            let (place, range) = ((number, part), within(range.start)..within(range.end));
            let of_file = range.start + chunk.offset..range.end + chunk.offset;
            let arrival = Arrival { path: path.into(), ends: of_file.end >= file_size, range: of_file };
            BundleObject { place, wanted, size: chunk.size, range, arrival, chunk: true }
        };
        chunks.iter().filter(is_in).take(self.objects_left).enumerate().map(of_chunk).collect()
    }
}
