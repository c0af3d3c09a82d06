//! All names of a directory with everything that is said of them, asked for without waiting.

use std::sync::Arc;

use esker_vfs::{Cookie, DirEntry, ErrorKind, Listing, Node, Reply, Tree, TreeError};
use parking_lot::Mutex;

use crate::layout;

/// A name in a directory.
pub(crate) struct Named {
    pub(crate) entry: DirEntry,
    /// Extended attributes, as they follow an inode.
    pub(crate) attributes: Vec<u8>,
}

/// Who is told.
pub(crate) type Then<T> = Box<dyn FnOnce(Result<T, TreeError>) + Send>;

const NAME_MAX: usize = 255;

/// Asks for all names of `dir`, sorted. Extended attributes are asked for if there may be any.
pub(crate) fn gather(tree: Arc<dyn Tree>, dir: Node, attributes: bool, then: Then<Vec<Named>>) {
    let sorted: Then<Vec<DirEntry>> = Box::new({
        let tree = Arc::clone(&tree);
        move |entries| match entries.and_then(sorted) {
            Ok(entries) if attributes => with_attributes(&tree, entries, then),
            Ok(entries) => {
                then(Ok(entries.into_iter().map(|entry| Named { entry, attributes: Vec::new() }).collect()))
            }
            Err(error) => then(Err(error)),
        }
    });
    list(tree, dir, Cookie(0), Vec::new(), sorted);
}

/// Asks for the names after `after`, until there are none.
fn list(tree: Arc<dyn Tree>, dir: Node, after: Cookie, mut all: Vec<DirEntry>, then: Then<Vec<DirEntry>>) {
    let asked = Arc::clone(&tree);
    let reply = Reply::new(move |listing: Result<Listing, TreeError>| {
        let listing = match listing {
            Ok(listing) => listing,
            Err(error) => return then(Err(error)),
        };
        let part = listing.entries.get(listing.start..).unwrap_or_default();
        match part.last() {
            None => then(Ok(all)),
            // A tree that goes in circles must not be followed.
            Some(last) if last.cookie <= after => then(Err(ErrorKind::Damaged.into())),
            Some(last) => {
                all.extend_from_slice(part);
                list(tree, dir, last.cookie, all, then);
            }
        }
    });
    asked.list(&dir, after, reply);
}

/// In the order of their bytes, which is how the kernel looks for them. What can't be a name is damage.
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

/// Names and values.
pub(crate) type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// Answers that are still awaited.
struct Awaited {
    entries: Vec<DirEntry>,
    found: Vec<Attributes>,
    missing: usize,
    failed: Option<TreeError>,
    then: Option<Then<Vec<Named>>>,
}

impl Awaited {
    /// One answer came.
    fn came(awaited: &Mutex<Self>, note: impl FnOnce(&mut Self) -> Result<(), TreeError>) {
        let mut all = awaited.lock();
        let noted = match note(&mut all) {
            // There are none, or none any more.
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

fn named((entry, mut found): (DirEntry, Attributes)) -> Named {
    // In whichever order they were told.
    found.sort_unstable();
    Named { entry, attributes: layout::attributes(&found) }
}

/// Asks for the extended attributes of all at once.
fn with_attributes(tree: &Arc<dyn Tree>, entries: Vec<DirEntry>, then: Then<Vec<Named>>) {
    let nodes: Vec<Node> = entries.iter().map(|entry| entry.node).collect();
    let found = vec![Vec::new(); nodes.len()];
    // One more, so that nothing is complete before everything was asked.
    let all = Awaited { entries, found, missing: nodes.len() + 1, failed: None, then: Some(then) };
    let awaited = Arc::new(Mutex::new(all));
    for (number, node) in nodes.into_iter().enumerate() {
        let (asked, awaited) = (Arc::clone(tree), Arc::clone(&awaited));
        tree.xattr_names(
            &node,
            Reply::new(move |names: Result<Vec<Vec<u8>>, TreeError>| {
                let names = names.map(|names| {
                    awaited.lock().missing += names.len();
                    names.into_iter().for_each(|name| value(&*asked, &node, number, name, &awaited));
                });
                Awaited::came(&awaited, |_| names);
            }),
        );
    }
    Awaited::came(&awaited, |_| Ok(()));
}

fn value(tree: &dyn Tree, node: &Node, number: usize, name: Vec<u8>, awaited: &Arc<Mutex<Awaited>>) {
    let (asked, awaited) = (name.clone(), Arc::clone(awaited));
    tree.xattr(
        node,
        &asked,
        Reply::new(move |value: Result<Vec<u8>, TreeError>| {
            Awaited::came(&awaited, |all| {
                let value = value?;
                if let Some(found) = all.found.get_mut(number) {
                    found.push((name, value));
                }
                Ok(())
            });
        }),
    );
}
