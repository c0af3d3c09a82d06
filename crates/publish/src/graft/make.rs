//! Makes the marker of a graft from a file.

use std::io::{self, Read};

use esker_format::catalog::Chunk;
use esker_format::compress::Compression;
use esker_format::hash::{ContentHash, HashAlgorithm, Hasher};
use esker_repository::{Deflate, Encoder, RepositoryError};

use super::Graft;

/// Options for making a graft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraftOptions {
    /// Size of the chunks; none leaves the file whole.
    pub chunk_size: Option<u64>,
    /// Algorithm of the hashes, which has to be that of the repository.
    pub algorithm: HashAlgorithm,
    /// Compression of what is hashed: none for files that clients fetch as they are.
    pub compression: Compression,
    /// True if a file in chunks also has the hash of the whole.
    pub whole: bool,
}

impl Default for GraftOptions {
    fn default() -> Self {
        Self {
            chunk_size: Some(24 << 20),
            algorithm: HashAlgorithm::Sha1,
            compression: Compression::Stored,
            whole: false,
        }
    }
}

/// Bytes read at a time.
const BLOCK: usize = 1 << 20;
/// Largest piece that is compressed, which takes memory.
const COMPRESSED_MAX: u64 = 1 << 30;

impl GraftOptions {
    /// Reads a file to its end.
    pub fn graft(&self, file: &mut dyn Read) -> io::Result<Graft> {
        let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidInput, text.to_owned());
        if self.chunk_size == Some(0) {
            return Err(invalid("chunks of no size"));
        }
        let is_stored = self.compression == Compression::Stored;
        if !is_stored && (self.whole || self.chunk_size.is_none_or(|size| size > COMPRESSED_MAX)) {
            return Err(invalid("a file is compressed in chunks of at most 1 GiB"));
        }
        let mut whole = Hasher::new(self.algorithm);
        let mut pieces: Vec<Chunk> = Vec::new();
        let mut size = 0;
        loop {
            let piece = self.piece(file, &mut whole)?;
            // A file without content is one piece, and none ends in an empty one.
            if piece.1 == 0 && !pieces.is_empty() {
                break;
            }
            pieces.push(Chunk { offset: size, size: piece.1, hash: piece.0 });
            size += piece.1;
            if self.chunk_size.is_none_or(|chunk| piece.1 < chunk) {
                break;
            }
        }
        let compression = Some(self.compression);
        if let [only] = pieces[..] {
            return Ok(Graft { size, hash: Some(only.hash), chunks: Vec::new(), compression });
        }
        let hash = self.whole.then(|| whole.finish());
        Ok(Graft { size, hash, chunks: pieces, compression })
    }

    /// Reads up to one chunk; returns its hash and size.
    fn piece(&self, file: &mut dyn Read, whole: &mut Hasher) -> io::Result<(ContentHash, u64)> {
        let mut left = self.chunk_size.unwrap_or(u64::MAX);
        let (mut hasher, mut kept, mut size) = (Hasher::new(self.algorithm), Vec::new(), 0);
        let mut room = vec![0; BLOCK];
        while left > 0 {
            let wanted = room.len().min(usize::try_from(left).unwrap_or(BLOCK));
            let len = match file.read(&mut room[..wanted]) {
                Ok(0) => break,
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let bytes = &room[..len];
            (left, size) = (left - len as u64, size + len as u64);
            match self.compression {
                Compression::Stored => hasher.update(bytes),
                _ => kept.extend_from_slice(bytes),
            }
            if self.whole {
                whole.update(bytes);
            }
        }
        if self.compression == Compression::Stored {
            return Ok((hasher.finish(), size));
        }
        let failed = |error: RepositoryError| io::Error::other(error.to_string());
        let mut encoder = Encoder::new(self.compression, Deflate::Stock).map_err(failed)?;
        let stored = encoder.encode(&kept, &mut room).map_err(failed)?;
        Ok((ContentHash::of(self.algorithm, stored), size))
    }
}
