//! Turns pieces into objects.

use std::sync::atomic::Ordering;

use crossbeam_channel::Receiver;
use esker_format::catalog::{Chunk, Flags};
use esker_format::compress::Compression;
use esker_format::hash::ContentHash;
use esker_format::object::{ObjectKind, ObjectName};
use esker_store::Put;

use crate::content_index::ContentKey;
use crate::error::PublishError;

use super::encoders::Encoders;
use super::incompressible::is_incompressible_piece;
use super::{Piece, Pipeline, Run};

pub(super) fn work(
    pipeline: &Pipeline<'_>,
    run: &Run,
    encoders: &Encoders,
    waiting: &Receiver<Piece>,
) -> Result<(), PublishError> {
    for piece in waiting {
        if run.is_over() {
            continue;
        }
        let (name, compression) = store(pipeline, encoders, &piece)?;
        let size = piece.plain.len() as u64;
        run.set(piece.job, |content| {
            let external = if piece.external { Flags::EXTERNAL } else { 0 };
            content.flags = Flags(Flags::storage(pipeline.algorithm, compression) | external);
            match piece.offset {
                None => content.hash = Some(name.hash),
                Some(offset) => content.chunks.push(Chunk { offset, size, hash: name.hash }),
            }
        });
    }
    Ok(())
}

/// Stores one piece, unless an equal one is stored already or it is external data. Returns the object and its compression.
fn store(
    pipeline: &Pipeline<'_>,
    encoders: &Encoders,
    piece: &Piece,
) -> Result<(ObjectName, Compression), PublishError> {
    let kind = if piece.offset.is_some() { ObjectKind::Chunk } else { ObjectKind::File };
    if piece.external {
        let name = ObjectName::new(ContentHash::of(pipeline.algorithm, &piece.plain), kind);
        return Ok((name, Compression::Stored));
    }
    let counters = pipeline.counters;
    let mut compression = piece.compression.unwrap_or(pipeline.settings.compression);
    let mut key = ContentKey::of(&piece.plain, pipeline.algorithm, compression, kind);
    let may_be_plain = piece.compression.is_none() && compression != Compression::Stored;
    let plain = may_be_plain.then_some(Compression::Stored);
    for form in [Some(compression), plain].into_iter().flatten() {
        if let Some((known, len)) = pipeline.index.find(&key.with(form))
            && !pipeline.is_condemned(&known)?
            && pipeline.sink.has(&known, len)?
        {
            counters.present.fetch_add(1, Ordering::Relaxed);
            counters.present_bytes.fetch_add(piece.plain.len() as u64, Ordering::Relaxed);
            return Ok((known, form));
        }
    }
    if may_be_plain && is_incompressible_piece(&piece.plain) {
        (compression, key) = (Compression::Stored, key.with(Compression::Stored));
    }
    let mut encoder = (compression != Compression::Stored).then(|| encoders.lend());
    let stored = match &mut encoder {
        None => &piece.plain,
        Some(encoder) => encoder.encode(&piece.plain)?,
    };
    let name = ObjectName::new(ContentHash::of(pipeline.algorithm, stored), kind);
    let put = match (pipeline.is_condemned(&name)?, pipeline.is_dry) {
        (true, true) => Put::Stored,
        (false, true) if pipeline.sink.has(&name, stored.len() as u64)? => Put::Present,
        (false, true) => Put::Stored,
        (true, false) => pipeline.sink.put_anew(&name, stored)?,
        (false, false) => pipeline.sink.put(&name, stored)?,
    };
    match put {
        Put::Stored => {
            counters.objects.fetch_add(1, Ordering::Relaxed);
            counters.object_bytes.fetch_add(stored.len() as u64, Ordering::Relaxed);
        }
        Put::Present => {
            counters.present.fetch_add(1, Ordering::Relaxed);
            counters.present_bytes.fetch_add(piece.plain.len() as u64, Ordering::Relaxed);
        }
    }
    pipeline.index.insert(key, &name, stored.len() as u64);
    Ok((name, compression))
}
