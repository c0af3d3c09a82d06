//! Settings of a bucket, and the environment that credentials are taken from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::url::{Bucket, Provider};

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
    /// Whether the bucket is a part of the path, not of the host name. Default: true with an endpoint.
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
    /// Profile in the files of credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Whether requests are not signed, for reading public buckets.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub anonymous: bool,
    /// File that publishers lock, for servers without atomic conditional puts. All publishers must use the same file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<PathBuf>,
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

    /// Returns whether requests name the bucket in their path.
    pub(super) fn has_path_style(&self, bucket: &Bucket) -> bool {
        // A certificate for `*.s3.REGION.amazonaws.com` is not for names with further dots.
        self.path_style.unwrap_or(self.endpoint.is_some() || bucket.name.contains('.'))
    }

    /// Returns the URL under which clients read the repository from a public bucket.
    pub fn public_url(&self, bucket: &Bucket) -> Option<String> {
        let variable = |name: &str| self.environment.get(name).map(str::to_owned);
        let (endpoint, path_style) = match bucket.provider {
            Provider::S3 => {
                let region = self.region.clone().or_else(|| variable("AWS_REGION"));
                let region = region.or_else(|| variable("AWS_DEFAULT_REGION"));
                let region = region.unwrap_or_else(|| "us-east-1".to_owned());
                let amazon = format!("https://s3.{region}.amazonaws.com");
                let endpoint = self.endpoint.clone().or_else(|| variable("AWS_ENDPOINT_URL_S3"));
                let endpoint = endpoint.or_else(|| variable("AWS_ENDPOINT_URL"));
                let path_style = self.path_style.unwrap_or(endpoint.is_some() || bucket.name.contains('.'));
                (endpoint.unwrap_or(amazon), path_style)
            }
            Provider::Google => {
                (self.endpoint.clone().unwrap_or_else(|| "https://storage.googleapis.com".to_owned()), true)
            }
            Provider::Azure => {
                let account = variable("AZURE_STORAGE_ACCOUNT_NAME");
                let own = account.map(|account| format!("https://{account}.blob.core.windows.net"));
                (self.endpoint.clone().or(own)?, true)
            }
        };
        let base = if path_style {
            format!("{}/{}", endpoint.trim_end_matches('/'), bucket.name)
        } else {
            with_bucket_in_host(&endpoint, &bucket.name)?
        };
        Some(if bucket.prefix.is_empty() { base } else { format!("{base}/{}", bucket.prefix) })
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
    use super::super::url::StorageUrl;
    use super::*;

    #[test]
    fn clients_read_from_the_public_url() {
        let url = |text: &str, settings: &StorageSettings| {
            settings.public_url(StorageUrl::parse(text).unwrap().bucket().unwrap())
        };
        let endpoint = |endpoint: &str| Some(endpoint.to_owned());
        let amazon = StorageSettings { region: Some("eu-west-1".into()), ..StorageSettings::default() };
        let plain = StorageSettings { endpoint: endpoint("http://h:9000/"), ..StorageSettings::default() };
        let hosted = StorageSettings { path_style: Some(false), ..plain.clone() };
        assert_eq!(url("s3://b/p", &amazon).unwrap(), "https://b.s3.eu-west-1.amazonaws.com/p");
        assert_eq!(url("s3://b.c/p", &amazon).unwrap(), "https://s3.eu-west-1.amazonaws.com/b.c/p");
        assert_eq!(url("s3://b/p", &plain).unwrap(), "http://h:9000/b/p");
        assert_eq!(url("s3://b", &hosted).unwrap(), "http://b.h:9000");
        assert_eq!(
            url("gs://b/p", &StorageSettings::default()).unwrap(),
            "https://storage.googleapis.com/b/p"
        );
        assert_eq!(url("az://b/p", &StorageSettings::default()), None);
    }

    #[test]
    fn secrets_are_not_shown() {
        let environment: Environment = [("AWS_SECRET_ACCESS_KEY", "hush")].into_iter().collect();
        let settings = StorageSettings { environment, ..StorageSettings::default() };
        let shown = format!("{settings:?}");
        assert!(shown.contains("AWS_SECRET_ACCESS_KEY") && !shown.contains("hush"), "{shown}");
    }
}
