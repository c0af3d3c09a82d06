//! Answers that point to another place.

use std::sync::Arc;

use super::Shared;
use super::trip::Trip;
use super::ways::Way;
use crate::done::Done;
use crate::error::StoreError;
use crate::http::BaseUrl;
use crate::source::{Fetch, Stored};

/// How many may follow each other; the reference client's limit.
pub(super) const REDIRECTS_MAX: u32 = 4;

impl Shared {
    /// Asks where an answer pointed to, on the same way out.
    pub(super) fn follow(
        self: Arc<Self>,
        way: Way,
        location: &str,
        fetch: Fetch,
        mut trip: Trip,
        error: StoreError,
        done: Done<Stored>,
    ) {
        let from = &self.bases[way.server as usize];
        let Some((base, path)) = target(location, from) else {
            // It points nowhere that we go to, so it counts as a failure.
            trip.redirects = REDIRECTS_MAX;
            return self.failed(way, fetch, trip, error, done);
        };
        let mut elsewhere = Fetch { path, ..fetch.clone() };
        if base.origin() != from.origin() {
            // What one server may know of who asks is not for another.
            let is_open = |field: &&(String, String)| !field.0.eq_ignore_ascii_case("authorization");
            let open = |fields: Arc<[(String, String)]>| fields.iter().filter(is_open).cloned().collect();
            elsewhere.fields = elsewhere.fields.map(open);
            elsewhere.form = None;
        }
        let source = self.take(&base, way.exit).source;
        let answered = Done::new(move |outcome| match outcome {
            Ok(stored) => {
                self.served(way, &trip);
                done.ok(stored);
            }
            Err(error) => self.failed(way, fetch, trip, error, done),
        });
        source.fetch(elsewhere, answered);
    }
}

/// The server and the path that a redirect points to.
fn target(location: &str, from: &BaseUrl) -> Option<(BaseUrl, String)> {
    let (server, path) = match location.split_once("://") {
        // What was to be private isn't sent in the open because somebody says so.
        Some(("http", _)) if from.tls => return None,
        Some((scheme @ ("http" | "https"), rest)) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            (BaseUrl::parse(&format!("{scheme}://{authority}")).ok()?, path)
        }
        _ if location.starts_with('/') && !location.starts_with("//") => (from.server(), location),
        _ => return None,
    };
    let path = path.strip_prefix('/').unwrap_or(path);
    let plain = path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    plain.then(|| (server, path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_is_read_as_server_and_path() {
        let from = BaseUrl::parse("http://a:8000/cvmfs/x").unwrap();
        let read = |location| target(location, &from).map(|(base, path)| format!("{base} {path}"));
        assert_eq!(read("http://b/y/data/1?key=2").as_deref(), Some("http://b y/data/1?key=2"));
        assert_eq!(read("/z").as_deref(), Some("http://a:8000 z"));
        assert_eq!(read("https://b/x").as_deref(), Some("https://b x"));
        assert_eq!(target("http://b/x", &BaseUrl::parse("https://a/x").unwrap()), None);
        for nowhere in ["ftp://b/x", "//b/x", "x", "", "http://b/a b", "http://b/a#b", "http://b:x/a"] {
            assert_eq!(read(nowhere), None, "{nowhere}");
        }
    }
}
