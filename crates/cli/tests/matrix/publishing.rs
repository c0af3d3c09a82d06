//! Repositories made, published and read with the binary alone.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Output;

use esker_testkit::fixture;
use esker_testkit::listing::of_folder;
use esker_testkit::mirror::Mirror;
use esker_testkit::survey::{differences, survey};
use serde_json::Value;

use crate::person::Person;
use crate::world::{World, words};

pub(crate) const NAME: &str = "made.test";

/// Folders for a publisher, who works in their own home.
pub(crate) struct Workshop {
    pub(crate) world: World,
}

impl Workshop {
    fn new(person: Person) -> Workshop {
        Workshop::with(person, make_tree)
    }

    pub(crate) fn with(person: Person, make_tree: impl FnOnce(&Path) + Send) -> Workshop {
        let workshop = Workshop { world: World::new(person, fixture::RMD) };
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

    /// The URL of what is published, whose key mounts trust from now on.
    pub(crate) fn published(&self) -> String {
        fs::copy(self.home(&format!("keys/{NAME}.pub")), self.world.path("key.pub")).expect("the key");
        format!("file://{}/{NAME}", self.home("storage"))
    }

    pub(crate) fn esker(&self, arguments: &[&str]) -> Output {
        let (storage, keys) = (self.home("storage"), self.home("keys"));
        let places = ["--storage", &storage, "--keys", &keys];
        self.world.esker(&[arguments, &places].concat()).output().expect("running esker")
    }

    #[track_caller]
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.esker(&[arguments, &["--json", "--quiet"]].concat());
        assert!(output.status.success(), "{}", words(&output));
        serde_json::from_slice(&output.stdout).expect("JSON from esker")
    }

    #[track_caller]
    pub(crate) fn create(&self) {
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

/// What was published mounts, reads as its source does, and a program in it runs.
#[test]
fn a_published_tree_mounts_as_it_was() {
    for person in Person::all() {
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
        let found = mounted.does(|| survey(&mountpoint));
        let wrong = differences(&expected, &found, person.ownership());
        assert!(wrong.is_empty(), "{person:?}: {wrong:#?}");
        let ran = mounted.does(|| std::process::Command::new(mounted.path("link")).output());
        assert_eq!(ran.expect("running a program").stdout, b"made it\n");
    }
}

/// Publishing again makes a revision only of a difference, and says beforehand what it would do.
#[test]
fn revisions_are_made_of_differences() {
    let workshop = Workshop::new(Person::ordinary());
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
         object_bytes_stored objects_present objects_stored published revision root seconds tag warnings"
                .into()
        )
    );
    assert_eq!(names(&first["seconds"]), Some("catalogs commit scan store total".into()));
    assert_eq!(names(&first["differences"]), Some("added changed removed unchanged xattrs_left_out".into()));
    let seconds = first["seconds"].as_object().expect("an object").values().filter_map(Value::as_f64);
    assert!(seconds.sum::<f64>() > 0.0, "{first}");
    let again = workshop.json(&["publish", NAME, &tree]);
    assert_eq!((&again["published"], &again["revision"]), (&false.into(), &1.into()));
    let part = workshop.json(&["publish", NAME, &format!("{tree}/bin"), "--to", "/copy/of/bin"]);
    assert_eq!((&part["revision"], &part["objects_stored"]), (&2.into(), &0.into()));
    let again = workshop.json(&["publish", NAME, &tree]);
    assert_eq!(again["differences"]["removed"]["directories"], 4, "{again}");
}

/// Whoever has the master key says until when, and whose revisions, clients accept.
#[test]
fn whitelists_are_signed_again() {
    let workshop = Workshop::new(Person::ordinary());
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

/// An archive becomes part of a directory and leaves the rest alone.
#[test]
fn archives_are_ingested() {
    let workshop = Workshop::new(Person::ordinary());
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

/// What a publisher can't do says why, and what to do next.
#[test]
fn failures_name_object_cause_and_next_step() {
    let workshop = Workshop::new(Person::ordinary());
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
