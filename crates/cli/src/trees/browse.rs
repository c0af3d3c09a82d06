//! Opens a repository for reading without mounting it.

use std::sync::Arc;

use esker_node::mount_spec::RepositorySpec;
use esker_node::push::Push;
use esker_node::repository::{Repository, RepositoryOptions};
use esker_store::ObjectStore;
use esker_vfs::Tree;
use esker_view::{Ownership, Pin, View, ViewOptions};

use crate::error::Failure;
use crate::mounting::open::{open_resolved, view_options};
use crate::output::lossy;
use crate::publisher::{Place, published_here};
use crate::settings::Settings;
use crate::settings::args::{Located, PlaceArgs};
use crate::settings::missing_colon::hint_at_colon;
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
        let opened = Self::found(place, pin, settings).and_then(|(storage, mut spec)| {
            spec.options.valid_at = storage.as_ref().and_then(Place::valid_at);
            let browsed = Self::open_resolved(spec.options, spec.view, path)?;
            if let (Some(storage), Some(head)) = (storage, browsed.repository.heads.current()) {
                storage.warn_if_expired(&head);
            }
            Ok(browsed)
        });
        opened.map_err(|failure| hint_at_colon(named, failure))
    }

    /// Resolves the options of a repository or mount at this revision, or at the newest one.
    pub(crate) fn resolve(
        place: &PlaceArgs,
        pin: Option<Pin>,
        settings: &Settings,
    ) -> Result<RepositorySpec, Failure> {
        Self::found(place, pin, settings).map(|(_, spec)| spec)
    }

    /// Resolves the options like `resolve`; returns the storage too, if it is on this machine.
    fn found(
        place: &PlaceArgs,
        pin: Option<Pin>,
        settings: &Settings,
    ) -> Result<(Option<Place>, RepositorySpec), Failure> {
        let named = place.locate()?.repository;
        // What is published, and not what a mount of this user makes of it.
        let options = ViewOptions {
            pin,
            raw_targets: true,
            ownership: Ownership::AsPublished,
            ..view_options(settings)
        };
        let (storage, checked) = match published_here(named, &place.published, &place.repository, settings)? {
            Some((storage, checked)) => (Some(storage), checked),
            None => (None, ResolvedRepository::new(named, &place.repository, settings)?),
        };
        Ok((storage, checked.into_spec(&options, Push::Off)?))
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

impl Drop for Browsed {
    fn drop(&mut self) {
        self.view.close();
        self.repository.close();
    }
}
