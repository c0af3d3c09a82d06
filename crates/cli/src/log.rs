//! What a serving process has to say: lines on stderr, which a daemon has in its log.

use std::io::Write;
use std::sync::Arc;
use std::time::SystemTime;

use esker_fuse::Severity;
use esker_node::status::seconds;
use esker_vfs::Time;

use crate::entry::time_text;

/// Writes one line with the time.
pub(crate) fn line(text: &str) {
    let secs = i64::try_from(seconds(SystemTime::now())).unwrap_or(i64::MAX);
    let line = format!("{} UTC {text}\n", time_text(Time { secs, nanos: 0 }));
    // A full disk must not stop a mount.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Where a session reports.
pub(crate) fn of_session() -> esker_fuse::Log {
    Arc::new(|severity, text| match severity {
        Severity::Notice => line(text),
        Severity::Error => line(&format!("error: {text}")),
    })
}

/// Where the network reports.
pub(crate) fn of_store() -> esker_store::Log {
    esker_store::Log::new(line)
}
