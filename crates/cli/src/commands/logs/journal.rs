//! Lines in the journal of systemd, read by `journalctl`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::SystemTime;

use esker_node::status::seconds;
use esker_vfs::Time;
use serde_json::{Map, Value};

use super::line::{Level, Line};
use crate::error::{Context, Failure, Kind};
use crate::trees::entry::time_text;

/// Program that reads the journal.
const PROGRAM: &str = "journalctl";
/// Prefix of our own fields.
const OWN: &str = "ESKER_";

/// Whose lines are wanted.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    /// Those of the daemon of this mount point.
    Mount(&'a Path),
    /// Those of all daemons of a repository.
    Repository(&'a Path),
}

/// Lines that are wanted.
pub(super) struct Wanted<'a> {
    pub(super) place: Place<'a>,
    pub(super) since: Option<SystemTime>,
    pub(super) follow: bool,
}

/// Returns true if there is a journal, and a line in it.
pub(super) fn has_lines(wanted: &Wanted<'_>) -> Result<bool, Failure> {
    let mut any = false;
    let last = Wanted { follow: false, since: None, ..*wanted };
    let mut command = command(&last);
    command.arg("--lines=1");
    read(&mut command, &mut |_| {
        any = true;
        Ok(())
    })?;
    Ok(any)
}

/// Passes on the lines.
pub(super) fn print(
    wanted: &Wanted<'_>,
    each: &mut dyn FnMut(&Line) -> Result<(), Failure>,
) -> Result<(), Failure> {
    read(&mut command(wanted), each)
}

fn read(command: &mut Command, each: &mut dyn FnMut(&Line) -> Result<(), Failure>) -> Result<(), Failure> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).context(Kind::Failed, format!("can't start {PROGRAM}")),
    };
    for text in child.stdout.take().into_iter().flat_map(|output| BufReader::new(output).lines()) {
        let text = text.context(Kind::Failed, format!("can't read from {PROGRAM}"))?;
        if let Some(line) = line(&text) {
            each(&line)?;
        }
    }
    // What it has to say on failures is that there is no journal.
    let _ = child.wait();
    Ok(())
}

fn command(wanted: &Wanted<'_>) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["--quiet", "--no-pager", "--output=json", "SYSLOG_IDENTIFIER=esker"]);
    command.arg(match wanted.place {
        Place::Mount(path) => format!("{OWN}MOUNT={}", path.display()),
        Place::Repository(name) => format!("{OWN}REPOSITORY={}", name.display()),
    });
    command.args(wanted.since.map(|since| format!("--since=@{}", seconds(since))));
    command.args(wanted.follow.then_some("--follow"));
    command
}

/// Returns the line of an entry in the journal's JSON form; `None` for another entry.
fn line(text: &str) -> Option<Line> {
    let fields: BTreeMap<String, Value> = serde_json::from_str(text).ok()?;
    let field = |name: &str| fields.get(name).and_then(plain);
    let micros: u64 = field("__REALTIME_TIMESTAMP")?.parse().ok()?;
    let secs = i64::try_from(micros / 1_000_000).ok()?;
    let mut rest = Map::new();
    if let Some(pid) = field("_PID").and_then(|pid| pid.parse::<u64>().ok()) {
        rest.insert("pid".into(), pid.into());
    }
    let mut of_event = Map::new();
    for (name, value) in &fields {
        let Some(name) = name.strip_prefix(OWN) else { continue };
        let (name, value) = (name.to_ascii_lowercase(), Value::from(plain(value)));
        let of = if matches!(&*name, "target" | "mount" | "repository") { &mut rest } else { &mut of_event };
        of.insert(name, value);
    }
    if !of_event.is_empty() {
        rest.insert("fields".into(), of_event.into());
    }
    Some(Line {
        time: Some(time_text(Time { secs, nanos: 0 })),
        level: Some(Level::of_priority(&field("PRIORITY").unwrap_or_default())),
        message: field("MESSAGE")?,
        rest,
    })
}

/// Returns the text of a field. One with control characters is a list of bytes.
fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(bytes) => {
            let bytes = bytes.iter().map(|byte| byte.as_u64().and_then(|byte| u8::try_from(byte).ok()));
            Some(String::from_utf8_lossy(&bytes.collect::<Option<Vec<u8>>>()?).into_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn entries_of_the_journal_are_lines_with_their_fields() {
        let entry = json!({
            "__REALTIME_TIMESTAMP": "3600000001", "PRIORITY": "4", "_PID": "7", "ESKER_TARGET": "store",
            "ESKER_MOUNT": "/cvmfs/a.test", "ESKER_SERVER": "http://s", "MESSAGE": [115, 10, 116], "_UID": "0",
        });
        let line = line(&entry.to_string()).expect("a line");
        assert_eq!(line.text(), "1970-01-01 01:00:00 UTC warning: s\nt");
        let expected = json!({
            "time": "1970-01-01T01:00:00Z", "level": "warn", "message": "s\nt", "pid": 7, "target": "store",
            "mount": "/cvmfs/a.test", "fields": { "server": "http://s" },
        });
        assert_eq!(line.json(), expected);
        for other in ["{}", "-- No entries --", r#"{"__REALTIME_TIMESTAMP":"x","MESSAGE":"a"}"#] {
            assert_eq!(super::line(other), None, "{other}");
        }
    }
}
