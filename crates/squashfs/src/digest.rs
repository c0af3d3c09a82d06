//! Digests of an image's blocks, so that a block read from any source can be checked.
//!
//! A list is a separate file: a header of [`HEADER_LEN`] bytes, then SHA-256 of each block in order; the last
//! block may be shorter. The *root* is SHA-256 of the whole list, as `sha256sum LIST` prints it. A client
//! that knows the root can verify the list, and with it every block.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use crate::image::Image;

/// Length of a digest in bytes.
pub const DIGEST_LEN: usize = 32;
/// Length of a list's header in bytes.
pub const HEADER_LEN: usize = 32;
/// Default length of a block in bytes.
pub const BLOCK_SIZE: u32 = 256 << 10;

const MAGIC: &[u8; 12] = b"esker-digest";
const VERSION: u32 = 1;
/// Binary logarithm of the allowed block lengths: 4 KiB to 16 MiB.
const BLOCK_LOG: std::ops::RangeInclusive<u32> = 12..=24;

/// SHA-256 digest of a block, or of a list.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; DIGEST_LEN]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Digest {
    /// Returns the digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Parses the text form: 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; DIGEST_LEN];
        if text.len() != 2 * DIGEST_LEN || !text.is_ascii() {
            return None;
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        Some(Self(bytes))
    }
}

/// The digests of an image's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DigestList {
    block_size: u32,
    /// Length of the image in bytes.
    len: u64,
    digests: Vec<Digest>,
}

/// Reasons why bytes are not a valid list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    /// The bytes are no list of digests.
    #[error("it is no list of digests")]
    Format,
    /// The list is of a later version.
    #[error("it is a list of digests of version {0}; version {VERSION} is known")]
    Version(u32),
    /// The fields of the list contradict each other.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
}

/// A block whose digest differs from the list's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongBlock {
    /// Offset of the block in bytes.
    pub offset: u64,
    /// Length of the block in bytes.
    pub len: u64,
}

impl DigestList {
    /// Computes the digests of an image with `threads` threads.
    pub fn of(image: &dyn Image, block_size: u32, threads: usize, stop: &AtomicBool) -> io::Result<Self> {
        let block_size = block_size.next_power_of_two().clamp(1 << BLOCK_LOG.start(), 1 << BLOCK_LOG.end());
        let len = image.len();
        let count = usize::try_from(len.div_ceil(block_size.into())).map_err(io::Error::other)?;
        let digests = each_block(image, block_size, count, threads, stop)?;
        Ok(Self { block_size, len, digests })
    }

    /// Parses a list.
    pub fn decode(bytes: &[u8]) -> Result<Self, DigestError> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(DigestError::Format)?;
        let rest_of_header = header.strip_prefix(MAGIC).ok_or(DigestError::Format)?;
        let number = |at: usize| {
            let bytes = rest_of_header.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u32::from_le_bytes).ok_or(DigestError::Format)
        };
        let (version, block_size) = (number(0)?, number(4)?);
        if version != VERSION {
            return Err(DigestError::Version(version));
        }
        if !block_size.is_power_of_two() || !BLOCK_LOG.contains(&block_size.trailing_zeros()) {
            return Err(DigestError::Damaged("the length of its blocks"));
        }
        let len = u64::from(number(8)?) | u64::from(number(12)?) << 32;
        let (digests, odd) = rest.as_chunks::<DIGEST_LEN>();
        if !odd.is_empty() || digests.len() as u64 != len.div_ceil(block_size.into()) {
            return Err(DigestError::Damaged("the number of its digests"));
        }
        Ok(Self { block_size, len, digests: digests.iter().map(|digest| Digest(*digest)).collect() })
    }

    /// Returns the encoded list, as [`DigestList::decode`] reads it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_LEN + self.digests.len() * DIGEST_LEN);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.block_size.to_le_bytes());
        out.extend_from_slice(&self.len.to_le_bytes());
        out.resize(HEADER_LEN, 0);
        self.digests.iter().for_each(|digest| out.extend_from_slice(&digest.0));
        out
    }

    /// Returns the digest of the list, which identifies the whole image.
    pub fn root(&self) -> Digest {
        Digest::of(&self.encode())
    }

    /// Returns the length of a block in bytes.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Returns the length of the image in bytes.
    pub fn image_len(&self) -> u64 {
        self.len
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> usize {
        self.digests.len()
    }

    /// Returns true if `bytes` is the complete block `number`.
    pub fn is_block(&self, number: usize, bytes: &[u8]) -> bool {
        self.digests.get(number).is_some_and(|digest| *digest == Digest::of(bytes))
    }

    /// Compares an image with the list and returns the blocks that differ. An image of another length differs
    /// in its last blocks.
    pub fn check(&self, image: &dyn Image, threads: usize, stop: &AtomicBool) -> io::Result<Vec<WrongBlock>> {
        let size = u64::from(self.block_size);
        let there = usize::try_from(image.len().div_ceil(size)).map_err(io::Error::other)?;
        let found = each_block(image, self.block_size, there, threads, stop)?;
        let all = found.len().max(self.digests.len());
        let wrong = (0..all).filter(|number| found.get(*number) != self.digests.get(*number));
        let len = self.len.max(image.len());
        let block = |number: usize| {
            let offset = number as u64 * size;
            WrongBlock { offset, len: size.min(len - offset) }
        };
        Ok(wrong.map(block).collect())
    }
}

/// Computes the digest of every block with several threads.
fn each_block(
    image: &dyn Image,
    block_size: u32,
    count: usize,
    threads: usize,
    stop: &AtomicBool,
) -> io::Result<Vec<Digest>> {
    let next = AtomicUsize::new(0);
    let parts = Mutex::new(Vec::with_capacity(count));
    let failed = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                let mut room = vec![0; block_size as usize];
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count || failed.lock().is_some() {
                        break;
                    }
                    let offset = number as u64 * u64::from(block_size);
                    let len = (image.len() - offset).min(block_size.into());
                    room.resize(usize::try_from(len).unwrap_or(0), 0);
                    let read = match stop.load(Ordering::Relaxed) {
                        true => Err(io::ErrorKind::Interrupted.into()),
                        false => image.read_at(offset, &mut room),
                    };
                    match read {
                        Ok(()) => parts.lock().push((number, Digest::of(&room))),
                        Err(error) => {
                            failed.lock().get_or_insert(error);
                        }
                    }
                    room.resize(block_size as usize, 0);
                }
            });
        }
    });
    if let Some(error) = failed.into_inner() {
        return Err(error);
    }
    let mut parts = parts.into_inner();
    parts.sort_unstable_by_key(|(number, _)| *number);
    Ok(parts.into_iter().map(|(_, digest)| digest).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    static GO_ON: AtomicBool = AtomicBool::new(false);

    fn image() -> Vec<u8> {
        (0..50_000u32).flat_map(u32::to_le_bytes).collect()
    }

    #[test]
    fn a_list_survives_encoding_and_its_root_is_its_sha256() {
        let list = DigestList::of(&image(), 4096, 3, &GO_ON).expect("a list");
        let bytes = list.encode();
        assert_eq!(DigestList::decode(&bytes), Ok(list.clone()));
        assert_eq!(
            (list.blocks(), list.image_len(), bytes.len()),
            (49, 200_000, HEADER_LEN + 49 * DIGEST_LEN)
        );
        assert_eq!(list.root(), Digest::of(&bytes));
        assert_eq!(Digest::parse(&list.root().to_string()), Some(list.root()));
        assert_eq!(DigestList::of(&image(), 4096, 1, &GO_ON).expect("a list"), list);
        assert!(list.is_block(1, &image()[4096..8192]) && !list.is_block(0, &image()[4096..8192]));
        for wrong in ["", "xyz", &"g".repeat(64), &"é".repeat(32)] {
            assert_eq!(Digest::parse(wrong), None);
        }
    }

    #[test]
    fn blocks_that_differ_are_reported() {
        let list = DigestList::of(&image(), 4096, 2, &GO_ON).expect("a list");
        assert_eq!(list.check(&image(), 2, &GO_ON).expect("a check"), []);
        let mut other = image();
        other[5000] ^= 1;
        other.truncate(199_999);
        let wrong = list.check(&other, 2, &GO_ON).expect("a check");
        let last = WrongBlock { offset: 48 * 4096, len: 200_000 - 48 * 4096 };
        assert_eq!(wrong, [WrongBlock { offset: 4096, len: 4096 }, last]);
        let stopped = list.check(&image(), 2, &AtomicBool::new(true)).expect_err("stopped");
        assert_eq!(stopped.kind(), io::ErrorKind::Interrupted);
    }

    #[test]
    fn invalid_lists_are_rejected() {
        let good = DigestList::of(&image(), 4096, 2, &GO_ON).expect("a list").encode();
        let change = |at: usize, to: u8| {
            let mut bytes = good.clone();
            bytes[at] = to;
            DigestList::decode(&bytes).expect_err("refused").to_string()
        };
        assert_eq!(change(0, 0), "it is no list of digests");
        assert_eq!(change(12, 2), "it is a list of digests of version 2; version 1 is known");
        assert_eq!(change(16, 1), "it is damaged: the length of its blocks");
        assert_eq!(change(27, 1), "it is damaged: the number of its digests");
        assert_eq!(
            DigestList::decode(&good[..good.len() - 1]),
            Err(DigestError::Damaged("the number of its digests"))
        );
        assert_eq!(DigestList::decode(&good[..20]), Err(DigestError::Format));
    }
}
