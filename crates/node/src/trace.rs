//! Traces of the requests that programs send to a mount, and its activity now, for `esker trace` and `esker top`.
//!
//! ```text
//!  worker ── Call ──► Ring ── line of JSON ──► control socket ──► esker trace
//! ```
//!
//! A worker never waits for a client: a full ring drops calls and counts them.

pub(crate) mod activity;
pub mod client;
mod family;
mod paths;
mod ring;
pub(crate) mod subscriber;
mod wire;

pub use activity::{Activity, Downloading, WaitingCall};
pub use wire::{
    Operation, Source, TraceEnd, TraceLine, TraceRequest, TraceScope, TraceStart, TracedCall, WaitsNs,
};
