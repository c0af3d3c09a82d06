//! Traces of a mount, and its activity now.

use std::os::unix::net::UnixStream;

use super::{Content, Served};
use crate::trace::{Activity, TraceRequest, TraceStart};

impl Served {
    /// Serves a trace until its client ends it.
    pub(super) fn trace(&self, request: &TraceRequest, client: UnixStream) -> std::io::Result<()> {
        let (repository, ..) = self.content.names();
        let start = TraceStart {
            mountpoint: self.mountpoint.display().to_string(),
            repository,
            revision: match &self.content {
                Content::Repository(_, view) => view.status().revision,
                Content::Image(_) => 0,
            },
            image: matches!(self.content, Content::Image(_)),
            shown_with: self.shown_with,
            daemon: std::process::id(),
            warning: None,
        };
        // What a replayer has looked up ahead of a program, the program asks for no more.
        let _held_back = self.replayer.as_ref().filter(|_| request.every_name).map(|one| one.hold_back());
        self.traces.serve(&self.session, request, start, client)
    }

    /// Returns the counters for `esker top`, without waiting for another process.
    pub(super) fn activity(&self) -> Activity {
        let (repository, ..) = self.content.names();
        let activity = Activity {
            mountpoint: self.mountpoint.display().to_string(),
            command: self.command.clone(),
            repository,
            shown_with: self.shown_with,
            ..Activity::default()
        };
        match &self.content {
            Content::Repository(repository, view) => {
                let (view, store) = (view.status(), repository.store.known_status());
                Activity {
                    hits: view.counters.reads.saturating_sub(view.counters.misses),
                    misses: view.counters.misses,
                    received_bytes: store.network.received_bytes,
                    offline: view.offline.map(|offline| offline.reason),
                    failures: view.counters.failures,
                    ..activity
                }
            }
            Content::Image(image) => {
                let (image, errors) = (image.status)();
                Activity { received_bytes: image.read_bytes, failures: errors.len() as u64, ..activity }
            }
        }
    }
}
