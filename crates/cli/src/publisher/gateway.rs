//! Publishing without the keys of a repository: through a gateway, which is named once and remembered.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use esker_format::manifest;
use esker_format::name::RepositoryName;
use esker_gateway::{GatewayAddress, LeasePath, LeaseWish, Session};
use esker_repository::{
    GatewayFailure, GatewaySession, LOCK_WAIT, RememberedGateway, RememberedStorage, Repository,
    RepositoryError, Settings as PublishSettings, is_exposed, path, published::Published, state,
};
use esker_store::RealDisk;

use super::{LockArgs, Place, PublisherArgs, now, of_operation, warn_of_key};
use crate::error::{Context as _, Failure, Kind, chain};
use crate::output::tell;
use crate::settings::Settings;
use crate::settings::address::Address;
use crate::settings::args::RepositoryArgs;
use crate::settings::configuration::{authorities, without_files};
use crate::settings::public_keys::public_keys;
use crate::settings::repository::ResolvedRepository;

/// Heading of the options in help.
const HEADING: &str = "Gateway";

/// Options for publishing through a gateway.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct GatewayArgs {
    /// Gateway that has the keys of the repository and publishes for this user, like https://gateway.example.org:4929;
    /// remembered with the options below, so that later commands need none of them
    #[arg(long, value_name = "URL", help_heading = HEADING)]
    gateway: Option<String>,

    /// File with the key that the gateway knows, as `plain_text ID SECRET` [default: NAME.gw in the keys folder]
    #[arg(long, value_name = "FILE", requires = "gateway", help_heading = HEADING)]
    key: Option<PathBuf>,

    /// URL of the repository on its web server, which has each new revision at once [default: the first server that is
    /// configured for clients]
    #[arg(long, value_name = "URL", requires = "gateway", help_heading = HEADING)]
    server: Option<String>,

    /// Master public key [default: NAME.pub in the keys folder, or as configured for clients]
    #[arg(long, value_name = "FILE", requires = "gateway", help_heading = HEADING)]
    public_key: Vec<PathBuf>,

    /// Additional CA certificates for TLS to the gateway and the web server
    #[arg(long, value_name = "FILE|DIR", requires = "gateway", help_heading = HEADING)]
    ca: Vec<PathBuf>,

    /// End the leases of the same key in the directory, because their publisher is dead
    #[arg(long, help_heading = HEADING)]
    pub(crate) take_over: bool,
}

/// Wish for a lease.
pub(crate) struct LeaseArgs<'a> {
    /// Paths that may change; none for the whole repository.
    pub(crate) paths: &'a [Vec<u8>],
    /// Token of a lease that is held.
    pub(crate) token: Option<String>,
    pub(crate) take_over: bool,
}

impl GatewayArgs {
    /// Finds the repository, and remembers the gateway if one is named.
    pub(crate) fn place(
        &self,
        named: &PublisherArgs,
        name: &str,
        settings: &Settings,
    ) -> Result<Place, Failure> {
        let Some(gateway) = &self.gateway else { return named.place(name, settings) };
        let parsed = RepositoryName::parse(name).context(Kind::Usage, "can't use this name")?;
        let root = Repository::locate(&named.storage_folder(settings)?, &parsed);
        if named.is_bucket_given()? || root.join(manifest::PATH).exists() || RememberedStorage::is_at(&root) {
            return Err(Failure::usage(format!("{name} is published from {} with its keys", root.display()))
                .hint(
                    "leave out --gateway, or name another folder for what is remembered with --storage DIR",
                ));
        }
        let failed = |error| of_operation(&format!("can't use the gateway of {name}"), &error);
        let known = RememberedGateway::read(&root).map_err(failed)?;
        let wanted = self.remembered(gateway, known.as_ref(), (named, &parsed), settings)?;
        if known.as_ref() != Some(&wanted) {
            wanted.write(&root).map_err(failed)?;
        }
        named.place_at(name, &root, settings)
    }

    fn remembered(
        &self,
        gateway: &str,
        known: Option<&RememberedGateway>,
        (named, name): (&PublisherArgs, &RepositoryName),
        settings: &Settings,
    ) -> Result<RememberedGateway, Failure> {
        let keys = named.keys(name, settings)?;
        let key = match (&self.key, known) {
            (Some(key), _) => absolute("--key", key)?,
            (None, Some(known)) => known.key.clone(),
            (None, None) => absolute("--key", &keys.folder().join(format!("{name}.gw")))?,
        };
        let server = match (&self.server, known) {
            (Some(server), _) => Address::parse(server, Some(name.as_str()))?.url,
            (None, Some(known)) => known.server.clone(),
            (None, None) => configured_server(name, &self.public_key, settings)?,
        };
        let own = keys.public_key_file();
        let public_keys = match known {
            _ if !self.public_key.is_empty() => self.public_key.clone(),
            Some(known) => known.public_keys.clone(),
            None if own.exists() => vec![own],
            None => files(public_keys(&[], name.as_str(), settings)?),
        };
        let public_keys =
            public_keys.iter().map(|key| absolute("--public-key", key)).collect::<Result<_, _>>()?;
        let authorities = match known {
            Some(known) if self.ca.is_empty() => known.authorities.clone(),
            _ => authorities(&without_files(&settings.environment), &self.ca)?.paths,
        };
        Ok(RememberedGateway { gateway: gateway.to_owned(), key, server, public_keys, authorities })
    }
}

fn absolute(option: &str, path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).context(Kind::Usage, format!("{option} {}", path.display()))
}

fn files(keys: Vec<(PathBuf, Vec<u8>)>) -> Vec<PathBuf> {
    keys.into_iter().map(|(path, _)| path).collect()
}

/// Returns the first server that clients on this machine use.
fn configured_server(
    name: &RepositoryName,
    keys: &[PathBuf],
    settings: &Settings,
) -> Result<String, Failure> {
    let mut args = RepositoryArgs::default().without_broker();
    args.public_key = keys.to_vec();
    let resolved = ResolvedRepository::new(name.as_str(), &args, settings);
    let resolved = resolved.map_err(|failure| failure.hint("name the web server with --server URL"))?;
    Ok(resolved.address.url)
}

impl Place {
    /// Returns the gateway that publishes; none if this user has the keys.
    pub(crate) fn gateway(&self) -> Result<Option<RememberedGateway>, Failure> {
        RememberedGateway::read(&self.root)
            .map_err(|error| of_operation(&format!("can't use the gateway of {}", self.name), &error))
    }

    /// Leases a directory from the gateway, after waiting for other publishers; none if this user has the keys.
    pub(crate) fn lease(
        &self,
        args: LeaseArgs<'_>,
        lock: LockArgs,
        quiet: bool,
    ) -> Result<Option<Arc<Session>>, Failure> {
        let Some(gateway) = self.gateway()? else { return Ok(None) };
        if is_exposed(&gateway.key) {
            warn_of_key(&gateway.key);
        }
        let path = self.lease_path(&gateway, args.paths)?;
        let waits = |failure: &GatewayFailure| {
            if !quiet {
                tell(&format!("esker: {failure}; waiting until it is done (Ctrl-C to give up)\n"));
            }
        };
        let wait: Option<Duration> = lock.limit().unwrap_or(Some(LOCK_WAIT));
        let LeaseArgs { token, take_over, .. } = args;
        let wish = LeaseWish { path, wait, waits: &waits, token, take_over };
        let failed = |error: RepositoryError| {
            of_operation(&format!("can't open {} for publishing", self.name), &error)
        };
        let begun = Session::begin(address(&gateway)?, wish);
        let session = begun.map_err(|failure| failed(refused(&gateway, failure)))?;
        if let Some(settings) = session.settings() {
            // Those of the owner, so that both make the same revision of the same files.
            let path = PublishSettings::path(&state::folder(&self.root));
            settings.write(&RealDisk::PRIVATE, &path).map_err(failed)?;
        }
        Ok(Some(Arc::new(session)))
    }

    /// Returns the directory to lease: the one that has all paths, or the first missing one on the way to it.
    fn lease_path(&self, gateway: &RememberedGateway, paths: &[Vec<u8>]) -> Result<LeasePath, Failure> {
        let failed = |error: RepositoryError| {
            of_operation(&format!("can't open {} for publishing", self.name), &error)
        };
        let opened = Repository::open_at_gateway(&self.root, &self.name, gateway, None, now());
        let opened = opened.map_err(failed)?;
        let published = Published::new(opened.storage().sink().clone(), opened.head());
        let mut common: Option<Vec<u8>> = None;
        for wanted in paths {
            let wanted = path::normalise(wanted).map_err(failed)?;
            common = Some(match common {
                Some(common) => shared_directory(&common, &wanted).to_vec(),
                None => wanted,
            });
        }
        let mut directory = common.unwrap_or_default();
        for ancestor in path::ancestry(&directory.clone()).skip(1) {
            if published.entry(ancestor).map_err(failed)?.is_none() {
                directory = ancestor.to_vec();
                break;
            }
        }
        let text = String::from_utf8(directory).map_err(|error| {
            let shown = path::shown(error.as_bytes());
            Failure::usage(format!("`{shown}` can't be leased from a gateway, because it is no text"))
        })?;
        LeasePath::parse(&format!("{}/{text}", self.name)).context(Kind::Usage, "can't lease the directory")
    }

    /// Opens the repository for publishing with a lease of its gateway.
    pub(crate) fn open_leased(&self, session: &Arc<Session>) -> Result<Repository, Failure> {
        let failed = |error: RepositoryError| {
            of_operation(&format!("can't open {} for publishing", self.name), &error)
        };
        let gateway =
            self.gateway()?.ok_or_else(|| Failure::failed("the gateway is no longer remembered"))?;
        let session: Arc<dyn GatewaySession> = session.clone();
        Repository::open_at_gateway(&self.root, &self.name, &gateway, Some(session), now()).map_err(failed)
    }
}

/// Gives up the lease of a kept transaction. A failure is none: the lease ends by itself.
pub(crate) fn end_lease(root: &Path, token: &str) {
    let Ok(Some(gateway)) = RememberedGateway::read(root) else { return };
    if let Ok(address) = address(&gateway) {
        Session::end_lease(address, token);
    }
}

fn address(gateway: &RememberedGateway) -> Result<GatewayAddress, Failure> {
    GatewayAddress::new(&gateway.gateway, &gateway.key, gateway.trusted()).map_err(|error| {
        Failure::usage(chain(&error)).hint("name the file of the gateway's key with --gateway URL --key FILE")
    })
}

fn refused(gateway: &RememberedGateway, failure: GatewayFailure) -> RepositoryError {
    match failure {
        GatewayFailure::Interrupted => RepositoryError::Interrupted,
        failure => RepositoryError::Gateway { gateway: gateway.gateway.clone(), failure },
    }
}

/// Returns the deepest directory that has two paths.
fn shared_directory<'p>(one: &'p [u8], other: &[u8]) -> &'p [u8] {
    let above: Vec<&[u8]> = path::ancestry(one).filter(|above| path::is_within(other, above)).collect();
    above.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_has_all_paths_that_change() {
        for (one, other, both) in [
            (&b"/a/b"[..], &b"/a/b/c"[..], &b"/a/b"[..]),
            (b"/a/bc", b"/a/b", b"/a"),
            (b"/a", b"/b", b""),
            (b"", b"/b", b""),
        ] {
            assert_eq!(shared_directory(one, other), both);
        }
    }
}
