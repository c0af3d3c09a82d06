//! Writes and signs manifests and whitelists.

use std::fmt::Write as _;

use crate::hash::{ContentHash, HashAlgorithm};
use crate::manifest::Manifest;
use crate::time::UnixTime;
use crate::whitelist::Whitelist;

use super::keys::KeyError;
use super::signer::{Purpose, Signer};

/// Returns the bytes of a manifest, signed with the key of the certificate that it names.
pub fn sign_manifest(manifest: &Manifest, key: &dyn Signer) -> Result<Vec<u8>, KeyError> {
    let text = manifest.to_text();
    let hash = ContentHash::of(manifest.root_catalog.algorithm(), text.as_bytes());
    Ok(letter(&text, &hash, &key.sign(Purpose::Manifest, &hash)?))
}

/// Returns the bytes of a whitelist, signed with the master key; `algorithm` is the one of the repository.
pub fn sign_whitelist(
    whitelist: &Whitelist,
    algorithm: HashAlgorithm,
    master: &dyn Signer,
) -> Result<Vec<u8>, KeyError> {
    let text = whitelist_text(whitelist);
    let hash = ContentHash::of(algorithm, text.as_bytes());
    Ok(letter(&text, &hash, &master.sign(Purpose::Whitelist, &hash)?))
}

/// Returns the bytes of a whitelist whose signature was made elsewhere, unverified.
pub fn signed_whitelist(text: &str, algorithm: HashAlgorithm, signature: &[u8]) -> Vec<u8> {
    letter(text, &ContentHash::of(algorithm, text.as_bytes()), signature)
}

/// Returns the text of a whitelist, which its hash covers.
pub fn whitelist_text(whitelist: &Whitelist) -> String {
    let created = whitelist.created.unwrap_or(UnixTime(0));
    let mut text =
        format!("{}\nE{}\nN{}\n", created.to_compact(), whitelist.expires.to_compact(), whitelist.name);
    for (is_required, line) in [(whitelist.pkcs7, "Vpkcs7\n"), (whitelist.ca_chain, "Wcachain\n")] {
        if is_required {
            text.push_str(line);
        }
    }
    for fingerprint in &whitelist.fingerprints {
        writeln!(text, "{}", fingerprint.to_fingerprint())
            .expect("writing to memory succeeds because a string takes every text");
    }
    text
}

fn letter(text: &str, hash: &ContentHash, signature: &[u8]) -> Vec<u8> {
    [text.as_bytes(), b"--\n", hash.to_string().as_bytes(), b"\n", signature].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blacklist::Blacklist;
    use crate::manifest::ROOT_PATH;
    use crate::master_keys::MasterKeys;
    use crate::name::RepositoryName;
    use crate::trust::{self, Evidence, TrustError};
    use crate::write::keys::{PrivateKey, Publisher, self_signed};

    const NOW: UnixTime = UnixTime(1_800_000_000);

    struct Owner {
        name: RepositoryName,
        master: PrivateKey,
        publisher: Publisher,
    }

    fn owner() -> Owner {
        let name = RepositoryName::parse("a-rather-long-name-for-a-repository.example.org").unwrap();
        let random = &mut rsa::rand_core::OsRng;
        let key = PrivateKey::generate(random).unwrap();
        let pem = self_signed(&name, &key, NOW, 365, random).unwrap();
        let publisher = Publisher::new(PrivateKey::from_pem(&key.to_pem().unwrap()).unwrap(), &pem).unwrap();
        Owner { name, master: PrivateKey::generate(random).unwrap(), publisher }
    }

    #[test]
    fn signed_heads_are_verified() {
        let owner = owner();
        let keys = MasterKeys::parse(owner.master.public_pem().unwrap().as_bytes()).unwrap();
        for algorithm in [HashAlgorithm::Sha1, HashAlgorithm::Rmd160, HashAlgorithm::Shake128] {
            let manifest = Manifest {
                root_catalog: ContentHash::of(algorithm, b"root"),
                root_catalog_size: 4096,
                root_path: ROOT_PATH.to_owned(),
                ttl: 240,
                revision: 7,
                garbage_collectable: true,
                alternative_paths: false,
                micro_catalog: None,
                name: Some(owner.name.to_string()),
                certificate: Some(ContentHash::of(algorithm, b"certificate")),
                history: None,
                timestamp: NOW,
                metainfo: None,
                reflog: None,
            };
            let whitelist = Whitelist {
                created: Some(NOW),
                expires: UnixTime(NOW.0 + 86_400),
                name: owner.name.to_string(),
                pkcs7: false,
                ca_chain: false,
                fingerprints: vec![owner.publisher.certificate().fingerprint(algorithm)],
            };
            let signed_manifest = sign_manifest(&manifest, owner.publisher.key()).unwrap();
            let signed_whitelist = sign_whitelist(&whitelist, algorithm, &owner.master).unwrap();
            assert_eq!(Whitelist::parse(&signed_whitelist), Ok(whitelist));
            let evidence = Evidence {
                manifest: &signed_manifest,
                whitelist: &signed_whitelist,
                certificate: owner.publisher.certificate_pem().as_bytes(),
                keys: &keys,
                blacklist: &Blacklist::default(),
                name: &owner.name,
                now: NOW,
                seen: None,
            };
            assert_eq!(trust::verify(&evidence).unwrap().manifest(), &manifest);
            let forged = sign_manifest(&manifest, &owner.master).unwrap();
            let error = trust::verify(&Evidence { manifest: &forged, ..evidence }).unwrap_err();
            assert!(matches!(error, TrustError::ManifestSignature { .. }), "{error}");
            assert!(
                matches!(&error, TrustError::ManifestSignature { subject } if subject.contains("a-rather-long-name-for-a-repos[...] CernVM-FS Release Managers")),
                "{error}"
            );
        }
        assert!(matches!(
            Publisher::new(owner.master.clone(), owner.publisher.certificate_pem()),
            Err(KeyError::Mismatch)
        ));
    }
}
