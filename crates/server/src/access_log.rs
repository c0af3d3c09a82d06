//! The log of requests: one line each, as web servers write them or as JSON.
//!
//! A thread writes the lines, so a slow disk delays no response. Lines that it can't keep up with are counted and left
//! out.

use std::fs::File;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use esker_format::time::UnixTime;
use esker_store::{open_log, open_named_or};
use hyper::header::{HeaderName, REFERER, USER_AGENT};
use hyper::http::request::Parts;
use hyper::{Method, Uri, Version};
use serde_json::json;

use crate::date;

/// Maximum number of lines that wait for the disk.
const WAITING_MAX: usize = 16 * 1024;
/// Number of bytes written at once.
const WRITTEN_AT_ONCE: usize = 64 * 1024;
/// Maximum length of each text that a client chose.
const TEXT_MAX: usize = 1024;

/// Form of the lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogForm {
    /// The combined form of Apache and nginx.
    #[default]
    Combined,
    /// A JSON object.
    Json,
}

/// Destination of the access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard output.
    Stdout,
    /// A file, to which lines are appended.
    File(PathBuf),
}

/// The log of requests.
#[derive(Clone, Debug)]
pub struct AccessLog {
    form: LogForm,
    sender: SyncSender<Order>,
    lost: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Order {
    Line(String),
    Reopen,
}

/// The opened file of a log, without a thread: for processes that drop privileges before they start any.
#[derive(Debug)]
pub struct LogOutput {
    target: LogTarget,
    file: Option<File>,
}

impl LogOutput {
    /// Opens the file, and creates it if it does not exist.
    pub fn open(target: LogTarget) -> io::Result<Self> {
        let file = open(&target)?;
        Ok(Self { target, file })
    }
}

impl AccessLog {
    /// Starts the thread that writes the log.
    pub fn start(output: LogOutput, form: LogForm) -> io::Result<Self> {
        let LogOutput { target, file } = output;
        let (sender, receiver) = sync_channel(WAITING_MAX);
        std::thread::Builder::new()
            .name("access-log".into())
            .spawn(move || write_all(&receiver, &target, file))?;
        Ok(Self { form, sender, lost: Arc::default() })
    }

    /// Opens the file again, as log rotation asks for.
    pub fn reopen(&self) {
        // The thread ends only after this.
        let _ = self.sender.send(Order::Reopen);
    }

    /// Returns the number of lines left out because the disk was too slow.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    pub(crate) fn write(&self, line: &Line, status: u16, sent: u64, is_whole: bool, took: Duration) {
        let text = match self.form {
            LogForm::Combined => line.combined(status, sent),
            LogForm::Json => line.json(status, sent, is_whole, took),
        };
        if self.sender.try_send(Order::Line(text)).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn open(target: &LogTarget) -> io::Result<Option<File>> {
    match target {
        LogTarget::Stdout => Ok(None),
        LogTarget::File(path) => open_named_or(path, || open_log(path)).map(Some),
    }
}

/// Writes lines until the server ends.
fn write_all(orders: &Receiver<Order>, target: &LogTarget, mut output: Option<File>) {
    let mut text = String::new();
    while let Ok(first) = orders.recv() {
        let mut next = Some(first);
        let mut reopens = false;
        while let Some(order) = next {
            match order {
                Order::Line(line) => {
                    text.push_str(&line);
                    text.push('\n');
                }
                Order::Reopen => reopens = true,
            }
            next = if text.len() < WRITTEN_AT_ONCE && !reopens { orders.try_recv().ok() } else { None };
        }
        let written = match &mut output {
            Some(file) => file.write_all(text.as_bytes()),
            None => io::stdout().lock().write_all(text.as_bytes()),
        };
        if let Err(error) = written {
            tracing::warn!("can't write the access log: {error}");
        }
        text.clear();
        if reopens {
            match open(target) {
                Ok(file) => output = file,
                Err(error) => tracing::warn!("can't open the access log again: {error}"),
            }
        }
    }
}

/// Facts about a request in a line of the log.
#[derive(Debug)]
pub(crate) struct Line {
    client: IpAddr,
    when: UnixTime,
    method: Method,
    target: Uri,
    version: Version,
    referer: String,
    agent: String,
}

impl Line {
    pub(crate) fn of(parts: &Parts, client: SocketAddr) -> Self {
        let text = |name: HeaderName| {
            let value = parts.headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
            value.map_or_else(String::new, |value| value.chars().take(TEXT_MAX).collect())
        };
        Self {
            client: client.ip().to_canonical(),
            when: date::now(),
            method: parts.method.clone(),
            target: parts.uri.clone(),
            version: parts.version,
            referer: text(REFERER),
            agent: text(USER_AGENT),
        }
    }

    fn combined(&self, status: u16, sent: u64) -> String {
        format!(
            "{} - - [{}] \"{} {} {:?}\" {status} {sent} \"{}\" \"{}\"",
            self.client,
            date::log(self.when),
            self.method,
            escaped(&self.target.to_string()),
            self.version,
            or_dash(&self.referer),
            or_dash(&self.agent),
        )
    }

    fn json(&self, status: u16, sent: u64, is_whole: bool, took: Duration) -> String {
        json!({
            "time": self.when.to_string(),
            "client": self.client.to_string(),
            "method": self.method.as_str(),
            "target": self.target.to_string(),
            "version": format!("{:?}", self.version),
            "status": status,
            "bytes": sent,
            "complete": is_whole,
            "seconds": took.as_secs_f64(),
            "referer": self.referer,
            "user_agent": self.agent,
        })
        .to_string()
    }
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { escaped(text) }
}

/// Returns a text without quotes and control characters, which could forge a line.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\\' => escaped.extend(['\\', c]),
            c if c.is_control() => escaped.extend(c.escape_default()),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(agent: &str) -> Line {
        let request = hyper::Request::builder().uri("/cvmfs/a.test/.cvmfspublished?x");
        let (mut parts, ()) = request.body(()).expect("a request").into_parts();
        parts
            .headers
            .insert(USER_AGENT, hyper::header::HeaderValue::from_bytes(agent.as_bytes()).expect("a value"));
        Line { when: UnixTime(784_111_777), ..Line::of(&parts, "192.0.2.1:80".parse().expect("an address")) }
    }

    #[test]
    fn a_combined_line_is_that_of_other_servers() {
        let expected = "192.0.2.1 - - [06/Nov/1994:08:49:37 +0000] \
                        \"GET /cvmfs/a.test/.cvmfspublished?x HTTP/1.1\" 200 123 \"-\" \"cvmfs \\\"x\\\"\"";
        assert_eq!(line("cvmfs \"x\"").combined(200, 123), expected);
    }

    #[test]
    fn a_json_line_has_the_same_fields() {
        let text = line("cvmfs").json(206, 7, false, Duration::from_millis(250));
        let read: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(
            (&read["status"], &read["bytes"], &read["complete"]),
            (&206.into(), &7.into(), &false.into())
        );
        assert_eq!((&read["seconds"], &read["user_agent"]), (&0.25.into(), &"cvmfs".into()));
    }

    #[test]
    fn a_rotated_log_continues_in_a_new_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("access.log");
        let output = LogOutput::open(LogTarget::File(path.clone())).expect("a file");
        let log = AccessLog::start(output, LogForm::Combined).expect("a log");
        let wait = |path: &std::path::Path| {
            let is_written = || std::fs::read_to_string(path).is_ok_and(|text| text.lines().count() == 1);
            assert!(esker_testkit::waiting::until(Duration::from_secs(60), is_written), "{}", path.display());
        };
        log.write(&line("one"), 200, 1, true, Duration::ZERO);
        wait(&path);
        let moved = folder.path().join("access.log.1");
        std::fs::rename(&path, &moved).expect("a file");
        log.reopen();
        log.write(&line("two"), 200, 1, true, Duration::ZERO);
        wait(&path);
        wait(&moved);
    }
}
