//! A source that does not keep still, and publishers that get in each other's way.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use esker_format::name::RepositoryName;
use esker_publish::{Phase, Publish, PublishError, reindex};
use esker_repository::{Repository, RepositoryError};
use rand::rngs::StdRng;
use rand::{RngCore as _, SeedableRng as _};
use rustix::thread::CapabilitySet;

use crate::workshop::{NAME, Workshop, assert_same_trees, now, options};

/// Publishes while `disturb` is called, once, after the source was compared and before it is read.
fn disturbed(workshop: &Workshop, disturb: impl FnOnce()) -> Result<esker_publish::Report, PublishError> {
    let repository = workshop.open();
    let mut disturb = Some(disturb);
    let mut progress = |progress: esker_publish::Progress| {
        if progress.phase == Phase::Store
            && let Some(disturb) = disturb.take()
        {
            disturb();
        }
    };
    let mut publish =
        Publish { source: workshop.source(), target: Vec::new(), options: options(&mut progress) };
    let outcome = publish.run(&repository, now());
    assert!(disturb.is_none(), "the source was disturbed");
    outcome
}

fn prepared() -> Workshop {
    let workshop = Workshop::new();
    fs::write(workshop.source().join("first"), b"first").unwrap();
    workshop.publish();
    fs::write(workshop.source().join("second"), b"second").unwrap();
    workshop
}

#[test]
fn files_that_change_vanish_or_change_their_type_are_reported() {
    type Change = fn(&std::path::Path);
    let cases: [(&str, Change); 4] = [
        ("changed while", |file| fs::write(file, b"another content").unwrap()),
        ("changed while", |file| {
            fs::remove_file(file).unwrap();
            fs::write(file, b"second").unwrap();
        }),
        ("No such file", |file| fs::remove_file(file).unwrap()),
        ("symbolic links", |file| {
            fs::remove_file(file).unwrap();
            std::os::unix::fs::symlink("/etc/passwd", file).unwrap();
        }),
    ];
    for (expected, change) in cases {
        let workshop = prepared();
        let file = workshop.source().join("second");
        let error = disturbed(&workshop, || change(&file)).unwrap_err();
        let text = format!("{error}: {:?}", std::error::Error::source(&error).map(ToString::to_string));
        assert!(text.contains(expected) && text.contains("second"), "{text}");
        let findings = workshop.check();
        assert_eq!(findings.assert_clean().revision, 1);
        assert!(!findings.tree.contains_key(&b"/second"[..]));
        workshop.publish();
        workshop.assert_equal();
    }
}

/// The content at the end of the file changed since its start was read.
#[test]
fn a_file_that_changes_while_it_is_read_is_reported() {
    let workshop = prepared();
    let path = workshop.source().join("second");
    let file = fs::File::create(&path).unwrap();
    file.set_len(64 << 20).unwrap();
    let stop = AtomicBool::new(false);
    let (began, writes) = std::sync::mpsc::channel();
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            use std::os::unix::fs::FileExt as _;
            while !stop.load(Ordering::Relaxed) {
                file.write_all_at(b"x", 0).unwrap();
                let _ = began.send(());
            }
        });
        writes.recv().unwrap();
        let outcome = workshop.try_publish(&workshop.source(), "");
        stop.store(true, Ordering::Relaxed);
        outcome
    });
    let error = outcome.unwrap_err();
    assert!(matches!(&error, PublishError::Changed(changed) if *changed == path), "{error}");
    assert_eq!(workshop.check().assert_clean().revision, 1);
    workshop.publish();
    workshop.assert_equal();
}

#[test]
fn a_directory_that_vanishes_is_reported() {
    let workshop = prepared();
    let directory = workshop.source().join("directory");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("file"), b"content").unwrap();
    let error = disturbed(&workshop, || fs::remove_dir_all(&directory).unwrap()).unwrap_err();
    assert!(
        matches!(error, PublishError::Source { .. }) && error.to_string().contains("directory"),
        "{error}"
    );
    assert_eq!(workshop.check().assert_clean().revision, 1);
}

/// Does something without the right to read everything, which root has.
fn without_privileges<T: Send>(what: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let mut sets = rustix::thread::capabilities(None).unwrap();
            sets.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
            rustix::thread::set_capabilities(None, sets).unwrap();
            what()
        });
        thread.join().unwrap()
    })
}

#[test]
fn unreadable_source_files_are_an_error() {
    let workshop = prepared();
    let directory = workshop.source().join("directory");
    fs::create_dir(&directory).unwrap();
    for unreadable in [workshop.source().join("second"), directory] {
        fs::set_permissions(&unreadable, fs::Permissions::from_mode(0o000)).unwrap();
        let outcome = without_privileges(|| workshop.try_publish(&workshop.source(), ""));
        let error = outcome.unwrap_err();
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        let name = unreadable.file_name().unwrap().to_str().unwrap();
        assert!(error.to_string().contains(name) && cause.contains("Permission denied"), "{error}: {cause}");
        assert_eq!(workshop.check().assert_clean().revision, 1);
        fs::set_permissions(&unreadable, fs::Permissions::from_mode(0o700)).unwrap();
    }
    workshop.publish();
    workshop.assert_equal();
}

/// Tells the process in the namespace its task.
const SMALL_DISK: &str = "ESKER_TEST_SMALL_DISK";

/// On a file system of two megabytes, in a mount namespace of the test's own.
#[test]
fn a_full_disk_leaves_the_old_revision() {
    if std::env::var_os(SMALL_DISK).is_none() {
        let status = std::process::Command::new("unshare")
            .args(["--map-root-user", "--mount"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "disturbed::a_full_disk", "--nocapture"])
            .env(SMALL_DISK, "")
            .status();
        assert!(status.unwrap().success(), "the publisher with the small disk fails");
        return;
    }
    let workshop = Workshop::new();
    fs::write(workshop.source().join("first"), b"first").unwrap();
    let disk = tempfile::tempdir().unwrap();
    let (flags, size) = (rustix::mount::MountFlags::empty(), c"size=2m");
    rustix::mount::mount("none", disk.path(), "tmpfs", flags, size).unwrap();
    let workshop = workshop.moved(disk.path());
    workshop.publish();
    let old = workshop.assert_equal().listing();
    let large = workshop.source().join("large");
    let mut noise = vec![0; 4 << 20];
    StdRng::seed_from_u64(1).fill_bytes(&mut noise);
    fs::write(&large, noise).unwrap();
    let error = workshop.try_publish(&workshop.source(), "").unwrap_err();
    let cause = format!("{error}: {:?}", std::error::Error::source(&error).map(ToString::to_string));
    assert!(cause.contains("No space left on device") && cause.contains("data/txn"), "{cause}");
    let findings = workshop.check();
    assert_eq!(findings.assert_clean().revision, 1);
    assert_same_trees(&old, &findings.listing());
    // There is room again without a manual cleanup.
    fs::write(&large, b"small").unwrap();
    workshop.publish();
    workshop.assert_equal();
    rustix::mount::unmount(disk.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
}

/// The callback receives every phase in order, and numbers that grow up to the announced total.
#[test]
fn progress_is_reported() {
    let workshop = Workshop::new();
    fs::write(workshop.source().join("small"), b"second").unwrap();
    fs::write(workshop.source().join("large"), vec![7; 100_000]).unwrap();
    let mut told: Vec<esker_publish::Progress> = Vec::new();
    let mut progress = |progress| told.push(progress);
    let repository = workshop.open();
    let mut publish =
        Publish { source: workshop.source(), target: Vec::new(), options: options(&mut progress) };
    let report = publish.run(&repository, now()).unwrap();
    let mut phases: Vec<Phase> = told.iter().map(|told| told.phase).collect();
    phases.dedup();
    assert_eq!(phases, [Phase::Scan, Phase::Store, Phase::Catalogs, Phase::Commit]);
    let storing: Vec<_> = told.iter().filter(|told| told.phase == Phase::Store).collect();
    for told in &storing {
        assert_eq!((told.files_total, told.bytes_total), (2, 100_006));
        assert!(told.files <= told.files_total && told.bytes <= told.bytes_total);
    }
    assert!(storing.is_sorted_by_key(|told| (told.bytes, told.elapsed)));
    let last = told.last().unwrap();
    assert_eq!((last.scanned, last.files, last.bytes), (2, 2, 100_006));
    assert_eq!((report.files_read, report.bytes_read), (2, 100_006));
}

#[test]
fn an_interrupt_leaves_the_old_revision() {
    let workshop = prepared();
    let repository = workshop.open();
    let stop = Arc::new(AtomicBool::new(false));
    let set = stop.clone();
    let mut progress = move |progress: esker_publish::Progress| {
        if progress.phase == Phase::Catalogs {
            set.store(true, Ordering::Relaxed);
        }
    };
    let mut options = options(&mut progress);
    options.stop = stop;
    let mut publish = Publish { source: workshop.source(), target: Vec::new(), options };
    let error = publish.run(&repository, now()).unwrap_err();
    assert!(matches!(error, PublishError::Repository(RepositoryError::Interrupted)), "{error}");
    drop(repository);
    assert_eq!(workshop.check().assert_clean().revision, 1);
    workshop.publish();
    workshop.assert_equal();
}

/// A file that is written again within the clock's step of being published is read again.
#[test]
fn a_quick_second_change_is_not_missed() {
    let workshop = Workshop::new();
    let file = workshop.source().join("file");
    for content in ["one", "two", "six"] {
        fs::write(&file, content).unwrap();
        // Same length, same inode, and perhaps the same times.
        workshop.publish();
        workshop.assert_equal();
    }
}

/// The content index can be rebuilt, also for repositories of other programs.
#[test]
fn a_reindex_rebuilds_the_content_index() {
    let fixture = esker_testkit::fixture::FULL;
    let unpacked = fixture.unpack();
    let name = RepositoryName::parse(fixture.name()).unwrap();
    let keys = esker_repository::KeyFolder::new(fixture.folder(), &name);
    let mut repository = Repository::open(&unpacked.path(), &name, keys, now()).unwrap();
    // The fixture was cut into smaller chunks than is usual.
    repository.settings_mut().chunks =
        esker_format::chunker::ChunkSizes::new(1 << 16, 1 << 17, 1 << 18).unwrap();
    let done = reindex(&repository, 2, &AtomicBool::new(false)).unwrap();
    assert!(done.objects > 100 && done.left_out == 0, "{done:?}");

    // A file of it, somewhere else and encoded differently: only the index can know it.
    let contents = unpacked.contents("v3");
    let is_large = |stored: &[u8]| stored.len() > 1000;
    let whole = contents.files.values().filter_map(|file| file.whole.as_ref());
    let stored = whole.map(|path| unpacked.read(path)).find(|stored| is_large(stored)).unwrap();
    let copy = tempfile::tempdir().unwrap();
    fs::write(copy.path().join("copy"), esker_testkit::object::inflate(&stored)).unwrap();
    let report = crate::workshop::publish(&repository, copy.path(), "/copied").unwrap();
    assert_eq!((report.objects_stored, report.objects_present), (0, 1), "{report:?}");
}

/// The reference client ignores our lock, so it may publish between reading the head and claiming the repository.
#[test]
fn the_head_is_read_under_the_lock() {
    let workshop = prepared();
    let spool = workshop.folder.path().join("spool");
    fs::create_dir(&spool).unwrap();
    let mut repository = workshop.open();
    let elsewhere = tempfile::tempdir().unwrap();
    let copied = |from: &std::path::Path, to: &std::path::Path| {
        let copied = std::process::Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status();
        assert!(copied.unwrap().success());
    };
    copied(&workshop.root(), elsewhere.path());
    let name = RepositoryName::parse(NAME).unwrap();
    let other = Repository::open(elsewhere.path(), &name, workshop.keys(), now()).unwrap();
    crate::workshop::publish(&other, &workshop.source(), "").unwrap();
    copied(elsewhere.path(), &workshop.root());
    repository.share_with_spool(&spool).unwrap();
    assert_eq!(repository.head().revision(), 2);
    drop(repository);
    assert_eq!(fs::read_dir(&spool).unwrap().count(), 0);
}

#[test]
fn an_object_that_is_too_large_is_left_out_of_the_index() {
    let workshop = Workshop::new();
    for name in ["a", "b", "large"] {
        fs::write(workshop.source().join(name), name).unwrap();
    }
    workshop.publish();
    fs::File::options().write(true).open(workshop.object_of(b"large")).unwrap().set_len(2 << 30).unwrap();
    let done = reindex(&workshop.open(), 2, &AtomicBool::new(false)).unwrap();
    assert_eq!((done.objects, done.left_out), (2, 1));
}

#[test]
fn objects_of_a_wrong_length_are_replaced_at_the_next_publish_of_their_content() {
    let workshop = Workshop::new();
    let content = b"long enough to be cut";
    fs::write(workshop.source().join("a"), content).unwrap();
    workshop.publish();
    for len in [0, 5] {
        fs::File::options().write(true).open(workshop.object_of(content)).unwrap().set_len(len).unwrap();
        fs::write(workshop.source().join(len.to_string()), content).unwrap();
        let report = workshop.publish();
        assert_eq!(report.objects_stored, 1, "{report:?}");
        workshop.assert_equal();
    }
}

/// Stored content is not stored again, for any encoder and publisher.
#[test]
fn content_is_stored_once() {
    let workshop = Workshop::new();
    let top = workshop.source();
    let content = "the same words again and again ".repeat(1000);
    for name in ["a", "b", "c/d"] {
        fs::create_dir_all(top.join("c")).unwrap();
        fs::write(top.join(name), &content).unwrap();
    }
    let report = workshop.publish();
    assert_eq!((report.files_read, report.objects_stored, report.objects_present), (3, 1, 2), "{report:?}");
    fs::write(top.join("e"), &content).unwrap();
    let mut repository = workshop.open();
    repository.settings_mut().deflate = esker_repository::Deflate::Fast;
    let report = crate::workshop::publish(&repository, &top, "").unwrap();
    assert_eq!(report.objects_stored, 0, "{report:?}");
    drop(repository);
    workshop.assert_equal();
}
