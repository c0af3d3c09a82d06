//! Builds heads and whitelists for tests, signed as a repository's owner would.

use std::fmt::Display;
use std::path::Path;

use rsa::pkcs8::DecodePrivateKey;
use rsa::{Pkcs1v15Sign, RsaPrivateKey};
use sha1::{Digest, Sha1};
use x509_cert::Certificate;
use x509_cert::der::{DecodePem, Encode};

use crate::object::Algorithm;

/// The private keys of a repository.
#[derive(Clone, Debug)]
pub struct Keys {
    master: RsaPrivateKey,
    publisher: RsaPrivateKey,
    certificate: Vec<u8>,
}

impl Keys {
    /// Reads the three PEM files.
    pub fn read(master: &Path, publisher: &Path, certificate: &Path) -> Keys {
        let text = |file: &Path| {
            std::fs::read_to_string(file).unwrap_or_else(|e| panic!("reading {}: {e}", file.display()))
        };
        Keys {
            master: RsaPrivateKey::from_pkcs8_pem(&text(master)).expect("a PEM private key"),
            publisher: RsaPrivateKey::from_pkcs8_pem(&text(publisher)).expect("a PEM private key"),
            certificate: text(certificate).into_bytes(),
        }
    }

    /// Returns the publisher's certificate as PEM text.
    pub fn certificate_pem(&self) -> &[u8] {
        &self.certificate
    }

    /// Returns the certificate's fingerprint as a whitelist lists it.
    pub fn fingerprint(&self, algorithm: Algorithm) -> String {
        let der = Certificate::from_pem(&self.certificate).expect("a certificate").to_der().expect("DER");
        let text = algorithm.hash(&der).to_uppercase();
        let (digest, tag) = text.split_at(40);
        let bytes: Vec<&str> = (0..20).map(|at| &digest[2 * at..2 * at + 2]).collect();
        format!("{}{tag}", bytes.join(":"))
    }
}

/// The key-value lines of a manifest, to be changed and signed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ManifestDraft {
    lines: Vec<(char, String)>,
}

impl ManifestDraft {
    /// Parses the lines of a manifest and drops its signature.
    pub fn parse(manifest: &[u8]) -> ManifestDraft {
        let end = manifest.windows(4).position(|window| window == b"\n--\n").expect("a signed manifest");
        let text = std::str::from_utf8(&manifest[..end]).expect("a manifest is text");
        let lines = text
            .lines()
            .map(|line| {
                let key = line.chars().next().expect("no empty line");
                (key, line[key.len_utf8()..].to_owned())
            })
            .collect();
        ManifestDraft { lines }
    }

    /// Returns the value of a key.
    pub fn get(&self, key: char) -> Option<String> {
        self.lines.iter().find(|(k, _)| *k == key).map(|(_, value)| value.clone())
    }

    /// Sets a key: replaces its line or appends one.
    pub fn set(&mut self, key: char, value: impl Display) -> &mut Self {
        let value = value.to_string();
        match self.lines.iter_mut().find(|(k, _)| *k == key) {
            Some(line) => line.1 = value,
            None => self.lines.push((key, value)),
        }
        self
    }

    /// Drops a key.
    pub fn remove(&mut self, key: char) -> &mut Self {
        self.lines.retain(|(k, _)| *k != key);
        self
    }

    /// Returns the repository's hash algorithm, by the root catalog's hash.
    pub fn algorithm(&self) -> Algorithm {
        Algorithm::of_text(&self.get('C').expect("a manifest names its root catalog"))
    }

    /// Returns the text to sign.
    pub fn text(&self) -> Vec<u8> {
        self.lines.iter().flat_map(|(key, value)| format!("{key}{value}\n").into_bytes()).collect()
    }

    /// Signs with the publisher's key and returns the whole manifest.
    pub fn sign(&self, keys: &Keys) -> Vec<u8> {
        let text = self.text();
        let hash = self.algorithm().hash(&text);
        let signature = keys
            .publisher
            .sign(Pkcs1v15Sign::new::<Sha1>(), &Sha1::digest(hash.as_bytes()))
            .expect("signing a manifest");
        letter(&text, &hash, &signature)
    }
}

/// A whitelist to be signed; every field is public so that a test can break any of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WhitelistDraft {
    /// First line: time of creation, `YYYYMMDDhhmmss`.
    pub created: String,
    /// Second line without its letter: time of expiry, `YYYYMMDDhhmmss`.
    pub expires: String,
    /// Third line without its letter: name of the repository.
    pub name: String,
    /// Further lines: fingerprints, comments, whatever a test wants.
    pub lines: Vec<String>,
    /// Algorithm of the hash under the dashes.
    pub algorithm: Algorithm,
}

impl WhitelistDraft {
    /// Creates a whitelist with the certificate of `keys` that is valid until the end of this century.
    pub fn listing(keys: &Keys, name: &str, algorithm: Algorithm) -> WhitelistDraft {
        WhitelistDraft {
            created: "20260101000000".to_owned(),
            expires: "20991231000000".to_owned(),
            name: name.to_owned(),
            lines: vec![keys.fingerprint(algorithm)],
            algorithm,
        }
    }

    /// Returns the text to sign.
    pub fn text(&self) -> Vec<u8> {
        let mut text = format!("{}\nE{}\nN{}\n", self.created, self.expires, self.name);
        for line in &self.lines {
            text.push_str(line);
            text.push('\n');
        }
        text.into_bytes()
    }

    /// Signs with the master key and returns the whole whitelist.
    pub fn sign(&self, keys: &Keys) -> Vec<u8> {
        let text = self.text();
        let hash = self.algorithm.hash(&text);
        // No DigestInfo and no second hash: the padded message is the text of the hash itself.
        let signature =
            keys.master.sign(Pkcs1v15Sign::new_unprefixed(), hash.as_bytes()).expect("signing a whitelist");
        letter(&text, &hash, &signature)
    }
}

fn letter(text: &[u8], hash: &str, signature: &[u8]) -> Vec<u8> {
    [text, b"--\n", hash.as_bytes(), b"\n", signature].concat()
}
