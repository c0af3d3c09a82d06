//! Metrics of the mounts of a node.

mod destination;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant, SystemTime};

use esker_node::metrics::{self, Family};
use esker_run::Received;
use esker_server::{Server, WriteMetrics};

use crate::error::{Context, Failure, Kind, chain};
use crate::output::Output;
use crate::serving::{self, Controls};
use crate::settings::Settings;
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

    /// Seconds between two writings of the file, or two messages to the collector [default: do it once]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    interval: Option<u64>,

    /// Names of the metrics: those of Esker, or those of the exporter for CernVM-FS clients
    #[arg(long, value_enum, default_value = "esker")]
    names: Names,

    /// Seconds for the daemon of a mount to reply
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=60))]
    timeout: u64,
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
    fn new(args: &Args, settings: &Settings) -> Self {
        Self {
            runtime: settings.runtime.clone(),
            is_root: settings.root,
            patience: Duration::from_secs(args.timeout),
            names: args.names,
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

    fn text(&self) -> Result<String, Failure> {
        self.read().map(|families| metrics::text(&families))
    }
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let reader = Arc::new(Reader::new(args, settings));
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
    let every = args.interval.map(Duration::from_secs);
    if listeners.is_empty() {
        if destinations.is_empty() {
            let mut out = Output::new();
            out.text(reader.text()?)?;
            return out.finish();
        }
        let Some(every) = every else { return write_once(&reader, &destinations) };
        // Without another thread: a signal ends the wait, and never a file half written.
        return write_again_and_again(&reader, &destinations, every, &serving::signals()?);
    }
    let signals = serving::signals()?;
    let written = reader.clone();
    let write: WriteMetrics = Arc::new(move || match written.text() {
        Ok(text) => Some((metrics::CONTENT_TYPE, text)),
        Err(failure) => {
            tracing::error!("metrics can't be read: {}", failure.message);
            None
        }
    });
    let server = Server::of_metrics(listeners, write).context(Kind::Failed, "can't serve")?;
    let url = format!("{}/metrics", serving::url(server.address(), false));
    Controls { stopper: server.stopper(), tls: None, access_log: None }.start(signals)?;
    // Dropped at the end, which ends the thread.
    let (_running, ended) = mpsc::channel();
    if !destinations.is_empty() {
        let every = every.unwrap_or(DEFAULT_INTERVAL);
        let writing = move || drop(write_again_and_again(&reader, &destinations, every, &ended));
        esker_threads::spawn("metrics", writing).context(Kind::Failed, "can't start a thread")?;
    }
    let mut out = Output::new();
    out.line(format!("serving at {url}"))?;
    out.finish()?;
    serving::tell_ready("metrics");
    server.run().context(Kind::Network, "the server ended")?;
    Ok(())
}

/// Interval beside a listener.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(60);

fn write_once(reader: &Reader, destinations: &[Destination]) -> Result<(), Failure> {
    let families = reader.read()?;
    destinations.iter().try_for_each(|destination| destination.write(&families, SystemTime::now()))
}

/// Writes until a signal comes, or the sender of signals is gone. A failure is logged once, until it works again.
fn write_again_and_again(
    reader: &Reader,
    destinations: &[Destination],
    every: Duration,
    signals: &mpsc::Receiver<Received>,
) -> Result<(), Failure> {
    let mut fails = false;
    let mut next = Instant::now();
    loop {
        match write_once(reader, destinations) {
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
