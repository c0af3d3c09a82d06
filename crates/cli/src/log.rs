//! Log of a serving process: lines on stderr, which a daemon has in its log.

use std::io::Write;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use esker_config::SyslogOptions;
use esker_fuse::Severity;
use esker_node::status::seconds;
use esker_node::syslog::Syslog;
use esker_vfs::Time;

use crate::trees::entry::time_text;

/// Connection to the system log, once it is open.
static SYSLOG: OnceLock<Syslog> = OnceLock::new();

/// Copies every further line to the system log, too.
pub(crate) fn tell_system(options: SyslogOptions) {
    match Syslog::new(options) {
        Ok(syslog) => _ = SYSLOG.set(syslog),
        Err(error) => line(&format!("nothing is written to the system's log: {error}")),
    }
}

/// Writes one line with the time to the log.
pub(crate) fn line(text: &str) {
    say(false, text);
}

fn say(is_error: bool, text: &str) {
    if let Some(syslog) = SYSLOG.get() {
        syslog.line(is_error, text);
    }
    let text = if is_error { format!("error: {text}") } else { text.to_owned() };
    let secs = i64::try_from(seconds(SystemTime::now())).unwrap_or(i64::MAX);
    let line = format!("{} UTC {text}\n", time_text(Time { secs, nanos: 0 }));
    // A full disk must not stop a mount.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Returns the log of a session.
pub(crate) fn of_session() -> esker_fuse::Log {
    Arc::new(|severity, text| match severity {
        Severity::Notice => say(false, text),
        Severity::Error => say(true, text),
    })
}

/// Returns the log of the network.
pub(crate) fn of_store() -> esker_store::Log {
    esker_store::Log::new(line)
}
