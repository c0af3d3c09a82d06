//! Trees of all kinds are read back unchanged.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use esker_format::chunker::ChunkSizes;
use esker_format::compress::Compression;
use esker_format::hash::HashAlgorithm;
use esker_format::time::UnixTime;
use esker_testkit::skip_part;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, mknodat, utimensat};

use crate::workshop::{Workshop, now, publish_at};

fn age(path: &Path, seconds: i64, nanoseconds: i64) {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn noise(len: usize, seed: u32) -> Vec<u8> {
    let mut x = seed;
    (0..len)
        .map(|_| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 24) as u8
        })
        .collect()
}

/// Every kind of entry that an ordinary user can make.
fn every_kind(top: &Path) {
    let file = |name: &str, bytes: &[u8]| fs::write(top.join(name), bytes).unwrap();
    file("empty", b"");
    file("hello", b"hello\n");
    file("setuid", b"#!/bin/sh\n");
    fs::set_permissions(top.join("setuid"), fs::Permissions::from_mode(0o6755)).unwrap();
    file("secret", b"mine");
    fs::set_permissions(top.join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(top.join(OsStr::from_bytes(b"not utf-8: \xff\xfe")), b"x").unwrap();
    file(&"n".repeat(255), b"long");
    file("line\nbreak", b"");
    file("large", &noise(300_000, 7));
    file("exact", &noise(4096, 9));
    let sparse = fs::File::create(top.join("sparse")).unwrap();
    sparse.set_len(200_000).unwrap();
    fs::hard_link(top.join("hello"), top.join("hello again")).unwrap();
    fs::hard_link(top.join("hello"), top.join("a third")).unwrap();
    file("pair", b"two names");
    fs::hard_link(top.join("pair"), top.join("pair too")).unwrap();
    symlink("hello", top.join("link")).unwrap();
    symlink("/no/where/$(ARCH)", top.join("dangling")).unwrap();
    symlink("x".repeat(4000), top.join("long link")).unwrap();
    mknodat(CWD, top.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
    mknodat(CWD, top.join("socket"), FileType::Socket, Mode::from_raw_mode(0o755), 0).unwrap();
    fs::create_dir_all(top.join("dir/sub/subsub")).unwrap();
    fs::create_dir(top.join("empty dir")).unwrap();
    fs::set_permissions(top.join("empty dir"), fs::Permissions::from_mode(0o1777)).unwrap();
    file("dir/sub/hello", b"hello\n");
    let set = |name: &str, key: &str, value: &[u8]| {
        rustix::fs::setxattr(top.join(name), key, value, XattrFlags::empty()).unwrap();
    };
    set("hello", "user.colour", b"green");
    set("hello", "user.binary", b"\0\xff");
    set("hello", "user.empty", b"");
    set("dir", "user.on a directory", &[7; 255]);
    age(&top.join("dir/sub"), -5, 999_999_999);
    age(&top.join("link"), 1_000_000_000, 1);
    age(&top.join("hello"), 4_000_000_000, 5);
}

fn small_chunks() -> ChunkSizes {
    ChunkSizes::new(4096, 8192, 16_384).unwrap()
}

#[test]
fn entries_of_every_kind_read_back_in_every_encoding() {
    for algorithm in [HashAlgorithm::Sha1, HashAlgorithm::Rmd160, HashAlgorithm::Shake128] {
        for compression in [Compression::Zlib, Compression::Stored, Compression::Zstd] {
            let workshop = Workshop::with(|new| {
                new.algorithm = algorithm;
                new.settings.compression = compression;
                new.settings.chunks = small_chunks();
            });
            every_kind(&workshop.source());
            let report = workshop.publish();
            assert!(report.published && report.revision == 1, "{report:?}");
            let findings = workshop.assert_equal();
            assert_eq!(findings.revision, 1);
            assert_eq!(findings.tree[&b"/hello"[..]].nlink, Some(3));

            let again = workshop.publish();
            assert!(!again.published && again.revision == 1, "{again:?}");
            assert_eq!(again.differences.unchanged.total(), findings.tree.len() as u64);
        }
    }
}

#[test]
fn devices_are_published_where_they_can_be_made() {
    let workshop = Workshop::new();
    let device = workshop.source().join("tty");
    let made = mknodat(
        CWD,
        &device,
        FileType::CharacterDevice,
        Mode::from_raw_mode(0o620),
        rustix::fs::makedev(5, 1),
    );
    if rustix::process::geteuid().is_root() {
        made.unwrap();
    } else {
        assert!(made.is_err(), "an ordinary user makes no devices");
        skip_part!("only root makes devices");
    }
    workshop.publish();
    workshop.assert_equal();
}

#[test]
fn changes_of_every_kind_are_published() {
    let workshop = Workshop::with(|new| new.settings.chunks = small_chunks());
    let top = workshop.source();
    every_kind(&top);
    workshop.publish();

    fs::write(top.join("hello"), b"other\n").unwrap();
    fs::remove_file(top.join("link")).unwrap();
    fs::write(top.join("link"), b"now a file").unwrap();
    fs::remove_dir_all(top.join("dir")).unwrap();
    symlink("hello", top.join("dir")).unwrap();
    fs::remove_file(top.join("pipe")).unwrap();
    fs::create_dir_all(top.join("pipe/was/a/pipe")).unwrap();
    fs::remove_file(top.join("pair")).unwrap();
    fs::set_permissions(top.join("secret"), fs::Permissions::from_mode(0o644)).unwrap();
    let report = workshop.publish();
    assert!(report.published && report.revision == 2, "{report:?}");
    // `dir` with its two directories and a file, `pipe`, which became a directory, not counted.
    assert_eq!(report.differences.removed.total(), 4, "{:?}", report.differences);
    let findings = workshop.assert_equal();
    assert_eq!(findings.tags["trunk"], 2);
    assert_eq!(findings.tags["trunk-previous"], 1);
    assert_eq!(findings.tags.len(), 4);

    fs::remove_dir_all(&top).unwrap();
    fs::create_dir(&top).unwrap();
    workshop.publish();
    assert_eq!(workshop.assert_equal().tree.len(), 1);
}

#[test]
fn nested_catalogs_are_added_removed_and_moved() {
    let workshop = Workshop::new();
    let top = workshop.source();
    for directory in ["a/b/c", "a/d", "e"] {
        fs::create_dir_all(top.join(directory)).unwrap();
        fs::write(top.join(directory).join("file"), directory).unwrap();
    }
    let catalogs = || workshop.assert_equal().catalogs.into_keys().collect::<Vec<_>>();
    let mark = |directory: &str| fs::write(top.join(directory).join(".cvmfscatalog"), b"").unwrap();
    mark("a");
    mark("a/b");
    workshop.publish();
    assert_eq!(catalogs(), ["", "/a", "/a/b"]);

    fs::write(top.join("e/file"), b"changed").unwrap();
    assert_eq!(workshop.publish().catalogs_written, 1);
    assert_eq!(catalogs(), ["", "/a", "/a/b"]);

    fs::remove_file(top.join("a/.cvmfscatalog")).unwrap();
    assert_eq!(workshop.publish().catalogs_written, 1, "the catalog below stays as it is");
    assert_eq!(catalogs(), ["", "/a/b"]);

    mark("a");
    mark("a/b/c");
    workshop.publish();
    assert_eq!(catalogs(), ["", "/a", "/a/b", "/a/b/c"]);

    fs::set_permissions(top.join("a/b/c"), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(workshop.publish().catalogs_written, 4);
    fs::create_dir(top.join("a/b/c/more")).unwrap();
    workshop.publish();
    assert_eq!(catalogs(), ["", "/a", "/a/b", "/a/b/c"]);

    fs::remove_dir_all(top.join("a/b")).unwrap();
    workshop.publish();
    assert_eq!(catalogs(), ["", "/a"]);
    fs::remove_dir_all(top.join("a")).unwrap();
    fs::write(top.join("a"), b"a file").unwrap();
    workshop.publish();
    assert_eq!(catalogs(), [""]);
}

#[test]
fn rules_make_nested_catalogs() {
    let workshop = Workshop::new();
    let top = workshop.source();
    for directory in ["sw/x/1", "sw/y/2", "sw/y/old"] {
        fs::create_dir_all(top.join(directory)).unwrap();
    }
    fs::write(top.join(".cvmfsdirtab"), "/sw/*/*\n! */old\n").unwrap();
    workshop.publish();
    let catalogs = || workshop.assert_equal().catalogs.into_keys().collect::<Vec<_>>();
    assert_eq!(catalogs(), ["", "/sw/x/1", "/sw/y/2"]);
    assert!(!workshop.publish().published);

    // Catalogs of a rule that is gone stay.
    let all = ["", "/sw/x", "/sw/x/1", "/sw/y", "/sw/y/2"];
    fs::write(top.join(".cvmfsdirtab"), "/sw/*\n").unwrap();
    workshop.publish();
    assert_eq!(catalogs(), all);
    // A marker of the source is shown as long as the source has it; without it the rule stands alone.
    fs::write(top.join("sw/x/.cvmfscatalog"), b"").unwrap();
    workshop.publish();
    assert_eq!(catalogs(), all);
    fs::remove_file(top.join("sw/x/.cvmfscatalog")).unwrap();
    workshop.publish();
    assert_eq!(catalogs(), all);
    assert!(!workshop.publish().published);

    fs::write(top.join(".cvmfsdirtab"), "/sw/*\n! /sw/*/1\n").unwrap();
    workshop.publish();
    assert_eq!(catalogs(), ["", "/sw/x", "/sw/y", "/sw/y/2"], "a rule against a catalog removes it");
    fs::remove_file(top.join(".cvmfsdirtab")).unwrap();
    workshop.publish();
    assert_eq!(catalogs(), ["", "/sw/x", "/sw/y", "/sw/y/2"]);
}

/// A catalog that was split off and is then named by a rule stays, however small it gets.
#[test]
fn rules_outrank_the_balance() {
    let workshop = Workshop::with(|new| {
        new.settings.balance = Some(esker_repository::Balance { max: 100, min: 20 });
    });
    let top = workshop.source();
    for directory in 0..4 {
        let directory = top.join(format!("d{directory}"));
        fs::create_dir(&directory).unwrap();
        for file in 0..30 {
            fs::write(directory.join(file.to_string()), b"x").unwrap();
        }
    }
    workshop.publish();
    let catalogs = || workshop.assert_equal().catalogs.into_keys().collect::<Vec<_>>();
    let split = catalogs().into_iter().find(|mountpoint| !mountpoint.is_empty()).unwrap();
    for file in 5..30 {
        fs::remove_file(top.join(format!("{}/{file}", &split[1..]))).unwrap();
    }
    fs::write(top.join(".cvmfsdirtab"), format!("{split}\n")).unwrap();
    workshop.publish();
    assert!(catalogs().contains(&split), "{:?}", catalogs());
    assert!(!workshop.publish().published);
}

#[test]
fn large_catalogs_are_split_and_small_ones_joined() {
    let workshop = Workshop::with(|new| {
        new.settings.balance = Some(esker_repository::Balance { max: 100, min: 20 });
    });
    let top = workshop.source();
    for directory in 0..10 {
        let directory = top.join(format!("d{directory}"));
        fs::create_dir(&directory).unwrap();
        for file in 0..30 {
            fs::write(directory.join(file.to_string()), b"x").unwrap();
        }
    }
    workshop.publish();
    let findings = workshop.assert_equal();
    assert!(findings.catalogs.len() > 5, "{:?}", findings.catalogs);
    assert!(findings.catalogs.values().all(|entries| *entries <= 100), "{:?}", findings.catalogs);
    assert!(!workshop.publish().published);

    for directory in 0..10 {
        for file in 5..30 {
            fs::remove_file(top.join(format!("d{directory}/{file}"))).unwrap();
        }
    }
    workshop.publish();
    assert_eq!(workshop.assert_equal().catalogs.len(), 1);
}

#[test]
fn a_subtree_is_published_alone() {
    let workshop = Workshop::new();
    let top = workshop.source();
    fs::create_dir_all(top.join("a/b")).unwrap();
    fs::write(top.join("a/file"), b"stays").unwrap();
    fs::write(top.join("a/b/file"), b"goes").unwrap();
    fs::write(top.join("a/b/.cvmfscatalog"), b"").unwrap();
    workshop.publish();

    let other = workshop.folder.path().join("other");
    fs::create_dir_all(other.join("x")).unwrap();
    fs::write(other.join("x/new"), b"comes").unwrap();
    let report = workshop.try_publish(&other, "/a/b").unwrap();
    assert!(report.published);
    let tree = |findings: &esker_testkit::check::Findings| -> Vec<String> {
        findings.assert_clean().tree.keys().map(|path| String::from_utf8_lossy(path).into_owned()).collect()
    };
    assert_eq!(tree(&workshop.check()), ["/", "/a", "/a/b", "/a/b/x", "/a/b/x/new", "/a/file"]);
    workshop.try_publish(&other, "a/new/place").unwrap();
    let findings = workshop.check();
    assert!(tree(&findings).contains(&"/a/new/place/x/new".to_owned()), "{:?}", tree(&findings));
    assert!(!workshop.try_publish(&other, "/a/new/place").unwrap().published);

    let error = workshop.try_publish(&other, "/a/file/below").unwrap_err();
    assert!(error.to_string().contains("no directory"), "{error}");
    let error = workshop.try_publish(&other, "/.cvmfs/x").unwrap_err();
    assert!(error.to_string().contains("belongs to the repository"), "{error}");
}

#[test]
fn deep_trees_and_wide_directories_read_back() {
    let workshop = Workshop::new();
    let mut deep = workshop.source();
    // Beyond what one path can name.
    let name = "d".repeat(200);
    let mut open = rustix::fs::open(&deep, rustix::fs::OFlags::RDONLY, Mode::empty()).unwrap();
    for _ in 0..30 {
        rustix::fs::mkdirat(&open, name.as_str(), Mode::from_raw_mode(0o755)).unwrap();
        open = rustix::fs::openat(&open, name.as_str(), rustix::fs::OFlags::RDONLY, Mode::empty()).unwrap();
    }
    deep.push("wide");
    fs::create_dir(&deep).unwrap();
    for number in 0..3000 {
        fs::write(deep.join(format!("{number:05}")), b"").unwrap();
    }
    workshop.publish();
    let findings = workshop.check();
    findings.assert_clean();
    assert_eq!(findings.tree.len(), 1 + 30 + 3001);
    assert!(findings.tree.keys().any(|path| path.len() == 30 * 201));
    assert!(!workshop.publish().published);
}

/// Clients refuse a head that was signed before their own, and keep their own.
#[test]
fn a_clock_that_is_set_back_makes_no_head_older_than_the_last() {
    let workshop = Workshop::new();
    let now = now();
    let mut last = workshop.open().head().timestamp();
    for (name, time) in [("ahead", now.0 + 600), ("right", now.0), ("later", now.0 + 700)] {
        fs::write(workshop.source().join(name), name).unwrap();
        publish_at(UnixTime(time), &workshop.open(), &workshop.source(), "").unwrap();
        let signed = workshop.open().head().timestamp();
        assert!(last <= signed && time <= signed.0, "{name}: {last} {signed}");
        last = signed;
    }
    assert_eq!(last, UnixTime(now.0 + 700));
    workshop.assert_equal();
}
