//! Example of a request for tests.

use esker_node::trace::{Operation, Source, TracedCall, WaitsNs};

/// Returns a request that took 500 ns.
pub(super) fn call(path: &str, operation: Operation) -> TracedCall {
    TracedCall {
        pid: 7,
        tid: 7,
        command: "python3".into(),
        operation,
        path: path.into(),
        began_ns: 1_000,
        took_ns: 500,
        errno: 0,
        offset: 0,
        bytes: 0,
        source: Source::Memory,
        place: None,
        waits: WaitsNs::default(),
    }
}
