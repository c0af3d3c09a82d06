//! Waits for a log to grow.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify;

/// Watch of a file.
pub(super) struct FileWatch(OwnedFd);

impl FileWatch {
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC)?;
        // An open file whose name is removed has other attributes: a link less.
        let what = inotify::WatchFlags::MODIFY | inotify::WatchFlags::ATTRIB;
        inotify::add_watch(&watch, path, what)?;
        Ok(Self(watch))
    }

    /// Waits until the file is written to, or its name is removed.
    pub(super) fn wait(&self) -> io::Result<()> {
        let mut buffer = [const { MaybeUninit::uninit() }; 4096];
        let mut reader = inotify::Reader::new(&self.0, &mut buffer);
        loop {
            match reader.next().map(drop) {
                Ok(()) if reader.is_buffer_empty() => return Ok(()),
                Ok(()) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    #[test]
    fn a_watch_ends_with_writing_and_with_removal() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let mut file = fs::File::create(&path).expect("a file");
        let watch = FileWatch::new(&path).expect("a watch");
        file.write_all(b"line\n").expect("written");
        watch.wait().expect("an event");
        // The file is open, so that only its name goes.
        fs::remove_file(&path).expect("removed");
        watch.wait().expect("an event");
    }
}
