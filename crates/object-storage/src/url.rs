//! Addresses of storages: a folder or a bucket.

use esker_store::{Cause, StoreError};
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

/// Maximum length of a prefix; keys have up to 1024 bytes, and an object's path needs 60.
const PREFIX_MAX: usize = 512;

/// Place that a repository is published to: a folder or a bucket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StorageUrl {
    /// A folder, written as a path or as `file:///PATH`.
    Folder(PathBuf),
    /// A bucket with a prefix, like `s3://bucket/cvmfs/a.example`.
    Bucket(Bucket),
}

/// A bucket, and the prefix of a repository in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    /// The protocol of the bucket.
    pub provider: Provider,
    /// Name of the bucket.
    pub name: String,
    /// Prefix of all keys, without a slash at either end; may be empty.
    pub prefix: String,
}

/// Protocol of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Provider {
    /// S3: Amazon, Ceph, MinIO, Garage, SeaweedFS and others.
    S3,
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage.
    Azure,
}

impl Provider {
    const ALL: [(&str, Self); 3] = [("s3", Self::S3), ("gs", Self::Google), ("az", Self::Azure)];

    /// Returns the scheme of its URLs.
    pub fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Google => "gs",
            Self::Azure => "az",
        }
    }
}

impl StorageUrl {
    /// Parses a path, or a URL with the scheme `file`, `s3`, `gs` or `az`.
    pub fn parse(text: &str) -> Result<Self, StoreError> {
        let bad = |reason| StoreError::new("the storage", Cause::BadUrl { url: text.to_owned(), reason });
        let Some((scheme, rest)) = text.split_once("://") else {
            return match text {
                "" => Err(bad("it is empty")),
                _ if text.contains('\0') => Err(bad("it has a zero byte")),
                _ => Ok(Self::Folder(text.into())),
            };
        };
        if scheme == "file" {
            let path = Path::new(rest);
            let climbs = path.components().any(|part| part == Component::ParentDir);
            return match path.is_absolute() && !climbs && !rest.contains(['\0', '%', '?', '#']) {
                true => Ok(Self::Folder(path.to_owned())),
                false => Err(bad("a folder is written as file:///PATH, without `..` and escaped characters")),
            };
        }
        let provider = Provider::ALL.iter().find(|(name, _)| *name == scheme).map(|(_, provider)| *provider);
        let provider = provider.ok_or_else(|| {
            bad("a storage is a folder, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX")
        })?;
        let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if !is_bucket_name(name) {
            return Err(bad("the name of the bucket has 1 to 255 letters, digits and the characters - _ ."));
        }
        let prefix = prefix.trim_end_matches('/');
        if !is_prefix(prefix) {
            return Err(bad(
                "the prefix consists of names of letters, digits and - _ . + @ : = , with single slashes between them",
            ));
        }
        Ok(Self::Bucket(Bucket { provider, name: name.to_owned(), prefix: prefix.to_owned() }))
    }

    /// Returns the path of a folder; none for a bucket.
    pub fn folder(&self) -> Option<&Path> {
        match self {
            Self::Folder(path) => Some(path),
            Self::Bucket(_) => None,
        }
    }

    /// Returns the bucket; none for a folder.
    pub fn bucket(&self) -> Option<&Bucket> {
        match self {
            Self::Folder(_) => None,
            Self::Bucket(bucket) => Some(bucket),
        }
    }
}

impl Bucket {
    /// Returns the key of a file of the repository.
    pub(crate) fn key(&self, path: &str) -> String {
        if self.prefix.is_empty() { path.to_owned() } else { format!("{}/{path}", self.prefix) }
    }

    /// Returns the path of a file of the repository from its key; none for other keys.
    pub(super) fn path_of<'k>(&self, key: &'k str) -> Option<&'k str> {
        if self.prefix.is_empty() { Some(key) } else { key.strip_prefix(&self.prefix)?.strip_prefix('/') }
    }
}

fn is_bucket_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=255).contains(&name.len()) && name.bytes().all(fits) && !name.bytes().all(|byte| byte == b'.')
}

fn is_prefix(prefix: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+@:=,".contains(&byte);
    let is_name = |part: &str| !matches!(part, "" | "." | "..") && part.bytes().all(fits);
    prefix.len() <= PREFIX_MAX && (prefix.is_empty() || prefix.split('/').all(is_name))
}

impl FromStr for StorageUrl {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        Self::parse(text)
    }
}

impl fmt::Display for StorageUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => path.display().fmt(f),
            Self::Bucket(bucket) => bucket.fmt(f),
        }
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.provider.scheme(), self.key_of_bucket())
    }
}

impl Bucket {
    fn key_of_bucket(&self) -> String {
        if self.prefix.is_empty() { self.name.clone() } else { format!("{}/{}", self.name, self.prefix) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_and_buckets_are_parsed() {
        for (text, shown) in [
            ("/srv/cvmfs/a.example", "/srv/cvmfs/a.example"),
            ("here/a b", "here/a b"),
            ("file:///srv/a", "/srv/a"),
            ("s3://bucket", "s3://bucket"),
            ("s3://bucket/", "s3://bucket"),
            ("s3://my.bucket/cvmfs/a.example/", "s3://my.bucket/cvmfs/a.example"),
            ("gs://b/p", "gs://b/p"),
            ("az://b/p", "az://b/p"),
        ] {
            let url = StorageUrl::parse(text).unwrap();
            assert_eq!(url.to_string(), shown);
            assert_eq!(StorageUrl::parse(shown).unwrap(), url);
            assert_eq!(url.folder().is_some(), url.bucket().is_none());
        }
    }

    #[test]
    fn addresses_that_are_no_storage_are_refused() {
        for text in [
            "",
            "http://a.example/x",
            "s3://",
            "s3:///x",
            "s3://b//x",
            "s3://b/x//y",
            "s3://b/../x",
            "s3://b/x?y",
            "s3://b/a b",
            "s3://u@b/x",
            "file://host/x",
            "file:///a/../b",
        ] {
            let error = StorageUrl::parse(text).expect_err(text);
            assert!(matches!(error.cause(), Cause::BadUrl { .. }), "{error}");
        }
    }

    #[test]
    fn keys_have_the_prefix() {
        for (text, key) in [("s3://b", "data/ab/c"), ("s3://b/p/q", "p/q/data/ab/c")] {
            let url = StorageUrl::parse(text).unwrap();
            let bucket = url.bucket().unwrap();
            assert_eq!(bucket.key("data/ab/c"), key);
            assert_eq!(bucket.path_of(key), Some("data/ab/c"));
        }
        let url = StorageUrl::parse("s3://b/p").unwrap();
        assert_eq!(url.bucket().unwrap().path_of("pq/data/ab/c"), None);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(rest in "\\PC*") {
            for text in [rest.clone(), format!("s3://{rest}"), format!("file://{rest}")] {
                if let Ok(url) = StorageUrl::parse(&text) {
                    let again = StorageUrl::parse(&url.to_string());
                    proptest::prop_assert_eq!(again.ok(), Some(url));
                }
            }
        }
    }
}
