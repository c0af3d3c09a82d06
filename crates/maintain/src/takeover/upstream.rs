//! Storage that a configuration of `cvmfs_server` names: a folder, or a bucket with its own configuration file.

use std::path::{Path, PathBuf};

use esker_object_storage::{Environment, StorageSettings, StorageUrl};
use esker_repository::RememberedStorage;

use super::error::TakeoverError;
use super::server_conf::ServerConf;

/// Storage of a repository of `cvmfs_server`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upstream {
    /// A folder.
    Folder(PathBuf),
    /// A bucket.
    Bucket(Box<UpstreamBucket>),
}

/// Bucket of a repository of `cvmfs_server`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamBucket {
    /// Address and settings.
    pub storage: RememberedStorage,
    /// Keys of the configuration file, as variables; they are not remembered.
    pub credentials: Environment,
    /// Settings that have no counterpart.
    pub warnings: Vec<String>,
}

impl ServerConf {
    /// Returns the storage.
    pub fn storage(&self) -> Result<Upstream, TakeoverError> {
        let upstream = self.get("CVMFS_UPSTREAM_STORAGE").unwrap_or_default();
        let mut parts = upstream.splitn(3, ',');
        match (parts.next(), parts.next(), parts.next()) {
            (Some("local"), Some(_), Some(folder)) if folder.starts_with('/') => {
                Ok(Upstream::Folder(folder.into()))
            }
            (Some("S3"), Some(_), Some(place)) => {
                match place.split_once('@') {
                    Some((path, config)) if config.starts_with('/') => {
                        Ok(Upstream::Bucket(Box::new(bucket(&ServerConf::read(Path::new(config))?, path)?)))
                    }
                    _ => Err(self
                        .refused(format!("CVMFS_UPSTREAM_STORAGE={upstream} names no configuration file"))),
                }
            }
            _ => {
                let what =
                    format!("CVMFS_UPSTREAM_STORAGE={upstream} is neither a local folder nor a bucket");
                Err(self.refused(what))
            }
        }
    }
}

/// Returns the bucket of a configuration file, with the path of the repository in it.
fn bucket(conf: &ServerConf, path: &str) -> Result<UpstreamBucket, TakeoverError> {
    let get = |name: &str| conf.get(&format!("CVMFS_S3_{name}")).filter(|value| !value.is_empty());
    let required = |name: &str| {
        get(name)
            .ok_or_else(|| conf.refused(format!("CVMFS_S3_{name} is missing, or a shell would evaluate it")))
    };
    if get("FLAVOR") == Some("azure") {
        let what =
            "CVMFS_S3_FLAVOR=azure is not taken over; name the container with --storage az://CONTAINER/PATH";
        return Err(conf.refused(what.to_owned()));
    }
    let is_on = |value: &str| ["yes", "on", "1", "true"].contains(&value.to_ascii_lowercase().as_str());
    let scheme = if get("USE_HTTPS").is_some_and(is_on) { "https" } else { "http" };
    let port = get("PORT").map(|port| format!(":{port}")).unwrap_or_default();
    let url = format!("s3://{}/{}", required("BUCKET")?, path.trim_matches('/'));
    let settings = StorageSettings {
        endpoint: Some(format!("{scheme}://{}{port}", required("HOST")?)),
        region: get("REGION").map(str::to_owned),
        path_style: Some(get("DNS_BUCKETS") == Some("false")),
        connections: get("MAX_NUMBER_OF_PARALLEL_CONNECTIONS").and_then(|number| number.parse().ok()),
        ..StorageSettings::default()
    };
    let keys = [("AWS_ACCESS_KEY_ID", "ACCESS_KEY"), ("AWS_SECRET_ACCESS_KEY", "SECRET_KEY")];
    let credentials = keys.into_iter().filter_map(|(variable, name)| Some((variable, get(name)?)));
    let mut warnings = vec![
        "`cvmfs_server` must not publish to this bucket any more: it replaces heads without looking whether another \
         publisher was faster"
            .to_owned(),
    ];
    if get("X_AMZ_ACL").is_none_or(|acl| acl.starts_with("public-read")) {
        warnings.push(
            "new objects get no access control list: make the bucket readable by a policy of the bucket"
                .to_owned(),
        );
    }
    if get("PROXY").is_some() {
        warnings.push("the HTTP proxy on the way to the bucket (CVMFS_S3_PROXY) is not used".to_owned());
    }
    Ok(UpstreamBucket {
        storage: RememberedStorage { url: StorageUrl::parse(&url)?, settings },
        credentials: credentials.collect(),
        warnings,
    })
}
