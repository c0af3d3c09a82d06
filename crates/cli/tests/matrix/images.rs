//! `esker image`: images made, looked into, checked and taken apart.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use esker_testkit::fixture;
use esker_testkit::listing::Entry;
use esker_testkit::tree_scan::scan_tree;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::test_env::{TestEnv, complaint, printed, words};
use crate::test_user::TestUser;

struct Studio {
    world: TestEnv,
}

fn tree(at: &Path) {
    fs::create_dir_all(at.join("bin")).expect("folders");
    fs::create_dir_all(at.join("share/empty")).expect("folders");
    fs::write(at.join("bin/tool"), "#!/bin/sh\necho a tool\n").expect("a file");
    fs::set_permissions(at.join("bin/tool"), fs::Permissions::from_mode(0o755)).expect("a mode");
    let text: Vec<u8> = (0..400_000u32).flat_map(|number| (number / 7).to_le_bytes()).collect();
    fs::write(at.join("share/large"), &text).expect("a file");
    fs::write(at.join("share/copy"), &text).expect("a file");
    fs::hard_link(at.join("bin/tool"), at.join("bin/also")).expect("a link");
    symlink("/bin/tool", at.join("absolute")).expect("a link");
}

impl Studio {
    fn new(person: TestUser) -> Self {
        let world = TestEnv::new(person, fixture::RMD);
        let at = world.path("home/tree");
        person.does(|| tree(&at));
        Self { world }
    }

    fn home(&self, name: &str) -> String {
        self.world.path("home").join(name).display().to_string()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.world.esker(&[&["image"], arguments].concat());
        command.env_remove("SOURCE_DATE_EPOCH");
        command
    }

    fn esker(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("running esker")
    }

    #[track_caller]
    fn done(&self, arguments: &[&str]) -> String {
        printed(&mut self.command(arguments))
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.done(&[arguments, &["--json"]].concat())).expect("JSON")
    }

    #[track_caller]
    fn refused(&self, code: i32, arguments: &[&str]) -> String {
        complaint(&mut self.command(arguments), code)
    }
}

/// Returns the entries of a folder, with times in whole seconds, as in an image; and without owners, which only root
/// sets.
fn shown(folder: &Path) -> Vec<String> {
    let entry = |found: esker_testkit::tree_scan::Found| {
        let entry = found.entry;
        let path = String::from_utf8_lossy(&entry.path).into_owned();
        let (time, target) = (entry.mtime_ns / 1_000_000_000, &entry.target);
        format!(
            "{path} {:o} {time} {:?} {:?} {target:?} {:?}",
            entry.mode, entry.size, entry.nlink, entry.sha256
        )
    };
    scan_tree(folder).into_iter().map(entry).collect()
}

#[test]
fn an_image_is_built_listed_verified_and_extracted() {
    for person in TestUser::all() {
        let studio = Studio::new(person);
        let (image, from, out) = (studio.home("a.sqfs"), studio.home("tree"), studio.home("out"));
        let report = studio.json(&["build", &image, &from, "--codec", "zstd:3", "--quiet"]);
        assert_eq!((&report["inodes"], &report["duplicates"]), (&8.into(), &1.into()), "{report}");
        let inspected = studio.json(&["inspect", &image]);
        assert_eq!((&inspected["codec"], &inspected["codec_options"]["level"]), (&"zstd".into(), &3.into()));
        assert_eq!(inspected["inodes"], 8);
        assert!(studio.done(&["inspect", &image]).contains("zstd (level 3)"));
        assert_eq!(studio.done(&["ls", &image]), "absolute\nbin\nshare\n");
        assert_eq!(studio.done(&["ls", &image, "/bin"]), "also\ntool\n");
        assert_eq!(studio.json(&["ls", &image, "bin"])[1]["mode"], "0755");
        assert_eq!(studio.done(&["cat", &image, "absolute", "bin/also"]).matches("echo a tool").count(), 2);
        assert!(studio.refused(1, &["cat", &image, "none"]).contains("esker image ls"));
        studio.done(&["extract", &image, &out]);
        person.does(|| assert_eq!(shown(Path::new(&out)), shown(Path::new(&from))));
        assert!(studio.refused(2, &["extract", &image, &out]).contains("not empty"));
        let verified = studio.json(&["verify", &image]);
        assert_eq!((&verified["entries"], &verified["bytes"]), (&9.into(), &3_200_022.into()), "{verified}");
    }
}

#[test]
fn the_same_input_makes_the_same_image() {
    let studio = Studio::new(TestUser::ordinary());
    let (one, other, from) = (studio.home("1.sqfs"), studio.home("2.sqfs"), studio.home("tree"));
    let archive = studio.home("it.tar");
    studio.done(&["build", &one, &from, "--threads", "1"]);
    studio.done(&["build", &other, &from, "--threads", "8"]);
    let read = |path: &str| fs::read(path).expect("an image");
    assert!(read(&one) == read(&other));
    assert!(studio.refused(2, &["build", &one, &from]).contains("--force"));
    // A folder and a copy of it differ in times.
    let built = |image: &str, epoch: &str| {
        let mut build = studio.command(&["build", image, &from, "--force"]);
        printed(build.env("SOURCE_DATE_EPOCH", epoch));
        studio.json(&["inspect", image])["modified"].clone()
    };
    assert_eq!(built(&one, "1000"), 1000);
    studio.done(&["build", &other, &from, "--force", "--mtime", "1000"]);
    assert!(read(&one) == read(&other));
    let mut wrong = studio.command(&["build", &one, &from, "--force"]);
    complaint(wrong.env("SOURCE_DATE_EPOCH", "soon"), 2);
    printed(Command::new("tar").args(["--sort=name", "-cf", &archive, "-C", &from, "."]));
    studio.done(&["build", &other, &archive, "--force", "--mtime", "1000"]);
    let listed = |image: &str| studio.done(&["ls", image, "/bin", "--long"]);
    assert_eq!(listed(&one), listed(&other));
    let mut piped = studio.command(&["build", &other, "-", "--force", "--mtime", "1000"]);
    let mut piped = piped.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("esker");
    piped.stdin.take().expect("a pipe").write_all(&read(&archive)).expect("writing");
    assert!(piped.wait().expect("its end").success());
    assert_eq!(listed(&one), listed(&other));
}

#[test]
fn options_exclude_files_and_set_owners() {
    let studio = Studio::new(TestUser::ordinary());
    let (image, from) = (studio.home("a.sqfs"), studio.home("tree"));
    studio.done(&["build", &image, &from, "--exclude", "/share/l*", "--exclude", "empty", "--all-root"]);
    assert_eq!(studio.done(&["ls", &image, "share"]), "copy\n");
    assert_eq!(studio.json(&["ls", &image])[1]["uid"], 0);
    studio.done(&[
        "build",
        &image,
        &from,
        "--force",
        "--owner",
        "5:70000",
        "--codec",
        "lz4",
        "--block-size",
        "4K",
    ]);
    let entry = &studio.json(&["ls", &image])[1];
    assert_eq!((&entry["uid"], &entry["gid"]), (&5.into(), &70_000.into()));
    assert_eq!(studio.json(&["inspect", &image])["block_size"], 4096);
    for wrong in [&["--codec", "lzo"][..], &["--block-size", "5K"], &["--uid-map", "1"], &["--sort", "none"]]
    {
        studio.refused(2, &[&["build", &image, &from, "--force"], wrong].concat());
    }
    let nowhere = studio.refused(2, &["build", &image, "./none", "--force"]);
    assert!(nowhere.contains("not there"), "{nowhere}");
    let pipe = studio.home("pipe");
    printed(Command::new("mkfifo").arg(&pipe));
    let replaced = studio.refused(1, &["build", &pipe, &from, "--force"]);
    assert!(replaced.contains("not a file"), "{replaced}");
    assert!(fs::metadata(&pipe).expect("the pipe").file_type().is_fifo());
}

#[test]
fn a_folder_of_a_repository_becomes_an_image() {
    let studio = Studio::new(TestUser::ordinary());
    let (image, out) = (studio.home("a.sqfs"), studio.home("out"));
    let url = studio.world.url();
    let (key, cache) = (studio.world.path("key.pub"), studio.world.cache());
    let (key, cache) = (key.display().to_string(), cache.display().to_string());
    let from = format!("{url}:/");
    studio.done(&["build", &image, &from, "--public-key", &key, "--cache", &cache, "--quiet"]);
    studio.done(&["extract", &image, &out]);
    // Devices only root can make; one directory has more names than the image's tree lists at once.
    let is_device = |mode: u32| [0o020_000, 0o060_000].contains(&(mode & 0o170_000));
    let of = |entries: &mut dyn Iterator<Item = Entry>| -> BTreeSet<Vec<u8>> {
        entries.filter(|entry| !is_device(entry.mode)).map(|entry| entry.path).collect()
    };
    let expected = of(&mut fixture::RMD.listing("v3").into_iter());
    let found = of(&mut scan_tree(Path::new(&out)).into_iter().map(|found| found.entry));
    assert!(found == expected, "{:?}", found.symmetric_difference(&expected).collect::<Vec<_>>());
}

#[test]
fn diff_reports_differences() {
    let studio = Studio::new(TestUser::ordinary());
    let (one, other, from) = (studio.home("1.sqfs"), studio.home("2.sqfs"), studio.home("tree"));
    studio.done(&["build", &one, &from]);
    assert_eq!(studio.done(&["diff", &one, &from, "--owners"]), "8 entries are the same in both\n");
    let at = Path::new(&from);
    studio.world.person.does(|| {
        fs::write(at.join("share/copy"), [&[1][..], &[0; 1_599_999]].concat()).expect("writing");
        fs::write(at.join("bin/tool"), "shorter").expect("writing");
        fs::remove_file(at.join("absolute")).expect("removing");
        fs::write(at.join("new"), "").expect("writing");
        fs::remove_dir(at.join("share/empty")).expect("removing");
        symlink("x", at.join("share/empty")).expect("a link");
    });
    studio.done(&["build", &other, &from]);
    for (a, b) in [(&one, &from), (&one, &other)] {
        let output = studio.esker(&["diff", a, b, "--json"]);
        assert_eq!(output.status.code(), Some(1), "{}", words(&output));
        let said: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
        let said = said.iter().filter(|one| one["what"] != "mtime");
        let said: BTreeSet<String> = said.map(|one| format!("{} {}", one["path"], one["what"])).collect();
        let expected = [
            "/absolute name",
            "/bin/also size",
            "/bin/tool size",
            "/new name",
            "/share/copy content",
            "/share/empty type",
        ];
        let expected = expected.map(|text| text.split_once(' ').expect("two words"));
        let expected = expected.map(|(path, what)| format!("\"{path}\" \"{what}\""));
        assert_eq!(said, BTreeSet::from(expected));
    }
    assert_eq!(studio.done(&["diff", &other, &from]), "8 entries are the same in both\n");
}

#[test]
fn verify_finds_damage() {
    let studio = Studio::new(TestUser::ordinary());
    let (image, from, list) = (studio.home("a.sqfs"), studio.home("tree"), studio.home("list"));
    studio.done(&["build", &image, &from, "--codec", "gzip"]);
    let root = studio.done(&["digest", &image, "-o", &list]);
    let sum = Command::new("sha256sum").arg(&list).output().expect("sha256sum").stdout;
    assert!(sum.starts_with(root.trim().as_bytes()), "the root is what sha256sum says");
    studio.done(&["verify", &image, "--digests", &list, "--root", root.trim()]);
    assert!(
        studio
            .refused(4, &["verify", &image, "--digests", &list, "--root", &"0".repeat(64)])
            .contains("--root")
    );
    let mut bytes = fs::read(&image).expect("the image");
    bytes[200] ^= 0xff;
    fs::write(&image, &bytes).expect("writing");
    let output = studio.esker(&["verify", &image, "--digests", &list, "--json"]);
    assert_eq!(output.status.code(), Some(4), "{}", words(&output));
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let faults: Vec<&str> =
        said["faults"].as_array().expect("faults").iter().filter_map(Value::as_str).collect();
    assert!(faults.iter().any(|fault| fault.contains("not those of the list")), "{faults:?}");
    assert!(faults.iter().any(|fault| fault.contains("share/")), "{faults:?}");
    fs::write(&image, b"no image").expect("writing");
    for command in ["inspect", "ls", "verify"] {
        assert!(studio.refused(4, &[command, &image]).contains("squashfs image"));
    }
}

#[test]
fn a_directory_in_itself_is_a_fault_and_no_endless_loop() {
    let studio = Studio::new(TestUser::ordinary());
    let (folder, image) = (studio.home("deep"), studio.home("deep.sqfs"));
    fs::create_dir_all(Path::new(&folder).join("a/b/c")).expect("folders");
    let made =
        Command::new("mksquashfs").args([&folder, &image]).args(["-noI", "-quiet", "-no-progress"]).output();
    assert!(made.expect("mksquashfs").status.success());
    let mut bytes = fs::read(&image).expect("the image");
    // Position of its inode (2 bytes) and its number (2); type directory, the length of its name less one, the name.
    let is_it = |found: &[u8]| found.starts_with(&[0, 0]) && found.ends_with(b"\x01\0\0\0c");
    let at = bytes.windows(9).position(is_it).expect("the entry of c in b");
    // Of 32 bytes each: c, b, a, the root.
    bytes[at] = 64;
    fs::write(&image, &bytes).expect("writing");
    for command in [&["verify", &image][..], &["diff", &image, &image]] {
        let output = studio.esker(command);
        let told = words(&output);
        assert_eq!(output.status.code(), Some(4), "{told}");
        assert!(told.contains("/a/b/c is a directory that is elsewhere, too"), "{told}");
    }
}

#[test]
fn an_interrupted_build_keeps_the_old_image() {
    let studio = Studio::new(TestUser::ordinary());
    let image = studio.home("a.sqfs");
    fs::write(&image, "earlier").expect("writing");
    // It waits for an archive that never goes on.
    let mut build = studio.command(&["build", &image, "-", "--force"]);
    let mut build = build.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("esker");
    let mut pipe = build.stdin.take().expect("a pipe");
    let mut header = tar::Header::new_gnu();
    header.set_path("file").expect("a path");
    header.set_size(100 << 20);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_cksum();
    pipe.write_all(header.as_bytes()).expect("writing");
    pipe.write_all(&vec![7; 10 << 20]).expect("writing: so it has begun");
    let folder = studio.home("");
    let parts = || {
        let names =
            fs::read_dir(&folder).expect("the folder").map(|entry| entry.expect("an entry").file_name());
        names.filter(|name| name.to_string_lossy().ends_with(".part")).count()
    };
    assert_eq!(parts(), 1);
    kill_process(Pid::from_child(&build), Signal::INT).expect("a signal");
    // After an interruption only the current piece is read.
    let deadline = Instant::now() + Duration::from_secs(20);
    let status = loop {
        let _ = pipe.write_all(&[7; 4096]);
        if let Some(status) = build.try_wait().expect("its state") {
            break status;
        }
        assert!(Instant::now() < deadline, "it ends");
    };
    assert_eq!(status.code(), Some(130));
    assert_eq!(parts(), 0);
    assert_eq!(fs::read(&image).expect("the earlier file"), b"earlier");
}
