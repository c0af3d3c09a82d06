//! Answers of the proxy about itself: state, metrics and health.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::ProxyState;
use crate::counters::Counters;
use crate::metrics;
use crate::transport::{Answering, Call, Handler};

/// Path of the state as JSON.
const STATE: &str = "/.esker/proxy";
/// Path of the metrics.
const METRICS: &str = "/metrics";
/// Path at which service managers ask.
pub(crate) const HEALTHY: &str = "/healthz";

/// Handler of the address for status and metrics.
pub(crate) struct Monitor(pub(crate) Arc<ProxyState>);

impl Handler for Monitor {
    fn answer(self: Arc<Self>, call: Call) -> Answering {
        Box::pin(async move { self.0.respond_about_itself(&call).await })
    }
}

/// Returns true for the paths of the state and of the metrics.
pub(crate) fn is_about_state(path: &str) -> bool {
    matches!(path, STATE | METRICS)
}

/// Returns the type and the text of an answer about the proxy; `None` for other paths.
pub(crate) fn answer(state: &ProxyState, path: &str) -> Option<(&'static str, String)> {
    match path {
        STATE => Some(("application/json", format!("{:#}\n", state.status()))),
        METRICS => Some((metrics::CONTENT_TYPE, text(state, &state.served))),
        HEALTHY => Some(("text/plain", "ok\n".to_owned())),
        _ => None,
    }
}

/// Returns the metrics of the server side, then those of cache and upstream.
fn text(state: &ProxyState, counters: &Arc<Counters>) -> String {
    metrics::write_with(counters, Vec::new(), &state.cache_metrics("proxy"))
}

impl ProxyState {
    /// Returns the metrics of cache and upstream, whose names begin with the kind of the server.
    pub(crate) fn cache_metrics(&self, server: &str) -> String {
        let (cache, objects, heads) = (&self.objects.cache, &self.objects.counters, &self.heads.counters);
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut text = String::new();
        let mut family = |name: &str, kind: &str, help: &str, values: &[(&str, u64)]| {
            let end = if kind == "counter" { "_total" } else { "" };
            // Writing to a string succeeds.
            let _ =
                writeln!(text, "# HELP esker_{server}_{name} {help}.\n# TYPE esker_{server}_{name} {kind}");
            for (labels, value) in values {
                let _ = writeln!(text, "esker_{server}_{name}{end}{labels} {value}");
            }
        };
        family("cache_bytes", "gauge", "Bytes in the cache", &[("", cache.used())]);
        family("cache_limit_bytes", "gauge", "Largest size of the cache", &[("", cache.limit)]);
        family("evicted_objects", "counter", "Objects evicted from the cache", &[("", read(&cache.evicted))]);
        let results = [
            ("{result=\"hit\"}", read(&objects.hits)),
            ("{result=\"miss\"}", read(&objects.misses)),
            ("{result=\"failed\"}", read(&objects.failed)),
        ];
        family("objects", "counter", "Requests for objects", &results);
        family(
            "passed_on_objects",
            "counter",
            "Objects passed on and not stored",
            &[("", read(&objects.passed_on))],
        );
        family("fetched_objects", "counter", "Objects fetched", &[("", read(&objects.fetched))]);
        family("fetched_bytes", "counter", "Bytes of objects fetched", &[("", read(&objects.fetched_bytes))]);
        let results = [
            ("{result=\"hit\"}", read(&heads.hits)),
            ("{result=\"confirmed\"}", read(&heads.confirmed)),
            ("{result=\"stale\"}", read(&heads.stale)),
            ("{result=\"refused\"}", read(&heads.refused)),
        ];
        family("files", "counter", "Requests for files that change", &results);
        text
    }
}
