//! Writes metadata streams: cut into blocks, each compressed.

use super::WriteError;
use super::encoder::Encoder;
use super::image::Image;
use crate::layout::{METADATA_BLOCK, MetaHeader, MetaRef};

/// A metadata stream being written.
#[derive(Default)]
pub(super) struct Metadata {
    stored: Vec<u8>,
    pending: Vec<u8>,
    /// Start of each complete block in `stored`.
    starts: Vec<u64>,
}

impl Metadata {
    /// Returns the position of the next byte.
    pub(super) fn place(&self) -> MetaRef {
        let offset = u16::try_from(self.pending.len()).expect("a full block is stored at once");
        MetaRef::new(self.stored.len() as u64, offset)
    }

    /// Returns the number of bytes before compression.
    pub(super) fn len(&self) -> u64 {
        (self.starts.len() * METADATA_BLOCK + self.pending.len()) as u64
    }

    /// Returns the stored position of the block that holds byte `position`.
    pub(super) fn block_of(&self, position: u64) -> u64 {
        let block = usize::try_from(position / METADATA_BLOCK as u64).unwrap_or(usize::MAX);
        self.starts.get(block).copied().unwrap_or(self.stored.len() as u64)
    }

    pub(super) fn append(&mut self, mut bytes: &[u8], encoder: &mut Encoder) -> Result<(), WriteError> {
        while !bytes.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min(METADATA_BLOCK - self.pending.len()));
            self.pending.extend_from_slice(now);
            bytes = rest;
            if self.pending.len() == METADATA_BLOCK {
                self.flush(encoder)?;
            }
        }
        Ok(())
    }

    fn flush(&mut self, encoder: &mut Encoder) -> Result<(), WriteError> {
        self.starts.push(self.stored.len() as u64);
        put_block(&self.pending, encoder, &mut self.stored)?;
        self.pending.clear();
        Ok(())
    }

    /// Completes the stream and returns its stored bytes.
    pub(super) fn finish(mut self, encoder: &mut Encoder) -> Result<Vec<u8>, WriteError> {
        if !self.pending.is_empty() {
            self.flush(encoder)?;
        }
        Ok(self.stored)
    }
}

/// Appends a block with its header.
fn put_block(plain: &[u8], encoder: &mut Encoder, out: &mut Vec<u8>) -> Result<(), WriteError> {
    let packed = encoder.encode(plain)?;
    let (bytes, compressed) = packed.map_or((plain, false), |packed| (packed, true));
    let len = u16::try_from(bytes.len()).expect("a block of metadata has at most 8192 bytes");
    out.extend_from_slice(&MetaHeader { len, compressed }.encode());
    out.extend_from_slice(bytes);
    Ok(())
}

/// Appends a table: its entries in blocks, then the list of these blocks. Returns the position of the list.
pub(super) fn put_table(
    image: &mut Image<'_>,
    encoder: &mut Encoder,
    entries: &[u8],
) -> Result<u64, WriteError> {
    put_table_after(image, encoder, entries, &[])
}

/// Like [`put_table`], with `head` before the list.
pub(super) fn put_table_after(
    image: &mut Image<'_>,
    encoder: &mut Encoder,
    entries: &[u8],
    head: &[u8],
) -> Result<u64, WriteError> {
    let (mut stored, mut list) = (Vec::new(), head.to_vec());
    for block in entries.chunks(METADATA_BLOCK) {
        let place = image.end() + stored.len() as u64;
        list.extend_from_slice(&place.to_le_bytes());
        put_block(block, encoder, &mut stored)?;
    }
    image.append(&stored)?;
    let start = image.end();
    image.append(&list)?;
    Ok(start)
}
