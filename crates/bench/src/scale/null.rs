//! Mounts a tree that replies at once, to measure only the kernel and the FUSE layer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use esker_fuse::{Session, SessionOptions};
use esker_kernel_mount::{Mount, MountOptions, Unmount};
use esker_vfs::{
    Attr, Cookie, Data, Device, ErrorKind, Ino, Kind, Listing, Node, NodeKey, NodeWithAttr, PAYLOAD_LEN,
    Payload, Reply, StatFs, Time, Tree, Watcher,
};

use super::Subject;

/// Tree in whose root every name is an empty file; counts the lookups.
#[derive(Default)]
struct NullTree {
    lookups: AtomicU64,
}

fn found(number: u64, kind: Kind) -> NodeWithAttr {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_le_bytes());
    let ino = Ino(number);
    let node = Node { key: NodeKey(key), ino, payload: Payload([0; PAYLOAD_LEN]), kind };
    let attr = Attr {
        ino,
        size: 0,
        mtime: Time { secs: 0, nanos: 0 },
        permissions: 0o555,
        kind,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: Device { major: 0, minor: 0 },
    };
    NodeWithAttr { node, attr }
}

const ROOT: u64 = 1;

impl Tree for NullTree {
    fn root(&self) -> NodeWithAttr {
        found(ROOT, Kind::Directory)
    }

    fn lookup(&self, _: &Node, name: &[u8], reply: Reply<NodeWithAttr>) {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        match std::str::from_utf8(name).ok().and_then(|name| name.parse().ok()) {
            Some(number) => reply.ok(found(number, Kind::File)),
            None => reply.err(ErrorKind::NotFound),
        }
    }

    fn attributes(&self, node: &Node, reply: Reply<Attr>) {
        reply.ok(found(node.ino.0, node.kind).attr);
    }

    fn list(&self, _: &Node, _: Cookie, reply: Reply<Listing>) {
        reply.ok(Listing { entries: Arc::default(), start: 0, parent: Ino(ROOT) });
    }

    fn read(&self, _: &Node, _: u64, _: usize, reply: Reply<Data>) {
        reply.ok(Data(Vec::new()));
    }

    fn link_target(&self, _: &Node, reply: Reply<Vec<u8>>) {
        reply.err(ErrorKind::NotFound);
    }

    fn xattr(&self, _: &Node, _: &[u8], reply: Reply<Vec<u8>>) {
        reply.err(ErrorKind::NotFound);
    }

    fn xattr_names(&self, _: &Node, reply: Reply<Vec<Vec<u8>>>) {
        reply.ok(Vec::new());
    }

    fn statfs(&self) -> StatFs {
        StatFs::default()
    }

    fn hold(&self, _: &Node) {}

    fn release(&self, _: &Node) {}

    fn watch(&self, _: Arc<dyn Watcher>) {}
}

/// The tree on a mountpoint of its own. Each round looks up new names.
pub(super) struct Mounted {
    folder: tempfile::TempDir,
    tree: Arc<NullTree>,
    session: Session,
    next: u64,
    operations: usize,
}

impl Mounted {
    pub(super) fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let options = MountOptions { source: "null".into(), ..MountOptions::default() };
        let mount = Mount::new(folder.path(), &options).context("can't mount")?;
        let tree = Arc::<NullTree>::default();
        let options =
            SessionOptions { mountpoint: Some(folder.path().to_owned()), ..SessionOptions::default() };
        let session = Session::start(mount.into_device(), Arc::clone(&tree) as _, options)?;
        Ok(Self { folder, tree, session, next: ROOT + 1, operations: 0 })
    }
}

impl Subject for Mounted {
    fn prepare(&mut self, operations: usize) -> Result<()> {
        let asked = self.tree.lookups.swap(0, Ordering::Relaxed);
        ensure!(asked == self.operations as u64, "{asked} lookups of {} names", self.operations);
        self.next += self.operations as u64;
        self.operations = operations;
        Ok(())
    }

    fn operate(&self, number: usize) -> Result<()> {
        let path = self.folder.path().join((self.next + number as u64).to_string());
        rustix::fs::lstat(&path).map(drop).with_context(|| path.display().to_string())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A mountpoint that is still in use goes when its last user does.
        if self.session.unmount(Unmount::Lazy).is_ok() {
            self.session.wait();
        }
    }
}
