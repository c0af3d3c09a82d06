//! Opens a repository with its view, from arguments and settings.

use std::sync::Arc;

use esker_fuse::SessionOptions;
use esker_node::mount_spec;
use esker_node::push::Push;
use esker_node::repository::{OpenError, Repository, RepositoryOptions};
use esker_node::status::seconds;
use esker_vfs::{ErrorKind, Time};
use esker_view::{Ownership, Pin, View, ViewOptions, ViewStatus};

use crate::error::{Failure, of_store, of_tree};
use crate::settings::Settings;
use crate::settings::args::{RepositoryArgs, TestingArgs, ViewArgs};
use crate::settings::repository::ResolvedRepository;
use crate::trees::entry::time_text;

/// Opens a repository: fetches and verifies the head, and fetches the root catalog.
pub(crate) fn open(
    resolved: ResolvedRepository,
    view: &ViewOptions,
) -> Result<(Repository, Arc<View>), Failure> {
    let spec = resolved.into_spec(view, Push::Off)?;
    open_resolved(spec.options, spec.view)
}

/// Opens a repository from its resolved options.
pub(crate) fn open_resolved(
    options: RepositoryOptions,
    view: ViewOptions,
) -> Result<(Repository, Arc<View>), Failure> {
    let url = options.servers.url().to_owned();
    let what = format!("can't open {} at {url}", options.name);
    let is_named = matches!(view.pin, Some(Pin::Tag(_) | Pin::Date(_)));
    Repository::open_view(options, view).map_err(|error| match error {
        OpenError::Disk(error) => Failure::failed(format!("can't open the cache: {error}"))
            .hint("check the disk, or name another folder with --cache DIR"),
        OpenError::Store(error) => of_store(&what, &error),
        OpenError::View(error) if is_named && error.kind == ErrorKind::NotFound => of_tree(&what, &error)
            .hint(format!("`esker revision --list {url}` lists the revisions with names")),
        OpenError::View(error) => of_tree(&what, &error),
    })
}

/// Returns the options of a mount's view for this user.
pub(crate) fn mount_options(settings: &Settings, view: &ViewArgs, testing: &TestingArgs) -> ViewOptions {
    ViewOptions { pin: view.pin(), ttl: testing.ttl, prefetch: !view.no_prefetch, ..view_options(settings) }
}

/// Returns the options of a view for this user.
pub(crate) fn view_options(settings: &Settings) -> ViewOptions {
    let ownership = if settings.root {
        Ownership::AsPublished
    } else {
        let uid = rustix::process::geteuid().as_raw();
        Ownership::Claim { uid, gid: rustix::process::getegid().as_raw() }
    };
    // Variant symlinks are expanded from the environment, as CernVM-FS does.
    let variables = settings.environment.texts();
    ViewOptions { ownership, variables, ..ViewOptions::default() }
}

/// Returns the options of a session.
pub(crate) fn session_options(args: &RepositoryArgs, testing: Option<&TestingArgs>) -> SessionOptions {
    let kernel = testing.and_then(|testing| testing.kernel).unwrap_or_default();
    mount_spec::session(kernel, args.deadline)
}

/// Returns the warning of a view that uses an old head because no server replies.
pub(crate) fn offline_warning(status: &ViewStatus) -> Option<String> {
    let offline = status.offline.as_ref()?;
    let secs = i64::try_from(seconds(offline.since)).unwrap_or(i64::MAX);
    Some(format!(
        "{} is shown at revision {}, which its server last confirmed at {} UTC: {}",
        status.repository,
        status.revision,
        time_text(Time { secs, nanos: 0 }),
        offline.reason
    ))
}
