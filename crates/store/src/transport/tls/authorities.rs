//! Reads certificates of authorities from files.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::servers::Authorities;

/// A system's bundle has 200 KiB; grids have some hundred files of 2 KiB.
const FILE_MAX: u64 = 4 << 20;
/// A grid's folder has six files for each authority.
const FILES_MAX: usize = 10_000;

/// Reads all certificates; the error explains why there are none.
pub(super) fn read(authorities: &Authorities) -> Result<RootCertStore, String> {
    let places = authorities.places();
    let (mut found, mut why) = (HashSet::new(), Vec::new());
    for place in &places {
        if let Err(error) = take(place, &mut found) {
            why.push(format!("{}: {error}", place.display()));
        }
    }
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found);
    match (added, why.is_empty()) {
        (0, true) if places.is_empty() => {
            Err("the system has no bundle of them where they usually are".into())
        }
        (0, true) => {
            let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
            Err(format!("there is no certificate in {}", places.join(" and ")))
        }
        (0, false) => Err(why.join("; ")),
        _ => Ok(roots),
    }
}

fn take(place: &Path, found: &mut HashSet<CertificateDer<'static>>) -> io::Result<()> {
    if !place.is_dir() {
        return take_file(place, found);
    }
    let entries = fs::read_dir(place)?.take(FILES_MAX);
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| may_have_one(path)) {
        // One that can't be read is not there; the others may do.
        let _ = take_file(&path, found);
    }
    Ok(())
}

/// Returns whether a file may be a certificate; beside them are revocation lists and policies.
fn may_have_one(path: &Path) -> bool {
    let end = path.extension().and_then(|end| end.to_str()).unwrap_or_default();
    matches!(end, "pem" | "crt" | "cer") || (!end.is_empty() && end.bytes().all(|byte| byte.is_ascii_digit()))
}

fn take_file(path: &Path, found: &mut HashSet<CertificateDer<'static>>) -> io::Result<()> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_MAX).read_to_end(&mut bytes)?;
    // Text between certificates and broken certificates are skipped.
    found.extend(CertificateDer::pem_slice_iter(&bytes).filter_map(Result::ok));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_authorities_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let read = |paths: &[String]| read(&Authorities { system: false, paths: paths.to_vec() });
        let why = read(&[path("absent")]).expect_err("nothing is there");
        assert!(why.contains("absent") && why.contains("No such file"), "{why}");
        fs::write(path("a.pem"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\nnonsense")
            .expect("a file");
        for place in [path("a.pem"), path("")] {
            let why = read(&[place]).expect_err("nothing of use is there");
            assert!(why.contains("there is no certificate in"), "{why}");
        }
        assert!(read(&[]).is_err());
    }

    #[test]
    fn only_certificates_of_a_folder_are_read() {
        for (name, is) in [
            ("0a1b2c3d.0", true),
            ("x.pem", true),
            ("x.crt", true),
            ("0a1b2c3d.r0", false),
            ("x.signing_policy", false),
            ("x", false),
        ] {
            assert_eq!(may_have_one(Path::new(name)), is, "{name}");
        }
    }
}
