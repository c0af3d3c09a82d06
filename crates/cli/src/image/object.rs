//! Opens an image that is a file of a repository; the repository authenticates it.

use esker_node::mount_spec::{ImagePlace, RepositorySpec};
use esker_squashfs::TreeFile;
use esker_vfs::Kind as NodeKind;
use esker_view::Pin;

use crate::error::Failure;
use crate::settings::SourceSettings;
use crate::settings::missing_colon::hint_at_colon;
use crate::trees::browse::Browsed;

/// Resolves the repository that has the image.
pub(super) fn resolve(named: &str, path: &str, sources: &SourceSettings) -> Result<ImagePlace, Failure> {
    let place = sources.place(format!("{named}:{path}"));
    let spec = Browsed::resolve(&place, Some(Pin::Head), sources.user());
    let repository = Box::new(spec.map_err(|failure| hint_at_colon(named, failure))?);
    Ok(ImagePlace::Object { named: named.to_owned(), repository, path: path.to_owned() })
}

/// Opens the image at a path of a repository, and keeps the options at the opened revision.
pub(super) fn open(spec: &mut RepositorySpec, path: &str, offset: u64) -> Result<TreeFile<Browsed>, Failure> {
    let browsed = Browsed::open_resolved(spec.options.clone(), spec.view.clone(), path.as_bytes())?;
    spec.view.pin = Some(Pin::Root(browsed.view().status().root_hash));
    let found = browsed.walk().resolve(browsed.path(), true)?;
    let name = browsed.describe();
    if found.attr.kind != NodeKind::File {
        return Err(Failure::usage(format!("{name} is not a file, so it can't be an image"))
            .hint("a folder of a repository can be the root of a command: esker run NAME:/path -- COMMAND"));
    }
    let size = found.attr.size;
    TreeFile::new(browsed.tree(), found.node, size, offset, &name, browsed)
        .ok_or_else(|| Failure::usage(format!("{name} has only {size} bytes")))
}
