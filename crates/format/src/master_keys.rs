//! Master public keys, which verify signatures of whitelists.

use rsa::pkcs1::DecodeRsaPublicKey as _;
use rsa::pkcs8::{DecodePublicKey as _, EncodePublicKey as _, LineEnding};
use rsa::{Pkcs1v15Sign, RsaPublicKey};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::hash::{ContentHash, HashAlgorithm};
use crate::{base64, pem};

/// Master public keys that a user trusts for a repository; any of them may sign its whitelist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MasterKeys {
    /// DER form and key, sorted, without duplicates.
    keys: Vec<(Vec<u8>, RsaPublicKey)>,
}

/// Reasons why a public key can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The text has no PEM block of a public key.
    #[error("there is no public key in PEM form")]
    NoPem,
    /// The key is not an RSA key of a supported size.
    #[error("the public key is not a usable RSA key: {0}")]
    Key(String),
}

/// A public key as displayed to a user who has to decide on its trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownKey {
    /// SHA-256 of the key's DER form (SubjectPublicKeyInfo) in hexadecimal digits, as `openssl pkey -pubin
    /// -outform DER | sha256sum` prints it.
    pub fingerprint: String,
    /// The key alone, in PEM form.
    pub pem: String,
}

impl MasterKeys {
    /// Reads all public keys of a PEM text.
    pub fn parse(text: &[u8]) -> Result<Self, KeyError> {
        let mut keys = Self::default();
        keys.add(text)?;
        Ok(keys)
    }

    /// Adds all public keys of another PEM text.
    pub fn add(&mut self, text: &[u8]) -> Result<(), KeyError> {
        let usual = pem::blocks(text, &["PUBLIC KEY"]).into_iter().map(|der| (spki(&der), der));
        let bare = pem::blocks(text, &["RSA PUBLIC KEY"]).into_iter().map(|der| (pkcs1(&der), der));
        let found: Vec<_> = usual.chain(bare).collect();
        if found.is_empty() {
            return Err(KeyError::NoPem);
        }
        for (key, der) in found {
            self.insert(der, key?);
        }
        Ok(())
    }

    fn insert(&mut self, der: Vec<u8>, key: RsaPublicKey) {
        if let Err(place) = self.keys.binary_search_by(|(known, _)| known.cmp(&der)) {
            self.keys.insert(place, (der, key));
        }
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns true if there are no keys.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns each key in its display form, sorted by fingerprint.
    pub fn shown(&self) -> Result<Vec<ShownKey>, KeyError> {
        let show = |(_, key): &(Vec<u8>, RsaPublicKey)| {
            let failed = |error: rsa::pkcs8::spki::Error| KeyError::Key(error.to_string());
            let der = key.to_public_key_der().map_err(failed)?;
            let digest = Sha256::digest(der.as_bytes());
            Ok(ShownKey {
                fingerprint: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
                pem: key.to_public_key_pem(LineEnding::LF).map_err(failed)?,
            })
        };
        let mut shown: Vec<_> = self.keys.iter().map(show).collect::<Result<_, _>>()?;
        shown.sort_by(|a, b| a.fingerprint.cmp(&b.fingerprint));
        shown.dedup();
        Ok(shown)
    }

    /// Returns a hash that is the same for the same set of keys in any order.
    pub fn id(&self) -> ContentHash {
        let all: Vec<u8> = self.keys.iter().flat_map(|(der, _)| der.iter().copied()).collect();
        ContentHash::of(HashAlgorithm::Shake128, &all)
    }

    /// Returns true if one of the keys made this signature of a printed hash, as whitelists have it: over the
    /// text itself, without a second hash and without the name of an algorithm.
    pub(crate) fn signed(&self, printed_hash: &[u8], signature: &[u8]) -> bool {
        self.keys
            .iter()
            .any(|(_, key)| key.verify(Pkcs1v15Sign::new_unprefixed(), printed_hash, signature).is_ok())
    }
}

fn spki(der: &[u8]) -> Result<RsaPublicKey, KeyError> {
    RsaPublicKey::from_public_key_der(der).map_err(|error| KeyError::Key(error.to_string()))
}

fn pkcs1(der: &[u8]) -> Result<RsaPublicKey, KeyError> {
    RsaPublicKey::from_pkcs1_der(der).map_err(|error| KeyError::Key(error.to_string()))
}

impl Serialize for MasterKeys {
    /// Writes the DER forms in base64.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.keys.iter().map(|(der, _)| base64::encode(der)))
    }
}

impl<'de> Deserialize<'de> for MasterKeys {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut keys = Self::default();
        for text in Vec::<String>::deserialize(from)? {
            let der =
                base64::decode(text.as_bytes()).ok_or_else(|| D::Error::custom("a key is not in base64"))?;
            let key = spki(&der).or_else(|_| pkcs1(&der)).map_err(D::Error::custom)?;
            keys.insert(der, key);
        }
        Ok(keys)
    }
}
