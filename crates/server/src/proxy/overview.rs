//! Page of the proxy for administrators: what needs a look first.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use esker_format::manifest;

use super::ProxyState;
use super::place::Place;
use crate::pages::{PageTable, duration, size};

/// Returns true if no server answers, or none of those that do has the newest revision.
fn has_problem(place: &Place) -> bool {
    place.files.is_unreachable() || place.files.older(manifest::PATH).is_some()
}

/// Returns the tables of the page: repositories, servers and cache. Those with problems come first.
pub(super) fn tables(state: &ProxyState) -> Vec<PageTable> {
    let mut places = state.places.all();
    places.retain(|place| place.name.is_some());
    places.sort_by_key(|place| (!has_problem(place), place.title().to_owned()));
    let problems = places.iter().filter(|place| has_problem(place)).count();
    let servers = places.iter().flat_map(servers);
    let mut servers: Vec<Vec<String>> = servers.collect();
    servers.sort_by_key(|row| row.get(2).is_some_and(|state| state == "up"));
    let cache = &state.objects.cache;
    let counters = &state.objects.counters;
    let (hits, misses) = (counters.hits.load(Ordering::Relaxed), counters.misses.load(Ordering::Relaxed));
    let row = |what: &str, value: String| vec![what.to_owned(), value];
    vec![
        PageTable {
            caption: format!("{problems} of {} repositories have problems", places.len()),
            columns: vec!["Repository", "Servers", "Revision", "Confirmed", "Handed on"],
            rows: places.iter().map(repository).collect(),
        },
        PageTable {
            caption: "Servers".to_owned(),
            columns: vec!["Server", "Repository", "State", "Failure"],
            rows: servers,
        },
        PageTable {
            caption: "Cache".to_owned(),
            columns: vec!["What", "Value"],
            rows: vec![
                row("Used", format!("{} of {}", size(cache.used()), size(cache.limit))),
                row("Objects from the cache", hits.to_string()),
                row("Objects from servers", misses.to_string()),
            ],
        },
    ]
}

fn repository(place: &Arc<Place>) -> Vec<String> {
    let files = &place.files;
    let kept = files.get(manifest::PATH);
    let revision = files.revision().map_or_else(|| "none".to_owned(), |revision| revision.number.to_string());
    let confirmed = kept.map_or_else(
        || "never".to_owned(),
        |kept| format!("{} ago", duration(i64::try_from(kept.age().as_secs()).unwrap_or(i64::MAX))),
    );
    let is_older = files.older(manifest::PATH).is_some();
    vec![
        place.title().to_owned(),
        if files.is_unreachable() { "away" } else { "answer" }.to_owned(),
        revision,
        confirmed,
        if is_older { "an older revision, which can be read whole" } else { "the newest" }.to_owned(),
    ]
}

fn servers(place: &Arc<Place>) -> Vec<Vec<String>> {
    let servers = place.source.network().route.servers.into_iter();
    let row = |server: esker_store::EndpointStatus| {
        let state = if server.out { "out" } else { "up" };
        vec![server.name, place.title().to_owned(), state.to_owned(), server.why.unwrap_or_default()]
    };
    servers.map(row).collect()
}
