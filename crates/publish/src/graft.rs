//! Grafts: files whose size and hashes are published from a marker file beside them, and whose content is not stored.
//!
//! The marker of `NAME` is `.cvmfsgraft-NAME`. It has lines `key=value` and comments; it is never published itself.

mod make;
mod markers;

use std::fmt::Write as _;

use esker_format::catalog::{Chunk, Flags};
use esker_format::compress::Compression;
use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::write::catalog::Entry;
use esker_repository::{Settings, entry::STORAGE_BITS};

pub use make::GraftOptions;
pub(crate) use markers::{Grafts, grafted_by};

/// Start of the name of a marker.
pub(crate) const PREFIX: &[u8] = b".cvmfsgraft-";
/// Largest marker: enough for the chunks of 25 TiB.
pub(crate) const MARKER_MAX: u64 = 64 << 20;

/// Content of a file that is stored elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graft {
    /// Size of the file in bytes.
    pub size: u64,
    /// Hash of the whole file, if it has one.
    pub hash: Option<ContentHash>,
    /// Chunks of the file, if it is cut.
    pub chunks: Vec<Chunk>,
    /// Compression of what the hashes are of; none if the marker does not say.
    pub compression: Option<Compression>,
}

impl Graft {
    /// Returns the name of the marker of a file.
    pub fn marker_of(name: &[u8]) -> Vec<u8> {
        [PREFIX, name].concat()
    }

    /// Reads a marker; the error is a reason for its refusal.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(text).map_err(|_| "it is not text".to_owned())?;
        let (mut size, mut checksum, mut compression) = (None, None, None);
        let (mut offsets, mut checksums) = (Vec::new(), Vec::new());
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |what: &str| format!("line {}: {what}", at + 1);
            let (key, value) = line.split_once('=').ok_or_else(|| wrong("it is not KEY=VALUE"))?;
            let number = |text: &str| text.trim().parse::<u64>().map_err(|_| wrong("it has no number"));
            let hash = |text: &str| hash(text.trim()).ok_or_else(|| wrong("it has no hash"));
            match (key.trim(), value.trim()) {
                ("size", value) => size = Some(number(value)?),
                ("checksum", value) => checksum = Some(hash(value)?),
                ("chunk_offsets", value) => {
                    offsets = value.split(',').map(number).collect::<Result<_, _>>()?;
                }
                ("chunk_checksums", value) => {
                    checksums = value.split(',').map(hash).collect::<Result<Vec<_>, _>>()?;
                }
                ("compression", "zlib" | "default") => compression = Some(Compression::Zlib),
                ("compression", "none") => compression = Some(Compression::Stored),
                ("compression", "zstd") => compression = Some(Compression::Zstd),
                ("compression", _) => return Err(wrong("the compression is not zlib, none or zstd")),
                // The reference implementation ignores other keys, too.
                _ => {}
            }
        }
        let size = size.ok_or("it has no size")?;
        i64::try_from(size).map_err(|_| "its size is beyond what catalogs can hold")?;
        let checksum = checksum.ok_or("it has no checksum")?;
        let hash = Some(checksum).filter(|hash| !hash.is_null());
        let chunks = chunks(size, &offsets, &checksums)?;
        if hash.is_none() && chunks.is_empty() {
            return Err("it has neither the checksum of the file nor chunks".to_owned());
        }
        let algorithm = checksum.algorithm();
        if chunks.iter().any(|chunk| chunk.hash.algorithm() != algorithm) {
            return Err("its checksums are of different algorithms".to_owned());
        }
        Ok(Self { size, hash, chunks, compression })
    }

    /// Returns the text of the marker.
    pub fn to_text(&self) -> String {
        let checksum = match (self.hash, self.chunks.first()) {
            (Some(hash), _) => hash.to_string(),
            // Zeros, and the end that says which algorithm it is.
            (None, Some(chunk)) => chunk.hash.to_string().replacen(&chunk.hash.hex(), &"0".repeat(40), 1),
            (None, None) => String::new(),
        };
        let mut text = format!("size={}\nchecksum={checksum}\n", self.size);
        let compression = match self.compression {
            Some(Compression::Zlib) => "compression=zlib\n",
            Some(Compression::Stored) => "compression=none\n",
            Some(Compression::Zstd) => "compression=zstd\n",
            None => "",
        };
        text.push_str(compression);
        if !self.chunks.is_empty() {
            let listed =
                |of: &dyn Fn(&Chunk) -> String| self.chunks.iter().map(of).collect::<Vec<_>>().join(",");
            let offsets = listed(&|chunk| chunk.offset.to_string());
            let checksums = listed(&|chunk| chunk.hash.to_string());
            writeln!(text, "chunk_offsets={offsets}\nchunk_checksums={checksums}")
                .expect("writing to memory succeeds because a string takes every text");
        }
        text
    }

    /// Sets size and content of a file's entry, whose other attributes stay.
    pub(crate) fn set_in(&self, entry: &mut Entry, settings: &Settings) {
        let external = settings.external_data;
        let usual = if external { Compression::Stored } else { settings.compression };
        let hashes = self.hash.iter().chain(self.chunks.first().map(|chunk| &chunk.hash));
        let algorithm = hashes.map(ContentHash::algorithm).next().unwrap_or(HashAlgorithm::Sha1);
        let storage = Flags::storage(algorithm, self.compression.unwrap_or(usual));
        let external = if external { Flags::EXTERNAL } else { 0 };
        entry.size = self.size;
        entry.hash = self.hash;
        entry.chunks.clone_from(&self.chunks);
        entry.flags = Flags(entry.flags.0 & !(STORAGE_BITS | Flags::EXTERNAL) | storage | external);
    }
}

/// Reads a hash, after which one letter may say the kind of its object.
fn hash(text: &str) -> Option<ContentHash> {
    let plain = text.strip_suffix(|letter: char| letter.is_ascii_uppercase()).unwrap_or(text);
    ContentHash::parse(plain).ok()
}

fn chunks(size: u64, offsets: &[u64], checksums: &[ContentHash]) -> Result<Vec<Chunk>, String> {
    if offsets.len() != checksums.len() {
        return Err(format!("it has {} offsets and {} checksums of chunks", offsets.len(), checksums.len()));
    }
    if offsets.first().is_some_and(|first| *first != 0) {
        return Err("its first chunk does not begin at 0".to_owned());
    }
    let ends = offsets.iter().skip(1).chain([&size]);
    let mut chunks = Vec::with_capacity(offsets.len());
    for ((offset, end), hash) in offsets.iter().zip(ends).zip(checksums) {
        let size = end.checked_sub(*offset).filter(|size| *size > 0);
        let size = size.ok_or_else(|| format!("its chunk at {offset} does not end after its start"))?;
        chunks.push(Chunk { offset: *offset, size, hash: *hash });
    }
    Ok(chunks)
}

#[cfg(test)]
mod tests;
