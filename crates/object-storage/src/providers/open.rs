//! Makes the client of a bucket from its settings and the environment.

use std::sync::Arc;
use std::time::Duration;

use esker_store::{Authorities, StorageProblem};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::{BackoffConfig, ObjectStore, RetryConfig};

use super::connector::Connector;
use super::profile::Profile;
use super::profile_key::ProfileKey;
use super::signed_puts::Signer;
use crate::settings::{Environment, StorageSettings, with_bucket_in_host};
use crate::url::{Bucket, Provider};

/// Pauses between the repetitions of a request: from the first to the last, doubling.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// Time after which a request is not repeated any more; signatures expire after 15 minutes.
const REPEAT_MAX: Duration = Duration::from_secs(120);
/// Region that requests are signed for if none is named; servers of other vendors have no regions.
const REGION: &str = "us-east-1";
/// URL from which clients read Google's buckets.
const GOOGLE: &str = "https://storage.googleapis.com";

/// Keys that say where a bucket is; they are computed from settings, variables and profile.
const PLACE: [AmazonS3ConfigKey; 6] = [
    AmazonS3ConfigKey::Endpoint,
    AmazonS3ConfigKey::S3Endpoint,
    AmazonS3ConfigKey::Region,
    AmazonS3ConfigKey::DefaultRegion,
    AmazonS3ConfigKey::Bucket,
    AmazonS3ConfigKey::VirtualHostedStyleRequest,
];
const CREDENTIALS: [AmazonS3ConfigKey; 3] =
    [AmazonS3ConfigKey::AccessKeyId, AmazonS3ConfigKey::SecretAccessKey, AmazonS3ConfigKey::Token];
/// Variables of which one suffices for credentials.
const ELSEWHERE: [&str; 4] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
];

/// Clients of a bucket.
pub(super) struct Opened {
    /// Client that deletes many objects with one request.
    pub(super) store: Arc<dyn ObjectStore>,
    /// Client that deletes objects one by one, for servers without such requests.
    pub(super) one_by_one: Arc<dyn ObjectStore>,
    /// Signer of requests that others send; none if the provider is not S3, or without credentials.
    pub(super) signer: Option<Arc<Signer>>,
}

/// Makes the clients of a bucket, without a request to it.
pub(super) fn open(bucket: &Bucket, settings: &StorageSettings) -> Result<Opened, StorageProblem> {
    let authorities = settings.ca.iter().map(|path| path.display().to_string()).collect();
    let authorities = Authorities { system: true, paths: authorities };
    let connector = Connector::new(authorities, settings.stall());
    let retry = RetryConfig {
        backoff: BackoffConfig { init_backoff: PAUSES.0, max_backoff: PAUSES.1, base: 2.0 },
        max_retries: settings.retries() as usize,
        retry_timeout: REPEAT_MAX,
    };
    let environment = &settings.environment;
    let built = match bucket.provider {
        Provider::S3 => {
            let client = connector.client();
            let builder = s3(bucket, settings)?.with_http_connector(connector).with_retry(retry);
            let one_by_one = builder.clone().with_disable_bulk_delete(true);
            builder.build().and_then(|store| {
                let base = public_url(bucket, settings).filter(|_| !settings.anonymous);
                let signer = base.map(|base| {
                    let profile = Profile::read(settings.profile.as_deref(), environment).unwrap_or_default();
                    let region = S3Place::of(bucket, settings, &profile).region;
                    Arc::new(Signer { credentials: store.credentials().clone(), client, base, region })
                });
                Ok(Opened { store: Arc::new(store), one_by_one: Arc::new(one_by_one.build()?), signer })
            })
        }
        Provider::Google => {
            let mut builder = GoogleCloudStorageBuilder::new();
            if let Some(file) = environment.get("SERVICE_ACCOUNT") {
                builder = builder.with_service_account_path(file);
            }
            for (key, value) in known(environment, "GOOGLE_") {
                builder = builder.with_config(key, value);
            }
            if let Some(endpoint) = &settings.endpoint {
                builder = builder.with_base_url(endpoint);
            }
            let builder = builder.with_bucket_name(&bucket.name).with_skip_signature(settings.anonymous);
            same(builder.with_http_connector(connector).with_retry(retry).build())
        }
        Provider::Azure => {
            let mut builder = MicrosoftAzureBuilder::new();
            for (key, value) in known(environment, "AZURE_") {
                builder = builder.with_config(key, value);
            }
            if let Some(endpoint) = environment.get("IDENTITY_ENDPOINT") {
                builder = builder.with_msi_endpoint(endpoint);
            }
            if let Some(endpoint) = &settings.endpoint {
                builder = builder.with_endpoint(endpoint.clone());
            }
            let builder = builder.with_container_name(&bucket.name).with_skip_signature(settings.anonymous);
            same(builder.with_http_connector(connector).with_retry(retry).build())
        }
    };
    built.map_err(|error| StorageProblem::BadSettings(error.to_string()))
}

fn same<S: ObjectStore>(store: object_store::Result<S>) -> object_store::Result<Opened> {
    let store: Arc<dyn ObjectStore> = Arc::new(store?);
    Ok(Opened { one_by_one: store.clone(), store, signer: None })
}

/// Returns the variables with a prefix that a client knows, by its own keys.
fn known<'e, K: std::str::FromStr>(
    environment: &'e Environment,
    prefix: &'static str,
) -> impl Iterator<Item = (K, &'e str)> {
    environment
        .with_prefix(prefix)
        .filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse().ok()?, value)))
}

fn s3(bucket: &Bucket, settings: &StorageSettings) -> Result<AmazonS3Builder, StorageProblem> {
    let environment = &settings.environment;
    let profile = Profile::read(settings.profile.as_deref(), environment)?;
    // A profile that is named wins over the variables, as with Amazon's tools.
    let is_first = settings.profile.is_some() || environment.get("AWS_ACCESS_KEY_ID").is_none();
    let key_of_profile =
        if is_first { ProfileKey::read(settings.profile.as_deref(), environment) } else { None };
    let mut builder = AmazonS3Builder::new();
    for (key, value) in known(environment, "AWS_") {
        let is_credential = CREDENTIALS.contains(&key) && key_of_profile.is_some();
        if !PLACE.contains(&key) && !is_credential {
            builder = builder.with_config(key, value);
        }
    }
    let place = S3Place::of(bucket, settings, &profile);
    builder = builder.with_bucket_name(&bucket.name).with_region(&place.region);
    builder = builder.with_virtual_hosted_style_request(!place.path_style);
    if let Some(endpoint) = &place.endpoint {
        check_endpoint(endpoint)?;
        let hosted = || with_bucket_in_host(endpoint, &bucket.name).unwrap_or_else(|| endpoint.clone());
        builder = builder.with_endpoint(if place.path_style { endpoint.clone() } else { hosted() });
    }
    if settings.anonymous {
        return Ok(builder.with_skip_signature(true));
    }
    if let Some(key) = key_of_profile {
        return Ok(builder.with_credentials(Arc::new(key)));
    }
    if ELSEWHERE.iter().any(|variable| environment.get(variable).is_some()) {
        return Ok(builder);
    }
    if let Some(setting) = profile.needs_program() {
        return Err(StorageProblem::NoCredentials(format!(
            "the profile has `{setting}`, which needs another program; `aws configure export-credentials --format env` \
             prints variables that are used"
        )));
    }
    if let (Some(file), Some(role)) = (profile.get("web_identity_token_file"), profile.get("role_arn")) {
        builder = builder.with_config(AmazonS3ConfigKey::WebIdentityTokenFile, file);
        return Ok(builder.with_config(AmazonS3ConfigKey::RoleArn, role));
    }
    if environment.get("AWS_EC2_METADATA_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        let reason =
            "neither the environment nor a profile has a key, and the service of machines is disabled";
        return Err(StorageProblem::NoCredentials(reason.to_owned()));
    }
    Ok(builder)
}

fn check_endpoint(endpoint: &str) -> Result<(), StorageProblem> {
    esker_store::host_of(endpoint)
        .map(drop)
        .map_err(|error| StorageProblem::BadSettings(format!("the endpoint: {}", error.cause())))
}

/// Address of a bucket of the protocol S3.
struct S3Place {
    endpoint: Option<String>,
    region: String,
    path_style: bool,
}

impl S3Place {
    fn of(bucket: &Bucket, settings: &StorageSettings, profile: &Profile) -> Self {
        let environment = &settings.environment;
        let first = |own: Option<&String>, variables: [&str; 2], setting: &str| {
            let variable = || variables.iter().find_map(|variable| environment.get(variable));
            let text = own.map(String::as_str).or_else(variable).or_else(|| profile.get(setting));
            text.map(|text| text.trim_end_matches('/').to_owned())
        };
        let endpoints = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"];
        let endpoint = first(settings.endpoint.as_ref(), endpoints, "endpoint_url");
        let region = first(settings.region.as_ref(), ["AWS_REGION", "AWS_DEFAULT_REGION"], "region");
        let style = profile.get("s3.addressing_style").and_then(|style| match style {
            "path" => Some(true),
            "virtual" => Some(false),
            _ => None,
        });
        // A certificate for `*.s3.REGION.amazonaws.com` is not for names with further dots.
        let usual = endpoint.is_some() || bucket.name.contains('.');
        let path_style = settings.path_style.or(style).unwrap_or(usual);
        Self { endpoint, region: region.unwrap_or_else(|| REGION.to_owned()), path_style }
    }
}

/// Returns the URL under which clients read a repository from a public bucket; none if the settings don't tell it.
pub fn public_url(bucket: &Bucket, settings: &StorageSettings) -> Option<String> {
    let (endpoint, path_style) = match bucket.provider {
        Provider::S3 => {
            let profile = Profile::read(settings.profile.as_deref(), &settings.environment).ok()?;
            let place = S3Place::of(bucket, settings, &profile);
            let amazon = format!("https://s3.{}.amazonaws.com", place.region);
            (place.endpoint.unwrap_or(amazon), place.path_style)
        }
        Provider::Google => (settings.endpoint.clone().unwrap_or_else(|| GOOGLE.to_owned()), true),
        Provider::Azure => {
            let account = settings.environment.get("AZURE_STORAGE_ACCOUNT_NAME");
            let own = account.map(|account| format!("https://{account}.blob.core.windows.net"));
            (settings.endpoint.clone().or(own)?, true)
        }
    };
    let base = match path_style {
        true => format!("{}/{}", endpoint.trim_end_matches('/'), bucket.name),
        false => with_bucket_in_host(&endpoint, &bucket.name)?,
    };
    Some(if bucket.prefix.is_empty() { base } else { format!("{base}/{}", bucket.prefix) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::StorageUrl;

    fn bucket(text: &str) -> Bucket {
        StorageUrl::parse(text).unwrap().bucket().unwrap().clone()
    }

    #[test]
    fn clients_read_from_the_public_url() {
        let url = |text: &str, settings: &StorageSettings| public_url(&bucket(text), settings);
        let endpoint = |endpoint: &str| Some(endpoint.to_owned());
        let amazon = StorageSettings { region: Some("eu-west-1".into()), ..StorageSettings::default() };
        let plain = StorageSettings { endpoint: endpoint("http://h:9000/"), ..StorageSettings::default() };
        let hosted = StorageSettings { path_style: Some(false), ..plain.clone() };
        let variable = [("AWS_ENDPOINT_URL", "http://v")].into_iter().collect();
        let variable = StorageSettings { environment: variable, ..StorageSettings::default() };
        assert_eq!(url("s3://b/p", &amazon).unwrap(), "https://b.s3.eu-west-1.amazonaws.com/p");
        assert_eq!(url("s3://b.c/p", &amazon).unwrap(), "https://s3.eu-west-1.amazonaws.com/b.c/p");
        assert_eq!(url("s3://b/p", &plain).unwrap(), "http://h:9000/b/p");
        assert_eq!(url("s3://b", &hosted).unwrap(), "http://b.h:9000");
        assert_eq!(url("s3://b", &variable).unwrap(), "http://v/b");
        assert_eq!(
            url("gs://b/p", &StorageSettings::default()).unwrap(),
            "https://storage.googleapis.com/b/p"
        );
        assert_eq!(url("az://b/p", &StorageSettings::default()), None);
    }

    #[test]
    fn a_bucket_without_credentials_is_refused_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("config");
        std::fs::write(&config, "[default]\nsso_session = x\n").unwrap();
        let config = config.display().to_string();
        let open = |variables: &[(&str, &str)]| {
            let environment = variables.iter().copied().collect();
            open(&bucket("s3://b"), &StorageSettings { environment, ..StorageSettings::default() }).err()
        };
        let disabled = open(&[("AWS_EC2_METADATA_DISABLED", "true")]).unwrap();
        assert!(matches!(&disabled, StorageProblem::NoCredentials(_)), "{disabled}");
        let foreign = open(&[("AWS_CONFIG_FILE", &config)]).unwrap();
        assert!(foreign.to_string().contains("sso_session"), "{foreign}");
        assert_eq!(open(&[("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")]), None);
    }

    #[test]
    fn settings_that_no_server_has_are_refused() {
        let settings = StorageSettings { endpoint: Some("h:9000".into()), ..StorageSettings::default() };
        let problem = open(&bucket("s3://b"), &settings).err().unwrap();
        assert!(problem.to_string().contains("the endpoint: `h:9000`"), "{problem}");
    }
}
