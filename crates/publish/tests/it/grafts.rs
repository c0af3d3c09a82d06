//! Grafted files are published with the size and hashes of their markers, by each publishing command.

use std::fs;
use std::path::Path;

use esker_format::compress::Compression;
use esker_publish::{Graft, GraftOptions, PublishError, Report};
use esker_testkit::object;

use crate::ingest::{file, ingest, write};
use crate::upper::publish_upper;
use crate::workshop::{Workshop, objects, publish};

fn content(len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn graft(content: &[u8], chunk_size: Option<u64>) -> Graft {
    GraftOptions { chunk_size, ..GraftOptions::default() }.graft(&mut &content[..]).unwrap()
}

fn put(folder: &Path, name: &str, graft: &Graft) {
    fs::write(folder.join(name), b"").unwrap();
    fs::write(folder.join(format!(".cvmfsgraft-{name}")), graft.to_text()).unwrap();
}

/// Offsets and hashes as the checker reports them.
fn pieces(graft: &Graft) -> Vec<(u64, String)> {
    let chunks = graft.chunks.iter().map(|chunk| (chunk.offset, chunk.hash.to_string()));
    graft.hash.iter().map(|hash| (0, hash.to_string())).chain(chunks).collect()
}

fn external() -> Workshop {
    Workshop::with(|new| new.settings.external_data = true)
}

#[test]
fn a_grafted_file_has_size_and_chunks_of_its_marker() {
    let (whole, cut) = (graft(&content(5000), None), graft(&content(25_000), Some(10_000)));
    let check = |workshop: &Workshop, folder: &str| {
        let findings = workshop.check();
        findings.assert_clean();
        let at = |name: &str| format!("{folder}/{name}").into_bytes();
        assert_eq!(findings.external[&at("whole")], pieces(&whole));
        assert_eq!(findings.external[&at("cut")], pieces(&cut));
        assert_eq!(findings.tree[&at("cut")].size, Some(25_000));
        assert!(findings.tree.keys().all(|path| !String::from_utf8_lossy(path).contains("graft")));
    };
    let workshop = external();
    for (name, graft) in [("whole", &whole), ("cut", &cut)] {
        put(&workshop.source(), name, graft);
    }
    fs::hard_link(workshop.source().join("cut"), workshop.source().join("link")).unwrap();
    let report = workshop.publish();
    assert_eq!((report.differences.added.files, report.files_read), (3, 0));
    check(&workshop, "");
    assert_eq!(workshop.check().external[&b"/link"[..]], pieces(&cut), "all names of a file are grafted");
    assert!(!workshop.publish().published, "nothing changed");

    let workshop = external();
    let upper = |folder: &Path| {
        fs::create_dir(folder.join("d")).unwrap();
        put(&folder.join("d"), "whole", &whole);
        put(&folder.join("d"), "cut", &cut);
    };
    publish_upper(&workshop, upper).unwrap();
    check(&workshop, "/d");

    let workshop = external();
    let mut archive = tar::Builder::new(Vec::new());
    file(&mut archive, "whole", b"");
    file(&mut archive, ".cvmfsgraft-whole", whole.to_text().as_bytes());
    file(&mut archive, ".cvmfsgraft-cut", cut.to_text().as_bytes());
    file(&mut archive, "cut", b"");
    let archive = write(&workshop, "a.tar", &archive.into_inner().unwrap());
    ingest(&workshop, &archive, |_| ()).unwrap();
    check(&workshop, "/in/here");
}

/// Number of stored objects that are whole files: other names end in a letter.
fn contents(workshop: &Workshop) -> usize {
    objects(&workshop.root()).into_iter().filter(|name| name.len() == "data/".len() + 41).count()
}

/// A graft of content that the repository has leads to its objects.
#[test]
fn a_graft_of_stored_content_is_read_from_the_repository() {
    let workshop = Workshop::new();
    let plain = content(3000);
    fs::write(workshop.source().join("stored"), &plain).unwrap();
    workshop.publish();
    let before = contents(&workshop);
    let options = GraftOptions { compression: Compression::Zlib, ..GraftOptions::default() };
    put(&workshop.source(), "grafted", &options.graft(&mut &plain[..]).unwrap());
    workshop.publish();
    let findings = workshop.check();
    let entry = &findings.assert_clean().tree[&b"/grafted"[..]];
    assert_eq!(entry.sha256, Some(object::sha256(&plain)));
    let after = contents(&workshop);
    assert_eq!(before, after, "no content was stored");
    // Without its marker it is the empty file that it is in the source.
    fs::remove_file(workshop.source().join(".cvmfsgraft-grafted")).unwrap();
    workshop.publish();
    workshop.assert_equal();
}

#[test]
fn a_graft_that_can_not_be_used_publishes_nothing() {
    let valid = graft(&content(10), None).to_text();
    let refused = |outcome: Result<Report, PublishError>, path: &str, reason: &str| match outcome.unwrap_err()
    {
        PublishError::Graft { path: at, reason: why } => {
            assert!(at.ends_with(path) && why.contains(reason), "{}: {why}", at.display());
        }
        other => panic!("{other}"),
    };
    for (marker, reason) in [("size=1\n", "no checksum"), (valid.as_str(), "no regular file beside it")] {
        let workshop = external();
        let fill = |folder: &Path| {
            fs::write(folder.join(".cvmfsgraft-x"), marker).unwrap();
            if marker != valid {
                fs::write(folder.join("x"), b"").unwrap();
            }
        };
        fill(&workshop.source());
        refused(publish(&workshop.open(), &workshop.source(), ""), ".cvmfsgraft-x", reason);
        refused(publish_upper(&workshop, fill), ".cvmfsgraft-x", reason);
        let mut archive = tar::Builder::new(Vec::new());
        file(&mut archive, "d/.cvmfsgraft-x", marker.as_bytes());
        let archive = write(&workshop, "a.tar", &archive.into_inner().unwrap());
        refused(ingest(&workshop, &archive, |_| ()), "in/here/d/.cvmfsgraft-x", reason);
        assert_eq!(workshop.check().assert_clean().revision, 0);
    }
}
