//! Keys of publishers: what each may change, and its limits.
//!
//! ```text
//! KEYS/ID.json     {"secret": …, "grants": ["REPOSITORY/DIRECTORY", …], "admin": false, "limits": {…}}   mode 0600
//! ```
//!
//! The file of a key names the directories that its publisher may lease. The key files of the reference are read too: `NAME.gw`
//! has a line `plain_text ID SECRET`, and `repo.json` says which key is for which repository and directory.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use esker_format::name::RepositoryName;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::authorization::Authorization;
use crate::lease_path::{LeasePath, normal};
use crate::token::Token;

/// Largest file that is read.
const FILE_MAX: u64 = 1 << 20;

/// Key of a publisher, as its file has it. Field names are an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublisherKey {
    /// The secret that the publisher and the gateway share.
    pub secret: Secret,
    /// Directories that the publisher may lease.
    #[serde(default)]
    pub grants: Vec<LeasePath>,
    /// True if the key may end leases of others and enable repositories.
    #[serde(default)]
    pub admin: bool,
    /// Limits of the publisher.
    #[serde(default)]
    pub limits: KeyLimits,
    /// The secret before this one, while it is valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<OldSecret>,
}

/// A secret that was replaced. Field names are an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OldSecret {
    /// The secret.
    pub secret: Secret,
    /// End of its validity, in seconds since the epoch.
    pub until: i64,
}

/// Limits of one publisher; none is the limit of the gateway. Field names are an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyLimits {
    /// Maximum lifetime of a lease without a renewal, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<u32>,
    /// Maximum number of concurrent leases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leases: Option<u32>,
    /// Maximum number of bytes of objects that a lease may send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_bytes: Option<u64>,
    /// Maximum number of requests in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<u32>,
}

/// A shared secret, which is not shown.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Creates a secret from its text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Makes a secret of random bytes of the operating system.
    pub fn random() -> Self {
        Self(Token::random().secret().trim_end_matches('=').to_owned())
    }

    /// Returns the text, for the file of a key only.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The keys of all publishers, by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRing {
    keys: BTreeMap<String, PublisherKey>,
    /// Repositories that any key is for; requests for others are refused by another reason.
    repositories: Vec<RepositoryName>,
    /// Files of the reference that it was read from.
    files: Vec<PathBuf>,
}

/// A request is refused. The texts are the reference's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// No key of this name signed the request.
    #[error("invalid_hmac")]
    Signature,
    /// The gateway serves no such repository.
    #[error("authorization error: invalid_repo")]
    Repository,
    /// The key is for other repositories.
    #[error("authorization error: invalid_key")]
    Key,
    /// The key is for other directories of the repository.
    #[error("authorization error: invalid_path")]
    Path,
    /// An operator's request has no signature.
    #[error("invalid_authorization_header")]
    Header,
    /// An operator's request names an unknown key.
    #[error("invalid_key")]
    UnknownKey,
    /// The key is none of an operator.
    #[error("no_admin_key")]
    NoAdmin,
}

/// Keys can't be read.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// A file can't be read.
    #[error("can't read the key file {file}")]
    Read {
        /// Path of the file.
        file: String,
        /// Cause.
        source: io::Error,
    },
    /// A file does not have the expected form.
    #[error("the key file {file} can't be used: {reason}")]
    Form {
        /// Path of the file.
        file: String,
        /// Reason.
        reason: String,
    },
}

impl KeyRing {
    /// Creates a ring of keys with their names.
    pub fn new(keys: impl IntoIterator<Item = (String, PublisherKey)>) -> Self {
        let keys: BTreeMap<_, _> = keys.into_iter().collect();
        let mut repositories: Vec<_> =
            keys.values().flat_map(|key| key.grants.iter().map(|grant| grant.repository.clone())).collect();
        repositories.sort();
        repositories.dedup();
        Self { keys, repositories, files: Vec::new() }
    }

    /// Reads the files in a folder of keys, without old secrets that are not valid any more.
    pub fn read(folder: &Path) -> Result<Self, KeyError> {
        let failed = |source| KeyError::Read { file: folder.display().to_string(), source };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        let mut keys = Vec::new();
        for file in std::fs::read_dir(folder).map_err(failed)? {
            let path = file.map_err(failed)?.path();
            let name = path.file_stem().and_then(|name| name.to_str()).map(ToOwned::to_owned);
            let Some(name) = name.filter(|_| path.extension().is_some_and(|end| end == "json")) else {
                continue;
            };
            let text = read(&path)?;
            let key = serde_json::from_slice(&text).map_err(|error| KeyError::Form {
                file: path.display().to_string(),
                reason: error.to_string(),
            });
            let key: PublisherKey = key?;
            let old = key.old.filter(|old| old.until > now);
            keys.push((name, PublisherKey { old, ..key }));
        }
        Ok(Self::new(keys))
    }

    /// Reads the reference's configuration of access, and the key files that it names: `folder` has `NAME.gw` of the
    /// repositories that are listed without keys.
    pub fn of_reference(configuration: &Path, folder: &Path) -> Result<Self, KeyError> {
        let text = read(configuration)?;
        let mut files = vec![configuration.to_owned()];
        let mut plain = |file: PathBuf| {
            files.push(file.clone());
            plain_key(&file)
        };
        let wrong = |reason: &str| KeyError::Form {
            file: configuration.display().to_string(),
            reason: reason.to_owned(),
        };
        let all: Value = serde_json::from_slice(&text).map_err(|error| wrong(&error.to_string()))?;
        let list = |name: &str| all[name].as_array().cloned().unwrap_or_default();
        let mut keys: BTreeMap<String, PublisherKey> = BTreeMap::new();
        // Version 1 has the directory of a key beside its secret.
        let mut directories: BTreeMap<String, String> = BTreeMap::new();
        for one in list("keys") {
            let text = |name: &str| one[name].as_str().map(ToOwned::to_owned);
            let (id, secret) = match text("type").as_deref() {
                Some("file") => {
                    let file = text("file_name").ok_or_else(|| wrong("a key has no file_name"))?;
                    plain(file.into())?
                }
                _ => text("id").zip(text("secret")).ok_or_else(|| wrong("a key has no id or no secret"))?,
            };
            directories.extend(text("repo_subpath").map(|directory| (id.clone(), directory)));
            let admin = one["admin"].as_bool().unwrap_or_default();
            keys.insert(id, PublisherKey { secret: Secret::new(secret), admin, ..PublisherKey::default() });
        }
        for one in list("repos") {
            let name = one.as_str().or_else(|| one["domain"].as_str()).unwrap_or_default();
            let repository = RepositoryName::parse(name).map_err(|error| wrong(&error.to_string()))?;
            if one.is_string() {
                let (id, secret) = plain(folder.join(format!("{name}.gw")))?;
                let key = keys.entry(id).or_insert_with(|| PublisherKey {
                    secret: Secret::new(secret),
                    ..PublisherKey::default()
                });
                key.grants.push(LeasePath::root(repository));
                continue;
            }
            for key in one["keys"].as_array().into_iter().flatten() {
                let id = key.as_str().or_else(|| key["id"].as_str()).unwrap_or_default();
                let directory = key["path"].as_str().or_else(|| directories.get(id).map(String::as_str));
                let directory =
                    normal(directory.unwrap_or_default()).map_err(|error| wrong(&error.to_string()))?;
                let grant = LeasePath::parse(&format!("{name}/{directory}"));
                let known = keys
                    .get_mut(id)
                    .ok_or_else(|| wrong(&format!("{name} names the key {id}, which has no secret")))?;
                known.grants.push(grant.map_err(|error| wrong(&error.to_string()))?);
            }
        }
        Ok(Self { files, ..Self::new(keys) })
    }

    /// Returns a ring with the keys of another one, too; these are taken where names are the same.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        let keys = self.keys.into_iter().chain(other.keys);
        Self { files: self.files, ..Self::new(keys) }
    }

    /// Returns the files of the reference that the keys are from.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Returns the keys with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &PublisherKey)> {
        self.keys.iter().map(|(name, key)| (name.as_str(), key))
    }

    /// Returns the repositories that any key is for.
    pub fn repositories(&self) -> &[RepositoryName] {
        &self.repositories
    }

    /// Returns the key that signed an input.
    pub fn signer(&self, authorization: &Authorization, input: &[u8]) -> Result<&PublisherKey, AccessError> {
        let key = self.keys.get(&authorization.key).ok_or(AccessError::Signature)?;
        let mut secrets = std::iter::once(&key.secret).chain(key.old.iter().map(|old| &old.secret));
        match secrets.any(|secret| authorization.is_of(secret.text().as_bytes(), input)) {
            true => Ok(key),
            false => Err(AccessError::Signature),
        }
    }

    /// Refuses a request that no operator signed.
    pub fn check_operator(&self, header: Option<&str>, input: &[u8]) -> Result<(), AccessError> {
        let authorization = header.and_then(Authorization::parse).ok_or(AccessError::Header)?;
        let key = self.keys.get(&authorization.key).ok_or(AccessError::UnknownKey)?;
        if !key.admin {
            return Err(AccessError::NoAdmin);
        }
        self.signer(&authorization, input).map(drop)
    }

    /// Refuses a directory that a key is not for.
    pub fn check(&self, key: &PublisherKey, path: &LeasePath) -> Result<(), AccessError> {
        if self.repositories.binary_search(&path.repository).is_err() {
            return Err(AccessError::Repository);
        }
        let mut of_repository =
            key.grants.iter().filter(|grant| grant.repository == path.repository).peekable();
        if of_repository.peek().is_none() {
            return Err(AccessError::Key);
        }
        if of_repository.any(|grant| grant.covers(path)) { Ok(()) } else { Err(AccessError::Path) }
    }
}

/// Reads the name and the secret in a key file of the reference.
pub fn plain_key(file: &Path) -> Result<(String, String), KeyError> {
    let text = read(file)?;
    let text = String::from_utf8_lossy(&text);
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    match *words {
        ["plain_text", id, secret] | [id, secret] => Ok((id.to_owned(), secret.to_owned())),
        _ => Err(KeyError::Form {
            file: file.display().to_string(),
            reason: "it does not have the form `plain_text ID SECRET`".to_owned(),
        }),
    }
}

fn read(file: &Path) -> Result<Vec<u8>, KeyError> {
    use std::io::Read as _;
    let mut text = Vec::new();
    let opened =
        esker_store::open_named(file).and_then(|opened| opened.take(FILE_MAX).read_to_end(&mut text));
    opened.map_err(|source| KeyError::Read { file: file.display().to_string(), source })?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> LeasePath {
        LeasePath::parse(text).unwrap()
    }

    fn ring() -> KeyRing {
        let key = |grants: &[&str]| PublisherKey {
            secret: Secret::new("s"),
            grants: grants.iter().map(|grant| path(grant)).collect(),
            ..PublisherKey::default()
        };
        KeyRing::new([("one".to_owned(), key(&["r.test/a"])), ("two".to_owned(), key(&["s.test/"]))])
    }

    #[test]
    fn a_key_is_for_its_directories_only() {
        let ring = ring();
        let (_, one) = ring.iter().next().unwrap();
        for (text, expected) in [
            ("r.test/a", Ok(())),
            ("r.test/a/b", Ok(())),
            ("r.test/", Err(AccessError::Path)),
            ("r.test/ab", Err(AccessError::Path)),
            ("s.test/", Err(AccessError::Key)),
            ("t.test/", Err(AccessError::Repository)),
        ] {
            assert_eq!(ring.check(one, &path(text)), expected, "{text}");
        }
    }

    #[test]
    fn only_a_known_key_signs() {
        let ring = ring();
        let signed = |key: &str, secret: &[u8]| Authorization::sign(key, secret, b"x");
        assert!(ring.signer(&signed("one", b"s"), b"x").is_ok());
        for (authorization, input) in
            [(signed("one", b"t"), b"x"), (signed("one", b"s"), b"y"), (signed("three", b"s"), b"x")]
        {
            assert_eq!(ring.signer(&authorization, input), Err(AccessError::Signature));
        }
        assert!(!format!("{ring:?}").contains("\"s\""));
    }

    #[test]
    fn a_secret_that_was_replaced_is_valid_for_some_time() {
        let folder = tempfile::tempdir().unwrap();
        let write = |until: i64| {
            let text = format!(r#"{{"secret":"new","old":{{"secret":"before","until":{until}}}}}"#);
            std::fs::write(folder.path().join("k.json"), text).unwrap();
            KeyRing::read(folder.path()).unwrap()
        };
        let is_valid = |ring: &KeyRing, secret: &[u8]| {
            ring.signer(&Authorization::sign("k", secret, b"x"), b"x").is_ok()
        };
        let (during, after) = (write(i64::MAX), write(1));
        assert!(is_valid(&during, b"new") && is_valid(&during, b"before") && !is_valid(&during, b"other"));
        assert!(is_valid(&after, b"new") && !is_valid(&after, b"before"));
    }

    #[test]
    fn only_an_operator_gives_orders() {
        let key = |admin| PublisherKey { secret: Secret::new("s"), admin, ..PublisherKey::default() };
        let ring = KeyRing::new([("boss".to_owned(), key(true)), ("one".to_owned(), key(false))]);
        let check = |name: &str, secret: &[u8]| {
            ring.check_operator(Some(&Authorization::sign(name, secret, b"x").header()), b"x")
        };
        assert_eq!(check("boss", b"s"), Ok(()));
        assert_eq!(check("boss", b"t"), Err(AccessError::Signature));
        assert_eq!(check("one", b"s"), Err(AccessError::NoAdmin));
        assert_eq!(check("two", b"s"), Err(AccessError::UnknownKey));
        assert_eq!(ring.check_operator(None, b"x"), Err(AccessError::Header));
    }

    #[test]
    fn key_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"secret":"s","grants":["r.test/a"],"limits":{"leases":2}}"#;
        std::fs::write(folder.path().join("k1.json"), text).unwrap();
        std::fs::write(folder.path().join("notes"), "x").unwrap();
        let ring = KeyRing::read(folder.path()).unwrap();
        let (name, key) = ring.iter().next().unwrap();
        assert_eq!((name, key.limits.leases, &*key.grants), ("k1", Some(2), &[path("r.test/a")][..]));
        std::fs::write(folder.path().join("k2.json"), r#"{"secret":"s","grants":["r.test/.."]}"#).unwrap();
        let error = KeyRing::read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("k2.json") && error.contains("`..`"), "{error}");
    }

    #[test]
    fn the_configuration_of_the_reference_is_read() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("plain.test.gw"), "plain_text p1 secret1\n").unwrap();
        let configuration = folder.path().join("repo.json");
        let read = |text: &str| {
            std::fs::write(&configuration, text).unwrap();
            KeyRing::of_reference(&configuration, folder.path())
        };
        let second = read(
            r#"{"version":2,
                "repos":["plain.test",{"domain":"r.test","keys":[{"id":"k1","path":"/"},{"id":"k2","path":"/sub/"}]}],
                "keys":[{"type":"plain_text","id":"k1","secret":"s1","admin":true},{"type":"plain_text","id":"k2","secret":"s2"}]}"#,
        )
        .unwrap();
        let grants: Vec<_> = second
            .iter()
            .map(|(name, key)| {
                (name.to_owned(), key.grants[0].to_string(), key.secret.text().to_owned(), key.admin)
            })
            .collect();
        let expected = [
            ("k1", "r.test/", "s1", true),
            ("k2", "r.test/sub", "s2", false),
            ("p1", "plain.test/", "secret1", false),
        ];
        assert_eq!(
            grants,
            expected.map(|(name, grant, secret, admin)| (name.into(), grant.into(), secret.into(), admin))
        );
        let first = read(
            r#"{"repos":[{"domain":"r.test","keys":["k1"]}],
                "keys":[{"type":"plain_text","id":"k1","secret":"s1","repo_subpath":"/sub"}]}"#,
        )
        .unwrap();
        assert_eq!(first.iter().next().unwrap().1.grants, [path("r.test/sub")]);
        let error =
            read(r#"{"version":2,"repos":[{"domain":"r.test","keys":[{"id":"k9","path":"/"}]}],"keys":[]}"#);
        assert!(error.unwrap_err().to_string().contains("k9"));
    }
}
