//! A repository that is looked into without mounting it.

use std::sync::Arc;

use esker_node::repository::Repository;
use esker_store::ObjectStore;
use esker_vfs::Tree;
use esker_view::{Pin, View, ViewOptions};

use crate::args::PlaceArgs;
use crate::exit::Failure;
use crate::join::{Checked, view_options};
use crate::output::lossy;
use crate::settings::Settings;
use crate::walk::Walk;

/// An open repository and a path in it.
pub(crate) struct Browsed {
    repository: Repository,
    view: Arc<View>,
    name: String,
    path: Vec<u8>,
}

impl Browsed {
    pub(crate) fn open(place: &PlaceArgs, settings: &Settings) -> Result<Self, Failure> {
        Self::open_at(place, place.pin.pin(), settings)
    }

    /// Opens a place at this revision, or the newest one and those that follow it.
    pub(crate) fn open_at(place: &PlaceArgs, pin: Option<Pin>, settings: &Settings) -> Result<Self, Failure> {
        let (url, path) = place.split()?;
        let checked = Checked::new(url, &place.repository, settings)?;
        let name = checked.address.name.clone();
        let (repository, view) = checked.open(&ViewOptions { pin, ..view_options(settings) })?;
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
