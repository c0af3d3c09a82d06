//! Archives: a corpus of them, extracted by GNU tar and read by Python's `tarfile` as judges, and the three uses of the reader.
//!
//! What GNU tar extracts without an error is the same tree after `ingest`, in an image and in a layer. What it doesn't is refused,
//! and nothing is written. Exceptions stand in the corpus, each with its reason.
#![allow(clippy::print_stdout, reason = "what the judges say")]

mod cases;
mod codecs;
mod handmade;
mod judge;
mod programs;
mod uses;

use std::collections::BTreeSet;
use std::path::Path;

use esker_testkit::{skip_optional, skip_part};

use cases::{Case, Expected};
use judge::Verdict;
use uses::Use;

/// Sources of the corpus, with their least number of archives, and whether every machine must have the program.
const SOURCES: [(&str, usize, bool); 13] = [
    ("hand", 250, true),
    ("GNU tar", 30, true),
    ("bsdtar", 21, true),
    ("Python", 8, true),
    ("Go", 5, false),
    ("gzip", 11, true),
    ("bzip2", 11, true),
    ("xz", 11, true),
    ("zstd", 11, true),
    ("lz4", 11, false),
    ("lzma", 6, true),
    ("pzstd", 11, false),
    ("lzip", 11, false),
];

#[test]
fn publish_ingest_and_build_read_archives_as_gnu_tar_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut corpus = corpus(folder.path());
    if !judge::is_root() {
        corpus.retain(|case| !case.needs_root);
        skip_part!("only root extracts devices, owners and modes");
    }
    let names: BTreeSet<&str> = corpus.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names.len(), corpus.len(), "every archive has a name of its own");

    let begun = std::time::Instant::now();
    let verdicts: Vec<Verdict> = judge::gnu_tar(&corpus, folder.path());
    let python = judge::python(&corpus, folder.path());
    println!("judged in {:.1} s", begun.elapsed().as_secs_f64());
    let mut complaints = Vec::new();
    let mut expected = Vec::new();
    for (case, verdict) in corpus.iter().zip(&verdicts) {
        expected.push(match (&case.expected, verdict) {
            (Expected::AsGnuTar, Verdict::Read(tree)) => Some(tree),
            (Expected::AsGnuTar, Verdict::Failed(_)) => None,
            (Expected::Refused(why), Verdict::Read(_)) => {
                println!("{}: refused, although GNU tar reads it: {why}", case.name);
                None
            }
            (Expected::Read(tree, why), Verdict::Failed(_)) => {
                println!("{}: read, although GNU tar doesn't: {why}", case.name);
                Some(tree)
            }
            (expected, verdict) => {
                complaints.push(format!("{}: no exception any more: {expected:?}, {verdict:?}", case.name));
                None
            }
        });
    }
    let read = expected.iter().flatten().count();
    let refused = corpus.len() - read;
    let uses = [Use::ingest(folder.path()), Use::image(folder.path()), Use::layer(folder.path())];
    std::thread::scope(|scope| {
        let tried = uses.map(|mut one| {
            let (corpus, expected) = (&corpus, &expected);
            scope.spawn(move || {
                let mut complaints = Vec::new();
                for (number, (case, expected)) in corpus.iter().zip(expected).enumerate() {
                    one.take(number, case, *expected, &mut complaints);
                }
                one.finish(corpus, &mut complaints);
                complaints
            })
        });
        for tried in tried {
            complaints.extend(tried.join().expect("a use ends"));
        }
    });
    let agreed = judge::compare(&corpus, &verdicts, &python, &mut complaints);
    println!(
        "{} archives: {read} read, {refused} refused; Python agrees with GNU tar on {agreed}",
        corpus.len()
    );
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
    assert!(read > 0 && refused > 0 && agreed > 0);
}

/// Returns the archives of all sources that this machine has. No source has fewer than it must.
fn corpus(folder: &Path) -> Vec<Case> {
    let mut by_source = vec![("hand", handmade::cases())];
    by_source.extend(programs::cases(folder));
    let plain: Vec<Case> = by_source.iter().flat_map(|(_, cases)| cases.clone()).collect();
    by_source.extend(codecs::cases(&plain));
    let mut few = Vec::new();
    for (source, least, is_needed) in SOURCES {
        match by_source.iter().find(|(name, _)| *name == source) {
            Some((_, cases)) if cases.len() >= least => {}
            Some((_, cases)) => few.push(format!("{} archives of {source}, not {least}", cases.len())),
            None if is_needed => skip_part!("no archives of {source}, whose program is not installed"),
            None => skip_optional!("no archives of {source}, whose program is not installed"),
        }
    }
    assert!(few.is_empty(), "too few archives: {}", few.join(", "));
    assert!(by_source.iter().all(|(name, _)| SOURCES.iter().any(|(source, ..)| source == name)));
    by_source.into_iter().flat_map(|(_, cases)| cases).collect()
}

/// The program itself reads some of the corpus.
#[test]
fn the_program_reads_and_refuses_archives() {
    let folder = tempfile::tempdir().expect("a folder");
    let esker = |arguments: &[&str]| {
        let output = std::process::Command::new(esker_testkit::programs::esker(env!("CARGO_BIN_EXE_esker")))
            .args(arguments)
            .current_dir(folder.path())
            .env("HOME", folder.path())
            .env("XDG_CONFIG_HOME", folder.path())
            .output()
            .expect("esker");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), text)
    };
    // The first publisher makes the folder for records of open work, which is empty then.
    let is_told = |path: &String| !path.ends_with(".tar") && !path.ends_with("/.esker/open");
    let files = |at: &Path| walk(at).into_iter().filter(is_told).collect::<Vec<_>>();
    let created = esker(&["repo", "create", "archives.test", "--storage", "storage", "--keys", "keys"]);
    assert_eq!(created.0, Some(0), "{}", created.1);
    let corpus = handmade::cases();
    let case = |name: &str| corpus.iter().find(|case| case.name == name).expect(name);
    let mut revisions = 0;
    for (name, told) in [
        ("zero byte in pax path", Some("zero byte")),
        ("zero byte in pax linkpath", Some("zero byte")),
        ("zero byte in the name of an attribute", Some("zero byte")),
        ("pax uid 4294967295", Some("4294967295")),
        ("owner of base 256 beyond all", Some("4294967296")),
        ("target of 4096 bytes", Some("4096 bytes")),
        ("name with ..", Some("`..`")),
        ("part of a volume", Some("volume")),
        ("sparse 1.0", None),
        ("old sparse", None),
        ("pax path with a newline", None),
        ("global header", None),
    ] {
        std::fs::write(folder.path().join("it.tar"), &case(name).plain).expect("written");
        let before = files(folder.path());
        let ingest = [
            "ingest",
            "archives.test",
            "it.tar",
            "--to",
            "/in",
            "--storage",
            "storage",
            "--keys",
            "keys",
            "--quiet",
        ];
        let (code, text) = esker(&ingest);
        let (image_code, image_text) = esker(&["image", "build", "it.sqfs", "it.tar", "--quiet"]);
        match told {
            None => {
                assert_eq!((code, image_code), (Some(0), Some(0)), "{name}: {text}{image_text}");
                std::fs::remove_file(folder.path().join("it.sqfs")).expect("an image");
                revisions += 1;
            }
            Some(told) => {
                assert!(code != Some(0) && text.contains(told), "{name}: {code:?} {text}");
                assert!(
                    image_code != Some(0) && image_text.contains(told),
                    "{name}: {image_code:?} {image_text}"
                );
                assert_eq!(files(folder.path()), before, "{name}: nothing is written");
            }
        }
    }
    assert_eq!(revisions, 4);
}

/// Archives of container images, which are named otherwise than archives of files.
#[test]
fn the_program_says_how_to_name_container_images() {
    use esker_testkit::container::{ContainerImage, Packing};
    let folder = tempfile::tempdir().expect("a folder");
    let image = ContainerImage::new(serde_json::json!({})).layer(Packing::Gzip, |layer| {
        layer.file("inside", 0o644, "text");
    });
    image.write_docker_archive(&folder.path().join("docker.tar"), "it:1");
    image.write_layout_archive(&folder.path().join("oci.tar"), "latest");
    // Compression is detected by the first bytes.
    std::fs::write(folder.path().join("oci.tar.zst"), b"\x28\xb5\x2f\xfd and more").expect("written");
    std::fs::write(folder.path().join("oci.tar.xz"), b"\xfd7zXZ\0 and more bytes").expect("written");
    let build = |from: &str, stdin: Option<&str>| {
        let stdin = stdin.map(|name| std::fs::File::open(folder.path().join(name)).expect("it").into());
        let output = std::process::Command::new(esker_testkit::programs::esker(env!("CARGO_BIN_EXE_esker")))
            .args(["image", "build", "it.sqfs", from, "--quiet", "--force"])
            .current_dir(folder.path())
            .stdin(stdin.unwrap_or_else(std::process::Stdio::null))
            .output()
            .expect("esker");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let image = folder.path().join("it.sqfs");
    for (from, stdin, told) in [
        ("docker.tar", None, "docker-archive:docker.tar"),
        ("oci.tar", None, "oci-archive:oci.tar"),
        ("-", Some("docker.tar"), "docker-archive:FILE"),
        ("oci-archive:oci.tar.zst", None, "compressed with zstd; unpack it with `zstd -d`"),
        ("oci-archive:oci.tar.xz", None, "compressed with xz; unpack it with `unxz`"),
    ] {
        let (done, text) = build(from, stdin);
        assert!(!done && text.contains(told) && !image.exists(), "{from}: {text}");
    }
    for (from, stdin) in [
        ("docker-archive:docker.tar", None),
        ("oci-archive:oci.tar", None),
        ("tar:docker.tar", None),
        ("tar:-", Some("docker.tar")),
    ] {
        let (done, text) = build(from, stdin);
        assert!(done && image.exists(), "{from}: {text}");
    }
}

/// Returns the paths of all files below a folder.
fn walk(folder: &Path) -> Vec<String> {
    let entries = esker_testkit::listing::of_folder(folder);
    entries.iter().map(|entry| String::from_utf8_lossy(&entry.path).into_owned()).collect()
}
