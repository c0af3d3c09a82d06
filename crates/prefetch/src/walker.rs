//! Replays steps through a mount, in the replayer's process.
//!
//! It only has the kernel do what a program will have it do: looks names up, lists directories, reads parts of files
//! ahead. It follows no link and leaves no file system. When it is idle it closes its files, so that the mount can be
//! unmounted.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{
    Advice, CWD, FileType, Mode, OFlags, RawDir, ResolveFlags, fadvise, fstat, openat, openat2,
};

use crate::replayer::decode;
use crate::sequences::UNIT;
use crate::{NAME, NAMES};

/// Maximum number of outstanding reads: a program's reads wait behind them.
const UNDER_WAY: u32 = 64;
/// Buffer size for directory listings, that of C libraries: of the first entries returned FUSE caches more than their
/// existence.
const NAMES_LEN: usize = 32 << 10;

/// Replays the steps from `input` below `root`, until it ends.
pub fn replay(root: &Path, mut input: impl Read + AsFd) -> io::Result<()> {
    let mut walker = Walker::new(root);
    let (mut message, mut room) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        if !is_ready(&input)? {
            (walker.at, walker.file) = (None, None);
        }
        let count = match input.read(&mut room) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        message.extend_from_slice(room.get(..count).unwrap_or_default());
        let mut done = 0;
        while let Some(((path, part), len)) = decode(message.get(done..).unwrap_or_default()) {
            walker.step(path, part)?;
            done += len;
        }
        message.drain(..done);
    }
}

fn is_ready(input: impl AsFd) -> io::Result<bool> {
    let now = Timespec::try_from(Duration::ZERO).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(&input, PollFlags::IN)], Some(&now)) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

struct Walker<'a> {
    root: &'a Path,
    /// File system of the first step.
    device: Option<u64>,
    at: Option<OwnedFd>,
    /// File that was read last.
    file: Option<(Vec<u8>, OwnedFd)>,
    since_wait: u32,
    /// Buffer for directory entries.
    names: Vec<u8>,
}

impl<'a> Walker<'a> {
    fn new(root: &'a Path) -> Self {
        Self { root, device: None, at: None, file: None, since_wait: 0, names: Vec::with_capacity(NAMES_LEN) }
    }

    /// Replays one step. A missing file is no error; an error ends the replay.
    fn step(&mut self, path: &[u8], part: u32) -> io::Result<()> {
        let names = OFlags::RDONLY | OFlags::DIRECTORY;
        match part {
            NAME => drop(self.open(path, OFlags::PATH)?),
            NAMES => {
                if let Some(dir) = self.open(path, names)? {
                    let mut names = RawDir::new(dir, self.names.spare_capacity_mut());
                    // A listing that fails is not reported.
                    while names.next().is_some_and(|name| name.is_ok()) {}
                }
            }
            part => self.read_ahead(path, part)?,
        }
        Ok(())
    }

    fn read_ahead(&mut self, path: &[u8], part: u32) -> io::Result<()> {
        if self.file.as_ref().is_none_or(|(open, _)| open != path) {
            // Opening a fifo would block until it has a writer.
            let file = self.open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
            let is_file = |file: &OwnedFd| {
                fstat(file).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
            };
            let file = file.filter(is_file);
            // The read of one byte must not cause a read-ahead of data that would have to be fetched.
            file.iter().for_each(|file| _ = fadvise(file, 0, None, Advice::Random));
            self.file = file.map(|file| (path.to_vec(), file));
        }
        let Some((_, file)) = &self.file else { return Ok(()) };
        let from = u64::from(part) * UNIT;
        // Both only save time, so failures are ignored.
        let _ = fadvise(file, from, std::num::NonZero::new(UNIT), Advice::WillNeed);
        self.since_wait += 1;
        if self.since_wait >= UNDER_WAY {
            self.since_wait = 0;
            let _ = rustix::io::pread(file, &mut [0], from);
        }
        Ok(())
    }

    /// Opens a path below the root.
    fn open(&mut self, path: &[u8], flags: OFlags) -> io::Result<Option<OwnedFd>> {
        let root = match &self.at {
            Some(root) => root,
            None => {
                let opened = self.enter()?;
                self.at.insert(opened)
            }
        };
        let path = path.strip_prefix(b"/").filter(|pause| !pause.is_empty()).unwrap_or(b".");
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        match openat2(root, path, flags, Mode::empty(), within) {
            Ok(file) => Ok(Some(file)),
            // Before Linux 5.6 nothing keeps it from leaving the mount. Without a daemon there is no mount.
            Err(error @ (rustix::io::Errno::NOSYS | rustix::io::Errno::NOTCONN)) => Err(error.into()),
            Err(_) => Ok(None),
        }
    }

    /// Opens the root, if it is still on the file system of the first step.
    fn enter(&mut self) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, self.root, flags, Mode::empty())?;
        let device = fstat(&root)?.st_dev;
        if *self.device.get_or_insert(device) != device {
            return Err(io::Error::other("something else is mounted there"));
        }
        Ok(root)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::replayer::encode;

    fn walks(root: &Path, steps: &[(&str, u32)]) -> io::Result<()> {
        let (reader, writer) = io::pipe()?;
        let mut message = Vec::new();
        steps.iter().for_each(|(path, part)| encode(&(path.as_bytes().into(), *part), &mut message));
        let requested = std::thread::spawn(move || (&writer).write_all(&message));
        let walked = replay(root, reader);
        // A walker that ended early does not read all of it.
        let _ = requested.join().expect("the writer");
        walked
    }

    #[test]
    fn steps_to_any_kind_of_file_are_replayed_without_blocking() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        std::fs::create_dir(root.join("dir")).expect("a directory");
        std::fs::write(root.join("dir/file"), vec![7; 300_000]).expect("a file");
        symlink("dir/file", root.join("link")).expect("a link");
        rustix::fs::mkfifoat(CWD, root.join("fifo"), Mode::from_raw_mode(0o600)).expect("a fifo");
        let parts = (0..100).map(|part| ("/dir/file", part));
        let odd = [("/", NAMES), ("/dir", NAMES), ("/dir/file", NAMES), ("/absent", NAME), ("/absent", 0)];
        let others = [("/fifo", 0), ("/link", 0), ("/link", NAME), ("/dir", 3), ("", NAME), ("x", NAME)];
        let steps: Vec<_> = odd.into_iter().chain(others).chain(parts).collect();
        walks(root, &steps).expect("it goes on to the end");
    }

    #[test]
    fn replayed_paths_stay_below_the_root() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join("root");
        std::fs::create_dir(&root).expect("a directory");
        std::fs::write(folder.path().join("outside"), "x").expect("a file");
        symlink(folder.path(), root.join("out")).expect("a link");
        let mut walker = Walker::new(&root);
        for path in ["/../outside", "/out/outside", "/out", "//etc/passwd"] {
            walker.step(path.as_bytes(), 0).expect("it goes on");
            assert!(walker.file.is_none(), "{path}");
        }
    }

    #[test]
    fn a_missing_root_ends_the_replay() {
        assert!(walks(Path::new("/nowhere"), &[("/a", NAME)]).is_err());
    }
}
