//! Metrics of the mounts of a node.

pub(crate) mod asker;
mod destination;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant, SystemTime};

use esker_confine::{Policy, Role};
use esker_node::metrics::{self, Family};
use esker_run::{Manager, Received};
use esker_server::{Server, WriteMetrics};

use crate::error::{Context, Failure, Kind, chain};
use crate::output::{Output, duration_between};
use crate::process::confine;
use crate::process::opener::Openable;
use crate::process::privileges::Service;
use crate::serving::{self, Controls};
use crate::settings::Settings;
use asker::{Asker, Wish};
use destination::Destination;

/// Prints the metrics of all mounts of this user, and as root of all users.
///
/// With --listen it serves them to Prometheus, one listener for the whole node; a socket that systemd passes is used in
/// its place. With --textfile it writes them to a file for the textfile collector of node_exporter, with --otlp it sends
/// them to an OpenTelemetry collector: once, or with --interval again and again. A mount whose daemon hangs has
/// `esker_mount_up 0`, and delays nothing for longer than --timeout.
///
/// Example: esker metrics
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Address for Prometheus; port 0 takes a free one [default without a value: 127.0.0.1:9868]
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:9868")]
    listen: Option<SocketAddr>,

    /// File to write the metrics to, below the folder of node_exporter's textfile collector; its name ends with .prom
    #[arg(long, value_name = "FILE")]
    textfile: Option<PathBuf>,

    /// URL of an OpenTelemetry collector that takes metrics in JSON over HTTP, such as http://collector:4318/v1/metrics
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,

    /// Additional CA certificates for TLS to that collector, in PEM form
    #[arg(long, value_name = "FILE", requires = "otlp")]
    ca: Vec<String>,

    /// Time between two writings of the file, or two messages to the collector [default: do it once]
    #[arg(long, value_name = "DURATION", value_parser = duration_between("1s", "1d"))]
    interval: Option<Duration>,

    /// Names of the metrics: those of Esker, or those of the exporter for CernVM-FS clients
    #[arg(long, value_enum, default_value = "esker")]
    names: Names,

    /// Time limit for the daemon of a mount to reply
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = duration_between("1s", "60s"))]
    timeout: Duration,

    /// User that the server runs as, if root starts it with --listen; another process goes on as root to ask the mounts
    /// [default: esker if there is such a user, else ids that no user has]
    #[arg(long, value_name = "USER")]
    user: Option<String>,
}

/// Names of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Names {
    /// esker_mount_requests_total and the like
    Esker,
    /// cvmfs_repo_revision and the like, as in dashboards that a site may have
    Cvmfs,
}

/// Time for which a scrape is handed out again: several collectors may ask at once.
const FRESH: Duration = Duration::from_millis(500);

/// Reads the metrics of this node.
struct Reader {
    runtime: PathBuf,
    is_root: bool,
    patience: Duration,
    names: Names,
    last: Mutex<Option<(Instant, Arc<[Family]>)>>,
}

impl Reader {
    fn new(names: Names, patience: Duration, settings: &Settings) -> Self {
        Self {
            runtime: settings.runtime.clone(),
            is_root: settings.root,
            patience,
            names,
            last: Mutex::default(),
        }
    }

    /// Asks all mounts, unless another thread has just done so.
    fn read(&self) -> Result<Arc<[Family]>, Failure> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, families)) = last.as_ref().filter(|(time, _)| time.elapsed() < FRESH) {
            return Ok(families.clone());
        }
        let scrape = metrics::scrape(&self.runtime, self.is_root, self.patience)
            .context(Kind::Failed, "can't look up the mounts")?;
        let families: Arc<[Family]> = match self.names {
            Names::Esker => metrics::families(&scrape),
            Names::Cvmfs => metrics::of_exporter(&scrape),
        }
        .into();
        *last = Some((Instant::now(), families.clone()));
        Ok(families)
    }
}

/// Source of the metrics: this process, or another one that may ask the mounts.
enum Source {
    Here(Reader),
    Asked(Asker),
}

impl Source {
    /// Returns the text form of Prometheus.
    fn text(&self) -> Result<String, Failure> {
        match self {
            Source::Here(reader) => reader.read().map(|families| metrics::text(&families)),
            Source::Asked(asker) => {
                asker.ask(Wish::Text).map(|text| String::from_utf8_lossy(&text).into_owned())
            }
        }
    }

    /// Returns a message for an OpenTelemetry collector.
    fn message(&self) -> Result<Vec<u8>, Failure> {
        let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        match self {
            Source::Here(reader) => {
                reader.read().map(|families| metrics::otlp(&families, &host(), SystemTime::now()))
            }
            Source::Asked(asker) => asker.ask(Wish::Message),
        }
    }
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let passed = serving::inherited()?;
    let mut destinations = Vec::new();
    if let Some(path) = &args.textfile {
        destinations.push(Destination::file(path)?);
    }
    if let Some(url) = &args.otlp {
        destinations.push(Destination::collector(url, &args.ca)?);
    }
    let listeners = match (passed.is_empty(), args.listen) {
        (false, _) => passed,
        (true, Some(address)) => vec![serving::listen(address, "--listen")?],
        (true, None) => Vec::new(),
    };
    let every = args.interval;
    if listeners.is_empty() {
        let source = Source::Here(Reader::new(args.names, args.timeout, settings));
        if destinations.is_empty() {
            let mut out = Output::new();
            out.text(source.text()?)?;
            return out.finish();
        }
        let Some(every) = every else { return write_once(&source, &destinations) };
        // Without another thread: a signal ends the wait, and never a file half written.
        return write_again_and_again(&source, &destinations, every, &serving::signals()?);
    }
    let manager = Arc::new(serving::manager());
    let source = Arc::new(confined_server(args, settings, &manager)?);
    let signals = serving::signals()?;
    let written = source.clone();
    let write: WriteMetrics = Arc::new(move || match written.text() {
        Ok(text) => Some((metrics::CONTENT_TYPE, text)),
        Err(failure) => {
            tracing::error!("metrics can't be read: {}", failure.message);
            None
        }
    });
    let server = Server::of_metrics(listeners, write).context(Kind::Failed, "can't serve")?;
    let url = format!("{}/metrics", serving::url(server.address(), false));
    let controls = Controls {
        stopper: server.stopper(),
        tls: None,
        access_log: None,
        manager: manager.clone(),
        reload: None,
    };
    controls.start(signals)?;
    // Dropped at the end, which ends the thread.
    let (_running, ended) = mpsc::channel();
    if !destinations.is_empty() {
        let every = every.unwrap_or(DEFAULT_INTERVAL);
        let writing = move || drop(write_again_and_again(&source, &destinations, every, &ended));
        esker_threads::spawn("metrics", writing).context(Kind::Failed, "can't start a thread")?;
    }
    let mut out = Output::new();
    out.line(format!("serving at {url}"))?;
    out.finish()?;
    serving::tell_ready(&manager, "metrics");
    server.run().context(Kind::Network, "the server ended")?;
    Ok(())
}

/// Starts the process that asks the mounts, becomes a user without rights, and confines this process.
fn confined_server(args: &Args, settings: &Settings, manager: &Manager) -> Result<Source, Failure> {
    let account = Service::Metrics.account(args.user.as_deref())?;
    let asker = Asker::start(args).context(Kind::Failed, "can't start the process that asks the mounts")?;
    let authorities = || args.ca.iter().map(Path::new);
    let openable = authorities().fold(Openable::of_machine(), |openable, file| openable.file(file));
    let policy = authorities().filter(|path| path.is_dir());
    let policy = policy.fold(confine::of_server(Role::Metrics), Policy::reopen);
    serving::become_server(account.as_ref(), policy, openable, manager, &settings.environment)?;
    Ok(Source::Asked(asker))
}

/// Interval beside a listener.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(60);

fn write_once(source: &Source, destinations: &[Destination]) -> Result<(), Failure> {
    destinations.iter().try_for_each(|destination| destination.write(source))
}

/// Writes until a signal comes, or the sender of signals is gone. A failure is logged once, until it works again.
fn write_again_and_again(
    source: &Source,
    destinations: &[Destination],
    every: Duration,
    signals: &mpsc::Receiver<Received>,
) -> Result<(), Failure> {
    let mut fails = false;
    let mut next = Instant::now();
    loop {
        match write_once(source, destinations) {
            Ok(()) => fails = false,
            Err(failure) => {
                if !std::mem::replace(&mut fails, true) {
                    tracing::warn!("metrics are not written: {}", failure.message);
                }
            }
        }
        // From the last time on, not from the end of writing; what was missed is left out.
        let now = Instant::now();
        while next <= now {
            next += every;
        }
        match signals.recv_timeout(next.saturating_duration_since(now)) {
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            _ => return Ok(()),
        }
    }
}

/// Returns a failure of the store for a user.
fn of_store(error: &esker_store::StoreError) -> Failure {
    Failure::new(Kind::Network, chain(error))
}
