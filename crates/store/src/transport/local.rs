//! A repository in a local folder.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::beneath::{Links, RootedDir};
use crate::callback::Callback;
use crate::error::{Cause, StoreError};
use crate::pool::Pool;
use crate::transport::source::{Fetch, MEMORY_MAX, Source, SpoolFile, Stored};

/// A repository in a folder, with the layout of a web server.
pub(crate) struct LocalSource {
    root: PathBuf,
    links: Arc<Links>,
    pool: Arc<Pool>,
}

impl LocalSource {
    pub(crate) fn new(path: &str, pool: Arc<Pool>) -> Result<Self, StoreError> {
        if !path.starts_with('/') {
            let url = format!("file://{path}");
            let reason = "it needs an absolute path: file:///folder/of/repository";
            return Err(StoreError::new("the repository", Cause::BadUrl { url, reason }));
        }
        // An owner of the repository could otherwise lead root, who can read all files, to files of other users.
        let is_root = rustix::process::geteuid().is_root();
        let links = Arc::new(if is_root { Links::OfUsers(vec![0]) } else { Links::All });
        Ok(Self { root: PathBuf::from(path), links, pool })
    }
}

impl Source for LocalSource {
    fn fetch(&self, fetch: Fetch, done: Callback<Stored>) {
        let (root, links) = (self.root.clone(), self.links.clone());
        let place = self.describe();
        self.pool.spawn(fetch.priority.urgency(), move || {
            let read = read(&root, &links, &fetch);
            done.give(read.map_err(|cause| fetch.error(cause).from_place(place)));
        });
    }

    fn describe(&self) -> String {
        format!("file://{}", self.root.display())
    }
}

fn read(root: &Path, links: &Arc<Links>, fetch: &Fetch) -> Result<Stored, Cause> {
    let path = root.join(&fetch.path);
    let failed = |source: io::Error| Cause::Disk { doing: "reading", path: path.clone(), source };
    let opened = RootedDir::open(root, links).and_then(|root| root.file(Path::new(&fetch.path)));
    let (file, facts) = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Cause::Missing { status: error.to_string() });
        }
        other => other.map_err(failed)?,
    };
    if facts.len() > fetch.limit {
        return Err(Cause::TooLarge { limit: fetch.limit });
    }
    match &fetch.spool {
        Some(spool) if facts.len() > MEMORY_MAX => {
            // Copied, because others may write to the original between its verification and its use.
            let mut copy = SpoolFile::begin(spool)?;
            let len = pieces(file, fetch.limit, |piece| copy.append(piece), failed)?;
            Ok(Stored::spooled(copy, len))
        }
        _ => {
            let mut bytes = Vec::new();
            let keep = |piece: &[u8]| {
                bytes.extend_from_slice(piece);
                Ok(())
            };
            pieces(file, fetch.limit, keep, failed)?;
            Ok(Stored::in_memory(bytes))
        }
    }
}

/// Reads to the end, whatever length the file system reported; returns the length.
fn pieces(
    mut file: File,
    limit: u64,
    mut take: impl FnMut(&[u8]) -> Result<(), Cause>,
    failed: impl Fn(io::Error) -> Cause,
) -> Result<u64, Cause> {
    let mut piece = vec![0; 256 << 10];
    let mut len = 0;
    loop {
        let got = match file.read(&mut piece) {
            Ok(0) => return Ok(len),
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        };
        len += got as u64;
        if len > limit {
            return Err(Cause::TooLarge { limit });
        }
        take(&piece[..got])?;
    }
}
