//! Keys of a repository.
//!
//! The master key signs the whitelist, the publisher's key signs manifests, and the certificate carries the
//! publisher's public key. Both keys are RSA, as PEM text. Every signature is blinded with random numbers, so
//! that its duration reveals nothing about the key (RUSTSEC-2023-0071, see SECURITY.md).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rand_core::CryptoRngCore;
use rsa::RsaPrivateKey;
use rsa::pkcs1::DecodeRsaPrivateKey as _;
use rsa::pkcs8::{DecodePrivateKey as _, EncodePrivateKey as _, EncodePublicKey as _, LineEnding};
use x509_cert::builder::{Builder as _, CertificateBuilder, Profile};
use x509_cert::der::asn1::{GeneralizedTime, UtcTime};
use x509_cert::der::{Decode as _, EncodePem as _};
use x509_cert::name::Name;
use x509_cert::serial_number::SerialNumber;
use x509_cert::spki::SubjectPublicKeyInfoOwned;
use x509_cert::time::{Time, Validity};

use crate::certificate::{Certificate, CertificateError};
use crate::hash::{ContentHash, HashAlgorithm};
use crate::name::RepositoryName;
use crate::time::UnixTime;

use super::signer::{Purpose, Signer};

/// Size in bits of generated keys, as in the reference implementation.
const KEY_BITS: usize = 2048;
const DAY: i64 = 86_400;

/// Reasons why a key or certificate can't be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The text is not a private key.
    #[error("it is not an RSA private key in PEM form")]
    PrivateKey,
    /// The text is not a certificate.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The certificate belongs to another private key.
    #[error("the certificate belongs to another key")]
    Mismatch,
    /// An operation with a key failed.
    #[error("the RSA operation failed")]
    Rsa(#[source] rsa::Error),
    /// The text is a key that needs a passphrase.
    #[error("it needs a passphrase")]
    Encrypted,
    /// The passphrase is wrong.
    #[error("the passphrase is wrong")]
    WrongPassphrase,
    /// The encryption of the key is not supported.
    #[error("its encryption is not supported; `openssl pkcs8 -topk8 -v2 aes-256-cbc` writes one that is")]
    Encryption,
    /// A program that signs failed.
    #[error("the signer `{command}` failed: {reason}")]
    Signer {
        /// The command.
        command: String,
        /// Reason for the failure.
        reason: String,
    },
    /// A signature does not verify.
    #[error("the signature was made with another key")]
    WrongSignature,
    /// A certificate could not be created.
    #[error("the certificate could not be made: {0}")]
    Building(String),
}

/// An RSA private key: a master key or the key of a publisher.
#[derive(Clone)]
pub struct PrivateKey(RsaPrivateKey);

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey")
    }
}

impl PrivateKey {
    /// Generates a key.
    pub fn generate(random: &mut impl CryptoRngCore) -> Result<Self, KeyError> {
        RsaPrivateKey::new(random, KEY_BITS).map(Self).map_err(KeyError::Rsa)
    }

    pub(super) const fn of(key: RsaPrivateKey) -> Self {
        Self(key)
    }

    pub(super) const fn rsa(&self) -> &RsaPrivateKey {
        &self.0
    }

    /// Parses a key in either of the PEM forms that OpenSSL writes.
    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        if Self::is_encrypted(text) {
            return Err(KeyError::Encrypted);
        }
        RsaPrivateKey::from_pkcs8_pem(text)
            .or_else(|_| RsaPrivateKey::from_pkcs1_pem(text))
            .map(Self)
            .map_err(|_| KeyError::PrivateKey)
    }

    /// Returns the key as PEM text.
    pub fn to_pem(&self) -> Result<String, KeyError> {
        let pem = self.0.to_pkcs8_pem(LineEnding::LF).map_err(|_| KeyError::PrivateKey)?;
        Ok(pem.as_str().to_owned())
    }

    /// Returns the public key as PEM text, which clients of a master key need.
    pub fn public_pem(&self) -> Result<String, KeyError> {
        self.0.to_public_key().to_public_key_pem(LineEnding::LF).map_err(|_| KeyError::PrivateKey)
    }
}

/// Creates a self-signed certificate of the key, as PEM text.
pub fn self_signed(
    name: &RepositoryName,
    key: &PrivateKey,
    now: UnixTime,
    days: u32,
    random: &mut impl CryptoRngCore,
) -> Result<String, KeyError> {
    fn failed(error: impl fmt::Display) -> KeyError {
        KeyError::Building(error.to_string())
    }
    let mut serial = [0; 8];
    random.fill_bytes(&mut serial);
    serial[0] = serial[0] & 0x7f | 1; // positive, and its length is fixed
    let public = key.0.to_public_key().to_public_key_der().map_err(failed)?;
    let signer = rsa::pkcs1v15::SigningKey::<rsa::sha2::Sha256>::new(key.0.clone());
    let expiry = UnixTime(now.0.saturating_add(i64::from(days) * DAY));
    let builder = CertificateBuilder::new(
        Profile::Manual { issuer: None },
        SerialNumber::new(&serial).map_err(failed)?,
        Validity { not_before: time(now)?, not_after: time(expiry)? },
        subject(name)?,
        SubjectPublicKeyInfoOwned::from_der(public.as_bytes()).map_err(failed)?,
        &signer,
    );
    let certificate = builder.map_err(failed)?.build::<rsa::pkcs1v15::Signature>().map_err(failed)?;
    certificate.to_pem(LineEnding::LF).map_err(failed)
}

/// Key and certificate of a publisher. The certificate's PEM text is kept unchanged.
#[derive(Clone, Debug)]
pub struct Publisher {
    signer: Arc<dyn Signer>,
    pem: String,
    certificate: Certificate,
}

impl Publisher {
    /// Combines a key and its certificate.
    pub fn new(key: PrivateKey, certificate_pem: &str) -> Result<Self, KeyError> {
        let publisher = Self::with_signer(Arc::new(key), certificate_pem)?;
        let probe = ContentHash::of(HashAlgorithm::Sha1, b"");
        match publisher.sign(Purpose::Manifest, &probe) {
            Err(KeyError::WrongSignature) => Err(KeyError::Mismatch),
            other => other.map(|_| publisher),
        }
    }

    /// Combines a signer with the certificate of its key. Each signature is verified with the certificate.
    pub fn with_signer(signer: Arc<dyn Signer>, certificate_pem: &str) -> Result<Self, KeyError> {
        let certificate = Certificate::parse(certificate_pem.as_bytes())?;
        Ok(Self { signer, pem: certificate_pem.to_owned(), certificate })
    }

    /// Returns the signer, whose signatures are verified.
    pub fn key(&self) -> &dyn Signer {
        self
    }

    /// Returns the certificate.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// Returns the text of the certificate, which repositories store.
    pub fn certificate_pem(&self) -> &str {
        &self.pem
    }
}

impl Signer for Publisher {
    fn sign(&self, purpose: Purpose, hash: &ContentHash) -> Result<Vec<u8>, KeyError> {
        let signature = self.signer.sign(purpose, hash)?;
        if purpose == Purpose::Manifest && self.certificate.signed(hash.to_string().as_bytes(), &signature) {
            Ok(signature)
        } else {
            Err(KeyError::WrongSignature)
        }
    }
}

/// Maximum length in bytes of the repository's name in the subject of a certificate.
const SUBJECT_NAME_MAX: usize = 30;

fn subject(name: &RepositoryName) -> Result<Name, KeyError> {
    let name = name.as_str();
    let short = match name.get(..SUBJECT_NAME_MAX) {
        Some(start) if name.len() > SUBJECT_NAME_MAX => format!("{start}[...]"),
        _ => name.to_owned(),
    };
    format!("CN={short} CernVM-FS Release Managers")
        .parse()
        .map_err(|error: x509_cert::der::Error| KeyError::Building(error.to_string()))
}

fn time(time: UnixTime) -> Result<Time, KeyError> {
    let since_epoch = Duration::from_secs(u64::try_from(time.0).unwrap_or(0));
    // The short form ends in 2049.
    UtcTime::from_unix_duration(since_epoch)
        .map(Time::UtcTime)
        .or_else(|_| GeneralizedTime::from_unix_duration(since_epoch).map(Time::GeneralTime))
        .map_err(|error| KeyError::Building(error.to_string()))
}
