//! Failing disks, unreadable files, hostile entries and interrupted builds.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use esker_squashfs::writer::{
    BuildControl, Folder, Head, ImageFile, Input, Kind, Open, Reading, Target, TreeBuilder, WriteError, build,
};

use super::fixture::{Fixture, noise};
use super::quick;

/// Target that fails one of its calls.
struct Failing {
    inside: ImageFile,
    left: usize,
    hit: bool,
}

impl Failing {
    fn count(&mut self) -> io::Result<()> {
        self.hit |= self.left == 0;
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => return Err(io::ErrorKind::StorageFull.into()),
        }
        Ok(())
    }
}

impl Target for Failing {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.count()?;
        self.inside.write_at(offset, bytes)
    }

    fn finish(&mut self, len: u64) -> io::Result<()> {
        self.count()?;
        self.inside.finish(len)
    }
}

/// Returns the names in the folder of the image.
fn names(fixture: &Fixture) -> Vec<PathBuf> {
    let entries = fs::read_dir(fixture.path("")).expect("the folder");
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

#[test]
fn a_failed_write_leaves_no_file_and_keeps_the_earlier_image() {
    let fixture = Fixture::empty();
    for number in 0..20 {
        fixture.write(&format!("file-{number}"), &noise(number, 70_000 * number as usize));
    }
    fs::write(fixture.path("image"), "earlier").expect("writing");
    for left in 0.. {
        let inside = ImageFile::create(&fixture.path("image")).expect("a file");
        let mut target = Failing { inside, left, hit: false };
        let stop = AtomicBool::new(false);
        let mut watch = BuildControl { excludes: &|_| false, stop: &stop, progress: &mut |_| {} };
        let mut folder = Folder::open(&fixture.tree(), true).expect("the folder");
        let built = build(&mut folder, &quick(), &mut watch, &mut target);
        let hit = target.hit;
        drop(target);
        if built.is_ok() {
            assert!(!hit && left > 50, "every write was made to fail once");
            break;
        }
        assert!(hit, "{built:?}");
        assert!(matches!(built, Err(WriteError::Image { .. })), "{built:?}");
        assert_eq!(fs::read(fixture.path("image")).expect("the earlier image"), b"earlier");
        assert_eq!(names(&fixture).len(), 2, "{:?}", names(&fixture));
    }
    assert_ne!(fixture.image(), b"earlier");
    assert_eq!(names(&fixture).len(), 2);
}

#[test]
fn an_interrupted_build_leaves_no_file() {
    let fixture = Fixture::new();
    let stop = AtomicBool::new(false);
    let excludes = |path: &[u8]| {
        // The last entry of the fixture.
        stop.fetch_or(path == b"zz", Ordering::Relaxed);
        false
    };
    let mut watch = BuildControl { excludes: &excludes, stop: &stop, progress: &mut |_| {} };
    let mut folder = Folder::open(&fixture.tree(), true).expect("the folder");
    let mut image = ImageFile::create(&fixture.path("image")).expect("a file");
    let built = build(&mut folder, &quick(), &mut watch, &mut image);
    drop(image);
    assert!(matches!(built, Err(WriteError::Interrupted)), "{built:?}");
    assert_eq!(names(&fixture), [fixture.tree()]);
}

/// Input with contents of all sizes, one of which can't be read.
struct Broken {
    at: usize,
}

struct Content {
    breaks: bool,
    left: usize,
}

impl Open for Content {
    fn open(&self) -> io::Result<Box<dyn Reading + '_>> {
        Ok(Box::new(Content { breaks: self.breaks, left: self.left }))
    }
}

impl Reading for Content {
    fn fill(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let len = room.len().min(self.left);
        self.left -= len;
        match self.breaks && self.left < 1000 {
            true => Err(io::Error::other("the disk is gone")),
            false => {
                room[..len].fill(7);
                Ok(len)
            }
        }
    }
}

impl Input for Broken {
    fn feed(&mut self, intake: &mut TreeBuilder<'_, '_>) -> Result<(), WriteError> {
        for number in 0..60 {
            let size = (number % 7 + 1) * 900_000;
            let head = Head { path: format!("file-{number}").into_bytes(), ..Head::default() };
            let content = Content { breaks: number == self.at, left: size };
            intake.file(head, size as u64, Box::new(content))?;
        }
        intake.add(Head { path: b"pipe".to_vec(), ..Head::default() }, Kind::Fifo)
    }
}

#[test]
fn an_unreadable_file_is_named_and_fails_the_build() {
    let fixture = Fixture::empty();
    for at in [0, 5, 6, 31, 59] {
        let error = fixture.build_of(&mut Broken { at }, &quick()).expect_err("an error");
        let WriteError::Input { path, source, .. } = &error else { panic!("{error:?}") };
        assert_eq!(
            (path.as_str(), source.to_string().as_str()),
            (&*format!("/file-{at}"), "the disk is gone")
        );
        assert!(!fixture.path("image").exists());
    }
    fixture.build_of(&mut Broken { at: 60 }, &quick()).expect("nothing breaks");
}

/// Input with a path that must be rejected.
struct Hostile(&'static str, Option<Kind>);

impl Input for Hostile {
    fn feed(&mut self, intake: &mut TreeBuilder<'_, '_>) -> Result<(), WriteError> {
        let pipe = Head { path: b"pipe".to_vec(), ..Head::default() };
        intake.add(pipe, Kind::Fifo)?;
        let head = Head { path: self.0.as_bytes().to_vec(), ..Head::default() };
        match self.1.take() {
            Some(kind) => intake.add(head, kind),
            None => intake.link(&head.path, b"nowhere"),
        }
    }
}

#[test]
fn invalid_entries_are_rejected_by_name() {
    let fixture = Fixture::empty();
    let long: &'static str = String::leak("n".repeat(256));
    for (mut input, reason) in [
        (Hostile("../up", Some(Kind::Directory)), "leads out"),
        (Hostile("a/../../up", Some(Kind::Fifo)), "leads out"),
        (Hostile("pipe/below", Some(Kind::Fifo)), "no directory"),
        (Hostile("", Some(Kind::Fifo)), "no directory"),
        (Hostile("link", Some(Kind::Symlink(Vec::new()))), "0 bytes"),
        (Hostile("link", Some(Kind::Symlink(vec![b'x'; 5000]))), "5000 bytes"),
        (Hostile(long, Some(Kind::Directory)), "255 bytes"),
        (Hostile("name", None), "/nowhere, which is not in the image"),
    ] {
        let error = fixture.build_of(&mut input, &quick()).expect_err("refused");
        assert!(matches!(error, WriteError::Refused { .. }) && error.to_string().contains(reason), "{error}");
        assert!(!fixture.path("image").exists());
    }
}

#[test]
fn an_image_in_its_own_folder_is_not_part_of_itself() {
    let fixture = Fixture::empty();
    fixture.write("file", b"content");
    let path = fixture.tree().join("image");
    let mut image = ImageFile::create(&path).expect("a file");
    let mut folder = Folder::open(&fixture.tree(), true).expect("the folder");
    folder.leave_out(&image.metadata().expect("its metadata"));
    let stop = AtomicBool::new(false);
    let mut watch = BuildControl { excludes: &|_| false, stop: &stop, progress: &mut |_| {} };
    let report = build(&mut folder, &quick(), &mut watch, &mut image).expect("an image");
    assert_eq!((report.inodes, report.files), (2, 1));
}
