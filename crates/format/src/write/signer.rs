//! Signers: private keys in memory, and programs that keep a key elsewhere.
//!
//! Every signature of a repository is an RSA operation on a padded input (PKCS#1 v1.5, type 1; `CKM_RSA_PKCS` of
//! PKCS#11). The input of a whitelist is the text of its hash; that of a manifest names SHA-1 and has the SHA-1 of the
//! text of its hash (`DigestInfo`).

use std::fmt;

use rand_core::OsRng;
use rsa::Pkcs1v15Sign;
use sha1::{Digest as _, Sha1};

use super::keys::{KeyError, PrivateKey};
use crate::hash::ContentHash;
use crate::master_keys::MasterKeys;

/// Purpose of a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A manifest, signed with the publisher's key.
    Manifest,
    /// A whitelist, signed with the master key.
    Whitelist,
}

impl Purpose {
    /// Returns the name for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Manifest => "manifest",
            Self::Whitelist => "whitelist",
        }
    }

    /// Returns the bytes to pad and sign for a printed hash.
    pub fn input(self, hash: &ContentHash) -> Vec<u8> {
        let text = hash.to_string().into_bytes();
        match self {
            Self::Whitelist => text,
            Self::Manifest => [&SHA1_DIGEST_INFO[..], &Sha1::digest(text)].concat(),
        }
    }
}

/// DER of a `DigestInfo` that names SHA-1, up to the digest.
const SHA1_DIGEST_INFO: [u8; 15] =
    [0x30, 0x21, 0x30, 0x09, 0x06, 0x05, 0x2b, 0x0e, 0x03, 0x02, 0x1a, 0x05, 0x00, 0x04, 0x14];

/// Makes RSA signatures with PKCS#1 v1.5 padding.
pub trait Signer: fmt::Debug + Send + Sync {
    /// Pads and signs the input of a printed hash.
    fn sign(&self, purpose: Purpose, hash: &ContentHash) -> Result<Vec<u8>, KeyError>;
}

impl Signer for PrivateKey {
    fn sign(&self, purpose: Purpose, hash: &ContentHash) -> Result<Vec<u8>, KeyError> {
        self.rsa()
            .sign_with_rng(&mut OsRng, Pkcs1v15Sign::new_unprefixed(), &purpose.input(hash))
            .map_err(KeyError::Rsa)
    }
}

/// Signer of whitelists whose signatures are verified before their use.
#[derive(Debug)]
pub struct VerifiedMaster {
    signer: Box<dyn Signer>,
    keys: MasterKeys,
}

impl VerifiedMaster {
    /// Verifies the signatures of a signer with public keys.
    pub fn new(signer: Box<dyn Signer>, keys: MasterKeys) -> Self {
        Self { signer, keys }
    }
}

impl Signer for VerifiedMaster {
    fn sign(&self, purpose: Purpose, hash: &ContentHash) -> Result<Vec<u8>, KeyError> {
        let signature = self.signer.sign(purpose, hash)?;
        if purpose == Purpose::Whitelist && self.keys.signed(hash.to_string().as_bytes(), &signature) {
            Ok(signature)
        } else {
            Err(KeyError::WrongSignature)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::HashAlgorithm;

    /// A manifest's input is what RSA libraries make of a SHA-1 digest.
    #[test]
    fn inputs_are_those_of_the_format() {
        let key = PrivateKey::generate(&mut OsRng).unwrap();
        for algorithm in [HashAlgorithm::Sha1, HashAlgorithm::Shake128] {
            let hash = ContentHash::of(algorithm, b"text");
            assert_eq!(Purpose::Whitelist.input(&hash), hash.to_string().as_bytes());
            let signature = key.sign(Purpose::Manifest, &hash).unwrap();
            let digest = Sha1::digest(hash.to_string().as_bytes());
            let public = key.rsa().to_public_key();
            public.verify(Pkcs1v15Sign::new::<Sha1>(), &digest, &signature).unwrap();
        }
    }

    #[test]
    fn signatures_of_another_master_key_are_refused() {
        let [ours, other] = [(); 2].map(|()| PrivateKey::generate(&mut OsRng).unwrap());
        let keys = MasterKeys::parse(ours.public_pem().unwrap().as_bytes()).unwrap();
        let hash = ContentHash::of(HashAlgorithm::Sha1, b"text");
        let right = VerifiedMaster::new(Box::new(ours), keys.clone());
        assert!(right.sign(Purpose::Whitelist, &hash).is_ok());
        let wrong = VerifiedMaster::new(Box::new(other), keys);
        assert!(matches!(wrong.sign(Purpose::Whitelist, &hash), Err(KeyError::WrongSignature)));
    }
}
