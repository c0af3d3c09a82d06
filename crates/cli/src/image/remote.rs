//! An image on a web server: fetched block by block as it is read, kept in the cache, and checked by a list of digests
//! where one is named.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use esker_node::mount_spec::ImagePlace;
use esker_node::repository::engine;
use esker_squashfs::Image;
use esker_squashfs::digest::{BLOCK_SIZE, Digest, DigestList};
use esker_store::{
    BlockCache, Cause, Check, FileBlocks, FileVersion, KeptAuthorities, RangeFile, Servers, Source,
    StoreError, connect,
};
use esker_threads::waits::{WaitCause, timed};

use crate::error::{Failure, of_store};
use crate::settings::Settings;
use crate::settings::args::RepositoryArgs;
use crate::settings::cache;
use crate::settings::servers::servers;

/// The list of an image of half a terabyte with the usual blocks; one with more has longer blocks.
const LIST_MAX: u64 = 64 << 20;

/// An image on a web server.
pub(super) struct RemoteImage {
    name: Arc<str>,
    file: RangeFile,
    parts: FileBlocks,
    digests: Option<Arc<DigestList>>,
    block: u64,
    offset: u64,
    /// Numbers of blocks that are being fetched.
    flying: Mutex<HashSet<u64>>,
    landed: Condvar,
}

/// A parsed URL.
struct Target {
    base: String,
    /// Last component of the URL's path.
    file: String,
    /// Query of the URL, with its question mark.
    query: String,
}

impl Target {
    fn parse(url: &str) -> Result<Self, Failure> {
        let bad =
            |why: &str| Failure::usage(format!("{url} can't be used as the address of an image: {why}"));
        let plain = |byte: u8| byte.is_ascii_graphic() && !b"#\"<>\\".contains(&byte);
        if !url.bytes().all(plain) {
            return Err(bad("it has characters that must be written as %XX"));
        }
        let at = url.find('?').unwrap_or(url.len());
        let (path, query) = url.split_at(at);
        match path.rsplit_once('/') {
            Some((base, file)) if !file.is_empty() && !base.ends_with('/') => {
                Ok(Self { base: base.to_owned(), file: file.to_owned(), query: query.to_owned() })
            }
            _ => Err(bad("it names no file")),
        }
    }

    fn path(&self, ending: &str) -> String {
        format!("{}{ending}{}", self.file, self.query)
    }
}

/// Resolves the servers and the cache of the image at a URL.
pub(super) fn resolve(
    url: &str,
    digest: Option<Digest>,
    args: &RepositoryArgs,
    settings: &Settings,
) -> Result<ImagePlace, Failure> {
    let target = Target::parse(url)?;
    let mut servers = Servers { redirects: true, ..servers(&target.base, args, &settings.environment)? };
    args.deadline.into_iter().for_each(|deadline| servers.within(deadline));
    let (place, quota) = cache::with_quota(settings, args)?;
    let (url, digest) = (url.to_owned(), digest.map(|digest| digest.to_string()));
    let (cache, deadline, kept) = (place.path, args.deadline, servers.kept_authorities());
    Ok(ImagePlace::Url { url, servers, digest, known: None, cache, quota, deadline, kept })
}

/// Resolved options of an image on a web server.
pub(super) struct Remote<'a> {
    pub(super) url: &'a str,
    pub(super) servers: &'a Servers,
    /// Root digest that authenticates it.
    pub(super) root: Option<Digest>,
    pub(super) cache: &'a Path,
    pub(super) quota: u64,
    pub(super) deadline: Option<Duration>,
    /// Texts of certificate authorities that stand in for files that are gone.
    pub(super) kept: &'a KeptAuthorities,
}

impl Remote<'_> {
    /// Opens the image: without a digest at the `known` version or after asking its server which one there is, with one
    /// by the list of digests that has it, which is fetched from beside the image unless it is in the cache.
    pub(super) fn open(self, offset: u64, known: &mut Option<FileVersion>) -> Result<RemoteImage, Failure> {
        let Self { url, servers, root, cache, quota, deadline, kept } = self;
        let target = Target::parse(url)?;
        let what = format!("can't open {url}");
        let failed = |error: StoreError| of_store(&what, &error);
        let engine = engine(deadline, kept.clone()).map_err(failed)?;
        let source = connect(&engine, servers.clone()).map_err(failed)?;
        let cache = BlockCache::open(cache, quota).map_err(failed)?;
        let name: Arc<str> = url.into();
        let path = target.path("");
        let (file, parts, digests) = match root {
            Some(root) => {
                let parts = cache.of(format!("digest {root}").as_bytes());
                let list = list(&*source, &target, root, &parts).map_err(failed)?;
                let whole = FileVersion { len: list.image_len(), version: None };
                (RangeFile::known(source, &path, name.clone(), whole), parts, Some(Arc::new(list)))
            }
            None => {
                let file = match known.clone() {
                    Some(whole) => RangeFile::known(source, &path, name.clone(), whole),
                    None => RangeFile::open(source, &path, name.clone()).map_err(failed)?,
                };
                let FileVersion { len, version } = file.whole();
                let Some(version) = version else {
                    return Err(Failure::failed(format!(
                        "{what}: its server sends neither ETag nor Last-Modified, so that a \
                         change would go unnoticed"
                    ))
                    .hint("give its digest (`esker image digest`) with --digest"));
                };
                let parts = cache.of(format!("{url}\n{len}\n{version:?}").as_bytes());
                *known = Some(file.whole().clone());
                (file, parts, None)
            }
        };
        if offset > file.whole().len {
            return Err(Failure::usage(format!("{what}: it has only {} bytes", file.whole().len)));
        }
        let block = digests.as_ref().map_or(BLOCK_SIZE, |list| list.block_size()).into();
        let (flying, landed) = (Mutex::default(), Condvar::new());
        Ok(RemoteImage { name, file, parts, digests, block, offset, flying, landed })
    }
}

/// Returns the list of digests whose own digest is this.
fn list(
    source: &dyn Source,
    target: &Target,
    root: Digest,
    parts: &FileBlocks,
) -> Result<DigestList, StoreError> {
    let what: Arc<str> = format!("the list of digests {}/{}", target.base, target.path(".digests")).into();
    let decode = |bytes: &[u8]| {
        DigestList::decode(bytes).map_err(|error| {
            StoreError::new(
                what.clone(),
                Cause::Remote { blame: esker_store::Blame::Object, may_pass: false, text: error.to_string() },
            )
        })
    };
    if let Some(kept) = parts.list(LIST_MAX).filter(|kept| Digest::of(kept) == root) {
        return decode(&kept);
    }
    let check: Check = Arc::new(move |bytes: &[u8]| match Digest::of(bytes) {
        actual if actual == root => Ok(()),
        actual => Err(Cause::WrongList { expected: root.to_string(), actual: actual.to_string() }),
    });
    let bytes = RangeFile::read_whole(source, &target.path(".digests"), what.clone(), LIST_MAX, Some(check))?;
    let list = decode(&bytes)?;
    parts.keep_list(&bytes);
    Ok(list)
}

impl RemoteImage {
    /// Returns a block: from the cache, or fetched once for all readers.
    fn block(&self, number: u64) -> io::Result<Vec<u8>> {
        let start = number * self.block;
        let end = (start + self.block).min(self.file.whole().len);
        let len = usize::try_from(end - start).map_err(io::Error::other)?;
        if let Some(content) = self.parts.get(number, len) {
            return Ok(content);
        }
        let _flight = match self.set_out(number) {
            Set::First(flight) => flight,
            // The first reader has kept it, or failed; then it is tried again.
            Set::After(flight) => match self.parts.get(number, len) {
                Some(content) => return Ok(content),
                None => flight,
            },
        };
        let check = self.digests.clone().map(|digests| -> Check {
            Arc::new(move |bytes: &[u8]| {
                let number = usize::try_from(number).unwrap_or(usize::MAX);
                let good = digests.is_block(number, bytes);
                if good { Ok(()) } else { Err(Cause::WrongPart { from: start, to: end }) }
            })
        });
        let content = self.file.read(start..end, check).map_err(io::Error::other)?;
        self.parts.keep(number, &content);
        Ok(content)
    }

    fn set_out(&self, number: u64) -> Set<'_> {
        let mut flying = self.flying.lock().unwrap_or_else(PoisonError::into_inner);
        let mut waited = false;
        while !flying.insert(number) {
            waited = true;
            flying = self.landed.wait(flying).unwrap_or_else(PoisonError::into_inner);
        }
        let flight = Flight { image: self, number };
        if waited { Set::After(flight) } else { Set::First(flight) }
    }
}

/// Set of blocks in flight, which decides which reader fetches a block.
enum Set<'i> {
    First(Flight<'i>),
    /// Another reader has tried to fetch the block.
    After(Flight<'i>),
}

/// A block being fetched; other readers wait for it.
struct Flight<'i> {
    image: &'i RemoteImage,
    number: u64,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.image.flying.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
        self.image.landed.notify_all();
    }
}

impl Image for RemoteImage {
    fn name(&self) -> Arc<str> {
        self.name.clone()
    }

    fn len(&self) -> u64 {
        self.file.whole().len - self.offset
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while let Some(room) = buffer.get_mut(filled..).filter(|room| !room.is_empty()) {
            let at = self.offset.saturating_add(offset).saturating_add(filled as u64);
            if at >= self.file.whole().len {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let block = timed(WaitCause::Network, || self.block(at / self.block))?;
            let skipped = usize::try_from(at % self.block).map_err(io::Error::other)?;
            let bytes = block.get(skipped..).unwrap_or_default();
            let len = bytes.len().min(room.len());
            let (there, from) = (room.get_mut(..len), bytes.get(..len));
            let (there, from) = there.zip(from).filter(|_| len > 0).ok_or(io::ErrorKind::UnexpectedEof)?;
            there.copy_from_slice(from);
            filled += len;
        }
        Ok(())
    }

    fn progress(&self) -> Option<Instant> {
        self.file.progress()
    }

    fn stripe(&self) -> usize {
        usize::try_from(self.block).unwrap_or(usize::MAX)
    }

    fn origin(&self) -> u64 {
        self.offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        let parts = |url: &str| {
            let Target { base, file, query } = Target::parse(url).expect(url);
            (base, file, query)
        };
        let of = |base: &str, file: &str, query: &str| (base.into(), file.into(), query.into());
        assert_eq!(parts("http://h:1/a/b.sqfs"), of("http://h:1/a", "b.sqfs", ""));
        assert_eq!(parts("https://h/b.sqfs?k=a/b"), of("https://h", "b.sqfs", "?k=a/b"));
        assert_eq!(Target::parse("https://h/b?k").expect("it").path(".digests"), "b.digests?k");
        for wrong in ["https://h/", "https://h", "http://h/a b.sqfs", "http://h/a#b.sqfs", "http:///x"] {
            assert!(Target::parse(wrong).is_err(), "{wrong}");
        }
    }
}
