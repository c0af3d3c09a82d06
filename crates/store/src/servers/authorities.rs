//! Whose word is taken for who a server is.

use std::path::PathBuf;

/// Where bundles of a system's certificate authorities are, by the systems that have them there.
const BUNDLES: [&str; 7] = [
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

/// Certificate authorities, whose word is taken for who a server or proxy is that is spoken to over https.
///
/// What a repository's objects are is told by its own signatures; so nothing but the way depends on these.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Authorities {
    /// Whether those of the system count.
    pub system: bool,
    /// Files of certificates in PEM, and folders of such files. What is not there is passed over as long as there are others.
    pub paths: Vec<String>,
}

impl Default for Authorities {
    /// Those of the system.
    fn default() -> Self {
        Self { system: true, paths: Vec::new() }
    }
}

impl Authorities {
    /// All files and folders to read; of the bundles of a system the first that is there counts.
    pub(crate) fn places(&self) -> Vec<PathBuf> {
        let bundle = BUNDLES.iter().map(PathBuf::from).find(|path| path.exists()).filter(|_| self.system);
        bundle.into_iter().chain(self.paths.iter().map(PathBuf::from)).collect()
    }
}
