//! Devices, sockets and pipes: published, or left out with a warning.

use std::fs;
use std::path::Path;

use esker_repository::SpecialFiles;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::ingest::ingest;
use crate::upper::publish_upper;
use crate::workshop::Workshop;

fn pipe(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
}

fn paths(workshop: &Workshop) -> Vec<String> {
    let findings = workshop.check();
    findings.assert_clean().tree.keys().map(|path| String::from_utf8_lossy(path).into_owned()).collect()
}

#[test]
fn special_files_are_left_out_if_the_settings_say_so() {
    let workshop = Workshop::new();
    pipe(&workshop.source().join("pipe"));
    fs::write(workshop.source().join("file"), b"").unwrap();
    let report = workshop.publish();
    assert_eq!(report.differences.special_left_out, 0);
    assert_eq!(paths(&workshop), ["/", "/file", "/pipe"]);

    let workshop = Workshop::with(|new| new.settings.special_files = SpecialFiles::Skip);
    pipe(&workshop.source().join("pipe"));
    fs::write(workshop.source().join("file"), b"").unwrap();
    let report = workshop.publish();
    assert_eq!(report.differences.special_left_out, 1);
    assert!(report.warnings.iter().any(|text| text.contains("left out")), "{:?}", report.warnings);
    assert_eq!(paths(&workshop), ["/", "/file"]);

    let report = publish_upper(&workshop, |upper| {
        pipe(&upper.join("other"));
        // In the place of a published file, which no longer showed.
        pipe(&upper.join("file"));
    });
    assert_eq!(report.unwrap().differences.special_left_out, 2);
    assert_eq!(paths(&workshop), ["/"]);

    let mut archive = tar::Builder::new(Vec::new());
    let header = |kind| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_size(0);
        header
    };
    archive.append_data(&mut header(tar::EntryType::Fifo), "pipe", &[][..]).unwrap();
    archive.append_link(&mut header(tar::EntryType::Link), "link", "pipe").unwrap();
    let archive = crate::ingest::write(&workshop, "a.tar", &archive.into_inner().unwrap());
    let report = ingest(&workshop, &archive, |_| ()).unwrap();
    assert_eq!(report.differences.special_left_out, 1);
    assert_eq!(paths(&workshop), ["/", "/in", "/in/here"]);
}
