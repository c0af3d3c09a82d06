//! One event of the log, and its text in each format.

use std::fmt::{Debug, Write};
use std::time::SystemTime;

use esker_node::status::seconds;
use esker_node::syslog::SyslogSeverity;
use esker_vfs::Time;
use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata};

use crate::output::{json_text, plain};
use crate::trees::entry::time_text;

/// An event with its message and its fields.
pub(super) struct Record {
    pub(super) level: Level,
    /// Crate and module of the event, without the prefix of Esker's crates.
    pub(super) target: String,
    pub(super) message: String,
    pub(super) fields: Map<String, Value>,
    /// Mount point and repository of the process.
    pub(super) mount: Option<(String, String)>,
    /// Source file and line of the event.
    pub(super) place: Option<(&'static str, u32)>,
    time: SystemTime,
}

impl Record {
    pub(super) fn of(event: &Event<'_>, mount: Option<(&str, &str)>) -> Self {
        let mut record = Self::begin(event.metadata(), mount);
        event.record(&mut record);
        record
    }

    /// Returns the record of lines of one call site that were left out.
    pub(super) fn of_left_out(
        metadata: &'static Metadata<'static>,
        count: u64,
        mount: Option<(&str, &str)>,
    ) -> Self {
        let mut record = Self::begin(metadata, mount);
        record.message = format!("{count} more lines like the last ones of {} were left out", record.target);
        record.fields.insert("left_out".to_owned(), count.into());
        record
    }

    fn begin(metadata: &'static Metadata<'static>, mount: Option<(&str, &str)>) -> Self {
        let target = metadata.target();
        let target = match target.strip_prefix("esker::") {
            Some(module) => format!("cli::{module}"),
            None => target.strip_prefix("esker_").unwrap_or(target).to_owned(),
        };
        Self {
            level: *metadata.level(),
            target,
            message: String::new(),
            fields: Map::new(),
            mount: mount.map(|(mountpoint, repository)| (mountpoint.to_owned(), repository.to_owned())),
            place: metadata.file().zip(metadata.line()),
            time: SystemTime::now(),
        }
    }

    /// Returns the message; one that is for developers has its target and its fields.
    pub(super) fn text(&self) -> String {
        if self.level <= Level::INFO {
            return self.message.clone();
        }
        let level = if self.level == Level::DEBUG { "debug" } else { "trace" };
        let mut text = format!("{level} {}: {}", self.target, self.message);
        for (name, value) in &self.fields {
            let _ = write!(text, " {name}={value}");
        }
        text
    }

    /// Returns the severity in the system's log.
    pub(super) fn severity(&self) -> SyslogSeverity {
        match self.level {
            Level::ERROR => SyslogSeverity::Error,
            Level::WARN | Level::INFO => SyslogSeverity::Configured,
            _ => SyslogSeverity::Debug,
        }
    }

    /// Returns the line of text with the time.
    pub(super) fn line(&self) -> String {
        let mark = match self.level {
            Level::ERROR => "error: ",
            Level::WARN => "warning: ",
            _ => "",
        };
        format!("{} UTC {mark}{}\n", self.second(), plain(&self.text().replace('\n', " ")))
    }

    /// Returns the JSON object with an end of line. Field names are an interface.
    pub(super) fn json(&self) -> String {
        let mut object = json!({
            "time": format!("{}Z", self.second().replace(' ', "T")),
            "level": self.level.as_str().to_ascii_lowercase(),
            "target": self.target,
            "pid": std::process::id(),
            "message": self.message,
        });
        if let Some((mountpoint, repository)) = &self.mount {
            object["mount"] = mountpoint.as_str().into();
            object["repository"] = repository.as_str().into();
        }
        if !self.fields.is_empty() {
            object["fields"] = Value::Object(self.fields.clone());
        }
        // A value of JSON has a text.
        format!("{}\n", json_text(&object).unwrap_or_default())
    }

    fn second(&self) -> String {
        let secs = i64::try_from(seconds(self.time)).unwrap_or(i64::MAX);
        time_text(Time { secs, nanos: 0 })
    }

    fn set(&mut self, field: &Field, value: Value) {
        self.fields.insert(field.name().to_owned(), value);
    }
}

impl Visit for Record {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        } else {
            self.set(field, format!("{value:?}").into());
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(value);
        } else {
            self.set(field, value.into());
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value.into());
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::Subscriber;
    use tracing_subscriber::Layer;
    use tracing_subscriber::layer::{Context, SubscriberExt};

    use super::*;

    struct Keep(Arc<Mutex<Vec<Record>>>);

    impl<S: Subscriber> Layer<S> for Keep {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            let record = Record { time: SystemTime::UNIX_EPOCH, ..Record::of(event, None) };
            self.0.lock().expect("records").push(record);
        }
    }

    /// Returns the records of the events that a function makes, all at the first second of 1970.
    pub(in crate::logging) fn records(events: impl FnOnce()) -> Vec<Record> {
        let kept = Arc::<Mutex<Vec<Record>>>::default();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(Keep(kept.clone())), events);
        std::mem::take(&mut *kept.lock().expect("records"))
    }

    #[test]
    fn a_line_has_the_time_the_severity_of_errors_and_the_message() {
        let records = records(|| {
            let proxy = "http://a:1";
            tracing::info!("{} answers again", proxy);
            tracing::warn!(proxy, "proxy {proxy} is out of use");
            tracing::error!("/dev/fuse can't be read");
            tracing::debug!(target: "esker_store::transport", status = 200_u64, "answered");
        });
        let lines: Vec<String> = records.iter().map(Record::line).collect();
        assert_eq!(
            lines,
            [
                "1970-01-01 00:00:00 UTC http://a:1 answers again\n",
                "1970-01-01 00:00:00 UTC warning: proxy http://a:1 is out of use\n",
                "1970-01-01 00:00:00 UTC error: /dev/fuse can't be read\n",
                "1970-01-01 00:00:00 UTC debug store::transport: answered status=200\n",
            ]
        );
    }

    #[test]
    fn json_has_the_fields_of_the_event() {
        let records = records(|| tracing::warn!(server = "a", bytes = 7_u64, "two\nlines"));
        let json: Value = serde_json::from_str(&records[0].json()).expect("JSON");
        let expected = json!({
            "time": "1970-01-01T00:00:00Z", "level": "warn", "target": "cli::logging::record::tests",
            "pid": std::process::id(), "message": "two\nlines", "fields": { "server": "a", "bytes": 7 },
        });
        assert_eq!(json, expected);
        assert_eq!(records[0].json().lines().count(), 1);
    }
}
