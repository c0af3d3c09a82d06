//! Merges the layers of a container image into the source of an image.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::Arc;

use esker_oci::{Config, Data, Entry, FileContent, Kind as EntryKind, Merged};
use esker_squashfs::writer::{
    Device, Head, Input, Kind, Open, Plain, Reading, TreeBuilder, WithHoles, WriteError,
};

/// Merged layers, with the configuration of their image.
pub(super) struct Layers {
    merged: Merged,
    config: Vec<u8>,
}

impl Layers {
    pub(super) fn new(merged: Merged, config: Vec<u8>) -> Self {
        Self { merged, config }
    }

    /// Adds the configuration at the path of `esker run`, replacing the layers' file.
    fn configuration(&self, builder: &mut TreeBuilder<'_, '_>) -> Result<(), WriteError> {
        let path = Config::PATH.trim_start_matches('/');
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let head = |path: &str, permissions| Head { path: path.into(), permissions, ..Head::default() };
        builder.add(head(folder, 0o755), Kind::Directory)?;
        let size = self.config.len() as u64;
        builder.file_now(head(path, 0o644), size, &mut Plain(self.config.as_slice()))
    }
}

impl Input for Layers {
    fn feed(&mut self, builder: &mut TreeBuilder<'_, '_>) -> Result<(), WriteError> {
        if let Some(root) = self.merged.root() {
            builder.add(head(b"", root), Kind::Directory)?;
        }
        // The first path of each entry that has several.
        let mut linked: HashMap<*const Entry, &[u8]> = HashMap::new();
        for (path, entry) in self.merged.iter() {
            if !builder.wants(path) {
                continue;
            }
            if Arc::strong_count(entry) > 1 {
                if let Some(first) = linked.get(&Arc::as_ptr(entry)) {
                    builder.link(path, first)?;
                    continue;
                }
                linked.insert(Arc::as_ptr(entry), path);
            }
            let head = head(path, entry);
            let device = |major: &u32, minor: &u32| Device { major: *major, minor: *minor };
            let kind = match &entry.kind {
                EntryKind::File { layer, data } => {
                    let content = Content { layer: layer.clone(), data: data.clone() };
                    builder.file(head, data.size, Box::new(content))?;
                    continue;
                }
                EntryKind::Directory => Kind::Directory,
                EntryKind::Symlink(target) => Kind::Symlink(target.clone()),
                EntryKind::CharDevice(major, minor) => Kind::CharDevice(device(major, minor)),
                EntryKind::BlockDevice(major, minor) => Kind::BlockDevice(device(major, minor)),
                EntryKind::Fifo => Kind::Fifo,
            };
            builder.add(head, kind)?;
        }
        builder.note_unknown_types(self.merged.unknown_types());
        self.configuration(builder)
    }
}

fn head(path: &[u8], entry: &Entry) -> Head {
    Head {
        path: path.to_vec(),
        permissions: u16::try_from(entry.mode & 0o7777).unwrap_or_default(),
        uid: entry.uid,
        gid: entry.gid,
        mtime: entry.mtime,
        xattrs: entry.xattrs.clone(),
    }
}

/// The content of a file: a part of an unpacked layer.
struct Content {
    layer: Arc<File>,
    data: Data,
}

impl Open for Content {
    fn open(&self) -> io::Result<Box<dyn Reading + '_>> {
        Ok(Box::new(WithHoles(FileContent::new(self.layer.clone(), self.data.clone()))))
    }
}
