//! Repositories made, published and read with the binary alone.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{SystemTime, UNIX_EPOCH};

use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_maintain::Resign;
use esker_repository::KeyFolder;
use esker_testkit::fixture;
use esker_testkit::listing::of_folder;
use esker_testkit::mirror::Mirror;
use esker_testkit::tree_scan::{differences, scan_tree};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::shared_keys;
use crate::test_env::{TestEnv, words};
use crate::test_user::TestUser;

pub(crate) const NAME: &str = "made.test";

/// Folders of a publisher, who works in their own home.
pub(crate) struct Workshop {
    pub(crate) world: TestEnv,
}

impl Workshop {
    fn new(person: TestUser) -> Workshop {
        Workshop::with(person, make_tree)
    }

    pub(crate) fn with(person: TestUser, make_tree: impl FnOnce(&Path) + Send) -> Workshop {
        let workshop = Workshop { world: TestEnv::new(person, fixture::RMD) };
        let tree = workshop.tree();
        person.does(|| make_tree(Path::new(&tree)));
        workshop
    }

    pub(crate) fn home(&self, name: &str) -> String {
        self.world.path("home").join(name).display().to_string()
    }

    pub(crate) fn tree(&self) -> String {
        self.home("tree")
    }

    /// Returns the URL of the published repository, whose key mounts trust from now on.
    pub(crate) fn published(&self) -> String {
        // Not copied: the copy would be read-only like the key, and could not be replaced by a later call.
        let key = fs::read(self.home(&format!("keys/{NAME}.pub"))).expect("the key");
        fs::write(self.world.path("key.pub"), key).expect("a file");
        format!("file://{}/{NAME}", self.home("storage"))
    }

    pub(crate) fn esker(&self, arguments: &[&str]) -> Output {
        let (storage, keys) = (self.home("storage"), self.home("keys"));
        let places = ["--storage", &storage, "--keys", &keys];
        self.world.esker(&[arguments, &places].concat()).output().expect("running esker")
    }

    /// Has the whitelist signed for one day, three days ago.
    pub(crate) fn let_whitelist_expire(&self) {
        let root = PathBuf::from(self.home("storage")).join(NAME);
        let name = RepositoryName::parse(NAME).expect("a name");
        let keys = KeyFolder::new(self.home("keys"), &name);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_secs();
        let then = UnixTime(i64::try_from(since).expect("a time") - 3 * 86_400);
        let resign = Resign { days: 1, master: None, only_own: false, drop: Vec::new() };
        self.world.person.does(|| resign.run(&root, &name, &keys, then)).expect("signing");
    }

    #[track_caller]
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.esker(&[arguments, &["--json", "--quiet"]].concat());
        assert!(output.status.success(), "{}", words(&output));
        serde_json::from_slice(&output.stdout).expect("JSON from esker")
    }

    /// Creates the repository, with keys that tests share.
    #[track_caller]
    pub(crate) fn create(&self) {
        shared_keys::put(self.world.person, Path::new(&self.home("keys")));
        let output = self.esker(&["repo", "create", NAME]);
        assert!(output.status.success(), "{}", words(&output));
    }
}

fn make_tree(top: &Path) {
    fs::create_dir_all(top.join("bin/deeper")).expect("folders");
    fs::write(top.join("bin/program"), "#!/bin/sh\necho made it\n").expect("a file");
    fs::set_permissions(top.join("bin/program"), fs::Permissions::from_mode(0o755)).expect("a mode");
    fs::write(top.join("bin/deeper/data"), vec![7; 300_000]).expect("a file");
    fs::hard_link(top.join("bin/program"), top.join("bin/also")).expect("a link");
    symlink("bin/program", top.join("link")).expect("a symlink");
}

/// A published tree mounts, equals its source, and a program in it runs.
#[test]
fn a_published_tree_mounts_as_it_was() {
    for person in TestUser::all() {
        let workshop = Workshop::new(person);
        workshop.create();
        let report = workshop.json(&["publish", NAME, &workshop.tree()]);
        assert_eq!((&report["revision"], &report["published"]), (&1.into(), &true.into()));
        let world = &workshop.world;
        let mirror = Mirror::serve(workshop.home("storage"));
        let url = mirror.url(NAME);
        let key = workshop.home(&format!("keys/{NAME}.pub"));
        let (mountpoint, cache) = (world.mountpoint(), world.cache());
        let mut mount = world.esker(&["mount", &url]);
        let output = mount.arg(&mountpoint).args(["--public-key", &key, "--cache"]).arg(&cache).output();
        let output = output.expect("running esker");
        assert!(output.status.success(), "{}", words(&output));
        let mounted = world.mounted();
        let tree = workshop.tree();
        let expected = person.does(|| of_folder(Path::new(&tree)));
        let found = mounted.does(|| scan_tree(&mountpoint));
        let wrong = differences(&expected, &found, person.ownership());
        assert!(wrong.is_empty(), "{person:?}: {wrong:#?}");
        let ran = mounted.does(|| std::process::Command::new(mounted.path("link")).output());
        assert_eq!(ran.expect("running a program").stdout, b"made it\n");
    }
}

/// Publishing again makes a revision only of a difference, and reports it beforehand.
#[test]
fn a_new_revision_stores_only_differences() {
    let workshop = Workshop::new(TestUser::ordinary());
    let output = workshop.esker(&["repo", "create", NAME, "--json"]);
    let made: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let (folder, key) = (format!("storage/{NAME}"), format!("keys/{NAME}.pub"));
    assert_eq!(
        (&made["folder"], &made["public_key"]),
        (&workshop.home(&folder).into(), &workshop.home(&key).into())
    );
    let tree = workshop.tree();
    let dry = workshop.json(&["publish", NAME, &tree, "--dry-run"]);
    assert_eq!((&dry["published"], &dry["differences"]["added"]["files"]), (&false.into(), &3.into()));
    let first = workshop.json(&["publish", NAME, &tree, "--tag", "first"]);
    assert_eq!(first["tag"], "first");
    // Scripts rely on these names.
    let names =
        |value: &Value| value.as_object().map(|object| object.keys().cloned().collect::<Vec<_>>().join(" "));
    assert_eq!(
        names(&first),
        Some(
            "bundles bytes_read catalog_bytes catalogs_written differences files_read object_bytes_present \
         object_bytes_stored objects_present objects_stored over_limits published revision root seconds tag warnings"
                .into()
        )
    );
    assert_eq!(names(&first["seconds"]), Some("catalogs commit locked scan store total".into()));
    assert_eq!(
        names(&first["differences"]),
        Some("added capabilities_left_out changed default_acls_left_out hard_links_split removed special_left_out unchanged xattrs_left_out".into())
    );
    let seconds = first["seconds"].as_object().expect("an object").values().filter_map(Value::as_f64);
    assert!(seconds.sum::<f64>() > 0.0, "{first}");
    let again = workshop.json(&["publish", NAME, &tree]);
    assert_eq!((&again["published"], &again["revision"]), (&false.into(), &1.into()));
    let part = workshop.json(&["publish", NAME, &format!("{tree}/bin"), "--to", "/copy/of/bin"]);
    assert_eq!((&part["revision"], &part["objects_stored"]), (&2.into(), &0.into()));
    let again = workshop.json(&["publish", NAME, &tree]);
    assert_eq!(again["differences"]["removed"]["directories"], 4, "{again}");

    // A script that starts an interpreter of the folder from which it is published.
    let script = Path::new(&tree).join("bin/script");
    workshop.world.person.does(|| fs::write(script, format!("#!{tree}/bin/program\n")).expect("a file"));
    let named = workshop.json(&["publish", NAME, &tree]);
    let remark = &named["remarks"][0];
    assert_eq!(
        (&remark["what"], &remark["path"]),
        (&"build_folder".into(), &"/bin/script".into()),
        "{named}"
    );
    workshop.json(&["publish", NAME, &tree, "--relocate"]);
    let printed = workshop.esker(&["cat", &format!("{NAME}:/bin/script")]);
    assert_eq!(String::from_utf8_lossy(&printed.stdout), format!("#!/cvmfs/{NAME}/bin/program\n"));
}

/// The owner of the master key decides until when, and which publishers' revisions, clients accept.
#[test]
fn whitelists_are_renewed() {
    let workshop = Workshop::new(TestUser::ordinary());
    workshop.create();
    let resign = |options: &[&str]| {
        let output = workshop.esker(&[&["repo", "resign", NAME, "--json"], options].concat());
        assert!(output.status.success(), "{}", words(&output));
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON from esker")
    };
    let whitelist = workshop.world.path("home/storage").join(NAME).join(".cvmfswhitelist");
    let before = fs::read(&whitelist).expect("the whitelist");
    let told = resign(&["--whitelist-days", "90", "--dry-run"]);
    assert_eq!((&told["signed"], fs::read(&whitelist).expect("the whitelist")), (&false.into(), before));
    let done = resign(&["--whitelist-days", "90"]);
    let days = |value: &Value| value["whitelist"]["expires"].as_i64().expect("a time") / 86_400;
    assert_eq!(days(&done), days(&told));
    assert_eq!(days(&done) - done["whitelist"]["expired"].as_i64().expect("a time") / 86_400, 60);
    assert_eq!(
        (&done["whitelist"]["kept"], &done["whitelist"]["dropped"]),
        (&told["whitelist"]["kept"], &Value::Array(vec![]))
    );

    let master = workshop.home(&format!("keys/{NAME}.masterkey"));
    let away = workshop.home("away");
    workshop.world.person.does(|| fs::rename(&master, &away)).expect("putting the key away");
    let output = workshop.esker(&["repo", "resign", NAME]);
    assert_eq!(output.status.code(), Some(2), "{}", words(&output));
    assert!(words(&output).contains(&master), "{}", words(&output));
    let output = workshop.esker(&["repo", "resign", NAME, "--master-key", &away]);
    assert!(words(&output).contains("accepted until"), "{}", words(&output));
}

/// An archive is added to a directory and leaves the rest alone.
#[test]
fn archives_are_ingested() {
    let workshop = Workshop::new(TestUser::ordinary());
    workshop.create();
    workshop.json(&["publish", NAME, &workshop.tree()]);
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(3);
    header.set_mode(0o644);
    header.set_uid(1);
    header.set_gid(1);
    header.set_mtime(1_600_000_000);
    archive.append_data(&mut header, "x/new", &b"new"[..]).expect("a member");
    let file = workshop.home("new.tar");
    let bytes = archive.into_inner().expect("an archive");
    workshop.world.person.does(|| fs::write(&file, bytes)).expect("writing an archive");
    let report = workshop.json(&["ingest", NAME, &file, "--to", "/bin", "--delete", "/bin/deeper"]);
    assert_eq!(report["differences"]["added"]["files"], 1, "{report}");
    assert_eq!(report["differences"]["removed"]["files"], 1, "{report}");
    let absent = workshop.esker(&["ingest", NAME, &file, "--to", "/bin", "--delete", "/bin/deeper"]);
    assert_eq!(absent.status.code(), Some(0), "{}", words(&absent));
    let warning = String::from_utf8_lossy(&absent.stderr).into_owned();
    assert!(warning.contains("esker: warning: /bin/deeper was not deleted"), "{}", words(&absent));
    let url = format!("file://{}/{NAME}:/bin", workshop.home("storage"));
    let key = workshop.home(&format!("keys/{NAME}.pub"));
    let output = workshop.world.esker(&["find", &url, "--public-key", &key]).output().expect("running esker");
    let found = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        found.contains("x/new") && found.contains("also") && !found.contains("deeper"),
        "{}",
        words(&output)
    );
}

/// A folder that is far smaller than the repository is likely the wrong one.
#[test]
fn removing_most_of_a_repository_needs_confirmation() {
    let workshop = Workshop::with(TestUser::ordinary(), |top| {
        for number in 0..30 {
            fs::create_dir_all(top.join("dir")).expect("a folder");
            fs::write(top.join(format!("dir/{number}")), "content").expect("a file");
        }
    });
    workshop.create();
    workshop.json(&["publish", NAME, &workshop.tree()]);
    let empty = workshop.home("empty");
    workshop.world.person.does(|| fs::create_dir(&empty)).expect("a folder");
    let refused = workshop.esker(&["publish", NAME, &empty]);
    let said = words(&refused);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("31 of the repository's 31 entries") && said.contains("--allow-shrink"), "{said}");
    let dry = workshop.json(&["publish", NAME, &empty, "--dry-run"]);
    assert!(dry["warnings"][0].as_str().is_some_and(|text| text.contains("31 entries")), "{dry}");
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    header.set_mode(0o644);
    header.set_uid(1);
    header.set_gid(1);
    header.set_mtime(1);
    archive.append_data(&mut header, "new", &b""[..]).expect("a member");
    let file = workshop.home("new.tar");
    let bytes = archive.into_inner().expect("an archive");
    workshop.world.person.does(|| fs::write(&file, bytes)).expect("writing an archive");
    let refused = workshop.esker(&["ingest", NAME, &file, "--to", "/", "--delete", "/dir"]);
    assert_eq!(refused.status.code(), Some(1), "{}", words(&refused));

    // On a terminal it is a question.
    let answer = |answer: &str| {
        let esker = workshop.world.esker(&[
            "publish",
            NAME,
            &empty,
            "--storage",
            &workshop.home("storage"),
            "--keys",
            &workshop.home("keys"),
        ]);
        let line: Vec<String> = std::iter::once(esker.get_program())
            .chain(esker.get_args())
            .map(|word| format!("'{}'", word.to_string_lossy()))
            .collect();
        let mut command = workshop.world.person.command("script");
        command
            .args(["--quiet", "--return", "--log-out"])
            .arg(workshop.home("typescript"))
            .args(["--command", &line.join(" ")])
            .env_clear()
            .env("SHELL", "/bin/sh")
            .envs(esker.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped());
        let mut running = command.spawn().expect("running script");
        let mut stdout = running.stdout.take().expect("a pipe");
        let mut said = Vec::new();
        // An answer is typed once there is a question.
        let mut byte = [0];
        while !said.ends_with(b"[y/N] ") && stdout.read(&mut byte).expect("output") == 1 {
            said.push(byte[0]);
        }
        let mut stdin = running.stdin.take().expect("a pipe");
        stdin.write_all(answer.as_bytes()).expect("an answer");
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).expect("the rest");
        let status = running.wait().expect("its end");
        (status.code(), String::from_utf8_lossy(&said).into_owned() + &rest)
    };
    let (code, said) = answer("n\n");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("This removes 31 of the 31 entries of made.test. Go on? [y/N]"), "{said}");
    let (code, said) = answer("\u{3}");
    assert_eq!(code, Some(130), "Ctrl-C: {said}");
    let (code, said) = answer("y\n");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("revision 2"), "{said}");

    workshop.json(&["publish", NAME, &workshop.tree()]);
    let report = workshop.json(&["publish", NAME, &empty, "--allow-shrink"]);
    assert_eq!((&report["published"], &report["revision"]), (&true.into(), &4.into()));
}

/// A dry run lists every path; its text ends after fifty.
#[test]
fn a_dry_run_lists_paths() {
    let workshop = Workshop::with(TestUser::ordinary(), |top| {
        fs::create_dir_all(top.join("dir")).expect("a folder");
        (0..60).for_each(|number| fs::write(top.join(format!("dir/{number:02}")), "x").expect("a file"));
    });
    workshop.create();
    let dry = workshop.json(&["publish", NAME, &workshop.tree(), "--dry-run", "--tag", "v1"]);
    let changes = dry["changes"].as_array().expect("a list");
    assert_eq!((changes.len(), &dry["tag"]), (62, &"v1".into()), "{dry}");
    let find = |path: &str| changes.iter().find(|change| change["path"] == path).expect(path);
    assert_eq!(*find("/dir/07"), serde_json::json!({ "path": "/dir/07", "change": "added", "kind": "file" }));
    assert_eq!((&find("/")["change"], &find("/dir")["kind"]), (&"changed".into(), &"directory".into()));
    let text = words(&workshop.esker(&["publish", NAME, &workshop.tree(), "--dry-run"]));
    assert!(text.contains("\n  added    /dir/\n  added    /dir/00\n"), "{text}");
    assert!(text.contains("\n  and 12 more; --json lists all\n") && !text.contains("/dir/59"), "{text}");
    workshop.json(&["publish", NAME, &workshop.tree()]);
    let tree = workshop.tree();
    workshop.world.person.does(|| {
        fs::remove_file(Path::new(&tree).join("dir/00")).expect("removing a file");
        fs::write(Path::new(&tree).join("dir/01"), "longer").expect("a file");
    });
    let text = words(&workshop.esker(&["publish", NAME, &tree, "--dry-run"]));
    assert!(text.contains("  removed  /dir/00\n  changed  /dir/01\n") && !text.contains("/dir/02"), "{text}");
}

/// A publisher reads their own repositories by name alone, also at a tag, without a server or configuration.
#[test]
fn publishers_read_their_own_repositories_by_name() {
    let workshop = Workshop::new(TestUser::ordinary());
    workshop.create();
    workshop.json(&["publish", NAME, &workshop.tree()]);
    let tagged = workshop.json(&["publish", NAME, &workshop.tree(), "--tag", "v1", "--message", "the first"]);
    assert_eq!(
        (&tagged["published"], &tagged["revision"], &tagged["tag"]),
        (&false.into(), &1.into(), &"v1".into())
    );
    let tree = workshop.tree();
    workshop.world.person.does(|| fs::write(Path::new(&tree).join("bin/program"), "new")).expect("a file");
    let next = workshop.json(&["publish", NAME, &tree, "--message", "the second"]);
    assert_eq!(next["revision"], 2);
    let cat = |place: &str| {
        let output = workshop.esker(&["cat", place]);
        assert!(output.status.success(), "{place}: {}", words(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(cat("made.test:/bin/program"), "new");
    assert!(cat("made.test@v1:/bin/program").contains("made it"));
    for command in ["ls", "find", "stat"] {
        let output = workshop.esker(&[command, "made.test:/bin"]);
        assert!(output.status.success() && output.stderr.is_empty(), "{command}: {}", words(&output));
    }
    let history = workshop.world.esker(&["revision", &workshop.published(), "--list", "--public-key"]);
    let history = { history }.arg(workshop.home("keys/made.test.pub")).output().expect("running esker");
    let history = words(&history);
    assert!(history.contains("the first") && history.contains("the second"), "{history}");

    // In the usual folders no option is needed.
    let home = |name: &str| workshop.home(name);
    let own = [
        (home("storage"), home(".local/share/esker/repositories")),
        (home("keys"), home(".config/esker/keys")),
    ];
    workshop.world.person.does(|| {
        for (from, to) in &own {
            fs::create_dir_all(Path::new(to).parent().expect("a folder")).expect("folders");
            fs::rename(from, to).expect("moving");
        }
    });
    let output = workshop.world.esker(&["cat", "made.test:/bin/program"]).output().expect("running esker");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "new", "{}", words(&output));
    let unknown = workshop.esker(&["ls", "other.test:/"]);
    assert_ne!(unknown.status.code(), Some(0));
    let misplaced = workshop.esker(&["ls", "http://h/cvmfs/made.test:/"]);
    assert_eq!(misplaced.status.code(), Some(2), "{}", words(&misplaced));
}

/// A publisher prepares beside another one and waits for its commit; the error after the time limit names the other one.
#[test]
fn a_publisher_waits_for_another_on_request() {
    let workshop = Workshop::new(TestUser::ordinary());
    workshop.create();
    let lock = workshop.home(&format!("storage/{NAME}/data/txn/esker.lock"));
    let lock = fs::File::options().read(true).write(true).open(lock).expect("the lock");
    // The lock's content as a publisher writes it.
    (&lock).write_all(b"4711 far.away").expect("its holder");
    let take = || flock(&lock, FlockOperation::LockExclusive).expect("the lock");
    take();
    let tree = workshop.tree();
    let output = workshop.esker(&["publish", NAME, &tree, "--wait=1s"]);
    let said = words(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in ["process 4711", "on far.away", "since 20", "--wait"] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    let begin = |then: &dyn Fn(u32)| {
        let (storage, keys) = (workshop.home("storage"), workshop.home("keys"));
        let mut command = workshop.world.esker(&["publish", NAME, &tree, "--wait", "--json"]);
        command.args(["--storage", &storage, "--keys", &keys]);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut running = command.spawn().expect("running esker");
        let mut line = String::new();
        let mut stderr = BufReader::new(running.stderr.take().expect("a pipe"));
        stderr.read_line(&mut line).expect("a line");
        assert!(line.contains("waiting") && line.contains("process 4711"), "{line}");
        then(running.id());
        let mut rest = String::new();
        stderr.read_to_string(&mut rest).expect("the rest");
        let output = running.wait_with_output().expect("its end");
        (output.status.code(), rest, String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, said, _) = begin(&|pid| {
        let pid = Pid::from_raw(pid.cast_signed()).expect("a process");
        kill_process(pid, Signal::INT).expect("a signal");
    });
    assert_eq!(code, Some(130), "{said}");
    let (code, said, report) = begin(&|_| flock(&lock, FlockOperation::Unlock).expect("giving it up"));
    assert_eq!(code, Some(0), "{said}");
    assert!(report.contains(r#""revision":1"#), "{report}");
}

/// Storage at an address that is no bucket is refused by name, and no folder is made of it.
#[test]
fn storage_at_addresses_other_than_buckets_is_refused() {
    let workshop = Workshop::new(TestUser::ordinary());
    let (keys, tree) = (workshop.home("keys"), workshop.tree());
    let calls: [&[&str]; 6] = [
        &["repo", "create", NAME],
        &["repo", "reindex", NAME],
        &["repo", "resign", NAME],
        &["publish", NAME, &tree],
        &["profile", "list", NAME],
        &["ls", "made.test:/"],
    ];
    for address in ["http://server/cvmfs", "sftp://host/path", "s3:bucket"] {
        for call in calls {
            let mut command =
                workshop.world.esker(&[call, &["--storage", address, "--keys", &keys]].concat());
            let output = command.current_dir(workshop.world.path("home")).output().expect("running esker");
            let said = words(&output);
            assert_eq!(output.status.code(), Some(2), "{call:?}: {said}");
            assert!(said.contains(address) && said.contains(&format!("./{address}")), "{call:?}: {said}");
        }
        let output = workshop.world.esker(&["serve", address]).output().expect("running esker");
        assert_eq!(output.status.code(), Some(2), "{}", words(&output));
        let scheme = format!("{}:", address.split(':').next().expect("a scheme"));
        assert!(!workshop.world.path("home").join(scheme).exists(), "{address} became a folder");
    }
    let mut command = workshop.world.esker(&["repo", "create", NAME, "--storage", "./s3:", "--keys", &keys]);
    let output = command.current_dir(workshop.world.path("home")).output().expect("running esker");
    assert!(output.status.success(), "{}", words(&output));
    assert!(workshop.world.path(&format!("home/s3:/{NAME}/.cvmfspublished")).exists());
}

/// Variant symlinks show nothing of the environment of root's mount, which all users see; a user's own mount uses it.
#[test]
fn variables_in_roots_mount_are_those_of_the_configuration() {
    for person in TestUser::all() {
        let workshop = Workshop::with(person, |top| {
            fs::create_dir(top).expect("a folder");
            symlink("/opt/$(VARIANT:-usual)", top.join("link")).expect("a symlink");
        });
        workshop.create();
        workshop.json(&["publish", NAME, &workshop.tree()]);
        let (url, world) = (workshop.published(), &workshop.world);
        let mut mount = world.esker(&["mount", &url]);
        mount.arg(world.mountpoint()).env("VARIANT", "of-the-environment");
        mount.arg("--public-key").arg(world.path("key.pub")).arg("--cache").arg(world.cache());
        let output = mount.output().expect("running esker");
        assert!(output.status.success(), "{}", words(&output));
        let mounted = world.mounted();
        let target = mounted.does(|| fs::read_link(mounted.path("link"))).expect("a link");
        let expected = if person.is_root() { "/opt/usual" } else { "/opt/of-the-environment" };
        assert_eq!(target, Path::new(expected), "{person:?}");
    }
}

/// Errors of a publisher have the cause and the next step.
#[test]
fn failures_name_object_cause_and_next_step() {
    let workshop = Workshop::new(TestUser::ordinary());
    let tree = workshop.tree();
    let said = |arguments: &[&str], code: i32, named: &[&str]| {
        let output = workshop.esker(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", words(&output));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        for name in named {
            assert!(text.contains(name), "{arguments:?} does not say {name}: {text}");
        }
    };
    said(&["publish", NAME, &tree], 2, &[NAME, "no repository", "esker repo create"]);
    said(&["repo", "create", "no spaces"], 2, &["no spaces"]);
    said(&["repo", "create", NAME, "--chunks", "1M,2M"], 2, &["--chunks"]);
    workshop.create();
    said(&["repo", "create", NAME], 2, &[NAME, "already", "esker publish"]);
    said(&["publish", NAME, "/no/such/folder"], 1, &["/no/such/folder"]);
    let (program, empty) = (format!("{tree}/bin/program"), workshop.home("empty.tar"));
    workshop.world.person.does(|| fs::write(&empty, "")).expect("a file");
    said(&["publish", NAME, &program], 1, &[&program, "not a folder", "esker ingest"]);
    said(&["ingest", NAME, &program, "--to", "/"], 1, &[&program, "no tar archive"]);
    said(&["ingest", NAME, &empty, "--to", "/"], 1, &[&empty, "is empty"]);
    said(&["publish", NAME, &tree, "--to", "/a/../b"], 2, &["/a/../b", "`..`"]);
    said(&["publish", NAME, &tree, "--tag", "trunk"], 2, &["trunk", "reserved"]);
    said(&["ingest", NAME, "/no/such.tar", "--to", "/"], 1, &["/no/such.tar"]);
    let key = workshop.home(&format!("keys/{NAME}.key"));
    workshop.world.person.does(|| fs::remove_file(&key)).expect("losing a key");
    said(&["publish", NAME, &tree], 2, &[&key, "--keys"]);
}
