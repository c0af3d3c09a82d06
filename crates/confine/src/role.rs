//! Roles of daemons, and what each may do.

use crate::calls::{
    ATTRIBUTES, CHANGE_PATHS, EVENTS, FACTS, Group, MEMORY, MESSAGES, MOUNTS, OPEN_FILES, PROGRAMS,
    READ_PATHS, SESSION, SIGNALS, SOCKET_PAIRS, SOCKETS, THREADS, TIME,
};

/// Purpose of a process, which decides its permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Serves a mount of a repository or an image.
    Mount,
    /// Mounts and unmounts for the daemon of a mount of root.
    Helper,
    /// Reads ahead through a mount.
    Replayer,
    /// Serves repositories over HTTP.
    Serve,
    /// Caches repositories for a site.
    Proxy,
    /// Publishes for publishers without keys.
    Gateway,
    /// Shares one cache between the users of a node.
    Broker,
    /// Copies new revisions of repositories.
    Follow,
    /// Serves the metrics of mounts over HTTP.
    Metrics,
    /// Asks the daemons of mounts for their metrics.
    Asker,
    /// Opens a few files of the machine for a server.
    Opener,
}

/// Sockets that a role may create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    None,
    /// IPv4 and IPv6.
    Internet,
    /// Unix sockets that are streams.
    Local,
}

/// Treatment of the read paths of a role by Landlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadAccess {
    /// All paths may be read; only writing is restricted.
    Everywhere,
    /// Only the named paths may be read.
    Named,
}

/// All groups, in the order of the table. The helper of a mount needs each of them.
pub(crate) static ALL_GROUPS: &[&Group] = &[
    &MEMORY,
    &THREADS,
    &TIME,
    &SIGNALS,
    &FACTS,
    &EVENTS,
    &OPEN_FILES,
    &READ_PATHS,
    &CHANGE_PATHS,
    &ATTRIBUTES,
    &SOCKETS,
    &SOCKET_PAIRS,
    &MESSAGES,
    &SESSION,
    &MOUNTS,
    &PROGRAMS,
];
static MOUNT: &[&Group] = &[
    &MEMORY,
    &THREADS,
    &TIME,
    &SIGNALS,
    &FACTS,
    &EVENTS,
    &OPEN_FILES,
    &READ_PATHS,
    &CHANGE_PATHS,
    &ATTRIBUTES,
    &SOCKETS,
    &SOCKET_PAIRS,
    &MESSAGES,
    &SESSION,
];
static REPLAYER: &[&Group] = &[&MEMORY, &THREADS, &TIME, &SIGNALS, &FACTS, &EVENTS, &OPEN_FILES, &READ_PATHS];
static SERVER: &[&Group] =
    &[&MEMORY, &THREADS, &TIME, &SIGNALS, &FACTS, &EVENTS, &OPEN_FILES, &READ_PATHS, &CHANGE_PATHS, &SOCKETS];
static METRICS: &[&Group] =
    &[&MEMORY, &THREADS, &TIME, &SIGNALS, &FACTS, &EVENTS, &OPEN_FILES, &READ_PATHS, &SOCKETS];
static OPENER: &[&Group] =
    &[&MEMORY, &THREADS, &TIME, &SIGNALS, &FACTS, &EVENTS, &OPEN_FILES, &READ_PATHS, &MESSAGES];

impl Role {
    /// All roles, in the order of the table.
    pub const ALL: [Role; 11] = [
        Role::Mount,
        Role::Helper,
        Role::Replayer,
        Role::Serve,
        Role::Proxy,
        Role::Gateway,
        Role::Broker,
        Role::Follow,
        Role::Metrics,
        Role::Asker,
        Role::Opener,
    ];

    /// Returns the name of the process in the table of SECURITY.md.
    pub fn name(self) -> &'static str {
        match self {
            Role::Mount => "esker mount",
            Role::Helper => "helper of a mount of root",
            Role::Replayer => "replayer of a mount",
            Role::Serve => "esker serve",
            Role::Proxy => "esker proxy",
            Role::Gateway => "esker gateway",
            Role::Broker => "esker broker",
            Role::Follow => "esker replicate --follow",
            Role::Metrics => "esker metrics --listen",
            Role::Asker => "asker of esker metrics",
            Role::Opener => "opener of a server",
        }
    }

    /// Returns the groups of calls without conditions.
    pub(crate) fn groups(self) -> &'static [&'static Group] {
        match self {
            Role::Mount => MOUNT,
            Role::Helper => ALL_GROUPS,
            Role::Replayer => REPLAYER,
            Role::Serve | Role::Proxy | Role::Gateway | Role::Broker | Role::Follow | Role::Asker => SERVER,
            Role::Metrics => METRICS,
            Role::Opener => OPENER,
        }
    }

    /// Returns true for a process that answers other machines or users, or reads what other machines send.
    pub fn is_server(self) -> bool {
        matches!(
            self,
            Role::Serve | Role::Proxy | Role::Gateway | Role::Broker | Role::Follow | Role::Metrics
        )
    }

    pub(crate) fn network(self) -> Network {
        match self {
            Role::Replayer | Role::Opener => Network::None,
            Role::Asker | Role::Helper => Network::Local,
            Role::Mount
            | Role::Serve
            | Role::Proxy
            | Role::Gateway
            | Role::Broker
            | Role::Follow
            | Role::Metrics => Network::Internet,
        }
    }

    /// Returns true if the process mounts, which Landlock forbids whatever the paths are, and starts programs.
    pub fn mounts(self) -> bool {
        self == Role::Helper
    }

    /// Returns true if the process talks to `/dev/fuse`.
    pub(crate) fn has_device(self) -> bool {
        self == Role::Mount
    }

    pub(crate) fn reading(self) -> ReadAccess {
        if matches!(self, Role::Mount | Role::Helper) { ReadAccess::Everywhere } else { ReadAccess::Named }
    }

    /// Returns the paths that each process of this role may read, without being told.
    pub(crate) fn read_by_all(self) -> &'static [&'static str] {
        match self {
            Role::Mount | Role::Helper | Role::Replayer => &[],
            Role::Opener => &READ_BY_OPENERS,
            _ => &READ_BY_SERVERS,
        }
    }
}

/// Facts about a server itself and the machine, and the devices that libraries take random numbers from where the system
/// call is not to be had.
pub(crate) const READ_BY_SERVERS: [&str; 5] =
    ["/proc", "/sys/devices/system/cpu", "/sys/fs/cgroup", "/dev/random", "/dev/urandom"];

/// Name servers, names of machines and certificates. An opener opens some files there, by names that it has from its start.
pub(crate) const READ_BY_OPENERS: [&str; 8] = [
    "/etc",
    "/usr/share",
    "/usr/local/share",
    "/usr/lib/ssl",
    "/var/lib/ca-certificates",
    "/run/systemd/resolve",
    "/run/NetworkManager",
    "/run/resolvconf",
];
