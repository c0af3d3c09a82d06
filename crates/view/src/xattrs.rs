//! Extended attributes: those that the repository stores, and magic ones, which describe the repository.
//!
//! The latter have the names of the reference client, on every node for which they make sense; [`magic`](crate::magic)
//! determines which of them are listed where.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::SystemTime;

use esker_format::catalog::{Chunk, EntryKind, Row, Statistics};
use esker_format::compress::Compression;
use esker_format::copied_xattr::{OverlayOwner, PUBLISHED_PATH};
use esker_format::time::UnixTime;
use esker_store::{Callback, Handle, ObjectRequest, StoreError};
use esker_vfs::{ErrorKind, Kind, Node, Reply, TreeError};

use crate::core::Core;
use crate::failure::{self, Blocked};
use crate::lookup::Snapshot;
use crate::magic::{self, Page, Visibility, split_page};
use crate::nested::CatalogMount;
use crate::payload::NodeInfo;
use crate::requester;
use crate::status::Failure;

/// Maximum length of a page of a value; Linux allows 65,536 bytes for any value.
const PAGE_MAX: usize = 40_000;
/// Maximum length of a repository's description.
const METAINFO_MAX: u64 = 64 * 1024;
/// Value if the repository has no description, or the description can't be fetched.
const NO_METAINFO: &str = "metainfo not available";

impl Snapshot<'_> {
    /// Returns the value of an attribute.
    pub(crate) fn xattr(&self, node: &Node, name: &[u8]) -> Result<Vec<u8>, Blocked> {
        let info = NodeInfo::of(node)?;
        if let Some(overlay) = self.core.attribute_rules.overlay
            && let Some(value) = self.copied_xattr(node, &info, overlay, name)?
        {
            return Ok(value);
        }
        // Programs ask for names that nothing has, one `ls -l` for two of each file: those cost a look into the table.
        let magic = std::str::from_utf8(name).ok().map(split_page).filter(|(name, _)| magic::is_magic(name));
        if let Some((name, page)) = magic {
            if let Some(value) = self.of_view(name).or_else(|| of_info(node, &info, name)) {
                return Ok(paged(&value, page)?);
            }
            if let Some(value) = self.of_catalog(node, &info, name)? {
                return Ok(paged(&value, page)?);
            }
        }
        if !self.may_have_xattrs(&info) || self.core.attribute_rules.overlay.is_some() {
            return Err(ErrorKind::NoAttribute.into());
        }
        self.with_stored_row(node, |row| {
            row.xattrs().get(name).map(<[u8]>::to_vec).ok_or(ErrorKind::NoAttribute.into())
        })
    }

    /// Returns the names of the attributes.
    pub(crate) fn xattr_names(&self, node: &Node) -> Result<Vec<Vec<u8>>, Blocked> {
        let info = NodeInfo::of(node)?;
        let mut names = Vec::new();
        if let Some(overlay) = self.core.attribute_rules.overlay {
            let of_row = |row: &Row<'_>| Ok(copied(row, overlay).into_keys().collect());
            return if self.may_have_xattrs(&info) { self.with_stored_row(node, of_row) } else { Ok(names) };
        }
        if self.may_have_xattrs(&info) {
            self.with_stored_row(node, |row| {
                names.extend(row.xattrs().iter().map(|(name, _)| name.to_vec()));
                Ok(())
            })?;
        }
        let is_listed = match self.core.attribute_rules.magic {
            Visibility::Never => false,
            Visibility::Root => info.root,
            Visibility::Everywhere => true,
        };
        if is_listed {
            let is_told = self.core.about.get().is_some();
            for name in magic::listed(node.kind, &info, is_told) {
                // A stored attribute of this name is not listed twice.
                if !names.iter().any(|stored| stored == name.as_bytes()) {
                    names.push(name.as_bytes().to_vec());
                }
            }
        }
        Ok(names)
    }

    /// Returns the value of an attribute as an overlay above the view is to copy it.
    fn copied_xattr(
        &self,
        node: &Node,
        info: &NodeInfo,
        overlay: OverlayOwner,
        name: &[u8],
    ) -> Result<Option<Vec<u8>>, Blocked> {
        if !self.may_have_xattrs(info) {
            return Ok(None);
        }
        match self.with_stored_row(node, |row| Ok(copied(row, overlay).remove(name)))? {
            Some(None) if info.root => Ok(Some(b"/".to_vec())),
            Some(None) => self.path_of(info).map(Some),
            value => Ok(value.flatten()),
        }
    }

    /// Returns true if the node may have attributes in the present revision.
    ///
    /// Programs request attributes of each file they run that it never has, so the node's own payload answers if its
    /// catalog is mounted now.
    fn may_have_xattrs(&self, info: &NodeInfo) -> bool {
        let is_present =
            self.mounts.get(&info.mount).is_some_and(|mount| mount.attached.hash == info.catalog);
        info.xattrs || !is_present
    }

    /// Returns an attribute that every node has.
    fn of_view(&self, name: &str) -> Option<String> {
        let label = &self.revision.label;
        Some(match name {
            "user.fqrn" => self.core.name.to_string(),
            "user.revision" => label.number.to_string(),
            "user.revision_timestamp" => label.published?.to_string(),
            "user.root_hash" => self.revision.root_hash().to_string(),
            "user.tag" => label.tag.clone().unwrap_or_default(),
            "user.nclg" => self.mounts.len().to_string(),
            "user.version" => env!("CARGO_PKG_VERSION").to_owned(),
            _ => return self.of_failures(name).or_else(|| self.core.about.get()?.attribute(name)),
        })
    }

    /// Returns the causes of the last failed reads, for users who have no other access to them.
    fn of_failures(&self, name: &str) -> Option<String> {
        let failures = &self.core.failures;
        Some(match name {
            "user.nioerr" => failures.count().to_string(),
            "user.timestamp_last_ioerr" => {
                failures.all().last().map_or(0, |last| seconds(last.time)).to_string()
            }
            "user.esker.error" => failures
                .all()
                .last()
                .map(|last| format!("{}: {}", last.object, last.cause))
                .unwrap_or_default(),
            "user.logbuffer" => {
                let line = |one: Failure| {
                    let time = UnixTime(i64::try_from(seconds(one.time)).unwrap_or(i64::MAX));
                    format!("[{time}] {}: {}\n", one.object, one.cause)
                };
                failures.all().into_iter().rev().map(line).collect()
            }
            _ => return None,
        })
    }

    /// Returns an attribute that needs a catalog.
    fn of_catalog(&self, node: &Node, info: &NodeInfo, name: &str) -> Result<Option<String>, Blocked> {
        let file = node.kind == Kind::File;
        Ok(match name {
            "user.chunks" if file && info.chunked => Some(self.chunks_in_use(node)?.len().to_string()),
            "user.chunk_list" if file && info.chunked => {
                let mut list = "hash,offset,size\n".to_owned();
                for chunk in self.chunks_in_use(node)?.iter() {
                    // Writing to a string can't fail.
                    let _ = writeln!(list, "{},{},{}", chunk.hash, chunk.offset, chunk.size);
                }
                Some(list)
            }
            "user.rawlink" | "xfsroot.rawlink" if node.kind == Kind::Symlink => {
                let target = self.with_stored_row(node, |row| Ok(row.symlink().to_vec()))?;
                Some(String::from_utf8_lossy(&target).into_owned())
            }
            "user.external_url" if file && info.external => {
                let Some(base) = self.core.about.get().and_then(|about| about.outside()) else {
                    return Ok(None);
                };
                let path = self.path_of(info)?;
                Some(format!("{}{}", base.trim_end_matches('/'), String::from_utf8_lossy(&path)))
            }
            "user.repo_counters" => Some(counters(&statistics(&self.revision.root)?)),
            "user.catalog_counters" => {
                let mount = match node.kind {
                    Kind::Directory => self.directory(node)?.mount,
                    _ => self.mounts.get(&info.mount).ok_or(ErrorKind::NoAttribute)?,
                };
                let path = String::from_utf8_lossy(&mount.path).into_owned();
                let head = format!("catalog_hash: {}\ncatalog_mountpoint: {path}\n", mount.attached.hash);
                Some(head + &counters(&statistics(mount)?))
            }
            _ => None,
        })
    }

    fn chunks_in_use(&self, node: &Node) -> Result<Arc<[Chunk]>, Blocked> {
        self.core.open_files.chunks(&node.key).map_or_else(|| self.chunks(node), Ok)
    }
}

impl Core {
    /// Fetches the repository's description of itself, from the cache or the server.
    pub(crate) fn metainfo(&self, page: Page, reply: Reply<Vec<u8>>) {
        let requester = requester::of(reply.requester());
        let answer = move |text: &str| reply.give(paged(text, page));
        let Some(name) = self.about.get().and_then(|about| about.metainfo()) else {
            return answer(NO_METAINFO);
        };
        let what = format!("the description of {}", self.name);
        let wanted =
            ObjectRequest::new(name, Compression::Zlib, what).limit(METAINFO_MAX).for_requester(requester);
        self.store.get(
            wanted,
            Callback::new(move |got: Result<Handle, StoreError>| {
                let text = got.ok().and_then(|handle| String::from_utf8(handle.read_all().ok()?).ok());
                answer(text.as_deref().unwrap_or(NO_METAINFO));
            }),
        );
    }
}

/// Returns the attributes that an overlay can copy, and [`PUBLISHED_PATH`] without a value if there are more.
fn copied(row: &Row<'_>, overlay: OverlayOwner) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
    let list = row.xattrs();
    let mut copied: BTreeMap<Vec<u8>, Option<Vec<u8>>> = list
        .iter()
        .filter(|(name, _)| overlay.copies(name))
        .map(|(name, value)| (name.to_vec(), Some(value.to_vec())))
        .collect();
    // Other entries can't have attributes of users, and those of root have them all.
    let can_tell = matches!(row.kind(), EntryKind::File | EntryKind::Directory);
    if can_tell && row.has_xattrs() && (list.is_empty() || copied.len() < list.len()) {
        copied.insert(PUBLISHED_PATH.to_vec(), None);
    }
    copied
}

/// Returns the seconds since the epoch.
fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns an attribute that the payload of a node determines.
fn of_info(node: &Node, info: &NodeInfo, name: &str) -> Option<String> {
    let yes_no = |yes: bool| if yes { "1" } else { "0" }.to_owned();
    let file = node.kind == Kind::File;
    match name {
        "user.hash" => info.content.map(|hash| hash.to_string()),
        "user.chunks" if file && !info.chunked => Some("1".to_owned()),
        "user.chunk_list" if file && !info.chunked => {
            let row = |hash| format!("hash,offset,size\n{hash},0,{}\n", info.size);
            Some(info.content.map_or_else(|| "hash,offset,size\n".to_owned(), row))
        }
        "user.compression" if file => Some(
            match info.compression {
                Some(Compression::Zlib) => "zlib",
                Some(Compression::Stored) => "none",
                Some(Compression::Zstd) => "zstd",
                None => "unknown",
            }
            .to_owned(),
        ),
        "user.direct_io" if file => Some(yes_no(info.direct_io)),
        "user.external_file" if file => Some(yes_no(info.external)),
        "user.bundle_trigger" | "bundle_trigger" if file => Some(yes_no(info.bundle)),
        _ => None,
    }
}

fn statistics(mount: &CatalogMount) -> Result<Statistics, TreeError> {
    mount.attached.catalog.statistics().map_err(|error| failure::of_catalog(error, mount.describe()))
}

fn counters(statistics: &Statistics) -> String {
    let (own, below) = (&statistics.own, &statistics.subtree);
    let rows = [
        ("regular", own.regular, below.regular),
        ("symlink", own.symlink, below.symlink),
        ("special", own.special, below.special),
        ("dir", own.dir, below.dir),
        ("nested", own.nested, below.nested),
        ("chunked", own.chunked, below.chunked),
        ("chunks", own.chunks, below.chunks),
        ("file_size", own.file_size, below.file_size),
        ("chunked_size", own.chunked_size, below.chunked_size),
        ("xattr", own.xattr, below.xattr),
        ("external", own.external, below.external),
        ("external_file_size", own.external_file_size, below.external_file_size),
    ];
    rows.iter().map(|(name, own, below)| format!("{name},{}\n", own.saturating_add(*below))).collect()
}

/// Returns a page of a value: the whole lines that fit.
fn paged(value: &str, page: Page) -> Result<Vec<u8>, TreeError> {
    let mut pages = vec![String::new()];
    for line in value.split_inclusive('\n') {
        match pages.last_mut() {
            Some(last) if last.is_empty() || last.len() + line.len() <= PAGE_MAX => last.push_str(line),
            _ => pages.push(line.to_owned()),
        }
    }
    let text = match page {
        Page::Count => format!("num_pages, {}\n", pages.len()),
        Page::Number { page, header } => {
            let text = pages.into_iter().nth(page).ok_or(ErrorKind::NoAttribute)?;
            if header { format!("Access page at idx: {page}\n{text}") } else { text }
        }
    };
    Ok(text.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_come_in_pages_of_whole_lines() {
        let value: String = (0..10_000).map(|n| format!("line {n}\n")).collect();
        let page =
            |name: &str| paged(&value, split_page(name).1).map(|text| String::from_utf8(text).unwrap());
        let count = page("user.chunk_list~?").unwrap();
        let pages: usize = count.trim().strip_prefix("num_pages, ").unwrap().parse().unwrap();
        assert!(pages > 1);
        let joined: String = (0..pages).map(|n| page(&format!("user.chunk_list~{n}")).unwrap()).collect();
        assert_eq!(joined, value);
        assert_eq!(page("user.chunk_list").unwrap(), page("user.chunk_list~0").unwrap());
        assert!(page("user.chunk_list@1").unwrap().starts_with("Access page at idx: 1\nline "));
        assert_eq!(page(&format!("user.x~{pages}")).unwrap_err().kind, ErrorKind::NoAttribute);
        assert_eq!(split_page("user.a@b").0, "user.a@b");
        assert_eq!(split_page("user.hash~7"), ("user.hash", Page::Number { page: 7, header: false }));
    }
}
