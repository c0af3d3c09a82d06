//! Metrics in the text form that Prometheus reads.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::counters::Counters;
use crate::dashboard::RepositoryState;
use crate::transport::chunk;

/// Type of the text.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Upper bounds of the durations of responses in seconds.
const SECONDS: [f64; 13] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 120.0];

/// Kind of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An object.
    Object,
    /// A file that changes: manifest, whitelist, status.
    Metadata,
    /// Many objects.
    Batch,
    /// A stream of new revisions.
    Events,
    /// A page or an interface.
    #[default]
    Page,
    /// A request that is malformed or over a limit.
    Refused,
}

impl Kind {
    const ALL: [Self; 6] =
        [Self::Object, Self::Metadata, Self::Batch, Self::Events, Self::Page, Self::Refused];

    fn label(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Metadata => "metadata",
            Self::Batch => "batch",
            Self::Events => "events",
            Self::Page => "page",
            Self::Refused => "refused",
        }
    }
}

type Labels = Vec<(&'static str, String)>;

/// Metrics of responses.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<([Kinds; 1], [Status; 1]), Counter>,
    kinds: [OfKind; Kind::ALL.len()],
}

#[derive(Clone, Debug)]
struct OfKind {
    bytes: Counter,
    seconds: Histogram,
}

type Kinds = (&'static str, &'static str);
type Status = (&'static str, u16);

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("esker");
        let requests = Family::default();
        registry.register("http_requests", "Responses by kind and status", requests.clone());
        let bytes = Family::<[Kinds; 1], Counter>::default();
        registry.register("http_response_bytes", "Bytes in bodies of responses", bytes.clone());
        let seconds = Family::<[Kinds; 1], Histogram>::new_with_constructor(|| Histogram::new(SECONDS));
        registry.register(
            "http_request_duration_seconds",
            "Time from the request's head to the end of its response",
            seconds.clone(),
        );
        let kinds = Kind::ALL.map(|kind| {
            let labels = [("kind", kind.label())];
            OfKind {
                bytes: bytes.get_or_create_owned(&labels),
                seconds: seconds.get_or_create_owned(&labels),
            }
        });
        Self { registry, requests, kinds }
    }
}

impl Metrics {
    pub(crate) fn answered(&self, kind: Kind, status: u16, sent: u64, took: Duration) {
        self.requests.get_or_create(&([("kind", kind.label())], [("status", status)])).inc();
        if let Some(of_kind) = self.kinds.get(kind as usize) {
            of_kind.bytes.inc_by(sent);
            of_kind.seconds.observe(took.as_secs_f64());
        }
    }
}

/// Returns the text of all metrics, those in `further` included.
pub(crate) fn write_with(
    counters: &Arc<Counters>,
    repositories: Vec<RepositoryState>,
    further: &str,
) -> String {
    let mut text = String::new();
    let mut now = Registry::with_prefix("esker");
    now.register_collector(Box::new(Now { counters: counters.clone(), repositories }));
    // Writing to a string succeeds.
    let _ = text::encode_registry(&mut text, &counters.metrics.registry);
    let _ = text::encode_registry(&mut text, &now);
    text.push_str(further);
    let _ = text::encode_eof(&mut text);
    text
}

/// Collects values that change between requests for metrics, at each request.
#[derive(Debug)]
struct Now {
    counters: Arc<Counters>,
    repositories: Vec<RepositoryState>,
}

impl Collector for Now {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let served = self.counters.so_far();
        for (name, help, value) in [
            ("http_connections", "Accepted connections", served.connections),
            ("http_responses_broken_off", "Incomplete responses", served.broken_off),
            ("access_log_lines_lost", "Log lines that the disk was too slow for", self.counters.lost_lines()),
        ] {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        for (name, help, value) in [
            ("http_connections_open", "Connections that are open now", self.counters.open()),
            ("http_body_buffer_bytes", "Bytes read from files that are not sent yet", chunk::held() as u64),
        ] {
            gauge(&mut encoder, name, help, [(Vec::new(), i64::try_from(value).unwrap_or(i64::MAX))])?;
        }
        let limits = self.counters.limits_hit();
        let counter = ConstCounter::new(0_u64);
        let mut family = encoder.encode_descriptor(
            "http_limits_hit",
            "Clients refused by a limit",
            None,
            counter.metric_type(),
        )?;
        for (limit, count) in limits {
            ConstCounter::new(count).encode(family.encode_family(&[("limit", limit)])?)?;
        }
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        gauge(&mut encoder, "build_info", "Version of the server", [(version, 1)])?;
        self.repositories(&mut encoder)
    }
}

impl Now {
    fn repositories(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        type Value = fn(&RepositoryState) -> Option<i64>;
        let all: [(&str, &str, Value); 6] = [
            ("repository_revision", "Revision in the manifest", |one| {
                i64::try_from(one.head.as_ref().ok()?.revision).ok()
            }),
            ("repository_published_timestamp_seconds", "Time of the last publish", |one| {
                Some(one.head.as_ref().ok()?.published.0)
            }),
            ("repository_ttl_seconds", "Lifetime of the manifest", |one| {
                Some(one.head.as_ref().ok()?.ttl.into())
            }),
            ("repository_whitelist_expiry_timestamp_seconds", "Time at which the whitelist expires", |one| {
                Some(one.whitelist.as_ref().ok()?.0)
            }),
            ("repository_last_snapshot_timestamp_seconds", "Time of the last replication", |one| {
                Some(one.status.last_snapshot?.0)
            }),
            ("repository_last_gc_timestamp_seconds", "Time of the last garbage collection", |one| {
                Some(one.status.last_collect?.0)
            }),
        ];
        for (name, help, value) in all {
            let values = self
                .repositories
                .iter()
                .filter_map(|one| value(one).map(|value| (vec![("repository", one.folder.clone())], value)));
            gauge(encoder, name, help, values)?;
        }
        Ok(())
    }
}

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (Labels, i64)>,
) -> Result<(), std::fmt::Error> {
    let none = ConstGauge::new(0_i64);
    let mut family = encoder.encode_descriptor(name, help, None, none.metric_type())?;
    for (labels, value) in values {
        ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}
