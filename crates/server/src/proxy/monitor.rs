//! Answers of the proxy about itself: state, metrics and health.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_format::manifest;
use esker_format::name::RepositoryName;

use super::files::Files;
use super::place::Place;
use super::{ProxyState, overview};
use crate::counters::Counters;
use crate::transport::{Answering, Call, Handler};
use crate::{metrics, pages};

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
        "/" => {
            let page = pages::page_of_tables("Proxy", &overview::tables(state));
            Some((page.kind, page.body))
        }
        path if path.starts_with("/dashboard/") => {
            let file = pages::file(path);
            Some((file.kind, file.body))
        }
        _ => None,
    }
}

fn labels(name: &RepositoryName) -> String {
    format!("{{repository=\"{name}\"}}")
}

fn server_labels(name: &RepositoryName, server: &str) -> String {
    let server = server.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "");
    format!("{{repository=\"{name}\",server=\"{server}\"}}")
}

fn borrowed(values: &[(String, u64)]) -> Vec<(&str, u64)> {
    values.iter().map(|(labels, value)| (labels.as_str(), *value)).collect()
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
        let places = self.places.all();
        let named = || places.iter().filter_map(|place| Some((place.name.as_ref()?, &place.files)));
        let up: Vec<_> =
            named().map(|(name, files)| (labels(name), u64::from(!files.is_unreachable()))).collect();
        family("upstream_up", "gauge", "1 if a server of the repository answered last", &borrowed(&up));
        let servers = places.iter().filter_map(|place| {
            let name = place.name.as_ref()?;
            let servers = place.source.network().route.servers.into_iter();
            Some(servers.map(move |server| (server_labels(name, &server.name), u64::from(!server.out))))
        });
        let servers: Vec<_> = servers.flatten().collect();
        let help = "1 unless requests to this server of the repository failed last";
        family("server_up", "gauge", help, &borrowed(&servers));
        let age = |(name, files): (&RepositoryName, &Files)| {
            Some((labels(name), files.get(manifest::PATH)?.age().as_secs()))
        };
        let ages: Vec<_> = named().filter_map(age).collect();
        let help = "Seconds since a server confirmed the manifest of the repository";
        family("head_age_seconds", "gauge", help, &borrowed(&ages));
        text
    }

    /// Returns the number of repositories whose servers don't answer, and whether nothing is served any more.
    pub(crate) fn away(&self) -> (usize, bool) {
        let mut places = self.places.all();
        places.retain(|place| place.name.is_some());
        let is_away = |place: &&Arc<Place>| place.files.is_unreachable();
        let is_over = |place: &Arc<Place>| {
            let kept = place.files.get(manifest::PATH);
            kept.is_none_or(|kept| kept.age() > self.heads.options.stale_age)
        };
        let away = places.iter().filter(is_away).count();
        (away, away > 0 && places.iter().all(|place| is_away(&place) && is_over(place)))
    }
}
