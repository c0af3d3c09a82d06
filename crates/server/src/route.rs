//! The served paths: an allow list of patterns. Other files in a folder (uploads in progress, databases of the
//! publisher, forgotten keys) do not exist for clients, whatever their mode.

use esker_format::batch;
use esker_format::name::RepositoryName;
use esker_format::object::ObjectName;

/// Resource that a URL path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// A file of a repository.
    File { repository: RepositoryName, file: Allowed },
    /// Event stream of the repository's new revisions.
    Revisions { repository: RepositoryName },
    /// Many objects of a repository in one response.
    Batch { repository: RepositoryName, names: Vec<ObjectName> },
}

/// A file that clients may read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Allowed {
    /// A file in the root of the repository, which may change: manifest, whitelist, status, marks, alternative
    /// paths.
    Top(String),
    /// Never changes, because its name is the hash of its content.
    Object(ObjectName),
    /// Statistics of the publisher.
    Statistics(String),
}

impl Allowed {
    /// Returns the path below the repository's folder.
    pub(crate) fn path(&self) -> String {
        match self {
            Self::Top(name) => name.clone(),
            Self::Object(name) => name.path(),
            Self::Statistics(name) => format!("stats/{name}"),
        }
    }
}

/// Returns the meaning of a request path; `None` if there is none.
pub(crate) fn find(path: &str) -> Option<Route> {
    let decoded = decode(path)?;
    // Clients write a double slash where a base URL ends in one. No other empty or dotted part matches anything.
    let parts: Vec<&str> = decoded.split('/').filter(|part| !part.is_empty()).collect();
    let ["cvmfs", repository, inner @ ..] = parts.as_slice() else { return None };
    // The folder of the info API, which has its routes elsewhere.
    if *repository == "info" {
        return None;
    }
    let repository = RepositoryName::parse(repository).ok()?;
    if let [".esker", "revisions"] = inner {
        return Some(Route::Revisions { repository });
    }
    if let [".esker", "batch", last] = inner {
        return Some(Route::Batch { repository, names: batch::names(last)? });
    }
    Some(Route::File { repository, file: allowed(inner)? })
}

fn allowed(inner: &[&str]) -> Option<Allowed> {
    match inner {
        [name] if name.starts_with(".cvmfs") && is_plain(name) => Some(Allowed::Top((*name).to_owned())),
        ["data", folder, rest] => {
            let object = ObjectName::parse(&format!("{folder}{rest}"))?;
            // Nothing but the one way to write it.
            (object.path() == format!("data/{folder}/{rest}")).then_some(Allowed::Object(object))
        }
        ["stats", name] if !name.starts_with('.') && is_plain(name) => {
            Some(Allowed::Statistics((*name).to_owned()))
        }
        _ => None,
    }
}

fn is_plain(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

/// Decodes `%41`; `None` if the result is not text or has control characters. `None` if that leaves anything
/// but text without control characters.
fn decode(path: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(path.len());
    let mut bytes = path.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let mut digit = || bytes.next().and_then(|digit| char::from(digit).to_digit(16));
            let value = digit()? * 16 + digit()?;
            decoded.push(u8::try_from(value).ok()?);
        } else {
            decoded.push(byte);
        }
    }
    String::from_utf8(decoded).ok().filter(|text| !text.chars().any(char::is_control))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: &str = "e8/ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78";

    fn file(path: &str) -> Option<String> {
        match find(path)? {
            Route::File { repository, file } => Some(format!("{}:{}", repository.as_str(), file.path())),
            other => Some(format!("{other:?}")),
        }
    }

    #[test]
    fn served_paths_are_recognised() {
        for (path, found) in [
            ("/cvmfs/a.test/.cvmfspublished", "a.test:.cvmfspublished".to_owned()),
            ("/cvmfs/a.test//.cvmfswhitelist", "a.test:.cvmfswhitelist".to_owned()),
            ("/cvmfs/a.test/%2ecvmfspublished", "a.test:.cvmfspublished".to_owned()),
            ("/cvmfs/a.test/.cvmfs_status.json", "a.test:.cvmfs_status.json".to_owned()),
            (&format!("/cvmfs/a.test/data/{OBJECT}"), format!("a.test:data/{OBJECT}")),
            (&format!("/cvmfs/a.test/data/{OBJECT}C"), format!("a.test:data/{OBJECT}C")),
            (&format!("/cvmfs/a.test/data/{OBJECT}-rmd160P"), format!("a.test:data/{OBJECT}-rmd160P")),
            ("/cvmfs/a.test/stats/stats.db", "a.test:stats/stats.db".to_owned()),
        ] {
            assert_eq!(file(path).as_deref(), Some(found.as_str()), "{path}");
        }
    }

    #[test]
    fn other_paths_are_refused() {
        for path in [
            "/cvmfs/a.test",
            "/cvmfs/a.test/",
            "/cvmfs/a.test/data",
            "/cvmfs/a.test/data/",
            "/cvmfs/a.test/data/txn/x",
            "/cvmfs/a.test/data/e8/",
            "/cvmfs/a.test/data/e8/ec3d",
            "/cvmfs/a.test/data/E8/EC3D88B62EBF526E4E5A4FF6162A3AA48A6B78",
            "/cvmfs/a.test/data/e8/ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78T",
            "/cvmfs/a.test/data/e8/../e8/ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78",
            "/cvmfs/a.test/keys/a.test.key",
            "/cvmfs/a.test/a.test.masterkey",
            "/cvmfs/../etc/passwd",
            "/cvmfs/%2e%2e/%2e%2e/etc/passwd",
            "/cvmfs/a.test/..%2f..%2fetc%2fpasswd",
            "/cvmfs/a.test/.cvmfs%00published",
            "/cvmfs/a.test/.esker",
            "/cvmfs/a.test/.esker/revisions/x",
            "/cvmfs/.esker/revisions",
            "/cvmfs/a.test/.esker/batch",
            "/cvmfs/a.test/.esker/batch/..",
            "/cvmfs/a.test/.esker/batch/e8ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78,",
            "/cvmfs/a.test/.cvmfs%",
            "/cvmfs/a.test/.cvmfs%ff",
            "/cvmfs/a.test/stats/.hidden",
            "/cvmfs/info/v1/repositories.json",
            "/etc/passwd",
            "//etc/passwd",
        ] {
            assert_eq!(find(path), None, "{path}");
        }
    }

    proptest::proptest! {
        /// For any request path, the opened file is inside the repository's folder.
        #[test]
        fn no_path_leads_out(path in "/cvmfs/a.test/([a-z%./0-9-]|\\.\\.|%2e|%2f|data/|stats/|\\.cvmfs){0,12}") {
            // A batch has names of objects only.
            if let Some(Route::File { file, .. }) = find(&path) {
                for part in file.path().split('/') {
                    assert!(!part.is_empty() && part != "." && part != "..");
                }
            }
        }
    }
}
