//! Parses redirects.

use std::sync::Arc;

use super::Router;
use super::request_state::{REDIRECTS_MAX, RequestState};
use super::route_table::Route;
use crate::callback::Callback;
use crate::error::StoreError;
use crate::transport::BaseUrl;
use crate::transport::source::{Fetch, Stored};

impl Router {
    /// Requests the target of a redirect through the same egress.
    pub(super) fn follow(
        self: Arc<Self>,
        route: Route,
        location: &str,
        fetch: Fetch,
        mut state: RequestState,
        error: StoreError,
        done: Callback<Stored>,
    ) {
        let from = &self.bases[route.server as usize];
        let Some((base, path)) = target(location, from) else {
            // It points nowhere that we go to, so it counts as a failure.
            state.redirects = REDIRECTS_MAX;
            return self.failed(route, fetch, state, error, done);
        };
        let mut elsewhere = Fetch { path, ..fetch.clone() };
        if base.origin() != from.origin() {
            // Credentials for one server are not sent to another.
            let is_open = |field: &&(String, String)| !field.0.eq_ignore_ascii_case("authorization");
            let open = |fields: Arc<[(String, String)]>| fields.iter().filter(is_open).cloned().collect();
            elsewhere.http.fields = elsewhere.http.fields.map(open);
            elsewhere.http.form = None;
        }
        let source = self.new_source(&base, route.egress).source;
        let answered = Callback::new(move |outcome| match outcome {
            Ok(stored) => {
                self.served(route, &state);
                done.ok(stored);
            }
            Err(error) => self.failed(route, fetch, state, error, done),
        });
        source.fetch(elsewhere, answered);
    }
}

/// Returns the server and the path that a redirect points to.
fn target(location: &str, from: &BaseUrl) -> Option<(BaseUrl, String)> {
    let (server, path) = match location.split_once("://") {
        // A redirect must not downgrade from https to http.
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
