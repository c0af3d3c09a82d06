//! What a session did, by kind of request.

use std::time::Duration;

/// What was done for one kind of request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpcodeCounters {
    /// The protocol's name of the request, for example `LOOKUP`.
    pub name: &'static str,
    /// Requests read from the kernel.
    pub requests: u64,
    /// Of these, answered with an error (a missing name that may be cached is not one).
    pub errors: u64,
    /// Of these, not answered by the worker that read them because the tree had to wait.
    pub parked: u64,
    /// Time workers spent on them.
    pub busy: Duration,
}

/// What a session did since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Every kind of request that came at least once, in the protocol's order.
    pub opcodes: Vec<OpcodeCounters>,
    /// Nodes the kernel may use at present, the root included.
    pub nodes: u64,
    /// Requests that wait for the tree at present.
    pub waiting: u64,
    /// Notifications sent to the kernel.
    pub notifications: u64,
}

impl Counters {
    /// Requests of one kind, 0 if none came.
    pub fn requests(&self, name: &str) -> u64 {
        self.opcodes.iter().find(|o| o.name == name).map_or(0, |o| o.requests)
    }
}
