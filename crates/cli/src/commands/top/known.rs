//! State that `esker top` keeps for each mount.

use std::collections::VecDeque;
use std::time::Instant;

use esker_node::trace::client::Stop;
use esker_node::trace::{Activity, TracedCall};

/// Mount of a user, by user and mount point; of a command, by its process, too.
pub(super) type Key = (Option<u32>, String, u32);

/// State of one mount.
#[derive(Default)]
pub(super) struct Known {
    pub(super) repository: String,
    pub(super) command: Option<String>,
    /// Last two replies of the daemon: the newest here, the previous one in `before`.
    pub(super) now: Option<Activity>,
    pub(super) before: Option<Activity>,
    /// Start of the request that is not answered yet.
    pub(super) asked: Option<Instant>,
    /// Failure of the last request.
    pub(super) failure: Option<String>,
    /// Slow requests, oldest first.
    pub(super) slow: VecDeque<TracedCall>,
    /// Subscription to slow requests.
    pub(super) tracing: Tracing,
    pub(super) is_listed: bool,
}

/// State of a subscription.
#[derive(Default)]
pub(super) enum Tracing {
    #[default]
    None,
    Begun,
    Running(Stop),
}
