//! External data: hashes of files are published, and their contents are not stored.

use std::fs;

use esker_format::chunker::ChunkSizes;
use esker_testkit::object::Algorithm;

use crate::ingest::{file, ingest, write};
use crate::upper::publish_upper;
use crate::workshop::{Workshop, objects};

fn content(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32).map(|at| ((at ^ seed).wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Number of objects of files and chunks; other names end in another letter.
fn stored(workshop: &Workshop) -> usize {
    let is_content = |name: &&String| !name.ends_with(['C', 'H', 'X', 'M']);
    objects(&workshop.root()).iter().filter(is_content).count()
}

fn workshop() -> Workshop {
    Workshop::with(|new| {
        new.settings.external_data = true;
        new.settings.chunks = ChunkSizes::new(4096, 8192, 16_384).unwrap();
    })
}

#[test]
fn contents_are_hashed_and_not_stored() {
    let workshop = workshop();
    let at = |name: &str| workshop.source().join(name);
    let (whole, cut) = (content(3000, 1), content(40_000, 2));
    fs::create_dir(at("d")).unwrap();
    fs::write(at("d/whole"), &whole).unwrap();
    fs::write(at("d/cut"), &cut).unwrap();
    fs::write(at("d/.cvmfscatalog"), b"").unwrap();
    fs::write(at(".cvmfsdirtab"), b"/d/e\n").unwrap();
    let report = workshop.publish();
    assert_eq!((report.files_read, report.objects_stored), (4, 2), "only those that publishers read");
    let findings = workshop.check();
    findings.assert_clean();
    let hash = |bytes: &[u8]| Algorithm::Sha1.hash(bytes);
    assert_eq!(findings.external[&b"/d/whole"[..]], [(0, hash(&whole))]);
    let chunks = &findings.external[&b"/d/cut"[..]];
    assert!(chunks.len() > 2);
    for (number, (offset, said)) in chunks.iter().enumerate() {
        let end = chunks.get(number + 1).map_or(cut.len(), |(next, _)| *next as usize);
        assert_eq!(*said, hash(&cut[*offset as usize..end]));
    }
    assert_eq!(findings.external.len(), 2);
    assert_eq!(stored(&workshop), 2);
    assert!(!workshop.publish().published, "nothing changed");

    let archive = {
        let mut archive = tar::Builder::new(Vec::new());
        file(&mut archive, "more", &content(50_000, 3));
        write(&workshop, "a.tar", &archive.into_inner().unwrap())
    };
    ingest(&workshop, &archive, |_| ()).unwrap();
    let report = publish_upper(&workshop, |upper| {
        fs::create_dir(upper.join("d")).unwrap();
        fs::write(upper.join("d/new"), content(60_000, 4)).unwrap();
        // Copied up by a change of its time alone.
        fs::write(upper.join("d/cut"), &cut).unwrap();
    });
    assert_eq!(report.unwrap().files_read, 1);
    let findings = workshop.check();
    findings.assert_clean();
    let paths: Vec<_> = findings.external.keys().map(|path| String::from_utf8_lossy(path)).collect();
    assert_eq!(paths, ["/d/cut", "/d/new", "/d/whole", "/in/here/more"]);
    assert_eq!(&findings.external[&b"/d/cut"[..]], chunks);
    assert_eq!(stored(&workshop), 2);
}

/// Whether content is stored follows from the settings of the publish, and from no index.
#[test]
fn a_publish_without_external_data_stores_all_contents() {
    let workshop = workshop();
    fs::write(workshop.source().join("file"), content(3000, 1)).unwrap();
    workshop.publish();
    let mut repository = workshop.open();
    repository.settings_mut().external_data = false;
    let report = crate::workshop::publish(&repository, &workshop.source(), "").unwrap();
    assert_eq!((report.differences.changed.files, report.objects_stored), (1, 1));
    workshop.assert_equal();
    // A transaction that only touches an external file leaves it so.
    workshop.publish();
    assert_eq!(workshop.check().assert_clean().external.len(), 1);
    publish_upper(&workshop, |upper| fs::write(upper.join("file"), content(3000, 1)).unwrap()).unwrap();
    assert_eq!(workshop.check().assert_clean().external.len(), 1);
}
