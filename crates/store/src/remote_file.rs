//! A large file on servers, read in blocks: each is fetched, checked, and kept in the block cache.

use std::sync::Arc;
use std::time::Instant;

use crate::cache::block_cache::FileBlocks;
use crate::error::{Cause, StoreError};
use crate::transport::range_file::RangeFile;
use crate::transport::source::Check;

/// Returns true if the bytes are the block of this number.
pub type BlockCheck = Arc<dyn Fn(u64, &[u8]) -> bool + Send + Sync>;

/// Content of a block.
pub type Block = Arc<Vec<u8>>;

/// One version of a file on servers, in blocks.
pub struct RemoteFile {
    file: RangeFile,
    cached: FileBlocks,
    block_size: u64,
    check: Option<BlockCheck>,
}

impl RemoteFile {
    /// Creates a file that is read in blocks of `block_size` bytes, which must not be 0.
    pub fn new(file: RangeFile, cached: FileBlocks, block_size: u64, check: Option<BlockCheck>) -> Self {
        Self { file, cached, block_size, check }
    }

    /// Returns when bytes of any block being read last arrived.
    pub fn progress(&self) -> Option<Instant> {
        self.file.progress()
    }

    /// Returns a block, which must be within the file: from the cache, or fetched. Readers that need the same block share
    /// one call, as those of an image do.
    pub fn block(&self, number: u64) -> Result<Block, StoreError> {
        let start = number.saturating_mul(self.block_size);
        let end = start.saturating_add(self.block_size).min(self.file.whole().len);
        let len = usize::try_from(end.saturating_sub(start)).unwrap_or(usize::MAX);
        if let Some(content) = self.cached.get(number, len) {
            return Ok(Arc::new(content));
        }
        let content = self.file.read(start..end, self.check_of(number, start..end))?;
        self.cached.keep(number, &content);
        Ok(Arc::new(content))
    }

    fn check_of(&self, number: u64, part: std::ops::Range<u64>) -> Option<Check> {
        let check = self.check.clone()?;
        Some(Arc::new(move |bytes: &[u8]| match check(number, bytes) {
            true => Ok(()),
            false => Err(Cause::WrongPart { from: part.start, to: part.end }),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::cache::block_cache::BlockCache;
    use crate::callback::Callback;
    use crate::transport::source::{Expected, Fetch, FileVersion, Source, Stored};

    /// Hands each request to the test, which answers it.
    struct Asked(Mutex<mpsc::Sender<(Fetch, Callback<Stored>)>>);

    impl Source for Asked {
        fn fetch(&self, fetch: Fetch, done: Callback<Stored>) {
            self.0.lock().unwrap().send((fetch, done)).unwrap();
        }

        fn describe(&self) -> String {
            "a test".to_owned()
        }
    }

    struct Served {
        file: RemoteFile,
        requests: mpsc::Receiver<(Fetch, Callback<Stored>)>,
        _folder: tempfile::TempDir,
    }

    fn served(check: Option<BlockCheck>) -> Served {
        let (sender, requests) = mpsc::channel();
        let folder = tempfile::tempdir().unwrap();
        let cached = BlockCache::open(&folder.path().join("cache"), 1 << 20).unwrap().of(b"it");
        let whole = FileVersion { len: 10, version: None };
        let file = RangeFile::known(Arc::new(Asked(Mutex::new(sender))), "it", "it", whole);
        Served { file: RemoteFile::new(file, cached, 4, check), requests, _folder: folder }
    }

    fn failure() -> StoreError {
        StoreError::new("it", Cause::Status(503))
    }

    #[test]
    fn a_block_is_requested_until_it_is_cached() {
        let Served { file, requests, _folder } = served(None);
        thread::scope(|scope| {
            let read = || scope.spawn(|| file.block(2));
            let failed = read();
            requests.recv().unwrap().1.err(failure());
            assert!(failed.join().unwrap().is_err());
            let fetched = read();
            let (fetch, done) = requests.recv().unwrap();
            assert_eq!(fetch.part.map(|part| part.range), Some(8..10));
            done.ok(Stored::in_memory(b"ab".to_vec()));
            assert_eq!(**fetched.join().unwrap().unwrap(), *b"ab");
        });
        assert_eq!(**file.block(2).unwrap(), *b"ab");
        assert!(requests.try_recv().is_err());
    }

    #[test]
    fn the_check_of_a_request_knows_its_block() {
        let Served { file, requests, _folder } =
            served(Some(Arc::new(|number, bytes| bytes == [number as u8; 4])));
        thread::scope(|scope| {
            let reader = scope.spawn(|| file.block(1));
            let (fetch, done) = requests.recv().unwrap();
            let Expected::Checked(check) = fetch.expected else { panic!("no check") };
            assert!(check(&[1; 4]).is_ok());
            assert!(matches!(check(&[0; 4]), Err(Cause::WrongPart { from: 4, to: 8 })));
            done.err(failure());
            assert!(reader.join().unwrap().is_err());
        });
    }
}
