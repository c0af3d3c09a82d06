//! Private keys protected by a passphrase: PKCS#8, as `openssl pkcs8 -topk8` writes and reads it.

use rand_core::{OsRng, RngCore as _};
use rsa::RsaPrivateKey;
use rsa::pkcs8::pkcs5::EncryptionScheme;
use rsa::pkcs8::pkcs5::pbes2::{Kdf, Parameters};
use rsa::pkcs8::{
    DecodePrivateKey as _, EncodePrivateKey as _, EncryptedPrivateKeyInfo, LineEnding, PrivateKeyInfo,
    SecretDocument,
};

use super::keys::{KeyError, PrivateKey};

/// Label of the PEM block.
const LABEL: &str = "ENCRYPTED PRIVATE KEY";
/// Repetitions of PBKDF2 with SHA-256, as OWASP recommends in 2023. scrypt would need more memory than OpenSSL allows.
const ITERATIONS: u32 = 600_000;
/// Maximum number of accepted repetitions.
const ITERATIONS_MAX: u32 = 20_000_000;
/// Maximum memory for scrypt in bytes.
const SCRYPT_MEMORY_MAX: u64 = 1 << 30;
/// Maximum number of accepted passes of scrypt.
const SCRYPT_PASSES_MAX: u16 = 16;

impl PrivateKey {
    /// Returns true if a PEM text is a key that needs a passphrase.
    pub fn is_encrypted(pem: &str) -> bool {
        pem.contains("-----BEGIN ENCRYPTED PRIVATE KEY-----") || pem.contains("Proc-Type: 4,ENCRYPTED")
    }

    /// Decrypts a key.
    pub fn from_encrypted_pem(text: &str, passphrase: &str) -> Result<Self, KeyError> {
        let (label, document) = SecretDocument::from_pem(text).map_err(|_| KeyError::Encryption)?;
        if label != LABEL {
            return Err(KeyError::Encryption);
        }
        let info =
            EncryptedPrivateKeyInfo::try_from(document.as_bytes()).map_err(|_| KeyError::Encryption)?;
        check_cost(&info.encryption_algorithm)?;
        let plain = info.decrypt(passphrase).map_err(|_| KeyError::WrongPassphrase)?;
        // A wrong passphrase may leave bytes that look decrypted.
        RsaPrivateKey::from_pkcs8_der(plain.as_bytes()).map(Self::of).map_err(|_| KeyError::WrongPassphrase)
    }

    /// Returns the key as PEM text that needs this passphrase.
    pub fn to_encrypted_pem(&self, passphrase: &str) -> Result<String, KeyError> {
        let (mut salt, mut iv) = ([0; 16], [0; 16]);
        OsRng.fill_bytes(&mut salt);
        OsRng.fill_bytes(&mut iv);
        let failed = |_| KeyError::Encryption;
        let scheme =
            Parameters::pbkdf2_sha256_aes256cbc(ITERATIONS, &salt, &iv).map_err(|_| KeyError::Encryption)?;
        let plain = self.rsa().to_pkcs8_der().map_err(failed)?;
        let info = PrivateKeyInfo::try_from(plain.as_bytes()).map_err(|_| KeyError::Encryption)?;
        let document = info.encrypt_with_params(scheme, passphrase).map_err(failed)?;
        let pem = document.to_pem(LABEL, LineEnding::LF).map_err(|_| KeyError::Encryption)?;
        Ok(pem.as_str().to_owned())
    }
}

/// Refuses keys whose decryption would take all memory or hours.
fn check_cost(scheme: &EncryptionScheme<'_>) -> Result<(), KeyError> {
    let cheap = match scheme.pbes2().map(|parameters| &parameters.kdf) {
        Some(Kdf::Pbkdf2(parameters)) => parameters.iteration_count <= ITERATIONS_MAX,
        Some(Kdf::Scrypt(parameters)) => {
            let memory = u64::from(parameters.block_size)
                .checked_mul(parameters.cost_parameter)
                .and_then(|blocks| blocks.checked_mul(128));
            memory.is_some_and(|memory| memory <= SCRYPT_MEMORY_MAX)
                && parameters.parallelization <= SCRYPT_PASSES_MAX
        }
        _ => false,
    };
    if cheap { Ok(()) } else { Err(KeyError::Encryption) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encrypted_key_needs_its_passphrase() {
        let key = PrivateKey::generate(&mut OsRng).unwrap();
        let text = key.to_encrypted_pem("correct horse").unwrap();
        assert!(PrivateKey::is_encrypted(&text) && !PrivateKey::is_encrypted(&key.to_pem().unwrap()));
        assert!(matches!(PrivateKey::from_pem(&text), Err(KeyError::Encrypted)));
        let read = PrivateKey::from_encrypted_pem(&text, "correct horse").unwrap();
        assert_eq!(read.to_pem().unwrap(), key.to_pem().unwrap());
        for wrong in ["", "correct hors", "correct horse "] {
            let refused = PrivateKey::from_encrypted_pem(&text, wrong);
            assert!(matches!(refused, Err(KeyError::WrongPassphrase)), "{wrong:?}");
        }
        let plain = key.to_pem().unwrap();
        assert!(matches!(PrivateKey::from_encrypted_pem(&plain, ""), Err(KeyError::Encryption)));
        for length in 0..text.len() / 16 {
            assert!(PrivateKey::from_encrypted_pem(&text[..length * 16], "x").is_err());
        }
    }

    #[test]
    fn keys_that_cost_too_much_are_refused() {
        let key = PrivateKey::generate(&mut OsRng).unwrap();
        let plain = key.rsa().to_pkcs8_der().unwrap();
        let info = PrivateKeyInfo::try_from(plain.as_bytes()).unwrap();
        let scheme = Parameters::pbkdf2_sha256_aes256cbc(10, b"saltsalt", &[7; 16]).unwrap();
        let document = info.encrypt_with_params(scheme, "x").unwrap();
        let mut bytes = document.as_bytes().to_vec();
        // INTEGER 10 becomes 127 and then the largest number of its length.
        let at = bytes.windows(3).position(|window| window == [2, 1, 10]).unwrap();
        bytes[at + 2] = 127;
        assert!(
            check_cost(&EncryptedPrivateKeyInfo::try_from(&bytes[..]).unwrap().encryption_algorithm).is_ok()
        );
        let dear = Parameters::pbkdf2_sha256_aes256cbc(ITERATIONS_MAX + 1, b"saltsalt", &[7; 16]).unwrap();
        assert!(matches!(check_cost(&dear.into()), Err(KeyError::Encryption)));
    }
}
