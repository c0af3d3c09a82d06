//! Certificate of a publisher. Its dates and issuer are ignored: the whitelist decides which certificates are
//! trusted.

use rsa::pkcs8::DecodePublicKey as _;
use rsa::{Pkcs1v15Sign, RsaPublicKey};
use sha1::Digest as _;
use x509_cert::der::{Decode as _, Encode as _};

use crate::hash::{ContentHash, HashAlgorithm};
use crate::time::UnixTime;
use crate::{der, pem};

/// A certificate with an RSA key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    der: Vec<u8>,
    subject: String,
    expires: UnixTime,
    key: RsaPublicKey,
}

/// Reasons why a certificate can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// The text has no PEM block of a certificate.
    #[error("there is no certificate in PEM form")]
    NoPem,
    /// The block is not a certificate.
    #[error("the certificate is not valid X.509: {0}")]
    NotX509(String),
    /// The key is not an RSA key of a supported size.
    #[error("the certificate has no usable RSA key: {0}")]
    Key(String),
}

const LABELS: [&str; 3] = ["CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE"];

impl Certificate {
    /// Reads the first certificate of a PEM text.
    pub fn parse(text: &[u8]) -> Result<Self, CertificateError> {
        let block = pem::blocks(text, &LABELS).into_iter().next().ok_or(CertificateError::NoPem)?;
        // An OpenSSL "trusted certificate" has trust settings after the certificate, which are not part of
        // it.
        let (der, _auxiliary) = der::split(&block)
            .filter(|(der, _)| der::fits(der))
            .ok_or_else(|| CertificateError::NotX509("a length in it is wrong".to_owned()))?;
        let parsed = x509_cert::Certificate::from_der(der)
            .map_err(|error| CertificateError::NotX509(error.to_string()))?;
        let key = parsed
            .tbs_certificate
            .subject_public_key_info
            .to_der()
            .map_err(|error| error.to_string())
            .and_then(|spki| RsaPublicKey::from_public_key_der(&spki).map_err(|error| error.to_string()))
            .map_err(CertificateError::Key)?;
        let certificate = &parsed.tbs_certificate;
        let expires = certificate.validity.not_after.to_unix_duration().as_secs();
        Ok(Self {
            der: der.to_vec(),
            subject: certificate.subject.to_string(),
            expires: UnixTime(i64::try_from(expires).unwrap_or(i64::MAX)),
            key,
        })
    }

    /// Returns the hash of the certificate's DER form.
    pub fn fingerprint(&self, algorithm: HashAlgorithm) -> ContentHash {
        ContentHash::of(algorithm, &self.der)
    }

    /// Returns the subject of the certificate.
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// Returns the end of the certificate's validity, which clients ignore.
    pub const fn expires(&self) -> UnixTime {
        self.expires
    }

    /// Returns true if the certificate's key made this signature of a printed hash, as manifests have it.
    pub(crate) fn signed(&self, printed_hash: &[u8], signature: &[u8]) -> bool {
        let digest = sha1::Sha1::digest(printed_hash);
        self.key.verify(Pkcs1v15Sign::new::<sha1::Sha1>(), &digest, signature).is_ok()
    }
}
