//! Opens files that are named in settings, through another process if this one may not open them itself.
//!
//! A confined server reads lists of name servers, certificates and keys again when they are replaced. It holds no right to
//! the folders around them, which have secrets of other programs; a process beside it opens what was named at the start.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

/// Opens a file, for reading unless it is a log; `None` for a file that this process opens itself.
pub type FileOpener = Box<dyn Fn(&Path) -> Option<io::Result<File>> + Send + Sync>;

static OPENER: OnceLock<FileOpener> = OnceLock::new();

/// Sets what opens named files in this process. Only the first call has an effect.
pub fn set_file_opener(opener: FileOpener) {
    let _ = OPENER.set(opener);
}

/// Opens a file that a setting names, for reading.
pub fn open_named(path: &Path) -> io::Result<File> {
    open_named_or(path, || File::open(path))
}

/// Opens a file that a setting names; `open` is what this process does if it opens the file itself.
pub fn open_named_or(path: &Path, open: impl FnOnce() -> io::Result<File>) -> io::Result<File> {
    OPENER.get().and_then(|opener| opener(path)).unwrap_or_else(open)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opener_decides_which_files_it_opens() {
        let folder = tempfile::tempdir().unwrap();
        let (own, other) = (folder.path().join("own"), folder.path().join("other"));
        std::fs::write(&own, "own").unwrap();
        std::fs::write(&other, "other").unwrap();
        assert!(open_named(&other).is_ok());
        let refused = other.clone();
        set_file_opener(Box::new(move |path| {
            (path == refused).then(|| Err(io::Error::from(io::ErrorKind::PermissionDenied)))
        }));
        assert!(open_named(&own).is_ok());
        assert_eq!(open_named(&other).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
