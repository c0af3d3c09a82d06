//! Names of what a publish leaves out or splits.

use std::fs;

use esker_format::copied_xattr::PUBLISHED_PATH;
use esker_publish::{Remark, RemarkKind, Report};
use esker_repository::LongXattrs;
use rustix::fs::{XattrFlags, setxattr};
use tar::EntryType;

use crate::ingest::{Archive, file, ingest, link};
use crate::upper::publish_upper;
use crate::workshop::{Workshop, write};

fn split(report: &Report) -> Vec<&str> {
    assert_eq!(report.differences.hard_links_split, report.remarks.len() as u64, "{report:?}");
    report
        .remarks
        .iter()
        .map(|remark| {
            assert_eq!(remark.what, RemarkKind::HardLink);
            remark.path.as_str()
        })
        .collect()
}

#[test]
fn attributes_that_are_left_out_are_named_the_first_ten_in_the_warning() {
    let workshop = Workshop::with(|new| new.settings.long_xattrs = LongXattrs::Skip);
    for number in 10..22 {
        let path = workshop.source().join(format!("d/f{number}"));
        write(&path, "content");
        setxattr(&path, "user.long", &[b'x'; 300], XattrFlags::empty()).unwrap();
        setxattr(&path, "user.short", b"x", XattrFlags::empty()).unwrap();
    }
    setxattr(workshop.source().as_path(), "user.long", &[b'x'; 300], XattrFlags::empty()).unwrap();
    let report = workshop.publish();
    assert_eq!((report.remarks.len(), report.differences.xattrs_left_out), (13, 13));
    let detail = Some("user.long".to_owned());
    let remark = |path: &str| Remark { what: RemarkKind::Xattr, path: path.into(), detail: detail.clone() };
    assert_eq!((&report.remarks[0], &report.remarks[12]), (&remark("/"), &remark("/d/f21")));
    let warning = report.warnings.iter().find(|text| text.contains("attributes")).unwrap();
    assert!(warning.starts_with("13 ") && warning.contains("`/d/f10` (user.long)"), "{warning}");
    assert!(warning.ends_with("`/d/f18` (user.long) and 3 more paths"), "{warning}");
}

#[test]
fn hard_links_that_are_split_are_named() {
    let workshop = Workshop::new();
    let at = |path: &str| workshop.source().join(path);
    for path in ["a/one", "a/in", "c/out"] {
        write(&at(path), path);
    }
    fs::create_dir(at("b")).unwrap();
    fs::hard_link(at("a/one"), at("b/two")).unwrap();
    fs::hard_link(at("a/one"), at("b/three")).unwrap();
    // Whole groups: in one directory, and one whose other name is not in the source.
    fs::hard_link(at("a/in"), at("a/side")).unwrap();
    fs::hard_link(at("c/out"), workshop.folder.path().join("elsewhere")).unwrap();
    let report = workshop.publish();
    assert_eq!(split(&report), ["/a/one", "/b/three", "/b/two"]);

    let mut archive = Archive::new(Vec::new());
    file(&mut archive, "x/file", b"content");
    link(&mut archive, EntryType::Link, "x/beside", "x/file");
    link(&mut archive, EntryType::Link, "y/elsewhere", "x/file");
    let archive = crate::ingest::write(&workshop, "a.tar", &archive.into_inner().unwrap());
    assert_eq!(split(&ingest(&workshop, &archive, |_| ()).unwrap()), ["/in/here/y/elsewhere"]);

    let report = publish_upper(&workshop, |upper| {
        // One name of a group, copied up and changed, and a new group across directories.
        write(&upper.join("a/in"), "changed");
        setxattr(upper.join("a/in"), PUBLISHED_PATH, b"/a/in", XattrFlags::empty()).unwrap();
        write(&upper.join("a/new"), "new");
        fs::create_dir(upper.join("b")).unwrap();
        fs::hard_link(upper.join("a/new"), upper.join("b/new")).unwrap();
    })
    .unwrap();
    assert_eq!(split(&report), ["/a/in", "/a/new", "/b/new"]);
}
