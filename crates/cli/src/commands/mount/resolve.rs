//! Resolves the options of a mount once, for all its daemons.

use std::ffi::OsString;
use std::path::PathBuf;

use esker_node::mount_spec::{AccessSpec, ContentSpec, MountSpec, Origin};
use esker_node::status::Presentation;

use super::Args;
use crate::error::{Context, Failure, Kind};
use crate::image::ImageNamed;
use crate::logging;
use crate::mounting::open::mount_options;
use crate::process::confine;
use crate::publisher;
use crate::settings::{Settings, SourceSettings};

/// Resolves the options of a mount. `line` is the command line after the program's name.
pub(super) fn resolve(
    args: &Args,
    settings: &Settings,
    mountpoint: PathBuf,
    line: &[OsString],
) -> Result<MountSpec, Failure> {
    let (content, shown_with, source) = match ImageNamed::of(&args.url, &args.image)? {
        Some(image) => {
            args.view.refuse_revision(&args.url)?;
            let image = image.resolve(&SourceSettings::new(&args.repository, settings))?;
            let source = image.describe();
            (ContentSpec::Image(Box::new(image)), args.access.shown_with(Presentation::Erofs), source)
        }
        None => repository(args, settings)?,
    };
    let labels = args.access.labels()?;
    let folder = std::env::current_dir().context(Kind::Failed, "can't tell the current directory")?;
    let labels = labels.iter().map(|label| {
        let (kind, context) = label.parts();
        (kind.to_owned(), context.to_owned())
    });
    let mut spec = MountSpec::new(mountpoint, settings.runtime.clone(), content);
    spec.options = AccessSpec {
        source: args.access.source.clone().unwrap_or(source),
        allow_other: args.access.allow_other,
        noexec: args.access.noexec,
        labels: labels.collect(),
    };
    spec.shown_with = shown_with;
    spec.kernel = args.testing.kernel.unwrap_or_default();
    spec.deadline = args.repository.deadline;
    spec.replay = !args.view.no_prefetch;
    spec.confined = confine::is_wanted(&settings.environment);
    spec.log_levels = Some(logging::levels_text(&settings.environment)?);
    spec.origin = Origin { arguments: line.to_vec(), folder };
    Ok(spec)
}

fn repository(args: &Args, settings: &Settings) -> Result<(ContentSpec, Presentation, String), Failure> {
    let resolved = publisher::resolve(&args.url, &args.repository, settings)?;
    let push = resolved.push(args.view.push.as_ref());
    let is_pinned = args.view.pin().is_some() || resolved.is_tagged();
    let mut view = mount_options(settings, &args.view, &args.testing);
    if settings.root {
        // All users see root's mount, but its process's environment is not theirs to see.
        view.variables.clear();
    }
    let spec = resolved.into_spec(&view, push)?;
    // Any other file system would send requests as root, whichever user reads.
    let may_be = is_pinned && spec.xattr_guard().is_none();
    let shown_with = if may_be { args.access.shown_with(Presentation::Overlay) } else { Presentation::Fuse };
    let source = spec.options.servers.url().to_owned();
    Ok((ContentSpec::Repository(Box::new(spec)), shown_with, source))
}
