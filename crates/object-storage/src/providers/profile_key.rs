//! Key of a profile, which is read again when its files are replaced: a server outlives the keys of its bucket.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use parking_lot::Mutex;

use super::profile::Profile;
use crate::settings::Environment;

/// Minimum time between two checks of the files for changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Device, inode, size and time of each file.
type Version = Vec<Option<(u64, u64, u64, (i64, i64))>>;

/// Credentials from the files of profiles.
#[derive(Debug)]
pub(super) struct ProfileKey {
    named: Option<String>,
    environment: Environment,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    credential: Arc<AwsCredential>,
    version: Version,
    looked: Instant,
}

impl ProfileKey {
    /// Reads the key of a profile; `None` if the profile has none.
    pub(super) fn read(named: Option<&str>, environment: &Environment) -> Option<Self> {
        // Of files that are replaced meanwhile the older version is remembered, so that they are read again.
        let version = version(environment);
        let credential = Arc::new(credential(named, environment)?);
        let known = Mutex::new(Known { credential, version, looked: Instant::now() });
        Some(Self { named: named.map(str::to_owned), environment: environment.clone(), known })
    }

    /// Returns the key, as the files have it now. Files without one are being written, or gone: the last key stays.
    fn at(&self, now: Instant) -> Arc<AwsCredential> {
        let mut known = self.known.lock();
        if now.saturating_duration_since(known.looked) >= CHECK_INTERVAL {
            known.looked = now;
            let version = version(&self.environment);
            if version != known.version
                && let Some(credential) = credential(self.named.as_deref(), &self.environment)
            {
                tracing::info!(
                    "the files of profiles were replaced: requests are signed with the key {}",
                    credential.key_id
                );
                (known.credential, known.version) = (Arc::new(credential), version);
            }
        }
        known.credential.clone()
    }
}

#[async_trait::async_trait]
impl CredentialProvider for ProfileKey {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        Ok(self.at(Instant::now()))
    }
}

fn credential(named: Option<&str>, environment: &Environment) -> Option<AwsCredential> {
    let profile = Profile::read(named, environment).ok()?;
    let (key, secret) = profile.key()?;
    let token = profile.get("aws_session_token").map(str::to_owned);
    Some(AwsCredential { key_id: key.to_owned(), secret_key: secret.to_owned(), token })
}

fn version(environment: &Environment) -> Version {
    let of_file = |path: &Path| {
        let facts = fs::metadata(path).ok()?;
        Some((facts.dev(), facts.ino(), facts.size(), (facts.mtime(), facts.mtime_nsec())))
    };
    Profile::files(environment).iter().map(|path| of_file(path.as_deref()?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_has_the_next_key() {
        let folder = tempfile::tempdir().unwrap();
        let (file, next) = (folder.path().join("credentials"), folder.path().join("next"));
        let write = |path: &Path, key: &str| {
            let text = format!("[default]\naws_access_key_id={key}\naws_secret_access_key=s\n");
            fs::write(path, text).unwrap();
        };
        write(&file, "old");
        let named = file.display().to_string();
        let environment = [("AWS_SHARED_CREDENTIALS_FILE", named.as_str())].into_iter().collect();
        let key = ProfileKey::read(None, &environment).expect("a key");
        let mut now = Instant::now();
        let mut later = || {
            now += CHECK_INTERVAL;
            key.at(now).key_id.clone()
        };
        assert_eq!(later(), "old");
        fs::write(&next, "[default]\n").unwrap();
        fs::rename(&next, &file).unwrap();
        assert_eq!(later(), "old", "a file without a key");
        fs::remove_file(&file).unwrap();
        assert_eq!(later(), "old", "no file");
        write(&next, "new");
        fs::rename(&next, &file).unwrap();
        assert_eq!(later(), "new");
    }
}
