//! Implements the tree of a view.

use std::sync::Arc;

use esker_vfs::{
    Attr, Cookie, Data, ErrorKind, Kind, Listing, Node, NodeWithAttr, Reply, StatFs, Tree, TreeError, Watcher,
};

use crate::core::Core;
use crate::lookup::Snapshot;
use crate::magic;
use crate::payload::NodeInfo;
use crate::view::View;

impl Tree for View {
    fn root(&self) -> NodeWithAttr {
        self.core.root()
    }

    fn lookup(&self, dir: &Node, name: &[u8], reply: Reply<NodeWithAttr>) {
        self.core.counters.lookups.count();
        // Arguments are copied only for a call that has to wait.
        if let Some(parked) = self.core.answer(reply, |snapshot| snapshot.lookup(dir, name)) {
            let (dir, name) = (*dir, name.to_vec());
            self.core.answer_later(parked, move |snapshot| snapshot.lookup(&dir, &name));
        }
    }

    fn attributes(&self, node: &Node, reply: Reply<Attr>) {
        let node = *node;
        self.core.serve(reply, move |snapshot| snapshot.attributes(&node));
    }

    fn list(&self, dir: &Node, after: Cookie, reply: Reply<Listing>) {
        self.core.counters.lists.count();
        let dir = *dir;
        self.core.serve(reply, move |snapshot| snapshot.list(&dir, after));
    }

    fn read(&self, node: &Node, offset: u64, len: usize, reply: Reply<Data>) {
        self.core.counters.reads.count();
        self.observed(node, offset, len);
        self.core.read(node, offset, len, reply);
    }

    fn path(&self, node: &Node) -> Option<Vec<u8>> {
        View::path(self, node)
    }

    fn unreadable(&self, node: &Node, offset: u64, len: usize) {
        self.core.unreadable(node, offset, len);
    }

    fn link_target(&self, node: &Node, reply: Reply<Vec<u8>>) {
        let node = *node;
        self.core.serve(reply, move |snapshot| {
            if node.kind != Kind::Symlink {
                return Err(ErrorKind::Invalid.into());
            }
            snapshot.with_stored_row(&node, |row| Ok(snapshot.core.attribute_rules.target(row).into_owned()))
        });
    }

    fn xattr(&self, node: &Node, name: &[u8], reply: Reply<Vec<u8>>) {
        self.core.counters.xattrs.count();
        if let Ok((magic::METAINFO, page)) = std::str::from_utf8(name).map(magic::split_page) {
            return self.core.metainfo(page, reply);
        }
        if let Some(parked) = self.core.answer(reply, |snapshot| snapshot.xattr(node, name)) {
            let (node, name) = (*node, name.to_vec());
            self.core.answer_later(parked, move |snapshot| snapshot.xattr(&node, &name));
        }
    }

    fn xattr_names(&self, node: &Node, reply: Reply<Vec<Vec<u8>>>) {
        self.core.counters.xattrs.count();
        let node = *node;
        self.core.serve(reply, move |snapshot| snapshot.xattr_names(&node));
    }

    fn statfs(&self) -> StatFs {
        self.core.statfs()
    }

    fn hold(&self, node: &Node) {
        self.core.open_files.hold(node, || {
            let info = NodeInfo::of(node).ok()?;
            let attached = self.core.catalogs.get(&info.catalog)?;
            let row = attached.catalog.find(info.key).ok()??;
            Some(attached.catalog.chunks(&row).ok()?.into())
        });
    }

    fn release(&self, node: &Node) {
        self.core.open_files.release(node);
    }

    fn watch(&self, watcher: Arc<dyn Watcher>) {
        self.core.watchers.lock().push(watcher);
    }

    fn resumed(&self) {
        self.go_on();
    }

    fn failed(&self, node: &Node, error: &TreeError, caller: Option<u32>) {
        self.core.failures.add(self.core.name_of(node), error, caller);
    }
}

impl Core {
    /// Returns the root directory of the present revision.
    fn root(&self) -> NodeWithAttr {
        let revision = self.current.load();
        revision.root_found
    }

    /// Returns the space in the cache, and the number of entries that the catalogs count.
    ///
    /// Entries that no attached catalog has count as free: this is what the reference client returns, and does not
    /// look like a full file system.
    fn statfs(&self) -> StatFs {
        let revision = self.current.load();
        let room = self.store.room();
        StatFs {
            total_bytes: room.quota,
            free_bytes: room.quota.saturating_sub(room.used),
            files: revision.entries,
            free_files: revision.entries.saturating_sub(revision.entries_attached()),
        }
    }

    /// Returns the path of a node for messages, without waiting.
    pub(crate) fn name_of(&self, node: &Node) -> String {
        let revision = self.current.load();
        let snapshot = Snapshot::new(self, &revision);
        match NodeInfo::of(node).map(|info| if info.root { Ok(Vec::new()) } else { snapshot.path_of(&info) })
        {
            Ok(Ok(path)) if path.is_empty() => "/".to_owned(),
            Ok(Ok(path)) => String::from_utf8_lossy(&path).into_owned(),
            _ => "a file of an earlier revision".to_owned(),
        }
    }
}
