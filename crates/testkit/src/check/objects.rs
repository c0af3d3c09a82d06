//! Reads each object once and compares it with its name.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::object::{self, Algorithm};

use super::Findings;

/// The objects of a repository.
pub(super) struct Objects {
    root: PathBuf,
    algorithm: Algorithm,
    /// SHA-256 and length of the plain bytes of objects read so far, by path and compression.
    read: RefCell<BTreeMap<(String, u64), Option<Digest>>>,
}

/// SHA-256 and length.
type Digest = (String, u64);

impl Objects {
    pub(super) fn new(root: &Path, algorithm: Algorithm) -> Objects {
        Objects { root: root.to_owned(), algorithm, read: RefCell::default() }
    }

    pub(super) fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    pub(super) fn seen(&self) -> Vec<String> {
        self.read.borrow().keys().map(|(path, _)| path.clone()).collect()
    }

    /// Returns the plain bytes of an object.
    pub(super) fn plain(
        &self,
        hash: &str,
        suffix: &str,
        compression: u64,
        findings: &mut Findings,
    ) -> Option<Vec<u8>> {
        let path = object::path(hash, suffix);
        let plain = self.load(&path, hash, compression, findings);
        let digest = plain.as_ref().map(|plain| (object::sha256(plain), plain.len() as u64));
        self.read.borrow_mut().insert((path, compression), digest);
        plain
    }

    /// Returns SHA-256 and length of the plain bytes of an object.
    pub(super) fn digest(
        &self,
        hash: &str,
        suffix: &str,
        compression: u64,
        findings: &mut Findings,
    ) -> Option<(String, u64)> {
        let key = (object::path(hash, suffix), compression);
        if let Some(known) = self.read.borrow().get(&key) {
            return known.clone();
        }
        let plain = self.plain(hash, suffix, compression, findings)?;
        Some((object::sha256(&plain), plain.len() as u64))
    }

    fn load(&self, path: &str, hash: &str, compression: u64, findings: &mut Findings) -> Option<Vec<u8>> {
        let stored = match std::fs::read(self.root.join(path)) {
            Ok(stored) => stored,
            Err(error) => {
                findings.problem(format!("object {path}: {error}"));
                return None;
            }
        };
        let actual = Algorithm::of_text(hash).hash(&stored);
        if actual != hash {
            findings.problem(format!("object {path} has the hash {actual}"));
            return None;
        }
        let mut plain = Vec::new();
        let decoded = match compression {
            0 => flate2::read::ZlibDecoder::new(&stored[..]).read_to_end(&mut plain),
            1 => {
                plain = stored;
                Ok(0)
            }
            2 => zstd::Decoder::new(&stored[..]).and_then(|mut decoder| decoder.read_to_end(&mut plain)),
            other => {
                findings.problem(format!("object {path} has the unknown compression {other}"));
                return None;
            }
        };
        match decoded {
            Ok(_) => Some(plain),
            Err(error) => {
                findings.problem(format!("object {path} does not decompress: {error}"));
                None
            }
        }
    }
}
