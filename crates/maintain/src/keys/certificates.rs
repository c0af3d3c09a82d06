//! Lists the certificates of a repository: on the whitelist, in the keys folder, of the head.

use std::path::Path;

use esker_format::certificate::Certificate;
use esker_format::hash::ContentHash;
use esker_format::name::RepositoryName;
use esker_repository::{
    KeyFolder, NEXT_CERTIFICATE, RepositoryError, Storage,
    signed::{SignedFiles, is_of},
};
use serde::Serialize;

/// A certificate that the whitelist, the keys folder or the head has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedCertificate {
    /// Fingerprint.
    pub fingerprint: String,
    /// Subject, if the certificate itself is here.
    pub subject: Option<String>,
    /// End of its validity in seconds since 1970, which clients ignore.
    pub expires: Option<i64>,
    /// True if the whitelist lists it.
    pub listed: bool,
    /// True if it signed the published head.
    pub signed_head: bool,
    /// File in the keys folder.
    pub file: Option<&'static str>,
}

/// Certificates of the keys folder, by extension.
const FILES: [&str; 3] = ["crt", NEXT_CERTIFICATE, "old.crt"];

/// Lists the certificates of the repository in a folder. Signatures are not verified.
pub fn list_certificates(
    root: &Path,
    name: &RepositoryName,
    keys: &KeyFolder,
) -> Result<Vec<ListedCertificate>, RepositoryError> {
    let signed = SignedFiles::read(&**Storage::open(root)?.sink(), name)?;
    let whitelist = signed.whitelist(name)?;
    let head = Certificate::parse(&signed.certificate).ok();
    let is_listed =
        |certificate: &Certificate| whitelist.fingerprints.iter().any(|listed| is_of(listed, certificate));
    let algorithm = whitelist.fingerprints.first().map(ContentHash::algorithm);
    let algorithm = algorithm.unwrap_or(esker_format::hash::HashAlgorithm::Sha1);
    let mut known: Vec<(Certificate, Option<&'static str>)> = Vec::new();
    for file in FILES {
        known.extend(keys.certificate_in(file)?.map(|certificate| (certificate, Some(file))));
    }
    if let Some(head) = &head
        && !known.iter().any(|(certificate, _)| certificate == head)
    {
        known.push((head.clone(), None));
    }
    let mut all: Vec<ListedCertificate> = known
        .iter()
        .map(|(certificate, file)| ListedCertificate {
            fingerprint: certificate.fingerprint(algorithm).to_fingerprint(),
            subject: Some(certificate.subject().to_owned()),
            expires: Some(certificate.expires().0),
            listed: is_listed(certificate),
            signed_head: head.as_ref() == Some(certificate),
            file: *file,
        })
        .collect();
    let others = whitelist.fingerprints.iter();
    let others = others.filter(|listed| !known.iter().any(|(certificate, _)| is_of(listed, certificate)));
    all.extend(others.map(|listed| ListedCertificate {
        fingerprint: listed.to_fingerprint(),
        subject: None,
        expires: None,
        listed: true,
        signed_head: false,
        file: None,
    }));
    Ok(all)
}
