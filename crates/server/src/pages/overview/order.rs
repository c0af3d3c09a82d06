//! Orders of the list of repositories.

use std::cmp::Reverse;

use esker_format::time::UnixTime;

use super::{Level, collect_level, replication_level, whitelist_level};
use crate::dashboard::{Known, RepositoryState};

/// Order of the list; that of names decides between equal ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    /// Problems first, then warnings.
    #[default]
    Problems,
    Name,
    /// Highest first.
    Revision,
    /// Newest first.
    Published,
    /// Largest first.
    Size,
    /// Latest replicas first.
    Replication,
    /// The next to expire first.
    Whitelist,
}

impl Order {
    const ALL: [Self; 6] =
        [Self::Name, Self::Revision, Self::Published, Self::Size, Self::Replication, Self::Whitelist];

    /// Returns the name in addresses.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Problems => "problems",
            Self::Name => "name",
            Self::Revision => "revision",
            Self::Published => "published",
            Self::Size => "size",
            Self::Replication => "replication",
            Self::Whitelist => "whitelist",
        }
    }

    /// Returns the order with a name; that of problems for other names.
    pub(crate) fn named(name: &str) -> Self {
        Self::ALL.into_iter().find(|order| order.name() == name).unwrap_or_default()
    }

    pub(super) fn sort(self, states: &mut [&RepositoryState], now: UnixTime) {
        states.sort_by(|one, other| one.folder.cmp(&other.folder));
        let revision = |state: &&RepositoryState| Reverse(state.head.as_ref().ok().map(|head| head.revision));
        let published =
            |state: &&RepositoryState| Reverse(state.head.as_ref().ok().map(|head| head.published));
        match self {
            Self::Problems => states.sort_by_key(|state| Reverse(weight(problem(state, now)))),
            Self::Name => {}
            Self::Revision => states.sort_by_key(revision),
            Self::Published => states.sort_by_key(published),
            Self::Size => states.sort_by_key(|state| Reverse(bytes(state))),
            Self::Replication => states.sort_by_key(|state| {
                state
                    .status
                    .last_snapshot
                    .filter(|_| state.replica)
                    .map_or((true, None), |last| (false, Some(last)))
            }),
            Self::Whitelist => states.sort_by_key(|state| state.whitelist.clone().ok()),
        }
    }
}

fn bytes(state: &RepositoryState) -> Option<u64> {
    match &state.sizes {
        Known::Value(points) => points.last().map(|point| point.bytes),
        Known::Pending | Known::Failed(_) => None,
    }
}

fn weight(level: Level) -> u8 {
    match level {
        Level::Bad => 2,
        Level::Warning => 1,
        Level::Good | Level::Plain => 0,
    }
}

/// Returns the worst of what the row of a repository shows.
pub(super) fn problem(state: &RepositoryState, now: UnixTime) -> Level {
    let is_unreadable = state.head.is_err()
        || matches!(state.sizes, Known::Failed(_))
        || matches!(state.tags, Known::Failed(_))
        || state.status.check_succeeded == Some(false);
    let levels = [
        if is_unreadable { Level::Bad } else { Level::Good },
        replication_level(state, now),
        state.status.last_collect.map_or(Level::Plain, |last| collect_level(last, now)),
        state
            .whitelist
            .as_ref()
            .map_or(Level::Bad, |expires| whitelist_level(expires.0.saturating_sub(now.0))),
    ];
    levels.into_iter().max_by_key(|level| weight(*level)).unwrap_or(Level::Good)
}
