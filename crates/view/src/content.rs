//! Reads files: finds the objects with the requested bytes, and waits for those that are not cached.

use std::sync::Arc;

use esker_format::catalog::{Chunk, Flags};
use esker_format::compress::Compression;
use esker_format::object::{ObjectKind, ObjectName};
use esker_store::{CacheKey, Callback, External, Handle, ObjectRequest, StoreError};
use esker_vfs::{Data, ErrorKind, Kind, Node, Reply, Segment, TreeError};
use parking_lot::Mutex;

use crate::core::Core;
use crate::failure::{self, Blocked};
use crate::lookup::Snapshot;
use crate::payload::NodeInfo;
use crate::prefetch::PartRead;
use crate::requester;

/// Maximum number of objects that one read may touch.
///
/// The smallest chunks that publishers make are a few KiB and the kernel reads at most 1 MiB at a time, so only a
/// malicious catalog comes near.
const PIECES_MAX: usize = 4096;

/// A range of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    /// Offset in the file at which the object begins.
    at: u64,
    object: ObjectName,
    compression: Compression,
    /// Plain size of the object in bytes.
    size: u64,
    start: u64,
    len: usize,
}

impl Core {
    /// Reads a regular file; see [`esker_vfs::Tree::read`].
    pub(crate) fn read(self: &Arc<Self>, node: &Node, offset: u64, len: usize, reply: Reply<Data>) {
        match readable(node) {
            Err(error) => reply.err(error),
            Ok((info, compression)) => {
                let end = offset.saturating_add(len as u64).min(info.size);
                if offset >= end {
                    return reply.ok(Data::default());
                }
                if info.chunked {
                    return self.read_chunked(node, compression, offset..end, reply);
                }
                let Some(hash) = info.content else {
                    return reply.err(self.no_content(node));
                };
                let piece = Piece {
                    at: 0,
                    object: ObjectName::new(hash, ObjectKind::File),
                    compression,
                    size: info.size,
                    start: offset,
                    len: (end - offset) as usize,
                };
                self.serve_pieces(node, vec![piece], reply);
            }
        }
    }

    fn read_chunked(
        self: &Arc<Self>,
        node: &Node,
        compression: Compression,
        range: std::ops::Range<u64>,
        reply: Reply<Data>,
    ) {
        if let Some(chunks) = self.open_files.chunks(&node.key) {
            return self.read_chunks(node, &chunks, compression, range, reply);
        }
        let (core, node) = (Arc::clone(self), *node);
        let with_chunks = reply.through(move |answer: Result<Arc<[Chunk]>, TreeError>, reply| match answer {
            Ok(chunks) => {
                core.open_files.keep_chunks(&node.key, &chunks);
                core.read_chunks(&node, &chunks, compression, range, reply);
            }
            Err(error) => reply.err(error),
        });
        self.serve(with_chunks, move |snapshot| snapshot.chunks(&node));
    }

    /// Loads the chunks of all files in use, while the catalogs of their revisions are still to be had.
    pub(crate) fn load_chunks(self: &Arc<Self>) {
        for node in self.open_files.without_chunks() {
            let core = Arc::clone(self);
            let keep = Reply::new(move |answer: Result<Arc<[Chunk]>, TreeError>| {
                // A read of the file tries again, and reports its failure.
                if let Ok(chunks) = answer {
                    core.open_files.keep_chunks(&node.key, &chunks);
                }
            });
            self.serve(keep, move |snapshot| snapshot.chunks(&node));
        }
    }

    fn read_chunks(
        self: &Arc<Self>,
        node: &Node,
        chunks: &[Chunk],
        compression: Compression,
        range: std::ops::Range<u64>,
        reply: Reply<Data>,
    ) {
        let first = chunks.partition_point(|chunk| chunk.offset + chunk.size <= range.start);
        let read_chunks = chunks.iter().skip(first).take_while(|chunk| chunk.offset < range.end);
        let pieces: Vec<Piece> = read_chunks
            .take(PIECES_MAX + 1)
            .map(|chunk| {
                let start = range.start.saturating_sub(chunk.offset);
                let end = (range.end - chunk.offset).min(chunk.size);
                Piece {
                    at: chunk.offset,
                    object: ObjectName::new(chunk.hash, ObjectKind::Chunk),
                    compression,
                    size: chunk.size,
                    start,
                    len: (end - start) as usize,
                }
            })
            .collect();
        if pieces.len() > PIECES_MAX {
            let reason = format!("one read would touch more than {PIECES_MAX} chunks");
            return reply.err(TreeError::on(ErrorKind::Damaged, self.name_of(node)).because(reason));
        }
        self.serve_pieces(node, pieces, reply);
    }

    /// Replies at once if every object is in the cache, otherwise once all have arrived.
    fn serve_pieces(self: &Arc<Self>, node: &Node, pieces: Vec<Piece>, reply: Reply<Data>) {
        // External data is neither prefetched nor recorded, since prefetching identifies objects by their hashes.
        let is_external = NodeInfo::of(node).is_ok_and(|info| info.external);
        let ready = |piece: &Piece| Some(segment(&self.store.cached(&piece.wanted(""))?, piece));
        let ready: Option<Vec<Segment>> = pieces.iter().map(ready).collect();
        if let Some(segments) = ready {
            if !is_external {
                pieces.iter().for_each(|piece| self.prefetch.read(node, &piece.part_read()));
            }
            return reply.ok(Data(segments));
        }
        if !pieces.iter().all(|piece| self.store.holds(&piece.wanted(""))) {
            self.counters.misses.count();
        }
        if !is_external {
            return self.get_pieces(node, None, pieces, reply);
        }
        let (core, node) = (Arc::clone(self), *node);
        let with_place = reply.through(move |answer, reply| match answer {
            Ok(place) => core.get_pieces(&node, place, pieces, reply),
            Err(error) => reply.err(error),
        });
        self.place_outside(&node, with_place);
    }

    /// Has the store check the objects of a range that could not be read.
    pub(crate) fn unreadable(&self, node: &Node, offset: u64, len: usize) {
        let Ok((info, compression)) = readable(node) else { return };
        let end = offset.saturating_add(len as u64);
        if !info.chunked {
            if let Some(hash) = info.content {
                let object = ObjectName::new(hash, ObjectKind::File);
                self.store.recheck(&ObjectRequest::new(object, compression, "").size(info.size));
            }
            return;
        }
        let chunks = self.open_files.chunks(&node.key).unwrap_or_default();
        let first = chunks.partition_point(|chunk| chunk.offset + chunk.size <= offset);
        for chunk in chunks.iter().skip(first).take_while(|chunk| chunk.offset < end).take(PIECES_MAX) {
            let object = ObjectName::new(chunk.hash, ObjectKind::Chunk);
            self.store.recheck(&ObjectRequest::new(object, compression, "").size(chunk.size));
        }
    }

    /// Fetches all objects, from this external path if there is one.
    fn get_pieces(
        self: &Arc<Self>,
        node: &Node,
        place: Option<Vec<u8>>,
        pieces: Vec<Piece>,
        reply: Reply<Data>,
    ) {
        let name: Arc<str> = self.name_of(node).into();
        let requester = requester::of(reply.requester());
        let gathering = Arc::new(Assembly(Mutex::new(AssemblyState {
            segments: vec![None; pieces.len()],
            missing: pieces.len(),
            reply: Some(reply),
        })));
        for (at, piece) in pieces.into_iter().enumerate() {
            let (gathering, label) = (Arc::clone(&gathering), Arc::clone(&name));
            let arrived = move |answer: Result<Handle, StoreError>| {
                let answer = answer
                    .map(|handle| segment(&handle, &piece))
                    .map_err(|error| failure::of_store(error, &*label));
                gathering.arrived(at, answer);
            };
            let (mut wanted, part_read) = (piece.wanted(&name), piece.part_read());
            wanted.external = place.as_deref().map(|place| outside(place, piece.object.kind, piece.at));
            // It is only checked, or opened, before it is read.
            let is_held = self.store.holds(&wanted);
            self.store.get(wanted.for_requester(requester.clone()), Callback::new(arrived));
            // Afterwards, so that prefetched objects never come first.
            match place {
                None if is_held => self.prefetch.read(node, &part_read),
                None => self.prefetch.missed(node, &part_read),
                Some(_) => {}
            }
        }
    }

    /// Finds the path of a file with external data, once its catalog is attached; `None` for other files.
    pub(crate) fn place_outside(self: &Arc<Self>, node: &Node, reply: Reply<Option<Vec<u8>>>) {
        match NodeInfo::of(node) {
            Ok(info) if info.external => self.serve(reply, move |snapshot| snapshot.path_of(&info).map(Some)),
            Ok(_) => reply.ok(None),
            Err(error) => reply.err(error),
        }
    }

    fn no_content(&self, node: &Node) -> TreeError {
        let reason = "its catalog names no object with its content";
        TreeError::on(ErrorKind::Damaged, self.name_of(node)).because(reason)
    }
}

impl Snapshot<'_> {
    /// Returns the chunks of a chunked file, from the catalog of its node or of the present revision.
    pub(crate) fn chunks(&self, node: &Node) -> Result<Arc<[Chunk]>, Blocked> {
        let info = NodeInfo::of(node)?;
        let attached = match self.attached(&info) {
            Ok(attached) => attached,
            // The present revision may have the same file in a catalog that is attached.
            Err(missing) => match self.with_row(node, |mount, row| mount.chunks(row)) {
                Ok(chunks) => return Ok(chunks.into()),
                Err(_) => return Err(missing),
            },
        };
        let damaged = |error| failure::of_catalog(error, attached.describe(&[]));
        let row = attached.catalog.find(info.key).map_err(damaged)?;
        let row = row.filter(|row| row.flags().has(Flags::CHUNKED)).ok_or(ErrorKind::Stale)?;
        Ok(attached.catalog.chunks(&row).map_err(damaged)?.into())
    }
}

/// Pieces of one reply, as they arrive.
struct Assembly(Mutex<AssemblyState>);

struct AssemblyState {
    segments: Vec<Option<Segment>>,
    missing: usize,
    reply: Option<Reply<Data>>,
}

impl Assembly {
    fn arrived(&self, at: usize, answer: Result<Segment, TreeError>) {
        let mut gathered = self.0.lock();
        let outcome = match answer {
            Err(error) => Some(Err(error)),
            Ok(segment) => {
                if let Some(place) = gathered.segments.get_mut(at) {
                    *place = Some(segment);
                }
                gathered.missing -= 1;
                let all = gathered.missing == 0;
                all.then(|| Ok(Data(std::mem::take(&mut gathered.segments).into_iter().flatten().collect())))
            }
        };
        let Some(outcome) = outcome else { return };
        let reply = gathered.reply.take();
        drop(gathered);
        // The first failure has ended the request.
        if let Some(reply) = reply {
            reply.give(outcome);
        }
    }
}

impl Piece {
    fn part_read(&self) -> PartRead {
        let start = self.at + self.start;
        PartRead {
            key: CacheKey { hash: self.object.hash, compression: self.compression },
            at: self.at,
            size: self.size,
            range: start..start + self.len as u64,
        }
    }

    fn wanted(&self, what: &str) -> ObjectRequest {
        ObjectRequest::new(self.object, self.compression, what).size(self.size)
    }
}

fn segment(handle: &Handle, piece: &Piece) -> Segment {
    Segment::File { file: handle.file(), offset: piece.start, len: piece.len }
}

/// Returns the external location of a file or of one of its chunks.
pub(crate) fn outside(path: &[u8], kind: ObjectKind, at: u64) -> Box<External> {
    Box::new(External::of(path, (kind == ObjectKind::Chunk).then_some(at)))
}

/// Checks that the node is a file whose bytes the store can provide.
pub(crate) fn readable(node: &Node) -> Result<(NodeInfo, Compression), TreeError> {
    match node.kind {
        Kind::File => {}
        Kind::Directory => return Err(ErrorKind::IsADirectory.into()),
        _ => return Err(ErrorKind::Invalid.into()),
    }
    let info = NodeInfo::of(node)?;
    let compression = info.compression.ok_or_else(|| {
        TreeError::on(ErrorKind::Damaged, "a file").because("its compression is not known to this program")
    })?;
    Ok((info, compression))
}
