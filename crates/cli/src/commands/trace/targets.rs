//! Finds the mounts to trace and subscribes to them.

use std::time::{Duration, Instant};

use esker_node::control::{self, Request};
use esker_node::registry::{self, users};
use esker_node::trace::TraceRequest;
use esker_node::trace::client::Subscription;

use super::hand_over;
use crate::error::{Context, Failure, Kind};
use crate::settings::Settings;

/// Time limit for a daemon to begin a trace.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit if the kernel has to drop its names first, which waits for lookups in progress.
const LONG_TIMEOUT: Duration = Duration::from_secs(60);

/// Traces that were begun.
pub(super) struct Subscribed {
    /// Subscriptions, each with the time of a hand-over, if it could be measured.
    pub(super) subscriptions: Vec<(Subscription, Option<Duration>)>,
    /// Reasons why other mounts are not traced.
    pub(super) refused: Vec<String>,
}

/// Subscribes to all mounts of this user; for root, to those of other users, too.
pub(super) fn subscribe(settings: &Settings, request: &TraceRequest) -> Result<Subscribed, Failure> {
    let own = registry::all(&settings.runtime).context(Kind::Failed, "can't look up the mounts")?;
    let theirs = if settings.root { users::of_users(&users::Places::default()) } else { Vec::new() };
    let patience = if request.every_name { LONG_TIMEOUT } else { TIMEOUT };
    // At the same time, so that daemons that hang cost their patience only once.
    let all: Vec<(String, std::io::Result<_>)> = std::thread::scope(|scope| {
        let own = own.iter().filter(|one| one.alive).map(|one| {
            let asked = scope.spawn(move || {
                let status = || control::ask(&one.socket, &Request::Status, hand_over::TIMEOUT).ok();
                // Before the trace begins: it has no requests of this process.
                let hand_over = hand_over::measure(&one.entry.mountpoint, status);
                Ok((Subscription::begin(&one.socket, request, patience)?, hand_over))
            });
            (one.entry.mountpoint.display().to_string(), asked)
        });
        let theirs = theirs.iter().filter(|one| one.alive).map(|one| {
            let asked = scope.spawn(move || {
                let status = || one.ask(Instant::now() + hand_over::TIMEOUT).ok();
                let hand_over = hand_over::measure(&one.entry.mountpoint, status);
                Ok((Subscription::on(one.connect()?, request, patience)?, hand_over))
            });
            (format!("{} of user {}", one.entry.mountpoint.display(), one.user), asked)
        });
        let asked: Vec<_> = own.chain(theirs).collect();
        let panicked = |_| Err(std::io::Error::other("the thread panicked"));
        asked.into_iter().map(|(place, asked)| (place, asked.join().unwrap_or_else(panicked))).collect()
    });
    let mut subscriptions = Vec::new();
    let mut refused = Vec::new();
    for (place, outcome) in all {
        match outcome {
            Ok(subscription) => subscriptions.push(subscription),
            Err(error) => refused.push(format!("{place} is not traced: {error}")),
        }
    }
    if subscriptions.is_empty() && refused.is_empty() {
        return Err(Failure::failed("there is no mount to trace").hint(
            "mount a repository first, or trace inside of `esker run`: esker run NAME -- esker trace -- COMMAND\n\
             mounts of root are traced by root",
        ));
    }
    Ok(Subscribed { subscriptions, refused })
}

/// Returns the time until which lines of ended traces are awaited.
pub(super) fn last_line_deadline() -> Instant {
    Instant::now() + TIMEOUT
}
