//! The judges: GNU tar, which extracts, and Python's `tarfile`, which reads.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use esker_testkit::listing::{Entry, of_folder};
use serde_json::Value;

use crate::cases::{Case, Tree};

/// Result of GNU tar for an archive.
#[derive(Debug)]
pub(crate) enum Verdict {
    Read(Tree),
    /// Its message.
    Failed(#[allow(dead_code, reason = "shown by Debug")] String),
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the tree of a folder by path.
pub(crate) fn tree(entries: impl IntoIterator<Item = Entry>) -> Tree {
    entries.into_iter().map(|entry| (entry.path.clone(), entry)).collect()
}

/// Extracts every archive with GNU tar.
pub(crate) fn gnu_tar(corpus: &[Case], folder: &Path) -> Vec<Verdict> {
    started();
    let judged = |case: &Case| {
        let place = tempfile::tempdir_in(folder).expect("a folder");
        let (archive, out) = (place.path().join("it.tar"), place.path().join("out"));
        fs::write(&archive, case.bytes()).expect("written");
        fs::create_dir(&out).expect("a folder");
        let mut tar = Command::new("tar");
        tar.env("LC_ALL", "C.UTF-8").env("TZ", "UTC");
        tar.args(["--numeric-owner", "-p", "--xattrs", "--xattrs-include=user.*"]);
        tar.args(if is_root() { ["--same-owner"] } else { ["--no-same-owner"] });
        if let Some(program) = case.program {
            tar.args(["-I", program]);
        }
        let output = tar.arg("-C").arg(&out).arg("-xf").arg(&archive).output().expect("tar");
        if !is_root() {
            // An ordinary user can't read all that it may extract; modes are compared by root.
            Command::new("chmod").args(["-R", "u+rwX"]).arg(&out).status().expect("chmod");
        }
        match output.status.success() {
            true => Verdict::Read(tree(of_folder(&out))),
            false => Verdict::Failed(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    };
    let half = corpus.len() / 2;
    std::thread::scope(|scope| {
        let first = scope.spawn(|| corpus[..half].iter().map(judged).collect::<Vec<_>>());
        let second: Vec<Verdict> = corpus[half..].iter().map(judged).collect();
        first.join().expect("judged").into_iter().chain(second).collect()
    })
}

/// Returns the start of the test, in nanoseconds since the epoch: younger files were not in an archive.
pub(crate) fn started() -> i64 {
    static STARTED: OnceLock<i64> = OnceLock::new();
    *STARTED.get_or_init(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time");
        i64::try_from(now.as_nanos()).expect("a time") - 60_000_000_000
    })
}

/// Describes how a tree differs from the expected one; empty if it doesn't.
pub(crate) fn difference(expected: &Tree, found: &Tree, exact_times: bool) -> Option<String> {
    let names =
        |tree: &Tree| tree.keys().map(|path| String::from_utf8_lossy(path).into_owned()).collect::<Vec<_>>();
    if !expected.keys().eq(found.keys()) {
        return Some(format!("has {:?}, expected {:?}", names(found), names(expected)));
    }
    expected.iter().zip(found).find_map(|((path, expected), (_, found))| {
        // A directory that the archive says nothing of, or to which something was added later.
        let is_implied = expected.is_dir() && expected.mtime_ns > started();
        let about = |entry: &Entry| {
            let seconds = entry.mtime_ns.div_euclid(1_000_000_000);
            // Images know no time before 1970.
            let time = if exact_times { entry.mtime_ns } else { seconds.max(0) };
            let is_symlink = entry.kind() == 0o120_000;
            let mode = if is_symlink || is_implied || !is_root() { entry.kind() } else { entry.mode };
            let owner = if is_root() && !is_implied { (entry.uid, entry.gid) } else { (0, 0) };
            let device = entry.rdev.filter(|_| is_root());
            let time = if is_implied { 0 } else { time };
            let mut xattrs = entry.xattrs.clone();
            xattrs.retain(|name, _| name.starts_with(b"user."));
            let content = (entry.sha256.clone(), entry.target.clone());
            (format!("{mode:o}"), owner, device, time, content, xattrs)
        };
        let (expected, found) = (about(expected), about(found));
        (expected != found)
            .then(|| format!("{}: {found:?}, expected {expected:?}", String::from_utf8_lossy(path)))
    })
}

/// Reads all archives in one process, and prints the content of each, or the error.
const PYTHON: &str = r#"
import hashlib, json, os, sys, tarfile
for name in sys.stdin.read().split():
    found, why = {}, None
    try:
        with tarfile.open(name, "r:*", errors="surrogateescape") as archive:
            for member in archive:
                path = "/" + "/".join(p for p in member.name.split("/") if p not in ("", "."))
                content = None
                if member.isreg() or member.islnk():
                    with archive.extractfile(member) as file:
                        content = hashlib.sha256(file.read()).hexdigest()
                found[os.fsencode(path).hex()] = [content, member.isdir(), member.issym()]
    except Exception as error:
        why = repr(error)
    print(json.dumps([found, why]))
"#;

/// Python's result for an archive.
pub(crate) struct Said {
    /// Digests of content by path, whether it is a directory, and whether it is a symlink.
    entries: BTreeMap<Vec<u8>, (Option<String>, bool, bool)>,
    error: Option<String>,
}

/// Makes Python read every archive without its compression.
pub(crate) fn python(corpus: &[Case], folder: &Path) -> Vec<Said> {
    let place = tempfile::tempdir_in(folder).expect("a folder");
    let mut names = String::new();
    for (number, case) in corpus.iter().enumerate() {
        let path = place.path().join(format!("{number}.tar"));
        fs::write(&path, &case.plain).expect("written");
        names += &format!("{}\n", path.display());
    }
    let list = place.path().join("list");
    fs::write(&list, names).expect("written");
    let list = fs::File::open(list).expect("the list");
    let output = Command::new("python3").args(["-c", PYTHON]).stdin(list).output().expect("python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    let said: Vec<Said> = text.lines().map(said).collect();
    assert_eq!(said.len(), corpus.len());
    said
}

fn said(line: &str) -> Said {
    let value: Value = serde_json::from_str(line).expect("JSON");
    let hex = |text: &str| {
        let pairs =
            (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("a digit"));
        pairs.collect::<Vec<u8>>()
    };
    let entries = value[0].as_object().expect("entries").iter();
    let entries = entries.map(|(path, about)| {
        let flag = |at: usize| about[at].as_bool().expect("a flag");
        (hex(path), (about[0].as_str().map(str::to_owned), flag(1), flag(2)))
    });
    Said { entries: entries.collect(), error: value[1].as_str().map(str::to_owned) }
}

/// Compares the judges; returns on how many archives they agree. GNU tar's word counts, but where writers of the field are to be read they must agree.
pub(crate) fn compare(
    corpus: &[Case],
    verdicts: &[Verdict],
    python: &[Said],
    complaints: &mut Vec<String>,
) -> usize {
    let mut agreed = 0;
    for ((case, verdict), said) in corpus.iter().zip(verdicts).zip(python) {
        let Verdict::Read(tree) = verdict else { continue };
        let differs =
            |(path, (content, is_directory, is_symlink)): (&Vec<u8>, &(Option<String>, bool, bool))| {
                let Some(entry) = tree.get(path) else { return true };
                entry.is_dir() != *is_directory
                    || (entry.kind() == 0o120_000) != *is_symlink
                    || content.is_some() && *content != entry.sha256
            };
        let different = said.entries.iter().find(|entry| differs(*entry)).map(|(path, _)| path);
        if different.is_none() && said.error.is_none() {
            agreed += 1;
        } else if case.python_agrees {
            let path = different.map(|path| String::from_utf8_lossy(path).into_owned());
            complaints.push(format!("{}: Python reads it otherwise: {path:?} {:?}", case.name, said.error));
        }
    }
    agreed
}
