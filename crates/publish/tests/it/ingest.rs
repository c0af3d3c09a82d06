//! Archives become part of the repository.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use esker_format::chunker::ChunkSizes;
use esker_publish::{Ingest, Owner, PublishError, Report};
use esker_repository::LongXattrs;
use esker_testkit::check::Findings;
use tar::{Builder, EntryType, Header};

use crate::workshop::{Workshop, now, options};

pub(crate) type Archive = Builder<Vec<u8>>;

fn header(kind: EntryType, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(7);
    header.set_gid(8);
    header.set_mtime(1_600_000_000);
    header.set_size(0);
    header
}

pub(crate) fn file(archive: &mut Archive, path: &str, bytes: &[u8]) {
    let mut header = header(EntryType::Regular, 0o640);
    header.set_size(bytes.len() as u64);
    archive.append_data(&mut header, path, bytes).unwrap();
}

pub(crate) fn link(archive: &mut Archive, kind: EntryType, path: &str, target: &str) {
    archive.append_link(&mut header(kind, 0o777), path, target).unwrap();
}

/// A member of which the extended headers say this, too.
fn extended(archive: &mut Archive, path: &str, says: &[(&str, &[u8])]) {
    archive.append_pax_extensions(says.iter().copied()).unwrap();
    file(archive, path, b"content");
}

fn other(archive: &mut Archive, kind: EntryType, path: &str) {
    archive.append_data(&mut header(kind, 0o755), path, &[][..]).unwrap();
}

pub(crate) fn ingest(
    workshop: &Workshop,
    archive: &Path,
    change: impl FnOnce(&mut Ingest<'_>),
) -> Result<Report, PublishError> {
    let mut progress = |_| ();
    let mut ingest = Ingest {
        archive: archive.to_owned(),
        target: b"/in/here".to_vec(),
        delete: Vec::new(),
        owner: Owner::default(),
        nested: false,
        options: options(&mut progress),
    };
    change(&mut ingest);
    ingest.run(&workshop.open(), now())
}

pub(crate) fn write(workshop: &Workshop, name: &str, bytes: &[u8]) -> PathBuf {
    let path = workshop.folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

pub(crate) fn paths(findings: &Findings) -> Vec<String> {
    findings.assert_clean().tree.keys().map(|path| String::from_utf8_lossy(path).into_owned()).collect()
}

fn noise(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// One member of every kind, with long names and a file large enough for chunks.
fn every_kind() -> Vec<u8> {
    let mut archive = Builder::new(Vec::new());
    other(&mut archive, EntryType::Directory, "./dir/");
    file(&mut archive, "./dir/file", b"content");
    link(&mut archive, EntryType::Link, "dir/same", "dir/file");
    link(&mut archive, EntryType::Link, "elsewhere", "dir/file");
    link(&mut archive, EntryType::Symlink, "dir/link", "../$(ARCH)/x");
    other(&mut archive, EntryType::Fifo, "pipe");
    let mut device = header(EntryType::Char, 0o600);
    device.set_device_major(5).unwrap();
    device.set_device_minor(1).unwrap();
    archive.append_data(&mut device, "tty", &[][..]).unwrap();
    file(&mut archive, &format!("deep/{}/{}", "d".repeat(200), "f".repeat(200)), b"long");
    file(&mut archive, "large", &noise(200_000));
    archive
        .append_pax_extensions([
            ("mtime", &b"-7.25"[..]),
            ("SCHILY.xattr.user.colour", b"green"),
            ("uid", b"3000000000"),
        ])
        .unwrap();
    file(&mut archive, "extended", b"");
    file(&mut archive, "dir/twice", b"first");
    file(&mut archive, "dir/twice", b"second");
    archive.into_inner().unwrap()
}

fn chunked() -> Workshop {
    Workshop::with(|new| new.settings.chunks = ChunkSizes::new(4096, 8192, 16_384).unwrap())
}

#[test]
fn members_of_every_kind_are_published() {
    let workshop = chunked();
    let archive = write(&workshop, "all.tar", &every_kind());
    let count = |folder: std::io::Result<fs::DirEntry>| fs::read_dir(folder.unwrap().path()).unwrap().count();
    let objects = || fs::read_dir(workshop.root().join("data")).unwrap().map(count).sum::<usize>();
    let before = objects();
    let dry = {
        let mut progress = |_| ();
        let mut ingest = Ingest {
            archive: archive.clone(),
            target: b"/in/here".to_vec(),
            delete: Vec::new(),
            owner: Owner::default(),
            nested: false,
            options: options(&mut progress),
        };
        ingest.dry_run(&workshop.open(), now()).unwrap()
    };
    assert!(!dry.published && objects() == before, "nothing is stored");
    let report = ingest(&workshop, &archive, |_| ()).unwrap();
    assert!(report.published, "{report:?}");
    assert_eq!(report.differences, dry.differences);
    let findings = workshop.check();
    let long = format!("/in/here/deep/{}", "d".repeat(200));
    let mut expected = vec![
        "/".to_owned(),
        "/in".to_owned(),
        "/in/here".to_owned(),
        "/in/here/deep".to_owned(),
        format!("{long}/{}", "f".repeat(200)),
        long,
    ];
    for name in [
        "dir",
        "dir/file",
        "dir/link",
        "dir/same",
        "dir/twice",
        "elsewhere",
        "extended",
        "large",
        "pipe",
        "tty",
    ] {
        expected.push(format!("/in/here/{name}"));
    }
    expected.sort();
    assert_eq!(paths(&findings), expected);
    let entry = |path: &str| &findings.tree[format!("/in/here/{path}").as_bytes()];
    assert_eq!(
        (entry("dir/file").nlink, entry("dir/same").nlink, entry("elsewhere").nlink),
        (Some(2), Some(2), Some(1))
    );
    assert_eq!(entry("dir/file").sha256, entry("elsewhere").sha256);
    assert_eq!((entry("dir/file").uid, entry("dir/file").gid, entry("dir/file").mode), (7, 8, 0o100_640));
    assert_eq!(entry("dir/file").mtime_ns, 1_600_000_000_000_000_000);
    assert_eq!(entry("dir/link").target.as_deref(), Some(&b"../$(ARCH)/x"[..]));
    assert_eq!(entry("tty").rdev, Some(0x501));
    assert_eq!(entry("extended").mtime_ns, -7_250_000_000);
    assert_eq!(entry("extended").uid, 3_000_000_000);
    assert_eq!(entry("extended").xattrs[&b"user.colour"[..]], b"green");
    assert_eq!(entry("large").sha256, Some(esker_testkit::object::sha256(&noise(200_000))));
    assert_eq!(entry("dir/twice").sha256, Some(esker_testkit::object::sha256(b"second")));

    let again = ingest(&workshop, &archive, |_| ()).unwrap();
    assert!(!again.published, "{again:?}");
}

#[test]
fn archives_in_every_compression_are_read() {
    let plain = every_kind();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&plain).unwrap();
    let mut xz = lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(1)).unwrap();
    xz.write_all(&plain).unwrap();
    let compressed = [gzip.finish().unwrap(), zstd::encode_all(&plain[..], 1).unwrap(), xz.finish().unwrap()];
    let reference = chunked();
    ingest(&reference, &write(&reference, "plain", &plain), |_| ()).unwrap();
    for bytes in compressed {
        let workshop = chunked();
        ingest(&workshop, &write(&workshop, "compressed", &bytes), |_| ()).unwrap();
        assert_eq!(paths(&workshop.check()), paths(&reference.check()));

        let cut = write(&workshop, "cut", &bytes[..bytes.len() / 2]);
        let error = ingest(&workshop, &cut, |_| ()).unwrap_err();
        assert!(matches!(error, PublishError::Source { .. }), "{error}");
        assert_eq!(workshop.check().assert_clean().revision, 1);
    }
}

#[test]
fn archive_entries_replace_and_delete_existing_ones_only() {
    let workshop = Workshop::new();
    let top = workshop.source();
    fs::create_dir_all(top.join("in/here/was dir/below")).unwrap();
    fs::create_dir_all(top.join("in/here/gone/deeper")).unwrap();
    fs::create_dir_all(top.join("other")).unwrap();
    for name in
        ["in/here/was dir/below/x", "in/here/was file", "in/here/gone/deeper/y", "other/stays", "in/here/a"]
    {
        fs::write(top.join(name), name).unwrap();
    }
    fs::write(top.join("other/.cvmfscatalog"), b"").unwrap();
    fs::hard_link(top.join("in/here/a"), top.join("in/here/b")).unwrap();
    fs::hard_link(top.join("in/here/a"), top.join("in/here/c")).unwrap();
    workshop.publish();

    let mut archive = Builder::new(Vec::new());
    file(&mut archive, "was dir", b"now a file");
    file(&mut archive, "was file/now/below", b"x");
    file(&mut archive, "gone/again", b"y");
    file(&mut archive, "a", b"on its own");
    let archive = write(&workshop, "b.tar", &archive.into_inner().unwrap());
    let deletes = vec![b"/in/here/gone".to_vec(), b"nowhere".to_vec()];
    let report = ingest(&workshop, &archive, |ingest| ingest.delete = deletes).unwrap();
    assert_eq!(report.catalogs_written, 1, "that of /other stays");
    let findings = workshop.check();
    assert_eq!(
        paths(&findings),
        [
            "/",
            "/in",
            "/in/here",
            "/in/here/a",
            "/in/here/b",
            "/in/here/c",
            "/in/here/gone",
            "/in/here/gone/again",
            "/in/here/was dir",
            "/in/here/was file",
            "/in/here/was file/now",
            "/in/here/was file/now/below",
            "/other",
            "/other/.cvmfscatalog",
            "/other/stays"
        ]
    );
    let links = |path: &str| findings.tree[path.as_bytes()].nlink;
    assert_eq!((links("/in/here/a"), links("/in/here/b"), links("/in/here/c")), (Some(1), Some(2), Some(2)));
    // Two directories and a file of `gone`, a directory and a file below `was dir`.
    assert_eq!(report.differences.removed.total(), 5, "{:?}", report.differences);
}

#[test]
fn an_archive_can_become_a_nested_catalog_with_another_owner() {
    let workshop = Workshop::new();
    let mut archive = Builder::new(Vec::new());
    file(&mut archive, "x/y", b"1");
    let archive = write(&workshop, "c.tar", &archive.into_inner().unwrap());
    let change = |ingest: &mut Ingest<'_>| {
        ingest.nested = true;
        ingest.owner = Owner { uid: Some(11), gid: None };
    };
    ingest(&workshop, &archive, change).unwrap();
    let findings = workshop.check();
    assert_eq!(findings.assert_clean().catalogs.keys().collect::<Vec<_>>(), ["", "/in/here"]);
    let entry = &findings.tree[&b"/in/here/x/y"[..]];
    assert_eq!((entry.uid, entry.gid), (11, 8));
}

#[test]
fn new_parent_directories_have_the_owner_of_the_directory_above() {
    let workshop = Workshop::new();
    let mut archive = Builder::new(Vec::new());
    file(&mut archive, "x/y", b"1");
    let archive = write(&workshop, "c.tar", &archive.into_inner().unwrap());
    let change = |ingest: &mut Ingest<'_>| {
        ingest.target = b"/owned".to_vec();
        ingest.owner = Owner { uid: Some(11), gid: Some(12) };
    };
    ingest(&workshop, &archive, change).unwrap();
    ingest(&workshop, &archive, |ingest| ingest.target = b"/owned/new/place".to_vec()).unwrap();
    let findings = workshop.check();
    findings.assert_clean();
    let owner = |path: &str| (findings.tree[path.as_bytes()].uid, findings.tree[path.as_bytes()].gid);
    assert_eq!(owner("/owned/new"), (11, 12));
    assert_eq!(owner("/owned/new/place/x"), (11, 12));
    assert_eq!(owner("/owned/new/place/x/y"), (7, 8));
    let ids = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    ingest(&workshop, &archive, |ingest| ingest.target = b"/fresh/place".to_vec()).unwrap();
    let findings = workshop.check();
    assert_eq!((findings.tree[&b"/fresh"[..]].uid, findings.tree[&b"/fresh"[..]].gid), ids);
}

#[test]
fn invalid_members_are_refused() {
    type Make = fn(&mut Archive);
    let cases: [(&str, Make); 7] = [
        ("`..` is not allowed", |archive| {
            let mut header = header(EntryType::Regular, 0o644);
            header.as_old_mut().name[..4].copy_from_slice(b"../x");
            header.set_cksum();
            archive.append(&header, &[][..]).unwrap();
        }),
        ("neither in the archive", |archive| link(archive, EntryType::Link, "a", "missing")),
        ("must be a regular file", |archive| other(archive, EntryType::Directory, "d/.cvmfscatalog")),
        ("odd-link: its target has a zero byte in it (header at byte 1024", |archive| {
            archive.append_pax_extensions([("linkpath", &b"a\0b"[..])]).unwrap();
            link(archive, EntryType::Symlink, "odd-link", "x");
        }),
        ("the name of an extended attribute has a zero byte", |archive| {
            extended(archive, "a", &[("SCHILY.xattr.user.zero\0byte", b"x")]);
        }),
        ("its owner is 4294967295, which no file can have", |archive| {
            extended(archive, "a", &[("uid", b"4294967295")]);
        }),
        ("it is continued from another volume", |archive| other(archive, EntryType::new(b'M'), "part")),
    ];
    for (expected, make) in cases {
        let workshop = Workshop::new();
        let mut archive = Builder::new(Vec::new());
        file(&mut archive, "before", b"what comes before is not published either");
        let start = archive.get_ref().len();
        make(&mut archive);
        // Where its header is.
        let all = archive.into_inner().unwrap();
        let archive =
            write(&workshop, "bad.tar", &all[if expected.contains("byte 1024") { start } else { 0 }..]);
        let error = ingest(&workshop, &archive, |_| ()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(workshop.check().assert_clean().revision, 0);
    }
}

#[test]
fn unknown_entry_types_become_regular_files_with_a_warning() {
    let workshop = Workshop::new();
    let mut archive = Builder::new(Vec::new());
    other(&mut archive, EntryType::new(b'Z'), "odd");
    let archive = write(&workshop, "odd.tar", &archive.into_inner().unwrap());
    let report = ingest(&workshop, &archive, |_| ()).unwrap();
    assert!(report.warnings.iter().any(|warning| warning.contains("1 entries")), "{:?}", report.warnings);
    assert_eq!(workshop.check().assert_clean().tree[&b"/in/here/odd"[..]].kind(), 0o100_000);
}

/// A workshop that has published links, directories and files below `/in/here`.
fn linked() -> Workshop {
    let workshop = Workshop::new();
    let top = workshop.source();
    fs::create_dir_all(top.join("in/here/real/deep")).unwrap();
    fs::create_dir_all(top.join("other")).unwrap();
    fs::write(top.join("in/here/real/old"), "old").unwrap();
    let links = [
        ("in/here/link", "real"),
        ("in/here/again", "./link/../link"),
        ("in/here/up", "../../other"),
        ("in/here/dangling", "none"),
        ("in/here/out", "../../../etc"),
        ("in/here/absolute", "/etc"),
        ("in/here/loop", "loop"),
        ("current", "in/here/real"),
    ];
    for (path, target) in links {
        std::os::unix::fs::symlink(target, top.join(path)).unwrap();
    }
    workshop.publish();
    workshop
}

#[test]
fn ingest_follows_published_symlinks() {
    for (member, place) in [
        ("link/x", "/in/here/real/x"),
        ("link/deep/x", "/in/here/real/deep/x"),
        ("link/new/x", "/in/here/real/new/x"),
        ("again/x", "/in/here/real/x"),
        ("up/x", "/other/x"),
    ] {
        let workshop = linked();
        let before = paths(&workshop.check());
        let mut archive = Builder::new(Vec::new());
        file(&mut archive, member, b"new");
        link(&mut archive, EntryType::Link, "hard", member);
        let archive = write(&workshop, "x.tar", &archive.into_inner().unwrap());
        ingest(&workshop, &archive, |_| ()).unwrap();
        let findings = workshop.check();
        let after = paths(&findings);
        assert!(before.iter().all(|path| after.contains(path)), "{member}: nothing is gone");
        assert!(after.iter().any(|path| path == place), "{member}: {after:?}");
        assert_eq!(findings.tree[&b"/in/here/link"[..]].target.as_deref(), Some(&b"real"[..]));
        assert_eq!(findings.tree[&b"/in/here/hard"[..]].sha256, findings.tree[place.as_bytes()].sha256);
    }
}

#[test]
fn targets_and_deleted_paths_may_be_behind_published_links() {
    let workshop = linked();
    let mut archive = Builder::new(Vec::new());
    file(&mut archive, "x", b"new");
    let archive = write(&workshop, "x.tar", &archive.into_inner().unwrap());
    ingest(&workshop, &archive, |ingest| {
        ingest.target = b"/current".to_vec();
        ingest.delete = vec![b"/in/here/link/old".to_vec()];
    })
    .unwrap();
    let after = paths(&workshop.check());
    let has = |path: &str| after.iter().any(|found| found == path);
    assert!(has("/in/here/real/x") && has("/current") && !has("/in/here/real/old"), "{after:?}");
}

#[test]
fn links_that_lead_nowhere_or_out_and_directories_in_their_place_are_refused() {
    let cases: [(&str, EntryType, &str); 5] = [
        ("dangling/x", EntryType::Regular, "to no directory"),
        ("out/x", EntryType::Regular, "out of the repository"),
        ("absolute/x", EntryType::Regular, "out of the repository"),
        ("loop/x", EntryType::Regular, "and so on"),
        ("link/", EntryType::Directory, "published as a symlink to a directory"),
    ];
    for (member, kind, told) in cases {
        let workshop = linked();
        let before = workshop.check();
        let mut archive = Builder::new(Vec::new());
        file(&mut archive, "first", b"what comes before");
        other(&mut archive, kind, member);
        let archive = write(&workshop, "x.tar", &archive.into_inner().unwrap());
        let error = ingest(&workshop, &archive, |_| ()).unwrap_err().to_string();
        assert!(
            error.contains(told) && error.contains(member.trim_end_matches(['/', 'x'])),
            "{member}: {error}"
        );
        let after = workshop.check();
        assert_eq!((after.revision, paths(&after)), (before.revision, paths(&before)));
    }
}

#[test]
fn links_of_the_archive_are_followed_as_gnu_tar_follows_them() {
    let outcome = |target: &str, directory: bool| {
        let workshop = Workshop::new();
        let mut archive = Builder::new(Vec::new());
        other(&mut archive, EntryType::Directory, "d/");
        link(&mut archive, EntryType::Symlink, "s", target);
        if directory {
            other(&mut archive, EntryType::Directory, "s/");
        }
        file(&mut archive, "s/x", b"new");
        let archive = write(&workshop, "x.tar", &archive.into_inner().unwrap());
        ingest(&workshop, &archive, |_| ()).map(|_| paths(&workshop.check()))
    };
    assert!(outcome("d", false).unwrap().contains(&"/in/here/d/x".to_owned()));
    assert!(outcome("d", true).unwrap().contains(&"/in/here/s/x".to_owned()));
    for target in ["../here/d", "/d", "none"] {
        outcome(target, false).unwrap_err();
    }
    let workshop = Workshop::new();
    let mut archive = Builder::new(Vec::new());
    file(&mut archive, "f", b"a file");
    file(&mut archive, "f/x", b"below it");
    let archive = write(&workshop, "x.tar", &archive.into_inner().unwrap());
    let error = ingest(&workshop, &archive, |_| ()).unwrap_err().to_string();
    assert!(error.contains("/in/here/f"), "{error}");
}

#[test]
fn unsupported_attributes_are_left_out_with_a_warning() {
    let workshop = Workshop::new();
    let mut archive = Builder::new(Vec::new());
    extended(
        &mut archive,
        "a",
        &[
            ("SCHILY.xattr.", b"without a name"),
            ("SCHILY.xattr.user.long", &[b'x'; 65_536]),
            ("SCHILY.xattr.user.fits", b"x"),
        ],
    );
    let archive = write(&workshop, "odd.tar", &archive.into_inner().unwrap());
    let report = ingest(&workshop, &archive, |_| ()).unwrap();
    assert_eq!(report.differences.xattrs_left_out, 2);
    let findings = workshop.check();
    let names: Vec<_> = findings.assert_clean().tree[&b"/in/here/a"[..]].xattrs.keys().cloned().collect();
    assert_eq!(names, [b"user.fits"]);
    // The published result can be read, and published to, again.
    assert!(!ingest(&workshop, &archive, |_| ()).unwrap().published);
    assert!(workshop.publish().published);
}

/// > K2: Extended attributes with values of up to 65,535 bytes are published as they are; the setting `long_xattrs` has those of more than 255 bytes left out with a warning, or refused.
#[test]
fn long_attributes_are_published_left_out_or_refused() {
    let longest = vec![b'y'; 65_535];
    for (setting, names) in [
        (LongXattrs::Publish, &["user.long", "user.longest", "user.short"][..]),
        (LongXattrs::Skip, &["user.short"]),
        (LongXattrs::Refuse, &[]),
    ] {
        let workshop = Workshop::with(|new| new.settings.long_xattrs = setting);
        let mut archive = Builder::new(Vec::new());
        extended(&mut archive, "short", &[("SCHILY.xattr.user.short", &[b'x'; 255])]);
        let long: [(&str, &[u8]); 3] = [
            ("SCHILY.xattr.user.long", &[b'x'; 256]),
            ("SCHILY.xattr.user.longest", &longest),
            ("SCHILY.xattr.user.short", b"x"),
        ];
        extended(&mut archive, "a", &long);
        let archive = write(&workshop, "long.tar", &archive.into_inner().unwrap());
        let outcome = ingest(&workshop, &archive, |_| ());
        if setting == LongXattrs::Refuse {
            let error = outcome.unwrap_err();
            assert!(
                matches!(&error, PublishError::LongXattr { name, size: 256, .. } if name == "user.long"),
                "{error}"
            );
            continue;
        }
        assert_eq!(outcome.unwrap().differences.xattrs_left_out, 3 - names.len() as u64);
        // The checker accepts version 2 of a list only where a value needs it.
        let findings = workshop.check();
        let found = &findings.assert_clean().tree[&b"/in/here/a"[..]].xattrs;
        let found_names: Vec<_> = found.keys().map(|name| String::from_utf8_lossy(name)).collect();
        assert_eq!(found_names, names);
        assert!(setting == LongXattrs::Skip || found[&b"user.longest"[..]] == longest);
        assert!(!ingest(&workshop, &archive, |_| ()).unwrap().published);
    }
}
