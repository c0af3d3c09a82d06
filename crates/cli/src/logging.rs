//! Log of this process: the one subscriber for the events of all crates.
//!
//! Lines go to stderr, which a daemon has in its log, as text or JSON; or to the journal or the system's log. A mount
//! copies them to the system's log of its configuration. A log that accepts nothing delays no request.

mod journal;
mod rate;
mod record;

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io::Write;
use std::os::fd::{AsRawFd as _, RawFd};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Instant;

use esker_config::SyslogOptions;
use esker_node::syslog::Syslog;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::{Layer, Registry, reload};

use crate::error::Failure;
use crate::settings::environment::Environment;
use journal::Journal;
use rate::RateLimit;
use record::Record;

/// Prefix of the targets of all events of Esker, which are paths of modules.
const OWN: &str = "esker";

/// System log of the mount's configuration.
static CONFIGURED: OnceLock<Syslog> = OnceLock::new();

/// Levels of this process's log, which the options of a mount change.
static LEVELS: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// Form of this process's log.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// Log of a server, which may connect to none once it is confined.
static CONNECTED: OnceLock<Connected> = OnceLock::new();

/// A connected log.
enum Connected {
    Journal(Journal),
    System(Syslog),
}

/// Mount point and repository of this process.
static MOUNT: OnceLock<(String, String)> = OnceLock::new();

/// Form and destination of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    #[default]
    Line,
    Json,
    Journald,
    Syslog,
}

/// Options of commands that run until they are stopped.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub(crate) struct LogArgs {
    /// Format of the log; a daemon's stderr is its log file [default: $ESKER_LOG_FORMAT, or line]
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub(crate) log_format: Option<LogFormat>,
}

/// Starts to write events. Must be called before threads are started.
/// The log of a process that lasts leaves out lines of call sites that repeat themselves fast.
pub(crate) fn start(args: LogArgs, is_lasting: bool, environment: &Environment) -> Result<(), Failure> {
    let (format, levels) = (format_of(args, environment)?, levels_of(environment)?);
    begin(format, levels, is_lasting)
}

/// Starts to write the events of a daemon that another process has started. Variables that this version can't read end no
/// mount: the usual form and levels count, and the log says why.
pub(crate) fn start_daemon(args: LogArgs, environment: &Environment) -> Result<(), Failure> {
    let (format, levels) = (format_of(args, environment), levels_of(environment));
    let ignored: Vec<String> = [format.as_ref().err(), levels.as_ref().err()]
        .into_iter()
        .flatten()
        .map(|e| e.message.clone())
        .collect();
    begin(format.unwrap_or_default(), levels.unwrap_or_else(|_| usual_levels()), true)?;
    ignored.iter().for_each(|why| tracing::warn!("ignored: {why}"));
    Ok(())
}

fn begin(format: LogFormat, levels: Targets, is_lasting: bool) -> Result<(), Failure> {
    let _ = FORMAT.set(format);
    let (levels, handle) = reload::Layer::new(levels);
    let _ = LEVELS.set(handle);
    let subscriber = tracing_subscriber::registry().with(levels).with(Output::new(format, is_lasting));
    tracing::subscriber::set_global_default(subscriber)
        .map_err(|_| Failure::failed("this process has a log already"))
}

/// Returns a variable that is set and not empty.
fn variable<'a>(environment: &'a Environment, name: &str) -> Option<Cow<'a, str>> {
    environment.get(name).map(OsStr::to_string_lossy).filter(|text| !text.is_empty())
}

fn format_of(args: LogArgs, environment: &Environment) -> Result<LogFormat, Failure> {
    match (args.log_format, variable(environment, "ESKER_LOG_FORMAT")) {
        (Some(format), _) => Ok(format),
        (None, Some(name)) => named_format(&name),
        (None, None) => Ok(LogFormat::default()),
    }
}

fn levels_of(environment: &Environment) -> Result<Targets, Failure> {
    variable(environment, "ESKER_LOG").map_or_else(|| Ok(usual_levels()), |text| levels(&text))
}

/// Returns the levels that the environment sets, empty for the usual ones, as [`set_levels`] takes them.
pub(crate) fn levels_text(environment: &Environment) -> Result<String, Failure> {
    levels_of(environment)?;
    Ok(variable(environment, "ESKER_LOG").unwrap_or_default().into_owned())
}

/// Changes the levels of this process's log to those of a mount. Levels that this version can't read change nothing.
pub(crate) fn set_levels(text: &str) {
    let wanted = if text.is_empty() { Ok(usual_levels()) } else { levels(text) };
    match (wanted, LEVELS.get()) {
        (Ok(wanted), Some(handle)) => _ = handle.reload(wanted),
        (Ok(_), None) => {}
        (Err(error), _) => tracing::warn!("ignored: {}", error.message),
    }
}

/// Names the mount of this process, which all further events have as fields.
pub(crate) fn set_mount(mountpoint: &Path, repository: &str) {
    // A process has one mount.
    let _ = MOUNT.set((mountpoint.display().to_string(), repository.to_owned()));
}

/// Copies every further line to the system's log, too.
pub(crate) fn copy_to_system(options: SyslogOptions) {
    match Syslog::new(options) {
        Ok(syslog) => _ = CONFIGURED.set(syslog),
        Err(error) => tracing::warn!("nothing is written to the system's log: {error}"),
    }
}

/// Connects to the log of this process, and returns the socket. `None` if the log is standard error, also in place of a log
/// that is away.
pub(crate) fn connect() -> Option<RawFd> {
    let connected = match FORMAT.get()? {
        LogFormat::Line | LogFormat::Json => return None,
        LogFormat::Journald => Connected::Journal(Journal::open().and_then(Journal::connect).ok()?),
        LogFormat::Syslog => {
            Connected::System(Syslog::new(SyslogOptions::default()).and_then(Syslog::connect).ok()?)
        }
    };
    match CONNECTED.get_or_init(|| connected) {
        Connected::Journal(journal) => Some(journal.socket().as_raw_fd()),
        Connected::System(syslog) => syslog.socket().map(|socket| socket.as_raw_fd()),
    }
}

fn named_format(name: &str) -> Result<LogFormat, Failure> {
    clap::ValueEnum::from_str(name, false).map_err(|_| {
        Failure::usage(format!("$ESKER_LOG_FORMAT is {name:?}, which is not a format of logs"))
            .hint("set it to line, json, journald or syslog")
    })
}

fn usual_levels() -> Targets {
    Targets::new().with_target(OWN, LevelFilter::INFO)
}

/// Reads levels like `store=debug,info`. A level without a target is that of all of Esker's crates; a target is the name
/// of a crate, the path of a module, or the target of a library.
fn levels(text: &str) -> Result<Targets, Failure> {
    let given: Targets = text.parse().map_err(|error| {
        Failure::usage(format!("$ESKER_LOG is {text:?}, which has no levels of targets: {error}")).hint(
            "set it to levels like `store=debug,info`; levels are off, error, warn, info, debug and trace",
        )
    })?;
    let usual = given.default_level().unwrap_or(LevelFilter::INFO);
    let named = given.iter().flat_map(|(target, level)| {
        let own = match target.replace('-', "_") {
            name if name == "cli" => format!("{OWN}::"),
            name => format!("{OWN}_{name}"),
        };
        [(own, level), (target.to_owned(), level)]
    });
    Ok(Targets::new().with_target(OWN, usual).with_targets(named))
}

/// Writes events to the chosen destination.
struct Output {
    format: LogFormat,
    /// Limit of lines, for a process that lasts.
    rate: Option<RateLimit>,
    // Opened by the first line: a daemon closes all descriptors when it begins.
    journal: OnceLock<Option<Journal>>,
    system: OnceLock<Option<Syslog>>,
}

impl Output {
    fn new(format: LogFormat, is_lasting: bool) -> Self {
        let rate = is_lasting.then(RateLimit::default);
        Self { format, rate, journal: OnceLock::new(), system: OnceLock::new() }
    }

    fn write(&self, record: &Record) {
        let copied = CONFIGURED.get().is_some_and(|syslog| syslog.line(record.severity(), &record.text()));
        let is_written = match (CONNECTED.get(), self.format) {
            (Some(connected), _) => connected.write(record),
            (None, LogFormat::Line | LogFormat::Json) => false,
            (None, LogFormat::Journald) => {
                let journal = self.journal.get_or_init(|| Journal::open().ok());
                journal.as_ref().is_some_and(|journal| journal.send(record).is_ok())
            }
            (None, LogFormat::Syslog) => {
                let system = || self.system.get_or_init(|| Syslog::new(SyslogOptions::default()).ok());
                let send = |syslog: &Syslog| syslog.line(record.severity(), &record.text());
                copied || (CONFIGURED.get().is_none() && system().as_ref().is_some_and(send))
            }
        };
        if !is_written {
            let line = if self.format == LogFormat::Json { record.json() } else { record.line() };
            // A full disk must not stop a mount.
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }
}

impl Connected {
    fn write(&self, record: &Record) -> bool {
        match self {
            Connected::Journal(journal) => journal.send(record).is_ok(),
            Connected::System(syslog) => syslog.line(record.severity(), &record.text()),
        }
    }
}

impl<S: Subscriber> Layer<S> for Output {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mount = MOUNT.get().map(|(mountpoint, repository)| (mountpoint.as_str(), repository.as_str()));
        let record = Record::of(event, mount);
        let Some(rate) = self.rate.as_ref().filter(|_| record.level <= Level::INFO) else {
            return self.write(&record);
        };
        let admission = rate.admit(event.metadata(), Instant::now());
        for (metadata, count) in admission.left_out {
            self.write(&Record::of_left_out(metadata, count, mount));
        }
        if admission.is_admitted {
            self.write(&record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_written(text: &str, target: &str, level: Level) -> bool {
        levels(text).expect("levels").would_enable(target, &level)
    }

    #[test]
    fn levels_are_those_of_crates_modules_and_libraries() {
        for (text, target, level, written) in [
            ("store=debug,info", "esker_store::failover", Level::DEBUG, true),
            ("store=debug,info", "esker_fuse::session", Level::DEBUG, false),
            ("store=debug,info", "esker_fuse::session", Level::INFO, true),
            ("store=debug", "esker_fuse::session", Level::INFO, true),
            ("store=debug", "esker_fuse::session", Level::DEBUG, false),
            ("store=off", "esker_store::failover", Level::ERROR, false),
            ("store::failover=off", "esker_store::failover", Level::ERROR, false),
            ("store::failover=off", "esker_store::cache", Level::ERROR, true),
            ("cli=debug", "esker::signals", Level::DEBUG, true),
            ("cli=debug", "esker_node::mounted", Level::DEBUG, false),
            ("debug", "esker_node::mounted", Level::DEBUG, true),
            ("debug", "hyper::proto", Level::DEBUG, false),
            ("hyper=debug", "hyper::proto", Level::DEBUG, true),
            ("error", "esker_store::failover", Level::WARN, false),
        ] {
            assert_eq!(is_written(text, target, level), written, "{text} {target} {level}");
        }
        let usual = usual_levels();
        assert!(usual.would_enable("esker::signals", &Level::INFO));
        assert!(!usual.would_enable("esker_store", &Level::DEBUG));
        assert!(!usual.would_enable("hickory_resolver", &Level::ERROR));
        let failure = levels("store=loud").expect_err("no level");
        assert!(failure.message.contains("ESKER_LOG") && failure.hint.is_some(), "{failure:?}");
    }

    #[test]
    fn formats_are_named_in_the_environment() {
        assert_eq!(named_format("journald").expect("a format"), LogFormat::Journald);
        assert!(named_format("xml").expect_err("no format").hint.is_some_and(|hint| hint.contains("json")));
    }
}
