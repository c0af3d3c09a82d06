//! `esker setup import`: servers and keys of domains, from sources of any kind and origin.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use esker_testkit::fixture;
use esker_testkit::mirror::{Fault, Mirror};

use crate::test_env::{TestEnv, hide_configuration, words};
use crate::test_user::TestUser;

/// SHA-256 of the DER form of full.test's master key, as openssl has it.
const FINGERPRINT: &str = "e7154be1a9ab8985823e38ff73621492e13aacf1ec849c353f10041b224a87be";

/// A user with a configuration to import into: root's is below a folder that stands for `/`.
struct Site {
    world: TestEnv,
    source: PathBuf,
}

impl Site {
    /// Makes a site with a source like a configuration repository.
    fn new(person: TestUser) -> Site {
        hide_configuration();
        let world = TestEnv::new(person, fixture::FULL);
        let source = world.path("source");
        let site = Site { source, world };
        site.put("etc/cvmfs/default.conf", "CVMFS_CACHE_BASE=/nowhere\nWHICH=1\n");
        site.put(
            "etc/cvmfs/domain.d/test.conf",
            &format!(
                "if [ \"$WHICH\" = 1 ]; then CVMFS_SERVER_URL='{}'; fi\nCVMFS_USE_GEOAPI=yes\nCVMFS_QUOTA_LIMIT=1\n\
                 CVMFS_KEYS_DIR=/cvmfs/config.test/etc/cvmfs/keys/test\n",
                site.world.mirror.url("@fqrn@")
            ),
        );
        let key = fs::read_to_string(site.world.path("key.pub")).expect("the key");
        site.put("etc/cvmfs/keys/test/full.pub", &key);
        site
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.source.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("mkdir");
        fs::write(path, text).expect("writing");
    }

    /// Returns all files that `setup` could have changed.
    fn changed(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for folder in ["root", "home/.config", "home/.local"] {
            list(&self.world.path(folder), &mut found);
        }
        found
    }

    fn setup(&self, arguments: &[&str]) -> Output {
        let mut command = self.world.esker(&["setup"]);
        command.args(arguments);
        if self.world.person.is_root() {
            command.arg("--root").arg(self.world.path("root"));
        } else {
            command.env_remove("ESKER_CONFIG_ROOT");
        }
        command.stdin(Stdio::null()).output().expect("running esker")
    }

    /// Lists the repository with `esker`.
    fn ls(&self) -> Output {
        let mut command = self.world.esker(&["ls", "full.test"]);
        if !self.world.person.is_root() {
            // A user's own settings count beside those of this machine, which are hidden.
            command.env_remove("ESKER_CONFIG_ROOT");
        }
        command.output().expect("running esker")
    }

    /// Returns Esker's own folder of this user.
    fn own(&self) -> PathBuf {
        let name = if self.world.person.is_root() { "root/etc/esker" } else { "home/.config/esker" };
        self.world.path(name)
    }

    #[track_caller]
    fn refused(&self, arguments: &[&str], told: &str) {
        let output = self.setup(arguments);
        assert!(!output.status.success(), "{arguments:?}: {}", words(&output));
        assert!(words(&output).contains(told), "{told:?} is not in {}", words(&output));
        assert_eq!(self.changed(), Vec::<PathBuf>::new(), "{arguments:?}");
    }

    /// Returns the source as an archive.
    fn archive(&self) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        archive.append_dir_all("config-1.0", &self.source).expect("packing");
        archive.into_inner().expect("an archive")
    }
}

fn list(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.expect("an entry").path();
        if path.is_dir() { list(&path, found) } else { found.push(path) }
    }
}

/// From nothing to a repository: missing settings are reported with the next step, no key is trusted without consent,
/// and everything can be undone.
#[test]
fn a_domain_is_imported_used_and_removed() {
    for person in TestUser::all() {
        let site = Site::new(person);
        let source = site.source.to_str().expect("UTF-8");
        let output = site.ls();
        assert_eq!(output.status.code(), Some(2), "{}", words(&output));
        for told in [
            "its servers: CVMFS_SERVER_URL is not set for full.test",
            "its keys: ",
            "its proxies: CVMFS_HTTP_PROXY is not set for full.test",
            "esker setup import FILE|DIR|URL",
        ] {
            assert!(words(&output).contains(told), "{told} is not in {}", words(&output));
        }
        site.refused(&["import", source], "there is no terminal to ask");
        site.refused(&["import", source, "--fingerprint", &FINGERPRINT.replace('e', "f")], FINGERPRINT);
        site.refused(&["import", source, "--fingerprint", "e715"], "64 hexadecimal digits");
        let both = ["import", source, "--fingerprint", FINGERPRINT, "--fingerprint", &"0".repeat(64)];
        site.refused(&both, "no key has the fingerprint 0000");
        let told = site.setup(&["import", source, "--dry-run"]);
        assert!(told.status.success() && words(&told).contains("would write"), "{}", words(&told));
        assert_eq!(site.changed(), Vec::<PathBuf>::new());

        let output = site.setup(&["import", source, "--fingerprint", FINGERPRINT]);
        assert!(output.status.success(), "{}", words(&output));
        let said = words(&output);
        for told in [
            &format!("public key, SHA-256 of its DER form: {FINGERPRINT}    # from keys/test/full.pub"),
            "use_geoapi = true    # from domain.d/test.conf:2",
            "CVMFS_QUOTA_LIMIT is not taken over",
            "http_proxy",
            "next: `esker run NAME.test -- COMMAND`",
        ] {
            assert!(said.contains(told), "{told} is not in {said}");
        }
        let again = site.setup(&["import", source]);
        assert!(again.status.success() && words(&again).contains("there already"), "{}", words(&again));

        let output = site.ls();
        assert_eq!(output.status.code(), Some(2), "{}", words(&output));
        assert!(words(&output).contains("CVMFS_HTTP_PROXY is not set"), "{}", words(&output));
        assert!(!words(&output).contains("its keys") && !words(&output).contains("its servers"));
        let own = site.own().join("esker.toml");
        person.does(|| fs::write(&own, "http_proxy = \"DIRECT\"\n")).expect("writing");
        let output = site.ls();
        assert!(output.status.success() && !output.stdout.is_empty(), "{}", words(&output));

        let output = site.setup(&["undo"]);
        assert!(output.status.success(), "{}", words(&output));
        assert_eq!(site.changed(), [own], "{}", words(&output));
    }
}

/// A folder, an archive, a single file of either kind, and a URL have the same result.
#[test]
fn sources_of_every_kind_have_the_same_result() {
    let site = Site::new(TestUser::ordinary());
    let archive = site.world.path("config.tar");
    fs::write(&archive, site.archive()).expect("writing");
    let key = fs::read_to_string(site.world.path("key.pub")).expect("the key");
    let url = site.world.mirror.url("@fqrn@");
    let conf = site.world.path("test.conf");
    let beside = site.world.path("key.pub");
    let text =
        format!("CVMFS_SERVER_URL={url}\nCVMFS_USE_GEOAPI=on\nCVMFS_PUBLIC_KEY={}\n", beside.display());
    fs::write(&conf, text).expect("writing");
    let toml = site.world.path("a-site.toml");
    let text = format!("server_url = [\"{url}\"]\nuse_geoapi = true\npublic_key = '''\n{key}'''\n");
    fs::write(&toml, text).expect("writing");
    site.world.mirror.put("/config.tar", site.archive());
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let cases = [
        vec![text(&site.source)],
        vec![text(&site.source.join("etc/cvmfs")), "test".into()],
        vec![text(&archive)],
        vec![text(&conf)],
        vec![text(&toml), "test".into()],
        vec![site.world.mirror.url("config.tar")],
    ];
    let mut all = Vec::new();
    for case in &cases {
        let arguments: Vec<_> =
            ["import"].into_iter().chain(case.iter().map(String::as_str)).chain(["--yes"]).collect();
        let output = site.setup(&arguments);
        assert!(output.status.success(), "{case:?}: {}", words(&output));
        let text = fs::read_to_string(site.own().join("domain.d/test.toml")).expect("the domain");
        let rest: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
        all.push((rest, fs::read_dir(site.own().join("keys/test")).expect("keys").count()));
        let output = site.setup(&["undo"]);
        assert!(output.status.success(), "{}", words(&output));
    }
    assert!(all.iter().all(|one| *one == all[0] && one.1 == 1), "{all:#?}");
}

/// A source may be anything. Nothing of a hostile one is written, and nothing hangs.
#[test]
fn hostile_sources_change_nothing() {
    let site = Site::new(TestUser::ordinary());
    let file = |name: &str, bytes: &[u8]| {
        let path = site.world.path(name);
        fs::write(&path, bytes).expect("writing");
        path.to_str().expect("UTF-8").to_owned()
    };
    let refused =
        |source: &str, told: &str| site.refused(&["import", source, "--yes", "--patience", "2"], told);
    let packed = |name: &str, kind: tar::EntryType, text: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(text.len() as u64);
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..11].copy_from_slice(b"/etc/passwd");
        header.set_cksum();
        let mut archive = tar::Builder::new(Vec::new());
        archive.append(&header, text).expect("packing");
        archive.into_inner().expect("an archive")
    };
    let (regular, link) = (tar::EntryType::Regular, tar::EntryType::Symlink);
    refused(&file("1.tar", &packed("../../domain.d/a.conf", regular, b"")), "outside of the folder");
    refused(&file("2.tar", &packed("/etc/domain.d/a.conf", regular, b"")), "outside of the folder");
    refused(&file("3.tar", &packed("keys/a.pub", link, b"")), "not a file but a link");
    refused(&file("4.tar", &packed("domain.d/a.conf", regular, &vec![b'#'; 300_000])), "too large");
    refused(&file("5.tar", &packed("else/a.conf", regular, b"")), "no configuration in it");
    refused(&file("6.tar", &vec![0xaa; 17 << 20]), "more than 16777216 bytes");
    // A folder whose links lead out of it, as root might be asked to import one.
    let key = fs::read(site.world.path("key.pub")).expect("the key");
    let place = site.source.join("etc/cvmfs/keys/test/full.pub");
    fs::remove_file(&place).expect("removing");
    std::os::unix::fs::symlink("/etc/passwd", &place).expect("a link");
    let source = site.source.to_str().expect("UTF-8");
    refused(source, "leads out of");
    fs::remove_file(&place).expect("removing");
    refused(source, "has no public key for test");
    for (bytes, told) in [
        (
            &b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"[..],
            "full.pub is no public key for test",
        ),
        (b"root:x:0:0", "there is no public key in PEM form"),
        (b"", "there is no public key in PEM form"),
        (&[0xff; 300_000], "has more than 262144 bytes"),
    ] {
        fs::write(&place, bytes).expect("writing");
        refused(source, told);
    }
    fs::write(&place, key).expect("writing");
    for (text, told) in [
        ("CVMFS_SERVER_URL='http://a/\"\nevil=\"'", "CVMFS_SERVER_URL="),
        ("CVMFS_SERVER_URL=gopher://a/@fqrn@", "it takes URLs"),
        ("CVMFS_SERVER_URL=`rm -rf /`", "names the servers of no domain"),
        ("", "names the servers of no domain"),
    ] {
        site.put("etc/cvmfs/domain.d/test.conf", text);
        refused(source, told);
    }
    let output = site.setup(&["import", source, "elsewhere.org", "--yes"]);
    assert!(words(&output).contains("has nothing for elsewhere.org; it has test"), "{}", words(&output));
}

/// Servers that point elsewhere, are silent or never end are left with a word.
#[test]
fn hostile_servers_change_nothing() {
    let site = Site::new(TestUser::ordinary());
    let mirror = Mirror::serve(site.world.repository.document_root());
    mirror.put("/a.tar", vec![0; 17 << 20]);
    mirror.put("/b.tar", site.archive());
    mirror.put("/c.tar", site.archive());
    mirror.put("/d.tar", site.archive());
    let faults = [
        mirror.fault(|path| path == "/b.tar", Fault::Redirect("http://127.0.0.1:1/x.tar".into())),
        mirror.fault(|path| path == "/c.tar", Fault::NoAnswer),
        mirror.fault(|path| path == "/d.tar", Fault::Slow(1)),
    ];
    for (name, told) in [
        ("a.tar", "16777216"),
        ("b.tar", "redirects to"),
        ("c.tar", "can't get"),
        ("d.tar", "can't get"),
        ("e.tar", "404"),
        ("f.tar?x=1", "not a plain URL"),
    ] {
        site.refused(&["import", &mirror.url(name), "--yes", "--patience", "1"], told);
    }
    faults.iter().for_each(esker_testkit::mirror::Rule::assert_hit);
}

/// On a terminal setup asks, and changes nothing without consent.
#[test]
fn setup_asks_on_a_terminal() {
    let site = Site::new(TestUser::ordinary());
    let ask = |answer: &str| {
        // script(1) makes a terminal for the call.
        let mut script = site.world.esker(&[]);
        let line = format!("{} setup import {}", site.world.program().display(), site.source.display());
        let mut command = site.world.person.command("script");
        command.args(["--quiet", "--return", "--command", &line, "/dev/null"]).env_clear();
        for (name, value) in script.env("SHELL", "/bin/sh").env_remove("ESKER_CONFIG_ROOT").get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("running script");
        let mut input = child.stdin.take().expect("its input");
        input.write_all(format!("{answer}\n").as_bytes()).expect("answering");
        child.wait_with_output().expect("its end")
    };
    let output = ask("no");
    assert!(words(&output).contains("Trust this key"), "{}", words(&output));
    assert!(!output.status.success() && words(&output).contains("nothing was changed"), "{}", words(&output));
    assert_eq!(site.changed(), Vec::<PathBuf>::new());
    let output = ask("y");
    assert!(output.status.success() && words(&output).contains("done;"), "{}", words(&output));
    assert!(site.own().join("domain.d/test.toml").exists());
}
