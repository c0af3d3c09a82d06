//! Writes the configuration of a bucket for `cvmfs_server`.

use esker_object_storage::{Bucket, Provider, StorageSettings, StorageUrl};
use esker_repository::RememberedStorage;

use super::error::TakeoverError;

/// Region that is named if none is known: requests are signed for one.
const REGION: &str = "us-east-1";

/// A bucket as `cvmfs_server` names it.
pub(super) struct S3Conf {
    /// Path of the repository in the bucket.
    pub(super) path: String,
    /// Parameters without `CVMFS_`.
    pub(super) lines: Vec<(&'static str, String)>,
}

impl S3Conf {
    /// Makes the configuration of a bucket of the protocol S3.
    pub(super) fn new(storage: &RememberedStorage) -> Result<Self, TakeoverError> {
        let refused = || TakeoverError::NotInStorage {
            what: "a configuration of `cvmfs_server`",
            storage: storage.url.to_string(),
        };
        let StorageUrl::Bucket(bucket) = &storage.url else { return Err(refused()) };
        if bucket.provider != Provider::S3 {
            return Err(refused());
        }
        Ok(Self { path: bucket.prefix.clone(), lines: lines(bucket, &storage.settings) })
    }
}

fn lines(bucket: &Bucket, settings: &StorageSettings) -> Vec<(&'static str, String)> {
    let region = settings.region.clone().unwrap_or_else(|| REGION.to_owned());
    let amazon = || format!("https://s3.{region}.amazonaws.com");
    let endpoint = settings.endpoint.clone().unwrap_or_else(amazon);
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("https", &endpoint));
    let rest = rest.trim_end_matches('/');
    // A port follows the last colon, unless that is part of an IPv6 address.
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => (host, Some(port)),
        _ => (rest, None),
    };
    let is_path_style =
        settings.path_style.unwrap_or(settings.endpoint.is_some() || bucket.name.contains('.'));
    let on = |value: bool| if value { "true" } else { "false" }.to_owned();
    let mut lines = vec![("S3_HOST", host.to_owned())];
    lines.extend(port.map(|port| ("S3_PORT", port.to_owned())));
    lines.extend([
        ("S3_USE_HTTPS", on(scheme == "https")),
        ("S3_BUCKET", bucket.name.clone()),
        ("S3_DNS_BUCKETS", on(!is_path_style)),
        ("S3_REGION", region),
        ("S3_X_AMZ_ACL", String::new()),
    ]);
    lines
}
