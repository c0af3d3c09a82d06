//! One line of a log, in either format.

use std::time::SystemTime;

use esker_node::status::seconds;
use esker_vfs::Time;
use serde_json::{Map, Value};

use crate::trees::entry::time_text;

/// Severity, the highest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Level {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

impl Level {
    fn named(name: &str) -> Option<Self> {
        clap::ValueEnum::from_str(name, true).ok()
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }

    /// Returns the level of a severity of syslog.
    pub(super) fn of_priority(priority: &str) -> Self {
        match priority {
            "0" | "1" | "2" | "3" => Self::Error,
            "4" => Self::Warn,
            "7" => Self::Debug,
            _ => Self::Info,
        }
    }
}

/// A line of a log.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Line {
    /// Time as `YYYY-MM-DD HH:MM:SS`; none for a further line of a message.
    pub(super) time: Option<String>,
    pub(super) level: Option<Level>,
    pub(super) message: String,
    /// Other members of a JSON object.
    pub(super) rest: Map<String, Value>,
}

/// Length of a time.
const TIME: usize = "2026-11-21 08:09:10".len();

impl Line {
    /// Parses a line: a JSON object, or a text with its time.
    pub(super) fn of(text: &str) -> Self {
        let text = text.strip_suffix('\n').unwrap_or(text);
        match serde_json::from_str::<Map<String, Value>>(text) {
            Ok(object) if object.contains_key("message") => Self::of_object(object),
            _ => Self::of_text(text),
        }
    }

    fn of_object(mut object: Map<String, Value>) -> Self {
        let mut take = |name: &str| match object.remove(name) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        };
        let time = take("time").map(|time| time.trim_end_matches('Z').replace('T', " "));
        let level = take("level").and_then(|level| Level::named(&level));
        let message = take("message").unwrap_or_default();
        Self { time, level, message, rest: object }
    }

    fn of_text(text: &str) -> Self {
        let parts = text.split_at_checked(TIME).and_then(|(time, rest)| {
            let is_time = time.bytes().all(|byte| byte.is_ascii_digit() || b"- :".contains(&byte));
            Some((time, rest.strip_prefix(" UTC ")?)).filter(|_| is_time)
        });
        let Some((time, rest)) = parts else { return Self { message: text.to_owned(), ..Self::default() } };
        let marked = [
            ("error: ", Level::Error),
            ("warning: ", Level::Warn),
            ("debug ", Level::Debug),
            ("trace ", Level::Trace),
        ];
        let mark = marked.into_iter().find_map(|(mark, level)| Some((level, rest.strip_prefix(mark)?)));
        let (level, message) = mark.unwrap_or((Level::Info, rest));
        Self {
            time: Some(time.to_owned()),
            level: Some(level),
            message: message.to_owned(),
            rest: Map::new(),
        }
    }

    /// Returns the line for a terminal.
    pub(super) fn text(&self) -> String {
        let Some(time) = &self.time else { return self.message.clone() };
        let mark = match self.level.unwrap_or_default() {
            Level::Error => "error: ",
            Level::Warn => "warning: ",
            Level::Info => "",
            Level::Debug => "debug ",
            Level::Trace => "trace ",
        };
        format!("{time} UTC {mark}{}", self.message)
    }

    /// Returns the line for programs. Field names are an interface, that of `--log-format json`.
    pub(super) fn json(&self) -> Value {
        let mut object = Map::new();
        if let Some(time) = &self.time {
            object.insert("time".into(), format!("{}Z", time.replace(' ', "T")).into());
        }
        object.insert("level".into(), self.level.unwrap_or_default().name().into());
        object.insert("message".into(), self.message.clone().into());
        object.extend(self.rest.clone());
        Value::Object(object)
    }
}

/// Chooses lines by time and severity.
pub(super) struct Filter {
    level: Level,
    since: Option<String>,
    /// True if the last line with a time passed: further lines of its message do, too.
    passed: bool,
}

impl Filter {
    pub(super) fn new(level: Level, since: Option<SystemTime>) -> Self {
        let text = |time: SystemTime| {
            time_text(Time { secs: i64::try_from(seconds(time)).unwrap_or(i64::MAX), nanos: 0 })
        };
        Self { level, since: since.map(text), passed: since.is_none() }
    }

    pub(super) fn passes(&mut self, line: &Line) -> bool {
        if let Some(time) = &line.time {
            let is_recent = self.since.as_ref().is_none_or(|since| time >= since);
            self.passed = is_recent && line.level.unwrap_or_default() <= self.level;
        }
        self.passed
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn lines_of_both_formats_have_time_severity_and_message() {
        let time = || Some("2026-11-21 08:09:10".to_owned());
        for (text, level, message, json) in [
            ("2026-11-21 08:09:10 UTC it serves", Level::Info, "it serves", false),
            ("2026-11-21 08:09:10 UTC error: no disk\n", Level::Error, "no disk", false),
            ("2026-11-21 08:09:10 UTC warning: slow", Level::Warn, "slow", false),
            ("2026-11-21 08:09:10 UTC debug store: sent", Level::Debug, "store: sent", false),
            (
                r#"{"time":"2026-11-21T08:09:10Z","level":"warn","message":"a","pid":7}"#,
                Level::Warn,
                "a",
                true,
            ),
        ] {
            let line = Line::of(text);
            assert_eq!((&line.time, line.level, &*line.message), (&time(), Some(level), message), "{text}");
            assert_eq!(line.rest.contains_key("pid"), json);
            assert_eq!(Line::of(&line.text()).message, message);
            assert_eq!(Line::of(&line.json().to_string()), line, "{text}");
        }
        let further = Line::of("  of a message");
        assert_eq!((further.time.as_ref(), further.text()), (None, "  of a message".to_owned()));
        assert_eq!(Line::of("2026-11-21 08:09:1é").time, None);
    }

    #[test]
    fn further_lines_follow_the_line_that_they_belong_to() {
        let hour = Duration::from_secs(3600);
        let since = SystemTime::UNIX_EPOCH + 2 * hour;
        let mut filter = Filter::new(Level::Warn, Some(since));
        let passed: Vec<bool> = [
            "before any",
            "1970-01-01 01:00:00 UTC error: too old",
            "of the old one",
            "1970-01-01 02:00:00 UTC error: new",
            "of the new one",
            "1970-01-01 03:00:00 UTC not severe",
            "of that",
            "1970-01-01 03:00:00 UTC warning: severe",
        ]
        .into_iter()
        .map(|text| filter.passes(&Line::of(text)))
        .collect();
        assert_eq!(passed, [false, false, false, true, true, false, false, true]);
    }
}
