//! Object storage in memory, whose operations fail on request.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use esker_format::object::ObjectName;
use esker_store::{Cause, Listed, Locking, Put, Sink, StoreError, StoredFiles, Swap};

/// Failure of one operation, or of all from it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The operation is not done.
    Refused,
    /// The operation is done, and its answer is lost.
    Lost,
    /// This and all later operations are not done, as for a publisher that is killed.
    Ever,
}

/// Bucket that any number of sinks share.
#[derive(Default)]
pub(crate) struct MemoryBucket {
    files: Mutex<BTreeMap<String, Vec<u8>>>,
}

impl MemoryBucket {
    /// Writes all files to a folder, as a repository that the checker judges.
    pub(crate) fn export(&self, folder: &Path) {
        for (path, bytes) in &*self.files.lock().unwrap() {
            let path = folder.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
    }

    /// Returns a bucket with the same files.
    pub(crate) fn copy(&self) -> Arc<Self> {
        Arc::new(Self { files: Mutex::new(self.files.lock().unwrap().clone()) })
    }

    /// Returns the names of the files in the root.
    pub(crate) fn root_files(&self) -> Vec<String> {
        let files = self.files.lock().unwrap();
        files.keys().filter(|path| !path.contains('/')).cloned().collect()
    }

    /// Returns the number of objects.
    pub(crate) fn objects(&self) -> usize {
        self.files.lock().unwrap().keys().filter(|path| path.starts_with("data/")).count()
    }
}

/// One publisher's access to a bucket.
pub(crate) struct MemorySink {
    bucket: Arc<MemoryBucket>,
    /// Number of the operation that fails; none never fails.
    fault: Option<(u64, Fault)>,
    operations: AtomicU64,
    struck: AtomicU64,
    /// Called once, after the head was replaced and before the answer, which is lost.
    overtaken_by: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl MemorySink {
    pub(crate) fn new(bucket: &Arc<MemoryBucket>) -> Arc<Self> {
        Self::failing(bucket, None)
    }

    pub(crate) fn failing(bucket: &Arc<MemoryBucket>, fault: Option<(u64, Fault)>) -> Arc<Self> {
        let (operations, struck, overtaken_by) = Default::default();
        Arc::new(Self { bucket: bucket.clone(), fault, operations, struck, overtaken_by })
    }

    /// Returns a sink that learns after its first replacement of the head only that another publisher came next.
    pub(crate) fn overtaken(bucket: &Arc<MemoryBucket>, by: impl FnOnce() + Send + 'static) -> Arc<Self> {
        let sink = Self::new(bucket);
        *sink.overtaken_by.lock().unwrap() = Some(Box::new(by));
        sink
    }

    /// Returns how many operations failed.
    pub(crate) fn struck(&self) -> u64 {
        self.struck.load(Ordering::Relaxed)
    }

    fn operate<T>(
        &self,
        name: &str,
        work: impl FnOnce(&mut BTreeMap<String, Vec<u8>>) -> T,
    ) -> Result<T, StoreError> {
        let number = self.operations.fetch_add(1, Ordering::Relaxed) + 1;
        let failed = || {
            self.struck.fetch_add(1, Ordering::Relaxed);
            let source = io::Error::other("the bucket fails");
            Err(StoreError::new(name, Cause::Disk { doing: "asking for", path: name.into(), source }))
        };
        match self.fault {
            Some((at, Fault::Refused)) if number == at => failed(),
            Some((at, Fault::Ever)) if number >= at => failed(),
            Some((at, Fault::Lost)) if number == at => {
                work(&mut self.bucket.files.lock().unwrap());
                failed()
            }
            _ => Ok(work(&mut self.bucket.files.lock().unwrap())),
        }
    }
}

impl StoredFiles for MemorySink {
    fn describe(&self) -> String {
        "memory://bucket".to_owned()
    }

    fn read(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let found = self.operate(path, |files| files.get(path).cloned())?;
        assert!(found.as_ref().is_none_or(|bytes| bytes.len() as u64 <= limit), "{path}");
        Ok(found)
    }

    fn read_to(&self, path: &str, to: &mut dyn Write) -> Result<Option<u64>, StoreError> {
        let Some(bytes) = self.read(path, u64::MAX)? else { return Ok(None) };
        to.write_all(&bytes).unwrap();
        Ok(Some(bytes.len() as u64))
    }
}

impl Sink for MemorySink {
    fn folder(&self) -> Option<&Path> {
        None
    }

    fn make_folders(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn prepare(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn lock_root(&self) -> Result<Option<Locking>, StoreError> {
        Ok(None)
    }

    fn put(&self, name: &ObjectName, stored: &[u8]) -> Result<Put, StoreError> {
        self.operate(&name.path(), |files| match files.insert(name.path(), stored.to_vec()) {
            Some(_) => Put::Present,
            None => Put::Stored,
        })
    }

    fn put_anew(&self, name: &ObjectName, stored: &[u8]) -> Result<Put, StoreError> {
        self.put(name, stored).map(|_| Put::Stored)
    }

    fn has(&self, name: &ObjectName, len: u64) -> Result<bool, StoreError> {
        Ok(self.len_of(name)? == Some(len))
    }

    fn len_of(&self, name: &ObjectName) -> Result<Option<u64>, StoreError> {
        self.operate(&name.path(), |files| files.get(&name.path()).map(|bytes| bytes.len() as u64))
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.operate("flush", |_| ())
    }

    fn put_root(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.operate(name, |files| drop(files.insert(name.to_owned(), bytes.to_vec())))
    }

    fn replace_root(&self, name: &str, bytes: &[u8], expected: Option<&[u8]>) -> Result<Swap, StoreError> {
        let swap = self.operate(name, |files| {
            if files.get(name).map(Vec::as_slice) != expected {
                return Swap::Moved;
            }
            files.insert(name.to_owned(), bytes.to_vec());
            Swap::Replaced
        })?;
        let is_head = name == ".cvmfspublished" && swap == Swap::Replaced;
        match is_head.then(|| self.overtaken_by.lock().unwrap().take()).flatten() {
            None => Ok(swap),
            Some(other) => {
                other();
                Ok(Swap::Moved)
            }
        }
    }

    fn remove_root(&self, name: &str) -> Result<(), StoreError> {
        self.operate(name, |files| drop(files.remove(name)))
    }

    fn list_root(&self) -> Result<Vec<String>, StoreError> {
        self.operate("root", |_| ())?;
        Ok(self.bucket.root_files())
    }

    fn put_alternative(&self, name: &ObjectName) -> Result<(), StoreError> {
        self.operate(&name.path(), |files| {
            let bytes = files.get(&name.path()).cloned().unwrap();
            files.insert(name.alternative_path(), bytes);
        })
    }

    fn list(&self, visit: &mut dyn FnMut(Listed)) -> Result<(), StoreError> {
        let all: Vec<(String, u64)> = self.operate("data", |files| {
            files.iter().map(|(path, bytes)| (path.clone(), bytes.len() as u64)).collect()
        })?;
        for (path, len) in all {
            let name = path.strip_prefix("data/").and_then(|rest| ObjectName::parse(&rest.replace('/', "")));
            if let Some(name) = name {
                visit(Listed { name, len, modified: SystemTime::now() });
            }
        }
        Ok(())
    }

    fn delete(&self, names: &[ObjectName]) -> Result<(), StoreError> {
        self.operate("data", |files| names.iter().for_each(|name| drop(files.remove(&name.path()))))
    }

    fn remove_all(&self) -> Result<(), StoreError> {
        self.operate("all", BTreeMap::clear)
    }
}
