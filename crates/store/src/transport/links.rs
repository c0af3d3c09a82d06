//! Links of responses to other servers that have the same file.
//!
//! Source: RFC 6249, and `download.cc` of CernVM-FS 2.14, which cuts off the path of a link. Here the path stays as far as it stands
//! before the path of the request.

use std::cmp::Reverse;

use hyper::HeaderMap;
use hyper::header::LINK;
use parking_lot::Mutex;

use super::BaseUrl;

/// Most servers that are used of one answer.
const LINKS_MAX: usize = 16;

/// Collects the links of the responses to one request.
#[derive(Debug, Default)]
pub struct Links(Mutex<Vec<String>>);

impl Links {
    /// Adds those of a response.
    pub(crate) fn add(&self, fields: &HeaderMap) {
        let values = fields.get_all(LINK).into_iter().filter_map(|value| value.to_str().ok());
        self.0.lock().extend(values.map(str::to_owned));
    }

    /// Returns the base URLs of the linked servers, the preferred one first, for a request of a path.
    pub(crate) fn bases(&self, path: &str) -> Vec<String> {
        let all = self.0.lock().join(",");
        let mut links: Vec<&str> = all.split(',').collect();
        let priority = |link: &&str| -> Option<u64> {
            link.split(';').find_map(|part| part.trim().strip_prefix("pri=")?.trim_matches('"').parse().ok())
        };
        if links.iter().any(|link| priority(link).is_some()) {
            // Links without a priority come last.
            links.sort_by_key(|link| Reverse(priority(link).map(Reverse)));
        }
        let mut bases = Vec::new();
        for link in links {
            let is_duplicate = |part: &str| matches!(part.trim(), "rel=duplicate" | "rel=\"duplicate\"");
            let url = link.split_once('<').and_then(|(_, rest)| rest.split_once('>')).map(|(url, _)| url);
            let base = url.filter(|_| link.split(';').any(is_duplicate)).and_then(|url| base_of(url, path));
            bases.extend(base.filter(|base| !bases.contains(base)));
        }
        bases.truncate(LINKS_MAX);
        bases
    }
}

/// Returns what stands before the path in a URL, or its server if the URL has another path.
fn base_of(url: &str, path: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://").filter(|(scheme, _)| matches!(*scheme, "http" | "https"))?;
    let before = rest.strip_suffix(path).and_then(|before| before.strip_suffix('/'));
    let authority = rest.split('/').next().unwrap_or_default();
    let base = format!("{scheme}://{}", before.unwrap_or(authority));
    BaseUrl::parse(&base).is_ok().then_some(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_become_servers_in_their_order() {
        let bases = |fields: &[&str]| {
            let links = Links::default();
            let mut map = HeaderMap::new();
            fields.iter().for_each(|field| _ = map.append(LINK, field.parse().unwrap()));
            links.add(&map);
            links.bases("data/ab/cdef").join(" ")
        };
        assert_eq!(
            bases(&[
                "<http://a/cvmfs/x/data/ab/cdef>; rel=duplicate; pri=2; depth=3, <https://b:8443/y/data/ab/cdef>; rel=\"duplicate\"; pri=1",
                "<http://c/elsewhere>; rel=duplicate, <http://d/>; rel=describedby, <ftp://e/>; rel=duplicate",
            ]),
            "https://b:8443/y http://a/cvmfs/x http://c"
        );
        assert_eq!(
            bases(&["<http://b/>;rel=duplicate,<http://a/>;rel=duplicate,<http://b>;rel=duplicate"]),
            "http://b http://a"
        );
        assert_eq!(bases(&["", "<http://a/", "http://a; rel=duplicate", "<http://:x>; rel=duplicate"]), "");
    }
}
