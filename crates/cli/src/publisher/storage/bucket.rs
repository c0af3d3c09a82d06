//! Repositories in object storage: a bucket is named once, and remembered in the folder of the publisher's state.

use std::path::{Path, PathBuf};

use esker_format::manifest;
use esker_format::name::RepositoryName;
use esker_object_storage::{Environment, StorageSettings, StorageUrl, reading_url};
use esker_repository::{RememberedGateway, RememberedStorage};

use crate::error::Failure;
use crate::publisher::failure::of_operation;

/// Options for a repository in object storage, which are remembered with its address.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Object storage")]
pub(crate) struct BucketArgs {
    /// Named by the option of all commands that take a bucket.
    #[arg(skip)]
    endpoint: Option<String>,

    /// Region of the bucket [default: $AWS_REGION, else us-east-1]
    #[arg(long, value_name = "NAME")]
    region: Option<String>,

    /// Whether URLs have the bucket in their path, and not in their host name [default: true with --endpoint]
    #[arg(long, value_name = "true|false")]
    path_style: Option<bool>,

    /// Storage class of objects [default: that of the bucket]
    #[arg(long, value_name = "NAME")]
    storage_class: Option<String>,

    /// Additional CA certificates for TLS to the server of the bucket
    #[arg(long, value_name = "FILE")]
    storage_ca: Option<PathBuf>,

    /// Profile in ~/.aws/credentials and ~/.aws/config [default: $AWS_PROFILE]
    #[arg(long, value_name = "NAME")]
    storage_profile: Option<String>,

    /// Maximum number of requests at once [default: 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    storage_connections: Option<u16>,

    /// Read back every object that is stored, and compare it: for a server that may lose or damage what it accepts
    #[arg(long)]
    storage_read_back: bool,

    /// File that all publishers lock, for a server that can't replace a file by compare-and-swap
    #[arg(long, value_name = "FILE")]
    storage_lock: Option<PathBuf>,
}

impl BucketArgs {
    /// Returns the same options at the endpoint that is named, if one is.
    pub(crate) fn at(self, endpoint: Option<String>) -> Self {
        Self { endpoint: endpoint.or(self.endpoint), ..self }
    }

    /// Returns the additional authorities.
    pub(crate) fn authorities(&self) -> Option<&PathBuf> {
        self.storage_ca.as_ref()
    }

    /// Returns the first option that is given.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let options = [
            ("--endpoint", self.endpoint.is_some()),
            ("--region", self.region.is_some()),
            ("--path-style", self.path_style.is_some()),
            ("--storage-class", self.storage_class.is_some()),
            ("--storage-ca", self.storage_ca.is_some()),
            ("--storage-profile", self.storage_profile.is_some()),
            ("--storage-connections", self.storage_connections.is_some()),
            ("--storage-read-back", self.storage_read_back),
            ("--storage-lock", self.storage_lock.is_some()),
        ];
        options.iter().find(|(_, given)| *given).map(|(option, _)| *option)
    }

    /// Returns the settings to remember: options, and otherwise the address that the environment names.
    pub(crate) fn settings(&self) -> Result<StorageSettings, Failure> {
        let environment = Environment::of_process();
        let variable =
            |names: &[&str]| names.iter().find_map(|name| environment.get(name)).map(str::to_owned);
        let absolute = |option: &str, path: &Option<PathBuf>| {
            path.as_ref()
                .map(std::path::absolute)
                .transpose()
                .map_err(|error| Failure::usage(format!("{option}: {error}")))
        };
        Ok(StorageSettings {
            endpoint: self
                .endpoint
                .clone()
                .or_else(|| variable(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"])),
            region: self.region.clone().or_else(|| variable(&["AWS_REGION", "AWS_DEFAULT_REGION"])),
            path_style: self.path_style,
            storage_class: self.storage_class.clone(),
            ca: absolute("--storage-ca", &self.storage_ca)?,
            connections: self.storage_connections.map(usize::from),
            profile: self.storage_profile.clone().or_else(|| variable(&["AWS_PROFILE"])),
            read_back: self.storage_read_back,
            lock: absolute("--storage-lock", &self.storage_lock)?,
            ..StorageSettings::default()
        })
    }
}

/// Remembers the bucket of a repository in the folder of its publisher's state, unless that is done already. A bucket
/// without a repository is remembered only for a new one.
pub(crate) fn attach(
    url: &StorageUrl,
    name: &RepositoryName,
    root: &Path,
    new: Option<&BucketArgs>,
    endpoint: Option<&str>,
) -> Result<(), Failure> {
    let failed = |error| of_operation(&format!("can't use {url} for {name}"), &error);
    let given = new.cloned().unwrap_or_default().at(endpoint.map(str::to_owned));
    let wanted = described(url, name, &given)?;
    match RememberedStorage::read(root).map_err(failed)? {
        Some(known) if known.url != wanted.url => {
            return Err(Failure::usage(format!(
                "the storage of {name} is {}, and not {}",
                known.url, wanted.url
            ))
            .hint(format!("leave out --storage; this is remembered in {}", root.join(".esker").display())));
        }
        Some(known) if new.is_none() => return with_options(&known, name, root, &given).map(drop),
        None if root.join(manifest::PATH).exists() => {
            return Err(Failure::usage(format!("{name} is a repository in the folder {}", root.display()))
                .hint("leave out --storage, or choose another name"));
        }
        _ => {}
    }
    let is_there = new.is_some() || wanted.has_head(root).map_err(failed)?;
    if !is_there {
        return Err(Failure::usage(format!("there is no repository in {}", wanted.url))
            .hint(format!("make one with `esker repo create {name} --storage {url}`")));
    }
    wanted.write(root).map_err(failed)
}

/// Returns what is remembered of a new repository in a bucket.
pub(crate) fn described(
    url: &StorageUrl,
    name: &RepositoryName,
    given: &BucketArgs,
) -> Result<RememberedStorage, Failure> {
    let failed = |error| of_operation(&format!("can't use {url} for {name}"), &error);
    RememberedStorage::of_repository(url, name, given.settings()?).map_err(failed)
}

/// Returns what is remembered of a storage, with the options that are given. An option that names another server than what
/// is remembered is refused: what is in one bucket says nothing about another one.
pub(crate) fn with_options(
    known: &RememberedStorage,
    name: &RepositoryName,
    root: &Path,
    given: &BucketArgs,
) -> Result<RememberedStorage, Failure> {
    let plain = |url: &Option<String>| url.as_deref().map(|url| url.trim_end_matches('/').to_owned());
    let before = &known.settings;
    if given.endpoint.is_some() && plain(&given.endpoint) != plain(&before.endpoint) {
        let (wanted, at) = (given.endpoint.as_deref().unwrap_or_default(), before.endpoint.as_deref());
        let at = at.unwrap_or("the server of the provider");
        let remembered = root.join(".esker/storage.json");
        return Err(Failure::usage(format!(
            "the storage of {name} is {} at {at}, and not at {wanted}",
            known.url
        ))
        .hint(format!(
            "that is remembered in {}; for another copy name another folder for this with ESKER_STORAGE=DIR",
            remembered.display()
        )));
    }
    let now = given.settings()?;
    let settings = StorageSettings {
        region: given.region.clone().or_else(|| before.region.clone()),
        path_style: given.path_style.or(before.path_style),
        storage_class: given.storage_class.clone().or_else(|| before.storage_class.clone()),
        ca: now.ca.or_else(|| before.ca.clone()),
        connections: now.connections.or(before.connections),
        profile: given.storage_profile.clone().or_else(|| before.profile.clone()),
        read_back: now.read_back || before.read_back,
        lock: now.lock.or_else(|| before.lock.clone()),
        ..before.clone()
    };
    Ok(RememberedStorage { url: known.url.clone(), settings })
}

/// Access of a client on this machine to a repository of this publisher.
pub(crate) struct Readable {
    /// URL of the repository.
    pub(crate) url: String,
    /// True if it is read with the publisher's credentials, which processes that share a cache don't have.
    pub(crate) is_private: bool,
}

/// Variables of which one says that this process has credentials for buckets.
const CREDENTIALS: [&str; 10] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_CLIENT_ID",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "SERVICE_ACCOUNT",
];

/// Returns how a client of this machine reads the repository at a place: a bucket with the credentials of this process, or,
/// without any, by its public URL.
pub(crate) fn readable(root: &Path) -> Result<Readable, Failure> {
    let failed = |error| of_operation("can't read the storage", &error);
    if let Some(gateway) = RememberedGateway::read(root).map_err(failed)? {
        return Ok(Readable { url: gateway.server, is_private: false });
    }
    let remembered = RememberedStorage::read(root).map_err(failed)?;
    let Some(remembered) = remembered else {
        return Ok(Readable { url: format!("file://{}", root.display()), is_private: false });
    };
    let environment = Environment::of_process();
    let has_credentials = remembered.settings.profile.is_some()
        || CREDENTIALS.iter().any(|variable| environment.get(variable).is_some());
    if let Some(bucket) = remembered.url.bucket().filter(|_| has_credentials) {
        return Ok(Readable { url: reading_url(bucket, &remembered.settings), is_private: true });
    }
    let url = remembered.public_url().ok_or_else(|| {
        Failure::usage(format!("there is no URL under which clients read {}", remembered.url))
            .hint("name the server with --endpoint when the repository is created")
    })?;
    Ok(Readable { url, is_private: false })
}

/// Returns the address of the storage at a place, for messages.
pub(crate) fn shown(root: &Path) -> String {
    let remembered = RememberedStorage::read(root).ok().flatten();
    remembered.map_or_else(|| root.display().to_string(), |remembered| remembered.url.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_that_contradicts_what_is_remembered_is_refused() {
        let name = RepositoryName::parse("sw.example.org").expect("a name");
        let url = StorageUrl::parse("s3://bucket/x/sw.example.org").expect("a URL");
        let endpoint =
            |endpoint: &str| BucketArgs { endpoint: Some(endpoint.to_owned()), ..BucketArgs::default() };
        for (before, given, accepted) in [
            (Some("http://a:1"), Some("http://a:1/"), true),
            (Some("http://a:1"), None, true),
            (Some("http://a:1"), Some("http://b:1"), false),
            (None, Some("http://b:1"), false),
        ] {
            let settings =
                StorageSettings { endpoint: before.map(str::to_owned), ..StorageSettings::default() };
            let known = RememberedStorage { url: url.clone(), settings };
            let given = given.map(endpoint).unwrap_or_default();
            match with_options(&known, &name, Path::new("/state"), &given) {
                Ok(now) => assert!(accepted && now.settings.endpoint == known.settings.endpoint),
                Err(failure) => {
                    assert!(!accepted, "{failure:?}");
                    assert!(failure.message.contains("and not at http://b:1"), "{failure:?}");
                    assert!(failure.hint.is_some_and(|hint| hint.contains("/state/.esker/storage.json")));
                }
            }
        }
    }
}
