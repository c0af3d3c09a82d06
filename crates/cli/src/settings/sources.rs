//! The settings by which a command reaches the repositories and images that its arguments name.

use std::path::PathBuf;
use std::time::Duration;

use esker_cache_share::location::CacheLocation;
use esker_store::Servers;

use super::args::{PlaceArgs, RepositoryArgs};
use super::folders::Settings;
use super::repository::ResolvedRepository;
use super::{cache, servers};
use crate::error::Failure;
use crate::publisher;

/// Options of a command for servers and caches, above the settings of the user.
#[derive(Clone, Debug)]
pub(crate) struct SourceSettings {
    args: RepositoryArgs,
    settings: Settings,
}

impl SourceSettings {
    pub(crate) fn new(args: &RepositoryArgs, settings: &Settings) -> Self {
        Self { args: args.clone(), settings: settings.clone() }
    }

    /// Returns the settings of the user.
    pub(crate) fn user(&self) -> &Settings {
        &self.settings
    }

    /// Returns a text that differs where the options do.
    pub(crate) fn identity(&self) -> String {
        format!("{:?}", self.args)
    }

    /// Returns the time without progress after which a read fails.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.args.deadline
    }

    /// Returns the way to a web server that holds no repository; it may redirect requests.
    pub(crate) fn web_server(&self, base: &str) -> Result<Servers, Failure> {
        let servers = servers::servers(base, &self.args, &self.settings.environment)?;
        let mut servers = Servers { redirects: true, ..servers };
        self.args.deadline.into_iter().for_each(|deadline| servers.within(deadline));
        Ok(servers)
    }

    /// Resolves the repository at a URL or with a name.
    pub(crate) fn repository(&self, place: &str) -> Result<ResolvedRepository, Failure> {
        publisher::resolve(place, &self.args, &self.settings)
    }

    /// Returns a path in a repository, for reading without a mount.
    pub(crate) fn place(&self, place: String) -> PlaceArgs {
        PlaceArgs::of(place, self.args.clone())
    }

    /// Returns the cache and its quota.
    pub(crate) fn cache(&self) -> Result<(CacheLocation, u64), Failure> {
        cache::with_quota(&self.settings, &self.args)
    }

    /// Returns the cache folder for recorded reads, if there is one.
    pub(crate) fn cache_for_recorded_reads(&self) -> Option<PathBuf> {
        cache::for_recorded_reads(&self.settings, &self.args)
    }
}
