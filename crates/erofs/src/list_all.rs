//! Lists a whole directory with all attributes, without blocking.

use std::sync::Arc;

use esker_vfs::{Cookie, DirEntry, ErrorKind, Listing, Node, Reply, Tree, TreeError};
use parking_lot::Mutex;

use crate::layout;

/// A directory entry with its encoded attributes.
pub(crate) struct ListedEntry {
    pub(crate) entry: DirEntry,
    /// Encoded extended attributes, which follow the inode.
    pub(crate) attributes: Vec<u8>,
}

/// Callback for the result.
pub(crate) type Callback<T> = Box<dyn FnOnce(Result<T, TreeError>) + Send>;

const NAME_MAX: usize = 255;

/// Lists `dir` in sorted order; reads extended attributes only if `attributes` is true.
pub(crate) fn list_all(tree: Arc<dyn Tree>, dir: Node, attributes: bool, then: Callback<Vec<ListedEntry>>) {
    let sorted: Callback<Vec<DirEntry>> = Box::new({
        let tree = Arc::clone(&tree);
        move |entries| match entries.and_then(sorted) {
            Ok(entries) if attributes => with_attributes(&tree, entries, then),
            Ok(entries) => then(Ok(entries
                .into_iter()
                .map(|entry| ListedEntry { entry, attributes: Vec::new() })
                .collect())),
            Err(error) => then(Err(error)),
        }
    });
    list(tree, dir, Cookie(0), Vec::new(), sorted);
}

/// Requests all names after `after`.
fn list(
    tree: Arc<dyn Tree>,
    dir: Node,
    after: Cookie,
    mut all: Vec<DirEntry>,
    then: Callback<Vec<DirEntry>>,
) {
    let tree_clone = Arc::clone(&tree);
    let reply = Reply::new(move |listing: Result<Listing, TreeError>| {
        let listing = match listing {
            Ok(listing) => listing,
            Err(error) => return then(Err(error)),
        };
        let part = listing.entries.get(listing.start..).unwrap_or_default();
        match part.last() {
            None => then(Ok(all)),
            // A tree that returns the same names again must not cause an endless loop.
            Some(last) if last.cookie <= after => then(Err(ErrorKind::Damaged.into())),
            Some(last) => {
                all.extend_from_slice(part);
                list(tree, dir, last.cookie, all, then);
            }
        }
    });
    tree_clone.list(&dir, after, reply);
}

/// Sorts entries by the bytes of their names, which the kernel's lookup requires. An invalid name is damage.
fn sorted(mut entries: Vec<DirEntry>) -> Result<Vec<DirEntry>, TreeError> {
    let is_name = |name: &[u8]| {
        let special = name.is_empty() || name == b"." || name == b"..";
        !special && name.len() <= NAME_MAX && !name.iter().any(|byte| matches!(byte, b'/' | 0))
    };
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let is_sound = entries.iter().all(|entry| is_name(&entry.name))
        && entries.windows(2).all(|pair| pair[0].name != pair[1].name);
    if is_sound { Ok(entries) } else { Err(TreeError::on(ErrorKind::Damaged, "the names of a directory")) }
}

/// Names and values of extended attributes.
pub(crate) type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// Replies about extended attributes that are still pending.
struct PendingXattrs {
    entries: Vec<DirEntry>,
    found: Vec<Attributes>,
    missing: usize,
    failed: Option<TreeError>,
    then: Option<Callback<Vec<ListedEntry>>>,
}

impl PendingXattrs {
    /// Records one reply; the last reply calls the callback.
    fn finish_one(pending: &Mutex<Self>, note: impl FnOnce(&mut Self) -> Result<(), TreeError>) {
        let mut all = pending.lock();
        let noted = match note(&mut all) {
            // The node has no attributes, or the attribute was removed.
            Err(error) if matches!(error.kind, ErrorKind::Unsupported | ErrorKind::NoAttribute) => Ok(()),
            noted => noted,
        };
        if let Err(error) = noted {
            all.failed.get_or_insert(error);
        }
        all.missing -= 1;
        if all.missing > 0 {
            return;
        }
        let (entries, found) = (std::mem::take(&mut all.entries), std::mem::take(&mut all.found));
        let (failed, then) = (all.failed.take(), all.then.take());
        drop(all);
        let Some(then) = then else { return };
        then(match failed {
            Some(error) => Err(error),
            None => Ok(entries.into_iter().zip(found).map(named).collect()),
        });
    }
}

fn named((entry, mut found): (DirEntry, Attributes)) -> ListedEntry {
    // Replies arrive in any order.
    found.sort_unstable();
    ListedEntry { entry, attributes: layout::attributes(&found) }
}

/// Requests the extended attributes of all entries at once.
fn with_attributes(tree: &Arc<dyn Tree>, entries: Vec<DirEntry>, then: Callback<Vec<ListedEntry>>) {
    let nodes: Vec<Node> = entries.iter().map(|entry| entry.node).collect();
    let found = vec![Vec::new(); nodes.len()];
    // One more than the replies, so that the callback runs only after all requests were made.
    let all = PendingXattrs { entries, found, missing: nodes.len() + 1, failed: None, then: Some(then) };
    let pending = Arc::new(Mutex::new(all));
    for (number, node) in nodes.into_iter().enumerate() {
        let (tree_clone, pending) = (Arc::clone(tree), Arc::clone(&pending));
        tree.xattr_names(
            &node,
            Reply::new(move |names: Result<Vec<Vec<u8>>, TreeError>| {
                let names = names.map(|names| {
                    pending.lock().missing += names.len();
                    names.into_iter().for_each(|name| value(&*tree_clone, &node, number, name, &pending));
                });
                PendingXattrs::finish_one(&pending, |_| names);
            }),
        );
    }
    PendingXattrs::finish_one(&pending, |_| Ok(()));
}

fn value(tree: &dyn Tree, node: &Node, number: usize, name: Vec<u8>, pending: &Arc<Mutex<PendingXattrs>>) {
    let (requested_name, pending) = (name.clone(), Arc::clone(pending));
    tree.xattr(
        node,
        &requested_name,
        Reply::new(move |value: Result<Vec<u8>, TreeError>| {
            PendingXattrs::finish_one(&pending, |all| {
                let value = value?;
                if let Some(found) = all.found.get_mut(number) {
                    found.push((name, value));
                }
                Ok(())
            });
        }),
    );
}
