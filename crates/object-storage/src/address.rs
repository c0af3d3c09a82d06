//! Address of a bucket with the settings that reading it needs, as one URL.
//!
//! `s3://BUCKET/PREFIX?endpoint=URL&region=NAME`: values are percent-encoded. Credentials are no part of it; they come from
//! the environment of the process that reads.

use std::fmt::Write as _;
use std::path::PathBuf;

use esker_store::{Cause, StoreError};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::settings::{Environment, StorageSettings};
use crate::url::{Bucket, StorageUrl};

/// Characters that a value has as `%XX`.
const ESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/').remove(b':');

/// Returns the URL by which [`connect`](crate::connect) reads a repository in a bucket.
pub fn reading_url(bucket: &Bucket, settings: &StorageSettings) -> String {
    let ca = settings.ca.as_ref().and_then(|path| path.to_str()).map(str::to_owned);
    let parts = [
        ("endpoint", settings.endpoint.clone()),
        ("region", settings.region.clone()),
        ("path_style", settings.path_style.map(|is_path| is_path.to_string())),
        ("ca", ca),
        ("profile", settings.profile.clone()),
        ("connections", settings.connections.map(|number| number.to_string())),
        ("anonymous", settings.anonymous.then(|| "true".to_owned())),
    ];
    let mut url = bucket.to_string();
    for (name, value) in parts {
        let Some(value) = value else { continue };
        let separator = if url.contains('?') { '&' } else { '?' };
        write!(url, "{separator}{name}={}", utf8_percent_encode(&value, ESCAPED))
            .expect("writing to memory succeeds because a string takes every text");
    }
    url
}

/// Returns bucket and settings of such a URL, with credentials of this process; none for other URLs.
pub(crate) fn parse_reading_url(url: &str) -> Result<Option<(Bucket, StorageSettings)>, StoreError> {
    if !is_bucket(url) {
        return Ok(None);
    }
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    let bad = |reason| StoreError::new("the storage", Cause::BadUrl { url: url.to_owned(), reason });
    let StorageUrl::Bucket(bucket) = StorageUrl::parse(address)? else { return Ok(None) };
    let mut settings =
        StorageSettings { environment: Environment::of_process(), ..StorageSettings::default() };
    for part in query.split('&').filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').ok_or_else(|| bad("a setting has no value"))?;
        let value = percent_decode_str(value).decode_utf8().map_err(|_| bad("a setting is not UTF-8"))?;
        match name {
            "endpoint" => settings.endpoint = Some(value.into_owned()),
            "region" => settings.region = Some(value.into_owned()),
            "path_style" => settings.path_style = Some(value == "true"),
            "ca" => settings.ca = Some(PathBuf::from(value.into_owned())),
            "profile" => settings.profile = Some(value.into_owned()),
            "connections" => settings.connections = value.parse().ok(),
            "anonymous" => settings.anonymous = value == "true",
            _ => return Err(bad("it has an unknown setting")),
        }
    }
    Ok(Some((bucket, settings)))
}

/// Returns true if a URL is that of a bucket.
pub fn is_bucket(url: &str) -> bool {
    ["s3://", "gs://", "az://"].iter().any(|scheme| url.starts_with(scheme))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_bucket_survive_the_url() {
        let bucket = StorageUrl::parse("s3://b/cvmfs/a.test").unwrap().bucket().unwrap().clone();
        let settings = StorageSettings {
            endpoint: Some("http://h:9000".into()),
            region: Some("eu&1".into()),
            path_style: Some(false),
            ca: Some("/etc/a ca.pem".into()),
            profile: Some("builder?".into()),
            connections: Some(7),
            ..StorageSettings::default()
        };
        let url = reading_url(&bucket, &settings);
        assert!(url.starts_with("s3://b/cvmfs/a.test?endpoint=http://h:9000&region=eu%261"), "{url}");
        let (parsed, read) = parse_reading_url(&url).unwrap().unwrap();
        assert_eq!(
            (&parsed, StorageSettings { environment: Environment::default(), ..read }),
            (&bucket, settings)
        );
        let (parsed, read) = parse_reading_url("s3://b/cvmfs/a.test").unwrap().unwrap();
        assert_eq!((parsed, read.endpoint), (bucket, None));
    }

    #[test]
    fn other_urls_are_none_and_unknown_settings_are_refused() {
        assert!(parse_reading_url("http://h/cvmfs/a.test").unwrap().is_none());
        for url in ["s3://b/p?x=1", "s3://b/p?endpoint", "s3:///p", "s3://b/../p"] {
            assert!(parse_reading_url(url).is_err(), "{url}");
        }
    }
}
