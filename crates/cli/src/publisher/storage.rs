//! Storage of repositories as the command line names it: a folder of this machine, or object storage.

mod bucket;

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use esker_object_storage::StorageUrl;

use crate::error::Failure;

pub(crate) use bucket::{BucketArgs, attach, described, readable, shown as storage_of, with_options};

/// URL schemes that mark an argument as an address even without slashes.
const SCHEMES: [&str; 27] = [
    "s3", "s3a", "s3n", "gs", "gcs", "az", "azure", "abfs", "abfss", "wasb", "wasbs", "b2", "r2", "swift",
    "hdfs", "http", "https", "ftp", "ftps", "sftp", "ssh", "rsync", "dav", "davs", "webdav", "root", "file",
];

/// Storage that is named on the command line.
pub(crate) enum NamedStorage {
    /// A folder of repositories, or of one.
    Folder(PathBuf),
    /// A bucket with a prefix, of repositories or of one.
    Bucket(StorageUrl),
}

impl NamedStorage {
    /// Parses the value of an option.
    pub(crate) fn parse(option: &str, named: &Path) -> Result<Self, Failure> {
        let address = named.to_str().filter(|text| {
            let scheme = text.split_once("://").map(|(scheme, _)| scheme);
            scheme.is_some_and(|scheme| ["s3", "gs", "az", "file"].contains(&scheme))
        });
        let Some(address) = address else {
            refuse_address(option, named)?;
            return Ok(Self::Folder(named.to_owned()));
        };
        let url = StorageUrl::parse(address)
            .map_err(|error| Failure::usage(format!("{option}: {}", crate::error::chain(&error))))?;
        Ok(match url.folder() {
            Some(folder) => Self::Folder(folder.to_owned()),
            None => Self::Bucket(url),
        })
    }
}

/// Refuses an argument that looks like the address of remote storage instead of a folder.
pub(crate) fn refuse_address(option: &str, folder: &Path) -> Result<(), Failure> {
    let Some(scheme) = scheme(folder.as_os_str().as_bytes()) else { return Ok(()) };
    let shown = folder.display();
    if scheme.eq_ignore_ascii_case("file") {
        let failure =
            Failure::usage(format!("{option} {shown}: a folder is named by its path, and not by a URL"));
        return Err(
            failure.hint(format!("leave out `{scheme}://`; a folder that is really called so is ./{shown}"))
        );
    }
    Err(Failure::usage(format!("{option} {shown}: storage at `{scheme}:` addresses is not supported here"))
        .hint(format!("name a folder of this machine; one that is really called so is ./{shown}")))
}

/// Returns the scheme if this is an address.
fn scheme(text: &[u8]) -> Option<&str> {
    let colon = text.iter().position(|byte| *byte == b':')?;
    let (scheme, rest) = text.split_at(colon);
    let scheme = std::str::from_utf8(scheme).ok()?;
    let is_letter = |first: char| first.is_ascii_alphabetic();
    let is_scheme = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '+' | '-' | '.');
    if !scheme.starts_with(is_letter) || !scheme.chars().all(is_scheme) {
        return None;
    }
    let is_known = SCHEMES.iter().any(|known| known.eq_ignore_ascii_case(scheme));
    (is_known || rest.starts_with(b"://")).then_some(scheme)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn addresses_are_refused_by_their_scheme() {
        for address in [
            "s3://bucket/cvmfs",
            "s3:bucket",
            "s3:",
            "s3:/bucket",
            "S3://bucket",
            "gs://bucket",
            "az://container/path",
            "http://server/cvmfs",
            "https://server/cvmfs",
            "sftp://host/path",
            "unheard-of+x://y",
        ] {
            let failure = refuse_address("--storage", Path::new(address)).expect_err(address);
            assert_eq!(failure.kind, Kind::Usage);
            let scheme = address.split(':').next().unwrap_or_default();
            assert!(failure.message.contains(address) && failure.message.contains(&format!("`{scheme}:`")));
            assert!(failure.hint.expect("a hint").contains(&format!("./{address}")));
        }
        let file = refuse_address("--storage", Path::new("file:///srv/cvmfs")).expect_err("a URL");
        assert!(file.hint.expect("a hint").contains("leave out `file://`"));
    }

    #[test]
    fn buckets_and_folders_are_storage() {
        for (text, is_bucket) in [
            ("s3://bucket/cvmfs", true),
            ("gs://bucket", true),
            ("az://container/path", true),
            ("/srv/cvmfs", false),
            ("./s3://bucket", false),
        ] {
            let named = NamedStorage::parse("--storage", Path::new(text)).expect(text);
            assert_eq!(matches!(named, NamedStorage::Bucket(_)), is_bucket, "{text}");
        }
        let folder = NamedStorage::parse("--storage", Path::new("file:///srv/cvmfs")).expect("a folder");
        assert!(matches!(folder, NamedStorage::Folder(path) if path == Path::new("/srv/cvmfs")));
        for text in ["s3://", "s3:bucket", "http://server/cvmfs", "file://host/x", "S3://bucket"] {
            assert!(NamedStorage::parse("--storage", Path::new(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn folders_may_have_colons() {
        for folder in [
            "/srv/cvmfs",
            "a:b",
            "./s3:",
            "./s3://bucket",
            "/srv/s3:",
            "../s3:x",
            "3s://x",
            ":",
            "s3",
            "c:/x",
        ] {
            assert!(refuse_address("--storage", Path::new(folder)).is_ok(), "{folder}");
        }
    }
}
