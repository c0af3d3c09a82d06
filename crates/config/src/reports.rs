//! Parameters of reports about a mount: logs, counters, and identification of readers.

use std::path::PathBuf;
use std::time::Duration;

use esker_store::DatagramTarget;
use serde::{Deserialize, Serialize};

use super::client::Read;
use super::files::FILE_MAX;
use super::{Files, Parameters};

/// Minimum interval between two sends of counters.
const RATE_MIN: Duration = Duration::from_secs(5);
/// Default interval.
const RATE: Duration = Duration::from_secs(300);

/// Socket of the system's log.
const SYSLOG: &str = "/dev/log";
/// The severity of lines that are no errors: a notice.
const NOTICE: u8 = 5;

/// Destination and form of lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyslogOptions {
    /// Destination.
    pub to: SyslogTarget,
    /// The number of a `local` facility; `user` if there is none.
    pub local: Option<u8>,
    /// The severity of lines that are no errors: 7 for debugging, 6 for information, 5 for notices.
    pub severity: u8,
    /// Prefix of each text, in parentheses; empty for none.
    pub prefix: String,
}

impl Default for SyslogOptions {
    /// Returns options that send notices, without a prefix, to the system's log socket.
    fn default() -> Self {
        Self { to: SyslogTarget::Socket(SYSLOG.into()), local: None, severity: NOTICE, prefix: String::new() }
    }
}

/// Destination of log lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SyslogTarget {
    /// The process that listens at this socket.
    Socket(PathBuf),
    /// The end of this file.
    File(PathBuf),
}

/// Content and destination of the counters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Telemetry {
    /// Destination and interval.
    pub to: DatagramTarget,
    /// Metric at the beginning of the lines.
    pub metric: String,
    /// Further tags of each line, verbatim.
    pub tags: String,
    /// Further fields of the line with the totals.
    pub fields: String,
    /// True to send a second line with the differences to the totals before.
    #[serde(default)]
    pub differences: bool,
}

/// Socket for `cvmfs_talk`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TalkOptions {
    /// Path of the socket.
    pub socket: PathBuf,
    /// User id that owns the socket, beside root.
    pub owner: Option<u32>,
    /// Longest interval between two checks for a new revision, if one is set.
    pub longest_ttl: Option<Duration>,
}

impl Parameters {
    /// Returns the syslog settings for the log, if there are any.
    pub fn syslog(&self) -> Read<SyslogOptions> {
        let to = match self.checked("CVMFS_USYSLOG")? {
            Some(file) => SyslogTarget::File(file.into()),
            None => SyslogTarget::Socket(self.checked("ESKER_SYSLOG")?.unwrap_or(SYSLOG).into()),
        };
        let number =
            |name: &str| -> Read<Option<u8>> { Ok(self.checked(name)?.and_then(|text| text.parse().ok())) };
        // The reference counts the other way around: 1 is for debugging, 2 for information, 3 for notices.
        let severity = number("CVMFS_SYSLOG_LEVEL")?.map_or(NOTICE, |level| 8_u8.saturating_sub(level));
        let prefix = self.checked("CVMFS_SYSLOG_PREFIX")?.or(self.name()).unwrap_or_default().to_owned();
        Ok(SyslogOptions { to, local: number("CVMFS_SYSLOG_FACILITY")?, severity, prefix })
    }

    /// Returns the destination of counters, if it is configured.
    pub fn telemetry(&self) -> Read<Option<Telemetry>> {
        if self.switch("CVMFS_TELEMETRY_SEND")? != Some(true) {
            return Ok(None);
        }
        let needed = |name: &'static str| {
            let mend = format!("set {name}, or CVMFS_TELEMETRY_SEND=no");
            self.checked(name)?.ok_or_else(|| self.missing(name, mend))
        };
        // Whatever stands in a line must not be able to begin another one, or another part of it.
        let word = |name: &str, text: &str, what: &str| {
            let good = !text.chars().any(|c| c.is_control() || c.is_whitespace());
            if good { Ok(text.to_owned()) } else { Err(self.bad(name, format!("{what} has no blanks"))) }
        };
        const METRIC: &str = "CVMFS_INFLUX_METRIC_NAME";
        const TAGS: &str = "CVMFS_INFLUX_EXTRA_TAGS";
        const FIELDS: &str = "CVMFS_INFLUX_EXTRA_FIELDS";
        const PORT: &str = "CVMFS_INFLUX_PORT";
        let port = needed(PORT)?.parse::<u16>().ok().filter(|port| *port > 0);
        let fields = self.checked(FIELDS)?.unwrap_or_default();
        if fields.chars().any(char::is_control) {
            return Err(self.bad(FIELDS, "it is not one line"));
        }
        Ok(Some(Telemetry {
            to: DatagramTarget {
                host: needed("CVMFS_INFLUX_HOST")?.to_owned(),
                port: port.ok_or_else(|| self.bad(PORT, "it is not a number from 1 to 65535"))?,
                every: self.seconds("CVMFS_TELEMETRY_RATE")?.unwrap_or(RATE).max(RATE_MIN),
            },
            metric: word(METRIC, needed(METRIC)?, "the name of a metric")?,
            tags: word(TAGS, self.checked(TAGS)?.unwrap_or_default(), "a list of tags")?,
            fields: fields.to_owned(),
            differences: self.switch("CVMFS_INFLUX_SEND_DELTA")? == Some(true),
        }))
    }

    /// Returns the socket for `cvmfs_talk`, if it is configured.
    pub fn talk(&self, files: &dyn Files) -> Read<Option<TalkOptions>> {
        const OWNER: &str = "CVMFS_TALK_OWNER";
        let owner = match self.checked(OWNER)? {
            None => None,
            Some(name) => {
                let accounts = files.read("/etc/passwd".as_ref(), FILE_MAX).unwrap_or_default();
                let number = name.parse().ok().or_else(|| user(&String::from_utf8_lossy(&accounts), name));
                Some(number.ok_or_else(|| self.bad(OWNER, "there is no such user in /etc/passwd"))?)
            }
        };
        let Some(socket) = self.checked("CVMFS_TALK_SOCKET")? else { return Ok(None) };
        Ok(Some(TalkOptions { socket: socket.into(), owner, longest_ttl: self.longest_ttl()? }))
    }
}

/// Returns the number of a user in a list of accounts.
fn user(accounts: &str, name: &str) -> Option<u32> {
    let mut fields = accounts
        .lines()
        .map(|line| line.split(':'))
        .find_map(|mut fields| (fields.next() == Some(name)).then_some(fields))?;
    fields.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_configured_by_number() {
        let accounts = "root:x:0:0::/:/bin/sh\n# no line\nsite:x:4711:1::/:/bin/sh\nodd:x\n";
        assert_eq!((user(accounts, "site"), user(accounts, "root")), (Some(4711), Some(0)));
        assert_eq!((user(accounts, "odd"), user(accounts, "sit"), user("", "root")), (None, None, None));
    }
}
