//! Access to the files of an image: a folder, the members of an archive, or blobs of a registry.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_archive::{Compression, Data, FileContent, Kind, MAGIC_LEN, Reader};

use crate::OciError;
use crate::digest::Digest;
use crate::registry::Registry;

/// Maximum number of members of an image archive; real ones have some hundred.
const MEMBERS_MAX: usize = 100_000;
/// Maximum number of links to follow: archives of old Docker versions have layers that are links to others.
const LINKS: usize = 8;

/// Storage of an image's files.
pub(crate) enum Files {
    Folder(PathBuf),
    Archive { file: Arc<File>, members: BTreeMap<String, ArchiveMember> },
    Registry(Box<dyn Registry>),
}

pub(crate) enum ArchiveMember {
    File(Data),
    Link(String),
}

impl Files {
    /// Opens a folder, or an uncompressed archive.
    pub(crate) fn open(path: &Path) -> Result<Self, OciError> {
        let failed = || OciError::io(format!("read {}", path.display()));
        if path.is_dir() {
            return Ok(Self::Folder(path.to_owned()));
        }
        let file = Arc::new(File::open(path).map_err(failed())?);
        let mut start = Vec::new();
        (&*file).take(MAGIC_LEN as u64).read_to_end(&mut start).map_err(failed())?;
        if let Some(compression) = Compression::of(&start) {
            let (name, command) = compression.name_and_command();
            return Err(OciError::refused(
                path.display().to_string(),
                format!("it is compressed with {name}; unpack it with `{command}` first"),
            ));
        }
        let mut members = BTreeMap::new();
        let mut archive = Reader::of_file(file.clone()).map_err(failed())?;
        let shown = path.display().to_string();
        while let Some(entry) = archive.next().map_err(OciError::archive(&*shown))? {
            let name = String::from_utf8_lossy(&entry.path).into_owned();
            let found = match entry.kind {
                Kind::File(data) => ArchiveMember::File(data),
                Kind::Hardlink(target) => ArchiveMember::Link(String::from_utf8_lossy(&target).into_owned()),
                Kind::Symlink(target) => {
                    ArchiveMember::Link(link_target(&name, &String::from_utf8_lossy(&target)))
                }
                _ => continue,
            };
            if members.len() >= MEMBERS_MAX {
                return Err(OciError::refused(shown, "it has too many members"));
            }
            members.insert(name, found);
        }
        Ok(Self::Archive { file, members })
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        match self {
            Self::Folder(folder) => folder.join(name).is_file(),
            Self::Archive { members, .. } => members.contains_key(name),
            Self::Registry(_) => false,
        }
    }

    /// Opens a blob of at most `limit` bytes.
    pub(crate) fn blob(&self, digest: &Digest, limit: u64) -> Result<Box<dyn Read + Send>, OciError> {
        if let Self::Registry(registry) = self {
            return registry.blob(&digest.to_string(), limit).map_err(OciError::io(format!("get {digest}")));
        }
        let (algorithm, digits) = digest.parts();
        self.stream(&format!("blobs/{algorithm}/{digits}"))
    }

    /// Opens a file. The caller must have checked that `name` doesn't lead out of the folder.
    pub(crate) fn stream(&self, name: &str) -> Result<Box<dyn Read + Send>, OciError> {
        let failed = || OciError::io(format!("read {name} of the image"));
        match self {
            Self::Registry(_) => Err(failed()(io::Error::from(io::ErrorKind::Unsupported))),
            Self::Folder(folder) => Ok(Box::new(File::open(folder.join(name)).map_err(failed())?)),
            Self::Archive { file, members } => {
                let mut name = name;
                for _ in 0..LINKS {
                    match members.get(name) {
                        Some(ArchiveMember::File(data)) => {
                            return Ok(Box::new(FileContent::new(file.clone(), data.clone())));
                        }
                        Some(ArchiveMember::Link(target)) => name = target,
                        None => break,
                    }
                }
                Err(failed()(io::Error::from(io::ErrorKind::NotFound)))
            }
        }
    }

    /// Reads a file of at most `limit` bytes.
    pub(crate) fn read(&self, name: &str, limit: u64) -> Result<Vec<u8>, OciError> {
        whole(name, self.stream(name)?, limit)
    }

    /// Reads a blob of at most `limit` bytes.
    pub(crate) fn read_blob(&self, digest: &Digest, limit: u64) -> Result<Vec<u8>, OciError> {
        whole(&digest.to_string(), self.blob(digest, limit)?, limit)
    }
}

fn whole(name: &str, stream: Box<dyn Read + Send>, limit: u64) -> Result<Vec<u8>, OciError> {
    let mut content = Vec::new();
    let read = stream.take(limit + 1).read_to_end(&mut content);
    read.map_err(OciError::io(format!("read {name} of the image")))?;
    if content.len() as u64 > limit {
        return Err(OciError::refused(name, "it is too long"));
    }
    Ok(content)
}

/// Resolves the target of a link next to `name`; `..` stops at the top of the archive.
fn link_target(name: &str, target: &str) -> String {
    let mut found: Vec<&str> = name.split('/').collect();
    found.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(found.pop()),
            part => found.push(part),
        }
    }
    found.join("/")
}
