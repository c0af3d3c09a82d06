//! Roles of daemons, and what each may do.

use crate::calls::{
    ATTRIBUTES, CHANGE_PATHS, CHILDREN, EVENTS, FACTS, Group, MEMORY, OPEN_FILES, READ_PATHS, SESSION,
    SIGNALS, SOCKETS, THREADS, TIME,
};

/// What a process is for, which decides what it may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Serves a mount of a repository or an image.
    Mount,
    /// Reads ahead through a mount.
    Replayer,
    /// Serves repositories over HTTP.
    Serve,
    /// Caches repositories for a site.
    Proxy,
    /// Shares one cache between the users of a node.
    Broker,
}

/// Families of sockets that a role may create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    None,
    /// Sockets of this machine, IPv4 and IPv6.
    Internet,
}

/// How Landlock treats the paths of a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// All paths may be read; only writing is restricted.
    Everywhere,
    /// Only the named paths may be read.
    Named,
}

/// All groups. A mount needs each of them.
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
    &SESSION,
    &CHILDREN,
];
static REPLAYER: &[&Group] = &[&MEMORY, &THREADS, &TIME, &SIGNALS, &FACTS, &EVENTS, &OPEN_FILES, &READ_PATHS];
static SERVER: &[&Group] =
    &[&MEMORY, &THREADS, &TIME, &SIGNALS, &FACTS, &EVENTS, &OPEN_FILES, &READ_PATHS, &CHANGE_PATHS, &SOCKETS];

impl Role {
    /// All roles, in the order of the table.
    pub const ALL: [Role; 5] = [Role::Mount, Role::Replayer, Role::Serve, Role::Proxy, Role::Broker];

    /// Returns the name of the process in the table of SECURITY.md.
    pub fn name(self) -> &'static str {
        match self {
            Role::Mount => "esker mount",
            Role::Replayer => "replayer of a mount",
            Role::Serve => "esker serve",
            Role::Proxy => "esker proxy",
            Role::Broker => "esker broker",
        }
    }

    /// Returns the groups of calls without conditions.
    pub(crate) fn groups(self) -> &'static [&'static Group] {
        match self {
            Role::Mount => ALL_GROUPS,
            Role::Replayer => REPLAYER,
            Role::Serve | Role::Proxy | Role::Broker => SERVER,
        }
    }

    /// Returns true for a process that answers other machines or users.
    pub(crate) fn is_server(self) -> bool {
        matches!(self, Role::Serve | Role::Proxy | Role::Broker)
    }

    pub(crate) fn network(self) -> Network {
        match self {
            Role::Replayer => Network::None,
            Role::Mount | Role::Serve | Role::Proxy | Role::Broker => Network::Internet,
        }
    }

    /// Returns true if the process talks to `/dev/fuse`.
    pub(crate) fn has_device(self) -> bool {
        self == Role::Mount
    }

    pub(crate) fn reading(self) -> Reading {
        match self {
            Role::Mount => Reading::Everywhere,
            Role::Replayer | Role::Serve | Role::Proxy | Role::Broker => Reading::Named,
        }
    }
}
