//! `--fakeroot --writable-tmpfs`: package managers install, with and without subordinate ids.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use esker_testkit::skip;

use super::Site;
use super::rootfs::found;
use crate::test_env::{printed, words};
use crate::test_user::TestUser;

const PROGRAMS: [&str; 23] = [
    "apt-get",
    "dpkg",
    "dpkg-deb",
    "dpkg-split",
    "useradd",
    "tar",
    "gzip",
    "xz",
    "ldconfig",
    "start-stop-daemon",
    "chown",
    "chmod",
    "mv",
    "cp",
    "diff",
    "readlink",
    "dirname",
    "basename",
    "uname",
    "date",
    "sort",
    "tr",
    "stat",
];

/// Makes a site whose system has apt, dpkg and a repository with one package; `None` where this machine has no apt.
fn site_with_apt(person: TestUser) -> Option<Site> {
    if let Some(none) = ["apt-get", "dpkg-deb", "useradd"].iter().find(|name| found(name).is_none()) {
        skip!("this machine has no {none}");
    }
    let site = Site::of(person);
    let root = &site.root;
    root.add_programs(
        &PROGRAMS.map(|name| name).into_iter().filter(|name| found(name).is_some()).collect::<Vec<_>>(),
    );
    let at = |path: &str| root.path().join(path);
    fs::create_dir_all(at("usr")).expect("a folder");
    symlink("../bin", at("usr/bin")).expect("a link");
    let methods = Path::new("/usr/lib/apt/methods");
    for name in ["file", "copy", "store"] {
        let method = fs::canonicalize(methods.join(name)).expect("a method of apt");
        root.add(&method, &methods.join(name));
    }
    for folder in [
        "etc/apt/apt.conf.d",
        "etc/apt/preferences.d",
        "etc/apt/trusted.gpg.d",
        "etc/default",
        "usr/share/dpkg",
        "var/lib/dpkg/info",
        "var/lib/dpkg/updates",
        "var/lib/dpkg/triggers",
        "var/lib/dpkg/alternatives",
        "var/lib/apt/lists/partial",
        "var/cache/apt/archives/partial",
        "var/log/apt",
        "tmp",
        "repository",
    ] {
        fs::create_dir_all(at(folder)).expect("a folder");
    }
    for table in ["cputable", "ostable", "tupletable"] {
        fs::copy(Path::new("/usr/share/dpkg").join(table), at("usr/share/dpkg").join(table))
            .expect("a table of dpkg");
    }
    for (path, text) in [
        ("/var/lib/dpkg/status", ""),
        (
            "/etc/passwd",
            "root:x:0:0:root:/root:/bin/sh\nmail:x:8:8:mail:/:/bin/sh\n_apt:x:100:65534::/:/bin/sh\n",
        ),
        ("/etc/group", "root:x:0:\nmail:x:8:\nusers:x:100:\nnogroup:x:65534:\n"),
        ("/etc/shadow", "root:*:1::::::\n"),
        ("/etc/gshadow", "root:*::\n"),
        ("/etc/login.defs", "UID_MIN 1000\nUID_MAX 60000\nGID_MIN 1000\nGID_MAX 60000\n"),
        ("/etc/apt/sources.list", "deb [trusted=yes] file:/repository ./\n"),
    ] {
        root.write(path, text, 0o644);
    }
    make_package(&site.world.path("package"), &at("repository"));
    Some(site)
}

/// Makes a package with a file for another user, and the index of a repository with it.
fn make_package(from: &Path, repository: &Path) {
    let control = "Package: tool\nVersion: 1.0\nArchitecture: all\nMaintainer: a <a@example.org>\nDescription: a tool\n";
    fs::create_dir_all(from.join("DEBIAN")).expect("a folder");
    fs::create_dir_all(from.join("opt/tool")).expect("a folder");
    fs::write(from.join("DEBIAN/control"), control).expect("a file");
    fs::write(from.join("opt/tool/file"), "installed\n").expect("a file");
    let package = repository.join("tool.deb");
    printed(Command::new("dpkg-deb").args(["--root-owner-group", "-b"]).arg(from).arg(&package));
    let sum = printed(Command::new("sha256sum").arg(&package));
    let size = fs::metadata(&package).expect("the package").len();
    let index = format!("{control}Filename: ./tool.deb\nSize: {size}\nSHA256: {}\n", &sum[..64]);
    fs::write(repository.join("Packages"), index).expect("an index");
}

/// Typical operations of a package manager and its scripts.
const INSTALL: &str = "set -e\n\
    apt-get $APT -qq update\n\
    apt-get $APT -qq install -y tool > /dev/null\n\
    cat /opt/tool/file\n\
    useradd -M -u 1234 ada\n\
    echo 'eve:x:1235:1235::/:/bin/sh' >> /etc/passwd\n\
    cp /etc/passwd /etc/new && mv /etc/new /etc/passwd\n\
    cp /etc/hosts /etc/new && mv /etc/new /etc/hosts\n\
    id -u ada; id -u eve; grep -c localhost /etc/hosts > /dev/null && echo renamed";

const INSTALLED: &str = "installed\n1234\n1235\nrenamed\n";
/// Operations that need more users than root.
const GIVE: &str = "chown mail:mail /opt/tool/file && stat -c '%u %g' /opt/tool/file";

/// Runs a script with these ranges of subordinate ids in `/etc/subuid` and `/etc/subgid`, which only it sees.
fn install(site: &Site, image: &str, ranges: &str, script: &str, apt: &str) -> Output {
    let file = site.world.path("ranges");
    fs::write(&file, ranges).expect("a file");
    let mut call = site.world.esker(&["run", image, "--fakeroot", "--writable-tmpfs", "--no-bind"]);
    call.env("ESKER_ENV_APT", apt).args(["--", "sh", "-c", script]);
    let person = site.world.person;
    if !TestUser::myself().is_root() || person.is_root() {
        return call.output().expect("running esker");
    }
    let bind = "mount --make-rprivate / && for f in /etc/subuid /etc/subgid; do \
                [ -e $f ] || exit 9; mount --bind \"$1\" $f || exit 9; done; shift; exec \"$@\"";
    let (uid, gid) = (person.uid.to_string(), person.gid.to_string());
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", bind, "sh"]).arg(&file);
    command.args(["setpriv", "--reuid", &uid, "--regid", &gid, "--clear-groups"]);
    command.arg(call.get_program()).args(call.get_args()).current_dir(site.home());
    command.env_clear().envs(call.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.output().expect("running unshare")
}

fn packed(site: &Site) -> String {
    let image: PathBuf = site.world.path("image.sqfs");
    let mut make = Command::new("mksquashfs");
    make.arg(site.root.path()).arg(&image).args(["-all-root", "-quiet", "-no-progress", "-noappend"]);
    printed(&mut make);
    image.display().to_string()
}

#[test]
fn packages_are_installed_without_subordinate_ids() {
    for person in TestUser::all() {
        let Some(site) = site_with_apt(person) else { return };
        site.root.give_to(person);
        let folder = site.root.path().display().to_string();
        for image in [packed(&site), folder] {
            let output = install(&site, &image, "", INSTALL, "-o APT::Sandbox::User=root");
            assert!(output.status.success(), "{image}: {}", words(&output));
            assert_eq!(String::from_utf8_lossy(&output.stdout), INSTALLED, "{}", words(&output));
            if !person.is_root() && TestUser::myself().is_root() {
                let said = words(&output);
                assert!(said.contains("/etc/subuid has no ids for") && said.contains("usermod"), "{said}");
                let output = install(
                    &site,
                    &image,
                    "",
                    &format!("mkdir -p /opt/tool; echo > /opt/tool/file; {GIVE}"),
                    "",
                );
                assert!(!output.status.success(), "{}", words(&output));
            }
        }
    }
}

#[test]
fn packages_are_installed_as_users_of_the_image_with_subordinate_ids() {
    if !TestUser::myself().is_root() {
        skip!("only root gives ranges of ids to users");
    }
    if found("newuidmap").is_none() || !Path::new("/etc/subuid").exists() {
        skip!("this machine has no newuidmap or no /etc/subuid");
    }
    let Some(site) = site_with_apt(TestUser::ordinary()) else { return };
    site.root.give_to(site.world.person);
    let ranges = format!("{}:200000:65536\n", site.world.person.uid);
    let folder = site.root.path().display().to_string();
    for image in [packed(&site), folder] {
        let output = install(&site, &image, &ranges, &format!("{INSTALL}\n{GIVE}"), "");
        assert!(output.status.success(), "{image}: {}", words(&output));
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            format!("{INSTALLED}8 8\n"),
            "{}",
            words(&output)
        );
        assert!(!words(&output).contains("warning"), "{}", words(&output));
    }
}
