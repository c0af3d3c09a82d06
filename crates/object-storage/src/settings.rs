//! Settings of a bucket, and the environment that credentials are taken from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Settings of a storage. A folder needs none of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StorageSettings {
    /// URL of the server, like `https://s3.example:9000`; none for Amazon's, Google's or Azure's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Region that requests are signed for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// True if the bucket is a part of the path, not of the host name. Default: true with an endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_style: Option<bool>,
    /// Storage class of objects; heads have the default one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_class: Option<String>,
    /// File of certificates of authorities that are trusted besides those of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Maximum number of requests at once. Default: [`Self::CONNECTIONS`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<usize>,
    /// Number of repetitions of a failed request. Default: [`Self::RETRIES`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Seconds without progress after which a request fails. Default: [`Self::TIMEOUT`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u32>,
    /// Profile in the files of credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// True if requests are not signed, for reading public buckets.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub anonymous: bool,
    /// File that publishers lock, for servers without atomic conditional puts. All publishers must use the same file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<PathBuf>,
    /// True if every stored object is read back and compared; otherwise its length or checksum is.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub read_back: bool,
    /// Folder of the publisher's local state, which remembers the probe of conditional puts.
    #[serde(skip)]
    pub state: Option<PathBuf>,
    /// Environment that credentials are taken from.
    #[serde(skip)]
    pub environment: Environment,
}

impl StorageSettings {
    /// Default maximum of requests at once.
    pub const CONNECTIONS: usize = 32;

    /// Default number of repetitions of a failed request.
    pub const RETRIES: u32 = 8;
    /// Default time without progress after which a request fails, in seconds.
    pub const TIMEOUT: u32 = 60;

    pub(crate) fn connections(&self) -> usize {
        self.connections.unwrap_or(Self::CONNECTIONS).max(1)
    }

    pub(super) fn retries(&self) -> u32 {
        self.retries.unwrap_or(Self::RETRIES)
    }

    pub(super) fn stall(&self) -> Duration {
        Duration::from_secs(self.timeout.unwrap_or(Self::TIMEOUT).max(1).into())
    }
}

/// Returns an endpoint whose host begins with the bucket.
pub(super) fn with_bucket_in_host(endpoint: &str, bucket: &str) -> Option<String> {
    let (scheme, rest) = endpoint.split_once("://")?;
    Some(format!("{scheme}://{bucket}.{}", rest.trim_end_matches('/')))
}

/// Variables that credentials and settings of tools for buckets are taken from.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// Returns the variables of this process.
    pub fn of_process() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let all = std::env::vars_os().filter_map(text).filter(|(name, _)| is_of_interest(name));
        Self(all.collect())
    }

    /// Returns the value of a variable that is set and not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns all variables whose name has a prefix.
    pub(super) fn with_prefix(&self, prefix: &str) -> impl Iterator<Item = (&str, &str)> {
        let all = self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        all.filter(move |(name, value)| name.starts_with(prefix) && !value.is_empty())
    }
}

fn is_of_interest(name: &str) -> bool {
    let prefixes = ["AWS_", "AZURE_", "GOOGLE_", "IDENTITY_"];
    matches!(name, "HOME" | "SERVICE_ACCOUNT") || prefixes.iter().any(|prefix| name.starts_with(prefix))
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl fmt::Debug for Environment {
    /// Shows the names only: the values are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let environment: Environment = [("AWS_SECRET_ACCESS_KEY", "hush")].into_iter().collect();
        let settings = StorageSettings { environment, ..StorageSettings::default() };
        let shown = format!("{settings:?}");
        assert!(shown.contains("AWS_SECRET_ACCESS_KEY") && !shown.contains("hush"), "{shown}");
    }
}
