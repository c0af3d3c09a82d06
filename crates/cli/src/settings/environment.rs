//! Reads the environment variables that settings come from, once.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;

/// Environment variables of this process when it started.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment(Arc<BTreeMap<OsString, OsString>>);

impl Environment {
    /// Reads the variables of this process.
    pub(super) fn of_process() -> Self {
        Self::from_iter(std::env::vars_os())
    }

    /// Returns a variable.
    pub(crate) fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    /// Returns the folder or file that a variable names, if its path is absolute.
    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        self.get(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }

    /// Returns all variables that are text: configuration files and variant symlinks refer to them.
    pub(crate) fn texts(&self) -> BTreeMap<String, String> {
        let text = |(name, value): (&OsString, &OsString)| {
            Some((name.to_str()?.to_owned(), value.to_str()?.to_owned()))
        };
        self.0.iter().filter_map(text).collect()
    }

    /// Returns the proxy that `auto` stands for in lists of proxies.
    pub(crate) fn proxy(&self) -> Option<&str> {
        self.get("http_proxy").and_then(OsStr::to_str).filter(|proxy| !proxy.trim().is_empty())
    }

    /// Returns true if `no_proxy` names the host of a URL, or a domain of it.
    pub(crate) fn is_near(&self, url: &str) -> bool {
        let host = url.split_once("://").map_or(url, |(_, rest)| rest);
        let host = host.split(['/', ':']).next().unwrap_or_default();
        let named = self.get("no_proxy").and_then(OsStr::to_str).unwrap_or_default();
        named.split(',').map(|name| name.trim().trim_start_matches('.')).any(|name| {
            let is_below = || host.strip_suffix(name).is_some_and(|rest| rest.ends_with('.'));
            name == "*" || !name.is_empty() && (host == name || is_below())
        })
    }
}

impl FromIterator<(OsString, OsString)> for Environment {
    fn from_iter<I: IntoIterator<Item = (OsString, OsString)>>(variables: I) -> Self {
        Self(Arc::new(variables.into_iter().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blank_proxy_and_a_relative_path_count_as_unset() {
        let of = |name: &str, value: &str| Environment::from_iter([(name.into(), value.into())]);
        assert_eq!(of("http_proxy", " ").proxy(), None);
        assert_eq!(of("http_proxy", "http://p:3128").proxy(), Some("http://p:3128"));
        let near = of("no_proxy", "localhost, .example.org");
        assert!(near.is_near("http://localhost:80/x") && near.is_near("https://a.example.org/x"));
        assert!(near.is_near("http://example.org") && !near.is_near("http://anexample.org/x"));
        assert!(of("no_proxy", "*").is_near("http://h/x") && !of("no_proxy", "").is_near("http://h/x"));
        assert_eq!(of("TMPDIR", "here").path("TMPDIR"), None);
        assert_eq!(of("TMPDIR", "/there").path("TMPDIR"), Some("/there".into()));
    }
}
