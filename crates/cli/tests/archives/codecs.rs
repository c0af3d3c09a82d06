//! Archives of the corpus with each compression, in one part, in several, and cut.

use std::io::{ErrorKind, Write as _};
use std::process::{Command, Stdio};

use crate::cases::Case;

/// A compression: its name, the command that makes it, and the program that GNU tar must be given.
const CODECS: [(&str, &[&str], Option<&str>); 8] = [
    ("gzip", &["gzip", "-1"], None),
    ("bzip2", &["bzip2", "-1"], None),
    ("xz", &["xz", "-0"], None),
    ("zstd", &["zstd", "-1", "-q"], None),
    ("lz4", &["lz4", "-1", "-q"], Some("lz4")),
    ("lzma", &["xz", "--format=lzma", "-0"], Some("xz --format=lzma")),
    ("pzstd", &["pzstd", "-1", "-q", "-p", "2"], Some("zstd")),
    ("lzip", &["lzip", "-0"], None),
];
/// Forms that have one part alone.
const SINGLE: [&str; 1] = ["lzma"];
/// Archives to compress: valid ones, and ones that are invalid only behind valid members.
const BASES: [&str; 5] = [
    "sparse 1.0 of many regions",
    "pax path with a newline",
    "v7 directory by a slash",
    "name of 256",
    "garbage behind the end",
];

/// Returns the output of a program for these bytes, if it is installed.
fn piped(command: &[&str], input: &[u8]) -> Option<Vec<u8>> {
    let started = Command::new(command[0])
        .args(&command[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = match started {
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        started => started.expect(command[0]),
    };
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().expect("an end");
    writer.join().expect("written").expect("written");
    assert!(output.status.success(), "{command:?}: {}", output.status);
    Some(output.stdout)
}

/// Returns compressed archives by their compression; those whose programs are not installed are left out.
pub(crate) fn cases(corpus: &[Case]) -> Vec<(&'static str, Vec<Case>)> {
    let mut all = Vec::new();
    for (name, command, program) in CODECS {
        if piped(command, b"x").is_none() {
            continue;
        }
        let mut cases = Vec::new();
        let pack = |bytes: &[u8]| piped(command, bytes).expect("compressed");
        for base in BASES {
            let case = corpus.iter().find(|case| case.name == base).expect(base);
            let with = |form: &str, packed: Vec<u8>| {
                let case = Case { name: format!("{base}, {form}{name}"), ..case.clone() };
                case.packed(packed, program)
            };
            let (first, second) = case.plain.split_at(case.plain.len() / 3);
            cases.push(with("", pack(&case.plain)));
            if !SINGLE.contains(&name) {
                cases.push(with("two parts of ", [pack(first), pack(second)].concat()));
            }
        }
        let case = corpus.iter().find(|case| case.name == "old sparse").expect("it");
        let whole = pack(&case.plain);
        let cut = Case { name: format!("cut {name}"), ..case.clone() };
        cases.push(cut.packed(whole[..whole.len() / 2].to_vec(), program));
        all.push((name, cases));
    }
    all
}
