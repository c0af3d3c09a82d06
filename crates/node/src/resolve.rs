//! The full name of a host, as the system's resolver knows it.

use std::sync::mpsc;
use std::time::Duration;

use crate::sys;

/// A resolver whose servers do not answer takes many times as long.
const PATIENCE: Duration = Duration::from_secs(3);

/// Returns the full name of a host; `None` if the resolver finds none in time.
pub(crate) fn full_name(host: &str) -> Option<String> {
    let host = std::ffi::CString::new(host).ok()?;
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::Builder::new().name("resolve".into()).spawn(move || {
        // The receiver is gone if it took too long.
        let _ = sender.send(sys::canonical_name(&host));
    });
    thread.ok()?;
    receiver.recv_timeout(PATIENCE).ok().flatten().filter(|name| name.contains('.'))
}
