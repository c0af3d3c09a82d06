//! Reads lists of files that a command opened, as small processes that stand for the command.
//!
//! A list has one path a line, relative to the recorded root, in the order of first use.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};

use esker_testkit::soak::Random;

/// Share of a list that one reader reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Number of the reader, from 0.
    pub number: usize,
    /// Number of readers.
    pub of: usize,
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        match numbers {
            Some((number, of)) if number < of => Ok(Self { number, of }),
            _ => Err("a part looks like 0/8, the first of eight".into()),
        }
    }
}

/// Files and bytes that a reader has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Number of files read.
    pub files: u64,
    /// Number of bytes read.
    pub bytes: u64,
}

/// Reads the lists and removes duplicates.
pub fn union(lists: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let (mut seen, mut files) = (HashSet::new(), Vec::new());
    for list in lists {
        let text = std::fs::read(list).with_context(|| format!("can't read {}", list.display()))?;
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            // A recorded list has nothing twice, and 256 processes read it at once.
            if lists.len() == 1 || seen.insert(line.to_vec()) {
                files.push(PathBuf::from(std::ffi::OsString::from_vec(line.to_vec())));
            }
        }
    }
    ensure!(!files.is_empty(), "the lists are empty");
    Ok(files)
}

/// Deals files out to readers, and `shared_percent` of them to the next reader as well; each reader has an order of
/// its own.
pub fn deal(files: &[PathBuf], part: Part, shared_percent: usize) -> Vec<&Path> {
    let mut own: Vec<&Path> = files
        .iter()
        .enumerate()
        .filter(|(at, _)| {
            let dealt = at % part.of == part.number;
            let shared = (at * shared_percent) % 100 < shared_percent;
            dealt || (shared && (at + 1) % part.of == part.number)
        })
        .map(|(_, path)| path.as_path())
        .collect();
    if part.of > 1 {
        let mut random = Random(part.number as u64);
        for at in (1..own.len()).rev() {
            own.swap(at, random.below(at + 1));
        }
    }
    own
}

/// Opens each file below `root`, queries its size and reads it to its end.
pub fn read(root: &Path, files: &[&Path]) -> Result<Amount> {
    let mut buffer = vec![0; 128 << 10];
    let mut amount = Amount::default();
    for file in files {
        let path = root.join(file);
        let mut open = open_at(&path)?;
        let size = open.metadata()?.len();
        let before = amount.bytes;
        loop {
            match open.read(&mut buffer).with_context(|| format!("can't read {}", path.display()))? {
                0 => break,
                read => amount.bytes += read as u64,
            }
        }
        ensure!(amount.bytes - before == size, "{} was cut short", path.display());
        amount.files += 1;
    }
    Ok(amount)
}

/// Opens each file below `root`, and returns the open files.
pub fn open(root: &Path, files: &[&Path]) -> Result<Vec<File>> {
    files.iter().map(|file| open_at(&root.join(file))).collect()
}

fn open_at(path: &Path) -> Result<File> {
    File::open(path).with_context(|| format!("can't open {}", path.display()))
}

/// Runs a command with strace and lists the regular files below `root` that it opened or executed.
pub fn record(root: &Path, command: &[String]) -> Result<Vec<PathBuf>> {
    let root = root.canonicalize().with_context(|| format!("can't find {}", root.display()))?;
    let log = tempfile::NamedTempFile::new()?;
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-y", "-a", "1", "-e", "trace=open,openat,openat2"]);
    strace.args(["-e", "status=successful", "-e", "signal=none", "-o"]).arg(log.path()).arg("--");
    let root_text = root.to_string_lossy();
    strace.args(command.iter().map(|word| word.replace("{root}", &root_text)));
    let status = strace.stdin(Stdio::null()).status().context("can't start strace, which records")?;
    ensure!(status.success(), "the command failed: {status}");
    let mut seen = HashSet::new();
    let mut files = Vec::new();
    for line in std::fs::read(log.path())?.split(|byte| *byte == b'\n') {
        let Some(path) = opened(line) else { continue };
        let Ok(inside) = path.strip_prefix(&root) else { continue };
        if path.is_file() && seen.insert(inside.to_owned()) {
            files.push(inside.to_owned());
        }
    }
    if files.is_empty() {
        bail!("the command opened nothing below {}", root.display());
    }
    Ok(files)
}

/// Returns the path that a line of strace reports as opened: the text in angle brackets after the result.
fn opened(line: &[u8]) -> Option<PathBuf> {
    let line = line.strip_suffix(b">")?;
    let ends = line.windows(4).enumerate().filter(|(_, at)| at == b") = ").map(|(at, _)| &line[at + 4..]);
    // A name may look like the end of a call, but not with a descriptor behind it.
    let mut results = ends.filter_map(|result| {
        let digits = result.iter().take_while(|byte| byte.is_ascii_digit()).count();
        result[digits..].strip_prefix(b"<").filter(|_| digits > 0)
    });
    let path = results.next().filter(|path| path.starts_with(b"/"))?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(path)))
}

/// Returns the text of a list's file.
pub fn text(files: &[PathBuf]) -> Vec<u8> {
    files.iter().flat_map(|file| [file.as_os_str().as_bytes(), b"\n"].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opened_files_are_read_from_strace() {
        let line = b"12 openat(AT_FDCWD</x>, \"\"..., O_RDONLY|O_CLOEXEC) = 3</opt/a (b) = c/lib.so>";
        assert_eq!(opened(line), Some("/opt/a (b) = c/lib.so".into()));
        assert_eq!(opened(b"12 openat(AT_FDCWD</x>, \"\"..., O_RDONLY) = 3<socket:[7]>"), None);
        assert_eq!(opened(b"12 +++ exited with 0 +++"), None);
    }

    #[test]
    fn every_file_is_dealt_and_the_requested_share_to_two_readers() {
        let files: Vec<PathBuf> = (0..1000).map(|n| PathBuf::from(n.to_string())).collect();
        for (shared, total) in [(0, 1000), (10, 1100), (100, 2000)] {
            let hands = (0..8).map(|number| deal(&files, Part { number, of: 8 }, shared)).collect::<Vec<_>>();
            assert_eq!(hands.iter().map(Vec::len).sum::<usize>(), total, "{shared} %");
            let all: HashSet<&Path> = hands.iter().flatten().copied().collect();
            assert_eq!(all.len(), files.len());
        }
        let alone = deal(&files, Part { number: 0, of: 1 }, 10);
        assert!(alone.iter().zip(&files).all(|(dealt, file)| dealt == file), "in order, each once");
        assert_eq!("3/4".parse(), Ok(Part { number: 3, of: 4 }));
        assert!("4/4".parse::<Part>().is_err() && "1".parse::<Part>().is_err());
    }

    #[test]
    fn lists_are_read_back_and_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, content) in [("a", "one"), ("b c", "three")] {
            std::fs::write(folder.path().join(name), content).expect("a file");
        }
        let list = folder.path().join("list");
        std::fs::write(&list, text(&["a".into(), "b c".into()])).expect("a list");
        let files = union(&[list.clone(), list]).expect("a union");
        let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
        assert_eq!(read(folder.path(), &files).expect("read"), Amount { files: 2, bytes: 8 });
        let error = read(folder.path(), &[Path::new("absent")]).expect_err("it isn't there");
        assert!(error.to_string().contains("absent"), "{error}");
    }
}
