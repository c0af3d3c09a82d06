//! A repository in a bucket.

use std::io::Write;
use std::path::Path;

use esker_format::object::ObjectName;

use super::{Put, Sink, Swap};
use crate::error::{Cause, StoreError};
use crate::file_lock::Locking;
use crate::object_storage::{Bucket, StorageProblem, StorageSettings};

/// A repository in a bucket, to publish to.
pub struct ObjectSink(std::convert::Infallible);

impl ObjectSink {
    /// Opens a bucket, without a request to it.
    pub fn open(bucket: &Bucket, _settings: &StorageSettings) -> Result<Self, StoreError> {
        let problem = StorageProblem::BadSettings("buckets follow with the next commit".to_owned());
        let (key, bucket) = (String::new(), bucket.to_string());
        Err(StoreError::new("the storage", Cause::Bucket { doing: "opening", key, bucket, problem }))
    }
}

impl Sink for ObjectSink {
    fn describe(&self) -> String {
        match self.0 {}
    }
    fn folder(&self) -> Option<&Path> {
        match self.0 {}
    }
    fn make_folders(&self) -> Result<(), StoreError> {
        match self.0 {}
    }
    fn prepare(&self) -> Result<(), StoreError> {
        match self.0 {}
    }
    fn lock_root(&self) -> Result<Option<Locking>, StoreError> {
        match self.0 {}
    }
    fn put(&self, _: &ObjectName, _: &[u8]) -> Result<Put, StoreError> {
        match self.0 {}
    }
    fn put_anew(&self, _: &ObjectName, _: &[u8]) -> Result<Put, StoreError> {
        match self.0 {}
    }
    fn has(&self, _: &ObjectName, _: u64) -> Result<bool, StoreError> {
        match self.0 {}
    }
    fn len_of(&self, _: &ObjectName) -> Result<Option<u64>, StoreError> {
        match self.0 {}
    }
    fn flush(&self) -> Result<(), StoreError> {
        match self.0 {}
    }
    fn read(&self, _: &str, _: u64) -> Result<Option<Vec<u8>>, StoreError> {
        match self.0 {}
    }
    fn read_to(&self, _: &str, _: &mut dyn Write) -> Result<Option<u64>, StoreError> {
        match self.0 {}
    }
    fn put_root(&self, _: &str, _: &[u8]) -> Result<(), StoreError> {
        match self.0 {}
    }
    fn replace_root(&self, _: &str, _: &[u8], _: Option<&[u8]>) -> Result<Swap, StoreError> {
        match self.0 {}
    }
    fn remove_root(&self, _: &str) -> Result<(), StoreError> {
        match self.0 {}
    }
    fn list_root(&self) -> Result<Vec<String>, StoreError> {
        match self.0 {}
    }
    fn put_alternative(&self, _: &ObjectName) -> Result<(), StoreError> {
        match self.0 {}
    }
    fn list(&self, _: &mut dyn FnMut(ObjectName, u64)) -> Result<(), StoreError> {
        match self.0 {}
    }
    fn delete(&self, _: &[ObjectName]) -> Result<(), StoreError> {
        match self.0 {}
    }
    fn remove_all(&self) -> Result<(), StoreError> {
        match self.0 {}
    }
}
