//! Serves one cache to all users of a node.
//!
//! ```text
//!   mount of user 1000 ──┐                     ┌── public cache: repositories that every user may read
//!   mount of user 1001 ──┼── socket ── broker ─┤
//!   mount of root      ──┘                     └── a cache each for repositories with restricted readers
//! ```
//!
//! Only the broker fetches, verifies and writes. The kernel reports the user of a client, the client names a repository, and
//! gets read-only descriptors of the broker's files: opened again through `/proc` they can't be written to either,
//! because their mode allows only their owner to write, and objects in memory are sealed.
//!
//! An object's name is its hash and says nothing of the repository, so a restricted repository has a cache of its own:
//! a user without permission finds nothing of it, by any name or timing.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_format::name::RepositoryName;
use esker_store::{
    Authorities, Blame, Cache, Cause, Destinations, Engine, EngineOptions, Lower, ObjectStore, Proxy,
    Servers, StoreError, host_of,
};
use parking_lot::Mutex;

use crate::file_error::FileError;
use crate::opener::{open_writer, read_servers, room};
use crate::peer::Peer;
use crate::shared_cache::{Admission, Bounds, Broker, Host, Listener, OWN, Quota, Unnamed, Writer};

/// Limits for one user's clients. A mount is a connection; its waiting reads are requests.
const BOUNDS: Bounds = Bounds { connections: 64, questions: 1024, answers: 256, warms: 4096 };
/// Maximum number of users whose clients are served at the same time.
const USERS_MAX: usize = 4096;

/// Permitted readers of a repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Readers {
    /// Every user of the node.
    #[default]
    AllUsers,
    /// These users, members of these groups, and root.
    Only {
        /// Numbers of users.
        uids: Vec<u32>,
        /// Numbers of groups.
        gids: Vec<u32>,
    },
}

/// Access rules of repositories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Rules by the name of the repository.
    pub repositories: BTreeMap<String, Readers>,
    /// Readers of repositories that no rule names.
    pub others: Readers,
}

/// Options of a broker.
#[derive(Clone, Debug)]
pub struct BrokerOptions {
    /// The cache folder, the broker's own.
    pub cache: PathBuf,
    /// Maximum size of all caches together in bytes.
    pub quota: u64,
    /// Lower cache folders, tried before the network, for public repositories.
    pub lower: Vec<Lower>,
    /// Path of the socket, in a folder that only the broker's user may change.
    pub socket: PathBuf,
    /// Access rules of repositories.
    pub rules: Rules,
    /// Servers and proxies to which the broker may connect, whichever a client names.
    pub destinations: Destinations,
    /// Certificate authorities for TLS; those that clients name are for mounts without a broker.
    pub authorities: Authorities,
}

/// Failures to start a broker.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// The cache can't be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The socket can't be made.
    #[error(transparent)]
    File(#[from] FileError),
}

/// The sockets of a broker: that at which clients wait until it serves, and those in its caches. They are made before the
/// process is confined, which creates no Unix sockets then.
pub struct BrokerSocket {
    clients: Listener,
    caches: HashMap<PathBuf, Unnamed>,
}

impl BrokerSocket {
    /// Binds the socket. Clients see the binding user as the user of the broker, even if it switches users
    /// afterwards.
    pub fn bind(path: &Path) -> Result<Self, BrokerError> {
        let clients = Listener::bind_for_all(path).map_err(FileError::on("listen at", path))?;
        Ok(Self { clients, caches: HashMap::new() })
    }

    /// Makes the sockets in the cache folder, which exists, and in the restricted caches below it. A failure is reported when
    /// the cache is opened.
    pub fn with_caches(mut self, cache: &Path, rules: &Rules) -> Self {
        let restricted = rules.restricted().into_iter().map(|name| restricted_cache(cache, &name));
        for folder in std::iter::once(Ok(cache.to_owned())).chain(restricted).flatten() {
            if let Ok(socket) = Unnamed::bind(&folder) {
                self.caches.insert(folder, socket);
            }
        }
        self
    }

    /// Lets root and the broker's user administer a cache through its folder.
    fn look_after(&mut self, folder: &Path, writer: &Arc<dyn Writer>) -> Result<Broker, FileError> {
        let mut start = || match self.caches.remove(folder) {
            Some(socket) => Broker::start_on(socket.name()?, writer.clone()),
            None => Broker::start(folder, writer.clone()),
        };
        start().map_err(FileError::on("listen in", folder))
    }
}

/// A running broker, which stops on drop.
pub struct NodeBroker {
    // Declared first, so that no client is served when the caches are closed.
    brokers: Vec<Broker>,
    host: Arc<NodeHost>,
}

/// The caches and their access rules.
struct NodeHost {
    rules: Rules,
    destinations: Destinations,
    authorities: Authorities,
    public: Arc<dyn Writer>,
    /// Restricted caches by the name of the repository; [`OTHERS`] for those without a rule, if they are
    /// restricted.
    restricted: HashMap<String, Arc<dyn Writer>>,
    users: Mutex<HashMap<u32, Arc<Quota>>>,
}

/// Name of the folder for repositories without one of their own; no repository has this name.
const OTHERS: &str = "_others";

impl NodeBroker {
    /// Opens the caches and begins to serve.
    pub fn start(options: BrokerOptions) -> Result<Self, BrokerError> {
        Self::start_on(BrokerSocket::bind(&options.socket)?, options)
    }

    /// Starts the broker at a listening socket.
    pub fn start_on(mut listening: BrokerSocket, options: BrokerOptions) -> Result<Self, BrokerError> {
        let BrokerOptions { cache, quota, lower, socket, rules, destinations, authorities } = options;
        let mut engine = EngineOptions::default();
        engine.http.destinations = destinations.clone();
        let engine = Engine::start(engine)?;
        let restricted = rules.restricted();
        // At most half of the room is for those that only some may read.
        let part = (quota / 8).min(quota / 2 / (restricted.len() as u64).max(1));
        let public = open_writer(&engine, &cache, room(quota - part * restricted.len() as u64, lower))?;
        let (restricted_caches, users) = (HashMap::new(), Mutex::default());
        let mut host =
            NodeHost { rules, destinations, authorities, public, restricted: restricted_caches, users };
        let mut brokers = vec![listening.look_after(&cache, &host.public)?];
        for name in restricted {
            let folder = restricted_cache(&cache, &name)?;
            let writer = open_writer(&engine, &folder, room(part, Vec::new()))?;
            brokers.push(listening.look_after(&folder, &writer)?);
            host.restricted.insert(name, writer);
        }
        let host = Arc::new(host);
        let listen = FileError::on("listen at", &socket);
        let served = Broker::serve(listening.clients, host.clone());
        brokers.push(served.map_err(listen)?);
        Ok(Self { brokers, host })
    }
}

impl Drop for NodeBroker {
    fn drop(&mut self) {
        self.brokers.clear();
        self.host.public.close();
        self.host.restricted.values().for_each(|writer| writer.close());
    }
}

/// Makes the folder of a restricted cache.
fn restricted_cache(cache: &Path, name: &str) -> Result<PathBuf, FileError> {
    let folder = cache.join("restricted").join(name);
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(&folder).map_err(FileError::on("make", &folder))?;
    Ok(folder)
}

impl Rules {
    /// True if every user may read every repository.
    pub fn are_open(&self) -> bool {
        self.restricted().is_empty()
    }

    /// Returns the names of the restricted caches.
    fn restricted(&self) -> Vec<String> {
        let others = (OTHERS.to_owned(), &self.others);
        let named = self.repositories.iter().map(|(name, readers)| (name.to_ascii_lowercase(), readers));
        named
            .chain([others])
            .filter(|(_, readers)| **readers != Readers::AllUsers)
            .map(|(name, _)| name)
            .collect()
    }

    /// Returns the restricted cache of a repository, if it has one; an error if the peer may not read the
    /// repository.
    fn cache_for(&self, name: &str, peer: &Peer) -> Result<Option<String>, ()> {
        let named = self.repositories.iter().find(|(rule, _)| rule.eq_ignore_ascii_case(name));
        let (cache, readers) = match named {
            Some((name, readers)) => (name.to_ascii_lowercase(), readers),
            None => (OTHERS.to_owned(), &self.others),
        };
        match readers {
            Readers::AllUsers => Ok(None),
            Readers::Only { uids, gids } => {
                let may = peer.uid == 0
                    || uids.contains(&peer.uid)
                    || peer.gids.iter().any(|gid| gids.contains(gid));
                may.then_some(Some(cache)).ok_or(())
            }
        }
    }
}

/// Returns the repository of servers, by the last part of all their URLs. Names that servers or proxies could read as
/// another path are refused, and so are files of this node, which the broker may read and the client perhaps not.
fn name_of(servers: &Servers) -> Result<String, &'static str> {
    let mut name: Option<&str> = None;
    for url in &servers.urls {
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        let (_, path) = rest.and_then(|rest| rest.split_once('/')).ok_or("only HTTP servers are served")?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-~+/".contains(&byte);
        if !path.bytes().all(plain) || path.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err("its URL has parts that don't belong into one");
        }
        let last = path.rsplit('/').next().unwrap_or(path);
        if RepositoryName::parse(last).is_err() || name.is_some_and(|name| name != last) {
            return Err("its URLs don't all end with the name of one repository");
        }
        name = Some(last);
    }
    name.map(str::to_owned).ok_or("no server is named")
}

fn refused(object: &str, text: impl Into<String>) -> StoreError {
    let (blame, may_pass) = (Blame::Caller, false);
    StoreError::new(object, Cause::Remote { blame, may_pass, text: text.into() })
}

impl NodeHost {
    /// Refuses servers, proxies and name servers at forbidden addresses, so that a mount uses its own cache instead.
    /// Names are checked once they are resolved.
    fn check_destinations(&self, name: &str, asked: &Servers) -> Result<(), StoreError> {
        let external = asked.external.as_deref();
        for servers in std::iter::once(asked).chain(external) {
            // Read as the store reads them; a folder of this node is none.
            let hosts = servers.urls.iter().map(|url| host_of(url)).collect::<Result<Vec<_>, _>>()?;
            let proxies = servers.proxies.groups().iter().chain(servers.fallback.groups()).flatten();
            let proxies = proxies.filter_map(|proxy| match proxy {
                Proxy::At { host, .. } => Some(host.clone()),
                Proxy::Direct => None,
            });
            let resolver = servers.dns.server.map(|server| server.ip().to_string());
            let refused = hosts
                .into_iter()
                .chain(proxies)
                .chain(resolver)
                .find(|host| !self.destinations.may_allow(host));
            if let Some(host) = refused {
                let text = format!(
                    "connecting to {host} is not allowed to users of this broker; its administrator can allow it with `--connect`"
                );
                return Err(self::refused(name, text));
            }
        }
        Ok(())
    }
}

impl Host for NodeHost {
    fn admit(&self, peer: &Peer) -> Option<Admission> {
        let mut users = self.users.lock();
        if !users.contains_key(&peer.uid) && users.len() >= USERS_MAX {
            users.retain(|_, quota| !quota.is_idle());
            if users.len() >= USERS_MAX {
                return None;
            }
        }
        // Root's mounts are those of the node.
        let bounds = if peer.is_trusted() { OWN } else { BOUNDS };
        let quota = users.entry(peer.uid).or_insert_with(|| Quota::new(bounds)).clone();
        let connection = quota.connect()?;
        Some(Admission { quota, _connection: connection, is_stranger: peer.uid != 0 })
    }

    fn store(&self, peer: &Peer, servers: &str) -> Result<Arc<dyn ObjectStore>, StoreError> {
        let mut asked = read_servers(servers)?;
        let name = name_of(&asked).map_err(|why| refused("the repository", why))?;
        let cache = self.rules.cache_for(&name, peer).map_err(|()| {
            refused(&name, format!("user {} may not read it through the broker of this node", peer.uid))
        })?;
        self.check_destinations(&name, &asked)?;
        // Files that a client names may hang, and be none of its business.
        asked.authorities = self.authorities.clone();
        if let Some(external) = &mut asked.external {
            external.authorities = self.authorities.clone();
        }
        if !self.rules.are_open() {
            // A server of the client's choice could otherwise send us to one that trusts this node.
            asked.redirects = false;
            // The same holds for a server outside of the repository.
            asked.external = None;
        }
        let writer = match cache {
            None => &self.public,
            Some(cache) => self.restricted.get(&cache).ok_or_else(|| refused(&name, "it has no cache"))?,
        };
        writer.store(&asked.to_string())
    }

    fn cache(&self, _: &Peer) -> Option<Cache> {
        // Through the sockets in the folders alone, which only the broker's own user and root can reach.
        None
    }
}
