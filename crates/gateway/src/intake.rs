//! Payloads: the objects of a pack, each hashed before it is stored.

use std::io::{self, Read, Write as _};
use std::path::Path;

use esker_format::hash::ContentHash;
use esker_format::object::{ObjectKind, ObjectName};
use esker_store::{LargeWriter, Sink, StoreError};

use crate::pack::{HEADER_MAX, PackError, PackHeader};
use crate::wire;

/// Largest object: a publisher cuts larger files into chunks unless its repository says otherwise.
pub(crate) const OBJECT_MAX: u64 = 4 << 30;
/// Bytes that are read at once.
const PIECE: usize = 256 << 10;

/// A payload that was stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Number of objects.
    pub objects: usize,
    /// Number of their bytes.
    pub bytes: u64,
    /// Catalogs among them.
    pub catalogs: Vec<ContentHash>,
}

/// A payload can't be stored. The objects before the damaged one are stored if they are right.
#[derive(Debug, thiserror::Error)]
pub enum IntakeError {
    /// The header can't be used.
    #[error("other_error: {0}")]
    Header(#[from] PackError),
    /// The header is too long.
    #[error("other_error: the header of the pack has {0} bytes, and may have {HEADER_MAX}")]
    LongHeader(u64),
    /// The body ends early, or stopped.
    #[error("other_error: the payload ends in the middle of {what}")]
    Truncated {
        /// What is not whole.
        what: String,
    },
    /// The body goes on after the last object.
    #[error("other_error: the payload has bytes after its last object")]
    Trailing,
    /// The bytes of an object have another hash.
    #[error("other_error: the bytes of object {0} have another hash")]
    WrongHash(ObjectName),
    /// An object is too large.
    #[error("other_error: object {name} has {len} bytes, and may have {OBJECT_MAX}")]
    LargeObject {
        /// Name of the object.
        name: ObjectName,
        /// Its length.
        len: u64,
    },
    /// The payload has more bytes than the key may send.
    #[error("other_error: the lease may send {left} bytes more, and the payload has {bytes}")]
    Quota {
        /// Number of bytes that may still be sent.
        left: u64,
        /// Number of bytes of the payload.
        bytes: u64,
    },
    /// An object can't be collected in a temporary file.
    #[error("uploader_error: can't keep an object in a temporary file")]
    Temporary(#[source] io::Error),
    /// The storage refuses an object.
    #[error("uploader_error: {0}")]
    Storage(#[from] StoreError),
}

/// Reads the header of a payload.
pub(crate) fn header(payload: &wire::Payload, body: &mut dyn Read) -> Result<PackHeader, IntakeError> {
    let len = usize::try_from(payload.header_size).ok().filter(|len| *len <= HEADER_MAX);
    let len = len.ok_or(IntakeError::LongHeader(payload.header_size))?;
    let mut text = Vec::new();
    let read = body.take(len as u64).read_to_end(&mut text);
    if read.is_err() || text.len() != len {
        return Err(IntakeError::Truncated { what: "the header of the pack".to_owned() });
    }
    let header = PackHeader::parse(&text, &payload.payload_digest)?;
    match header.objects.iter().find(|object| object.len > OBJECT_MAX) {
        Some(object) => Err(IntakeError::LargeObject { name: object.name, len: object.len }),
        None => Ok(header),
    }
}

/// Stores the objects of a payload. Never more than one is in memory, and none that is large.
pub(crate) fn objects(
    header: &PackHeader,
    body: &mut dyn Read,
    sink: &dyn Sink,
    temporary: &Path,
) -> Result<Stored, IntakeError> {
    let mut stored = Stored { bytes: header.bytes(), objects: header.objects.len(), catalogs: Vec::new() };
    let mut piece = vec![0; PIECE];
    for object in &header.objects {
        let mut bytes = LargeWriter::new(temporary, object.len);
        let mut left = object.len;
        while left > 0 {
            let room = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
            let part = piece.get_mut(..room).unwrap_or_default();
            let count = match body.read(part) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Ok(0) | Err(_) => {
                    return Err(IntakeError::Truncated { what: format!("object {}", object.name) });
                }
                Ok(count) => count,
            };
            bytes.write_all(part.get(..count).unwrap_or_default()).map_err(IntakeError::Temporary)?;
            left -= count as u64;
        }
        let bytes = bytes.finish().map_err(IntakeError::Temporary)?;
        if ContentHash::of(object.name.hash.algorithm(), &bytes) != object.name.hash {
            return Err(IntakeError::WrongHash(object.name));
        }
        sink.put(&object.name, &bytes)?;
        if object.name.kind == ObjectKind::Catalog {
            stored.catalogs.push(object.name.hash);
        }
    }
    match body.read(&mut [0]) {
        Ok(0) => {}
        Ok(_) => return Err(IntakeError::Trailing),
        Err(_) => return Err(IntakeError::Truncated { what: "its end".to_owned() }),
    }
    sink.flush()?;
    Ok(stored)
}
