//! Meaning of a request: which file of which repository, from which servers.

use esker_format::name::RepositoryName;
use esker_format::object::ObjectName;
use hyper::header::HeaderMap;
use hyper::{Method, StatusCode, Uri};

use super::destinations::{Destinations, Group};
use crate::route::{self, Allowed, Route};

/// Header that marks a request of another proxy of the site.
pub(crate) const PEER: &str = "esker-peer";
/// Longest path of a request for the Geo-API.
const GEO_MAX: usize = 2000;

/// Requested thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Object and its path below the repository.
    Object(ObjectName, String),
    /// A file that may change, by its path below the folder.
    File(String),
    Batch(Vec<ObjectName>),
    Revisions,
}

impl Wanted {
    /// Returns what a file of a repository is; `None` for statistics, which no other server needs.
    pub(crate) fn file(file: Allowed) -> Option<Self> {
        Some(match file {
            Allowed::Object(name) => Self::Object(name, name.path()),
            Allowed::Top(top) => match top.strip_prefix(".cvmfsalt-").and_then(ObjectName::parse) {
                Some(name) if name.alternative_path() == top => Self::Object(name, top),
                _ => Self::File(top),
            },
            Allowed::Statistics(_) => return None,
        })
    }
}

/// Folder below the repositories' path of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Folder {
    pub(crate) group: Group,
    /// The repository's name, or the folder of the files about the server.
    pub(crate) path: String,
}

impl Folder {
    /// Returns the folder of a repository in object storage.
    pub(crate) fn of_storage(name: &RepositoryName) -> Self {
        Self { group: Group::Storage, path: name.as_str().to_owned() }
    }

    /// Returns the name of the repository; `None` for the folder of the files about the server.
    pub(crate) fn repository(&self) -> Option<RepositoryName> {
        RepositoryName::parse(&self.path).ok()
    }
}

/// Parsed request.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) folder: Folder,
    pub(crate) wanted: Wanted,
    /// True if another proxy of the site asks.
    pub(crate) is_peer: bool,
}

/// Refusal of a request with a status and the reason.
pub(crate) type Refusal = (StatusCode, &'static str);

const FORBIDDEN: Refusal = (
    StatusCode::FORBIDDEN,
    "this proxy forwards requests to repositories of its configured servers only; its administrator can add \
     servers with --upstream URL or --allow HOST",
);

/// Parses a request.
pub(crate) fn parse(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    destinations: &Destinations,
) -> Result<Target, Refusal> {
    if method == Method::CONNECT {
        return Err((StatusCode::FORBIDDEN, "this proxy opens no tunnels (CONNECT)"));
    }
    if method != Method::GET && method != Method::HEAD {
        return Err((StatusCode::METHOD_NOT_ALLOWED, "this proxy answers GET and HEAD only"));
    }
    let (group, path) = destinations.find(uri).ok_or(FORBIDDEN)?;
    let (path, wanted) =
        find(path).ok_or((StatusCode::FORBIDDEN, "the path is none of a repository's files"))?;
    let folder = Folder { group, path };
    Ok(Target { folder, wanted, is_peer: headers.contains_key(PEER) })
}

/// Returns the folder and the file of a path below the repositories.
fn find(path: &str) -> Option<(String, Wanted)> {
    if let Some(file) = path.strip_prefix("/info/v1/") {
        let is_served = matches!(file, "meta.json" | "repositories.json");
        return is_served.then(|| ("info/v1".to_owned(), Wanted::File(file.to_owned())));
    }
    if let Some(found) = geo(path) {
        return Some(found);
    }
    match route::find(&format!("/cvmfs{path}"))? {
        Route::File { repository, file } => Some((repository.as_str().to_owned(), Wanted::file(file)?)),
        Route::Batch { repository, names } => Some((repository.as_str().to_owned(), Wanted::Batch(names))),
        Route::Revisions { repository } => Some((repository.as_str().to_owned(), Wanted::Revisions)),
    }
}

/// Returns a request for the order of servers by distance, which only the server can answer.
fn geo(path: &str) -> Option<(String, Wanted)> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/.@+-_:,[]".contains(&byte);
    let (repository, query) = path.trim_start_matches('/').split_once("/api/v1.0/geo/")?;
    let repository = RepositoryName::parse(repository).ok()?;
    let is_query = query.len() <= GEO_MAX && query.bytes().all(is_plain) && !query.contains("..");
    is_query.then(|| (repository.as_str().to_owned(), Wanted::File(format!("api/v1.0/geo/{query}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "e8ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78";

    #[test]
    fn paths_of_repositories_are_recognised() {
        let object = |kind: &str| {
            let name = ObjectName::parse(&format!("{HASH}{kind}")).expect("a name");
            Some(("a.test".to_owned(), Wanted::Object(name, name.path())))
        };
        assert_eq!(find("/a.test/data/e8/ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78"), object(""));
        assert_eq!(find("/a.test//data/e8/ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78C"), object("C"));
        let alternative = format!(".cvmfsalt-{HASH}C");
        match find(&format!("/a.test/{alternative}")) {
            Some((_, Wanted::Object(name, path))) => {
                assert_eq!((name.to_string(), path), (format!("{HASH}C"), alternative));
            }
            other => panic!("{other:?}"),
        }
        let file = |folder: &str, file: &str| Some((folder.to_owned(), Wanted::File(file.to_owned())));
        assert_eq!(find("/a.test/.cvmfspublished"), file("a.test", ".cvmfspublished"));
        assert_eq!(find("/info/v1/meta.json"), file("info/v1", "meta.json"));
        let geo = "api/v1.0/geo/proxy.site.test/s1.test,s2.test";
        assert_eq!(find(&format!("/a.test/{geo}")), file("a.test", geo));
        for path in
            ["/", "/a.test", "/a.test/data/txn/x", "/a.test/stats/stats.db", "/a.test/api/v1.0/geo/x?y"]
        {
            assert_eq!(find(path), None, "{path}");
        }
    }

    #[test]
    fn the_folder_of_a_server_is_no_repository() {
        let folder = |path: &str| Folder { group: Group::Upstreams, path: path.to_owned() };
        assert_eq!(folder("info/v1").repository(), None);
        assert_eq!(folder("a.test").repository().expect("a name").as_str(), "a.test");
    }
}
