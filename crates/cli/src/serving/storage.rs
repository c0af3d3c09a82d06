//! Options of a server for repositories in object storage.

use std::path::{Path, PathBuf};
use std::time::Duration;

use esker_confine::Policy;
use esker_format::name::RepositoryName;
use esker_object_storage::{Bucket, Environment, StorageSettings, StorageUrl};
use esker_repository::RememberedStorage;
use esker_server::proxy::{CacheError, RepositoryStorage, StorageOptions};

use crate::error::{Failure, Kind, chain};
use crate::output::{parse_duration, parse_size};
use crate::process::confine;
use crate::process::privileges::Account;
use crate::publisher::of_operation;
use crate::serving::cache_folder;
use crate::settings::Settings;
use crate::settings::address::is_name;
use crate::settings::cache::default_server_size;

/// Number of retries of a failed request; a client that waits turns to another server.
const RETRIES: u32 = 2;
/// Seconds without progress after which a request fails.
const TIMEOUT: u32 = 5;

/// Variables of the environment that name files with credentials.
const CREDENTIAL_FILES: [&str; 8] = [
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AZURE_FEDERATED_TOKEN_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "SERVICE_ACCOUNT",
];

/// Options for repositories in object storage.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Object storage")]
pub(crate) struct StorageArgs {
    /// Folder for the cache of repositories in object storage, which only this server uses
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,

    /// Maximum size of the cache [default: 100GiB, or half of a smaller disk]
    #[arg(long, alias = "cache-size", value_name = "SIZE", value_parser = parse_size, requires = "cache")]
    quota: Option<u64>,

    /// Time for which a manifest is served without asking the storage
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration, requires = "cache")]
    head_age: Duration,

    /// URL of the server of the bucket, like https://s3.example.org:9000 [default: $AWS_ENDPOINT_URL, else that of the
    /// provider]
    #[arg(long, value_name = "URL", requires = "cache")]
    endpoint: Option<String>,

    /// Region of the bucket [default: $AWS_REGION, else us-east-1]
    #[arg(long, value_name = "NAME", requires = "cache")]
    region: Option<String>,

    /// Whether URLs have the bucket in their path, and not in their host name [default: true with --endpoint]
    #[arg(long, value_name = "true|false", requires = "cache")]
    path_style: Option<bool>,

    /// Additional CA certificates for TLS to the server of the bucket
    #[arg(long, value_name = "FILE", requires = "cache")]
    storage_ca: Option<PathBuf>,

    /// Profile in ~/.aws/credentials and ~/.aws/config [default: $AWS_PROFILE]
    #[arg(long, value_name = "NAME", requires = "cache")]
    storage_profile: Option<String>,

    /// Maximum number of requests at once for one repository [default: 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), requires = "cache")]
    storage_connections: Option<u16>,

    /// Read a public bucket without credentials
    #[arg(long, requires = "cache")]
    storage_anonymous: bool,
}

/// A repository in object storage to serve.
pub(crate) struct Stored {
    bucket: Bucket,
    /// Settings that its publisher remembers, if it is named by its name.
    known: StorageSettings,
}

/// Splits the served places into folders and buckets. A name is that of a repository that is published from this machine.
pub(crate) fn split(places: &[PathBuf], settings: &Settings) -> Result<(Vec<PathBuf>, Vec<Stored>), Failure> {
    let (mut folders, mut buckets) = (Vec::new(), Vec::new());
    for place in places {
        match place.to_str().filter(|text| text.contains("://")).map(StorageUrl::parse) {
            None => match named(place, settings)? {
                Some((StorageUrl::Folder(folder), _)) => folders.push(folder),
                Some((StorageUrl::Bucket(bucket), known)) => buckets.push(Stored { bucket, known }),
                None => folders.push(place.clone()),
            },
            Some(Ok(StorageUrl::Folder(folder))) => folders.push(folder),
            Some(Ok(StorageUrl::Bucket(bucket))) => {
                buckets.push(Stored { bucket, known: StorageSettings::default() });
            }
            Some(Err(error)) => {
                return Err(Failure::usage(chain(&error)).hint(format!(
                    "name a folder, or a repository in object storage like s3://BUCKET/PREFIX/NAME; a folder that is \
                     really called so is ./{}",
                    place.display()
                )));
            }
        }
    }
    Ok((folders, buckets))
}

/// Finds the storage of a repository by its name, unless that is a folder here.
fn named(place: &Path, settings: &Settings) -> Result<Option<(StorageUrl, StorageSettings)>, Failure> {
    let name = place.to_str().filter(|name| is_name(name) && name.contains('.') && !place.exists());
    let Some(name) = name else { return Ok(None) };
    let root = settings.storage(None)?.join(name);
    let known = RememberedStorage::read(&root)
        .map_err(|error| of_operation(&format!("can't read the storage of {name}"), &error))?;
    Ok(match known {
        Some(known) => Some((known.url, known.settings)),
        None => root.is_dir().then(|| (StorageUrl::Folder(root), StorageSettings::default())),
    })
}

impl StorageArgs {
    /// Refuses repositories without a cache, and a cache without repositories.
    pub(crate) fn check(&self, buckets: &[Stored]) -> Result<(), Failure> {
        match (buckets.first(), &self.cache) {
            (None, Some(_)) => Err(Failure::usage("--cache is given, and no repository in object storage")
                .hint("name one like s3://BUCKET/PREFIX/NAME, or leave out --cache")),
            (Some(Stored { bucket, .. }), None) => {
                Err(Failure::usage(format!("{bucket} is served through a cache, and none is named"))
                    .hint("name a folder that only this server uses with --cache DIR"))
            }
            _ => buckets.iter().try_for_each(|stored| name_of(&stored.bucket).map(drop)),
        }
    }

    /// Returns the options of these repositories; `None` if there are none. The cache folder becomes that of the user
    /// as which the server will run.
    pub(crate) fn options(
        &self,
        buckets: &[Stored],
        account: Option<&Account>,
    ) -> Result<Option<StorageOptions>, Failure> {
        let Some(cache) = self.cache.as_deref().filter(|_| !buckets.is_empty()) else { return Ok(None) };
        let named = |Stored { bucket, known }: &Stored| {
            let (name, settings) = (name_of(bucket)?, self.settings(known));
            Ok(RepositoryStorage { name, bucket: bucket.clone(), settings })
        };
        let repositories = buckets.iter().map(named).collect::<Result<Vec<_>, Failure>>()?;
        let cache = cache_folder(cache, account)?;
        let cache_size = self.quota.unwrap_or_else(|| default_server_size(&cache));
        Ok(Some(StorageOptions { repositories, cache, cache_size, head_age: self.head_age }))
    }

    /// Adds the paths of these repositories to what a confined server may use: its cache, certificates, and the files in
    /// which the provider's environment keeps credentials.
    pub(crate) fn permit(&self, policy: Policy, storages: &StorageOptions) -> Policy {
        with_credentials(confine::with_cache_folder(policy, &storages.cache))
    }

    /// Returns the files of additional authorities.
    pub(crate) fn authorities<'s>(&'s self, buckets: &'s [Stored]) -> impl Iterator<Item = &'s PathBuf> {
        self.storage_ca.iter().chain(buckets.iter().filter_map(|stored| stored.known.ca.as_ref()))
    }

    /// Returns the settings of a bucket: options, then credentials of the environment, then what its publisher remembers.
    fn settings(&self, known: &StorageSettings) -> StorageSettings {
        let environment = Environment::of_process();
        let has_key =
            environment.get("AWS_ACCESS_KEY_ID").is_some() || environment.get("AWS_PROFILE").is_some();
        let known_profile = known.profile.clone().filter(|_| !has_key);
        StorageSettings {
            endpoint: self.endpoint.clone().or_else(|| known.endpoint.clone()),
            region: self.region.clone().or_else(|| known.region.clone()),
            path_style: self.path_style.or(known.path_style),
            ca: self.storage_ca.clone().or_else(|| known.ca.clone()),
            connections: self.storage_connections.map(usize::from).or(known.connections),
            retries: Some(RETRIES),
            timeout: Some(TIMEOUT),
            profile: self.storage_profile.clone().or(known_profile),
            anonymous: self.storage_anonymous,
            environment,
            ..StorageSettings::default()
        }
    }
}

/// Lets a process read the files in which the provider's environment keeps credentials.
pub(crate) fn with_credentials(policy: Policy) -> Policy {
    let environment = Environment::of_process();
    let profiles = environment.get("HOME").map(|home| Path::new(home).join(".aws"));
    let credentials = CREDENTIAL_FILES.iter().filter_map(|name| environment.get(name)).map(PathBuf::from);
    // Tokens are renewed by replacing the file, so its folder is what stays.
    let folders = credentials.clone().filter_map(|file| file.parent().map(Path::to_owned));
    let policy = folders.fold(policy, Policy::read);
    profiles.into_iter().chain(credentials).fold(policy, Policy::reopen)
}

/// Returns the name of a repository from its address, which publishers let end in it.
fn name_of(bucket: &Bucket) -> Result<RepositoryName, Failure> {
    let address = bucket.to_string();
    RepositoryName::parse(address.rsplit('/').next().unwrap_or_default()).map_err(|error| {
        Failure::usage(format!("{bucket}: {error}"))
            .hint("the last part of the address is the name of the repository: s3://BUCKET/PREFIX/NAME")
    })
}

/// Adds the remedy to a failure of the cache.
pub(crate) fn of_cache(error: &CacheError) -> Failure {
    let failure = Failure::new(Kind::Failed, chain(error));
    match error {
        CacheError::Busy { .. } => {
            failure.hint("stop the other server, or name another folder with --cache DIR")
        }
        CacheError::NotOurs { .. } => failure.hint("name a new or an empty folder with --cache DIR"),
        CacheError::Io { .. } => failure.hint("name a folder that the server may write to with --cache DIR"),
    }
}
