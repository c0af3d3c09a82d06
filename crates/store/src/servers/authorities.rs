//! Configures trusted certificate authorities.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Bundles of certificate authorities, by system.
pub(crate) const BUNDLES: [&str; 7] = [
    // Debian, Ubuntu, Arch, Alpine, Gentoo.
    "/etc/ssl/certs/ca-certificates.crt",
    // RHEL and its kin, since 7.
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    // SUSE.
    "/etc/ssl/ca-bundle.pem",
    "/var/lib/ca-certificates/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/ssl/cert.pem",
];

/// Certificate authorities that are trusted for servers and proxies over https.
///
/// Objects are verified by the repository's own signatures; only the transport depends on these authorities.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Authorities {
    /// True if the system's authorities are trusted.
    pub system: bool,
    /// Files of PEM certificates, and folders of such files. Missing ones are skipped as long as others exist.
    pub paths: Vec<String>,
}

impl Default for Authorities {
    /// Returns the authorities of the system.
    fn default() -> Self {
        Self { system: true, paths: Vec::new() }
    }
}

impl Authorities {
    /// Returns all files and folders to read; of the system's bundles the first that exists.
    pub(crate) fn places(&self) -> Vec<PathBuf> {
        let bundle = BUNDLES.iter().map(PathBuf::from).find(|path| path.exists()).filter(|_| self.system);
        bundle.into_iter().chain(self.paths.iter().map(PathBuf::from)).collect()
    }
}

/// Texts of the files and folders of authorities, for when they are gone. Those that are there are read, because systems
/// renew them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeptAuthorities(pub(crate) BTreeMap<PathBuf, String>);

impl KeptAuthorities {
    /// Returns true if no text is kept.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the text of a file, or of all files of a folder.
    pub(crate) fn get(&self, place: &Path) -> Option<&str> {
        self.0.get(place).map(String::as_str)
    }
}
