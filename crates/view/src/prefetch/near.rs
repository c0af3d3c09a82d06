//! Folders of the present revision, for guesses.

use esker_format::catalog::{EntryKind, Flags, Row};

use crate::catalogs::WantedCatalog;
use crate::failure::Blocked;
use crate::lookup::{Scene, is_name, join};

use super::neighbours::{Content, Folders, Leaf, kind, small_max};
use super::objects;

/// Most rows looked at in one folder.
const ROWS_MAX: usize = 1 << 17;
/// A catalog larger than this is not fetched for a guess.
const CATALOG_MAX: u64 = 16 << 20;

/// The tree as it is now. Catalogs that aren't attached are noted and left out.
pub(super) struct Near<'s, 'a> {
    pub(super) scene: &'s Scene<'a>,
    pub(super) missing: Vec<WantedCatalog>,
}

impl Folders for Near<'_, '_> {
    fn list(&mut self, path: &[u8], wanted: &[u8]) -> Content {
        let mut content = Content::default();
        let mount = match self.scene.resolve(path) {
            Ok(mount) => mount,
            Err(Blocked::On(catalog)) => {
                if catalog.size.is_none_or(|size| size <= CATALOG_MAX) {
                    self.missing.push(catalog);
                }
                return content;
            }
            Err(Blocked::Failed(_)) => return content,
        };
        let own = mount.key_of(path);
        // What can't be read is no guess; whoever asks for it hears of the damage.
        let Ok(children) = mount.attached.catalog.children(own) else { return content };
        for row in children.take(ROWS_MAX).flatten() {
            if row.flags().has(Flags::HIDDEN) || row.key() == own || !is_name(row.name()) {
                continue;
            }
            match row.kind() {
                EntryKind::Directory => content.folders.push(row.name().into()),
                EntryKind::File if kind(row.name()) == wanted => {
                    content.files.extend(leaf(path, wanted, &row));
                }
                _ => {}
            }
        }
        content
    }

    fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }
}

/// A file that is small, and one object.
fn leaf(folder: &[u8], kind: &[u8], row: &Row<'_>) -> Option<Leaf> {
    if row.size() > small_max(kind) {
        return None;
    }
    let wanted = objects::whole(row, &join(folder, row.name()))?;
    Some(Leaf { name: row.name().into(), size: row.size(), wanted })
}
