//! Reads certificates of authorities from files.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::named_file::open_named;
use crate::servers::{Authorities, KeptAuthorities};

/// Maximum size of a file in bytes: systems have 200 KiB, grids some hundred files of 2 KiB.
const FILE_MAX: u64 = 4 << 20;
/// Maximum number of files: a grid's folder has six for each authority.
const FILES_MAX: usize = 10_000;

/// Reads all certificates; the error explains why there are none. The kept text of a file stands in for one that is gone.
pub(super) fn read(authorities: &Authorities, kept: &KeptAuthorities) -> Result<RootCertStore, String> {
    let mut places = authorities.places();
    // A bundle of the system that is gone isn't listed.
    let gone = kept.0.keys().filter(|place| authorities.system && !place.exists());
    let gone: Vec<PathBuf> = gone.filter(|place| !places.contains(place)).cloned().collect();
    places.extend(gone);
    let (mut found, mut why) = (HashSet::new(), Vec::new());
    for place in &places {
        let before = found.len();
        let read = texts(place).map(|texts| texts.iter().for_each(|text| parse(text, &mut found)));
        if found.len() == before
            && let Some(text) = kept.get(place)
        {
            parse(text.as_bytes(), &mut found);
        } else if let Err(error) = read {
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

impl Authorities {
    /// Returns the texts of all files and folders that can be read.
    pub fn kept(&self) -> KeptAuthorities {
        let read = |place: PathBuf| {
            let text: Vec<u8> = texts(&place).ok()?.join(&b'\n');
            Some((place, String::from_utf8_lossy(&text).into_owned()))
        };
        KeptAuthorities(self.places().into_iter().filter_map(read).collect())
    }
}

/// Reads a file, or all files of a folder that may be certificates.
fn texts(place: &Path) -> io::Result<Vec<Vec<u8>>> {
    if !place.is_dir() {
        return Ok(vec![text(place)?]);
    }
    let entries = fs::read_dir(place)?.take(FILES_MAX);
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| may_have_one(path));
    // One that can't be read is not there; the others may do.
    Ok(paths.filter_map(|path| text(&path).ok()).collect())
}

fn text(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_named(path)?.take(FILE_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Adds the certificates of a text. Text between certificates and broken certificates are skipped.
fn parse(text: &[u8], found: &mut HashSet<CertificateDer<'static>>) {
    found.extend(CertificateDer::pem_slice_iter(text).filter_map(Result::ok));
}

/// Returns whether a file may be a certificate; beside them are revocation lists and policies.
fn may_have_one(path: &Path) -> bool {
    let end = path.extension().and_then(|end| end.to_str()).unwrap_or_default();
    matches!(end, "pem" | "crt" | "cer") || (!end.is_empty() && end.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_authorities_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let none = KeptAuthorities::default();
        let read = |paths: &[String]| read(&Authorities { system: false, paths: paths.to_vec() }, &none);
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

    /// The kept text of a file or folder stands in for one that is gone, and only then.
    #[test]
    fn removed_authorities_stay_known() {
        let certificate = include_str!("../../../../../fixtures/full.test/full.test.crt");
        let folder = tempfile::tempdir().expect("a folder");
        let (file, all) = (folder.path().join("a.pem"), folder.path().join("all"));
        fs::create_dir(&all).expect("a folder");
        for path in [&file, &all.join("0a1b2c3d.0")] {
            fs::write(path, certificate).expect("a file");
        }
        for place in [&file, &all] {
            let paths = vec![place.display().to_string()];
            let authorities = Authorities { system: false, paths };
            let kept = authorities.kept();
            let count = |kept: &KeptAuthorities| read(&authorities, kept).map(|roots| roots.len());
            assert_eq!(count(&KeptAuthorities::default()), Ok(1));
            if place.is_dir() { fs::remove_dir_all(place) } else { fs::remove_file(place) }.expect("removed");
            count(&KeptAuthorities::default()).expect_err("it is gone");
            assert_eq!(count(&kept), Ok(1), "{}", place.display());
        }
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
