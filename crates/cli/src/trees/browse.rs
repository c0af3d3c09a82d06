//! Opens a repository for reading without mounting it.

use std::path::PathBuf;
use std::sync::Arc;

use esker_node::mount_spec::RepositorySpec;
use esker_node::push::Push;
use esker_node::repository::{Repository, RepositoryOptions};
use esker_store::ObjectStore;
use esker_vfs::Tree;
use esker_view::{Pin, View, ViewOptions};

use crate::error::Failure;
use crate::mounting::open::{open_resolved, view_options};
use crate::output::lossy;
use crate::publisher::readable;
use crate::settings::address::is_name;
use crate::settings::args::{Located, PlaceArgs};
use crate::settings::configuration;
use crate::settings::missing_colon::hint_at_colon;
use crate::settings::{MEMORY, Settings};

use crate::settings::repository::ResolvedRepository;
use crate::trees::walk::Walk;

/// An open repository and a path in it.
pub(crate) struct Browsed {
    repository: Repository,
    view: Arc<View>,
    name: String,
    path: Vec<u8>,
}

impl Browsed {
    pub(crate) fn open(place: &PlaceArgs, settings: &Settings) -> Result<Self, Failure> {
        Self::open_at(place, place.locate()?.pin, settings)
    }

    /// Opens a repository or mount at this revision, or at the newest one.
    pub(crate) fn open_at(place: &PlaceArgs, pin: Option<Pin>, settings: &Settings) -> Result<Self, Failure> {
        let Located { repository: named, path, .. } = place.locate()?;
        let opened = Self::resolve(place, pin, settings)
            .and_then(|spec| Self::open_resolved(spec.options, spec.view, path));
        opened.map_err(|failure| hint_at_colon(named, failure))
    }

    /// Resolves the options of a repository or mount at this revision, or at the newest one.
    pub(crate) fn resolve(
        place: &PlaceArgs,
        pin: Option<Pin>,
        settings: &Settings,
    ) -> Result<RepositorySpec, Failure> {
        let named = place.locate()?.repository;
        // What is published, and not what this user's environment makes of it.
        let options = ViewOptions { pin, raw_targets: true, ..view_options(settings) };
        let checked = match published_here(place, named, settings)? {
            Some(checked) => checked,
            None => ResolvedRepository::new(named, &place.repository, settings)?,
        };
        checked.into_spec(&options, Push::Off)
    }

    /// Opens a repository from its resolved options.
    pub(crate) fn open_resolved(
        options: RepositoryOptions,
        view: ViewOptions,
        path: &[u8],
    ) -> Result<Self, Failure> {
        let name = options.name.to_string();
        let (repository, view) = open_resolved(options, view)?;
        Ok(Self { repository, view, name, path: path.to_owned() })
    }

    pub(crate) fn walk(&self) -> Walk<'_> {
        Walk::new(&*self.view, &self.name)
    }

    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    pub(crate) fn tree(&self) -> Arc<dyn Tree> {
        self.view.clone()
    }

    pub(crate) fn store(&self) -> &dyn ObjectStore {
        &*self.repository.store
    }

    pub(crate) fn path(&self) -> &[u8] {
        &self.path
    }

    pub(crate) fn describe(&self) -> String {
        format!("{}:/{}", self.name, lossy(&self.path).trim_start_matches('/'))
    }
}

/// Finds a repository that is published from this machine: in its storage, verified with its publisher's own key. A
/// configured repository comes first, unless options name the storage or the keys.
fn published_here(
    place: &PlaceArgs,
    named: &str,
    settings: &Settings,
) -> Result<Option<ResolvedRepository>, Failure> {
    let is_asked_for = place.published.is_given();
    if !is_name(named) {
        return match is_asked_for {
            true => Err(Failure::usage(format!(
                "--storage and --keys are for the NAME of a repository, and {named} is none"
            ))),
            false => Ok(None),
        };
    }
    let name = configuration::full_name(settings, named)?;
    let is_configured = || {
        let parameters = configuration::load(settings, Some(name.as_str()));
        !place.repository.server.is_empty() || parameters.get("CVMFS_SERVER_URL").is_some()
    };
    if !is_asked_for && is_configured() {
        return Ok(None);
    }
    let found = match place.published.place(name.as_str(), settings) {
        Ok(found) if is_asked_for || found.is_ours() => found,
        Err(failure) if is_asked_for => return Err(failure),
        _ => return Ok(None),
    };
    let mut repository = place.repository.clone().without_broker();
    repository.fqrn = Some(name.to_string());
    if repository.public_key.is_empty() {
        repository.public_key.push(found.keys.public_key_file());
    }
    let readable = readable(&found.root)?;
    if readable.is_private && repository.cache.is_none() {
        repository.cache = Some(PathBuf::from(MEMORY));
    }
    ResolvedRepository::new(&readable.url, &repository, settings).map(Some)
}

impl Drop for Browsed {
    fn drop(&mut self) {
        self.view.close();
        self.repository.close();
    }
}
