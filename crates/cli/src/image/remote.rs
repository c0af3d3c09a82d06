//! Opens an image on a web server, whose blocks a list of digests authenticates where one is named.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use esker_node::mount_spec::ImagePlace;
use esker_node::repository::engine;
use esker_squashfs::BlockImage;
use esker_squashfs::digest::{BLOCK_SIZE, Digest, DigestList};
use esker_store::{
    BlockCache, BlockCheck, Cause, Check, FileBlocks, FileVersion, KeptAuthorities, RangeFile, RemoteFile,
    Servers, Source, StoreError, connect,
};

use crate::error::{Failure, of_store};
use crate::settings::SourceSettings;

/// The list of an image of half a terabyte with the usual blocks; one with more has longer blocks.
const LIST_MAX: u64 = 64 << 20;

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
    sources: &SourceSettings,
) -> Result<ImagePlace, Failure> {
    let servers = sources.web_server(&Target::parse(url)?.base)?;
    let (place, quota) = sources.cache()?;
    let (url, digest) = (url.to_owned(), digest.map(|digest| digest.to_string()));
    let (cache, deadline, kept) = (place.path, sources.deadline(), servers.kept_authorities());
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
    pub(super) fn open(self, offset: u64, known: &mut Option<FileVersion>) -> Result<BlockImage, Failure> {
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
        let end = file.whole().len;
        if offset > end {
            return Err(Failure::usage(format!("{what}: it has only {end} bytes")));
        }
        let block_size = digests.as_ref().map_or(BLOCK_SIZE, |list| list.block_size()).into();
        let check = digests.map(|list| -> BlockCheck {
            let number = |number| usize::try_from(number).unwrap_or(usize::MAX);
            Arc::new(move |block, bytes| list.is_block(number(block), bytes))
        });
        let file = Arc::new(RemoteFile::new(file, parts, block_size, check));
        let followed = file.clone();
        let read = Box::new(move |number| file.block(number).map_err(io::Error::other));
        let progress = Box::new(move || followed.progress());
        Ok(BlockImage { name, block_size, end, offset, read, progress })
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
