//! Unusual images and paths: the command runs, or the error has advice.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use esker_testkit::skip;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::Site;
use crate::test_env::{complaint, printed, words};
use crate::test_user::TestUser;

/// Makes an image of the site's system.
fn packed(site: &Site) -> String {
    let image = site.world.path("image.sqfs");
    let mut make = Command::new("mksquashfs");
    make.arg(site.root.path()).arg(&image).args(["-all-root", "-quiet", "-no-progress", "-noappend"]);
    printed(&mut make);
    image.display().to_string()
}

#[test]
fn files_of_the_host_replace_files_of_the_image_in_their_way() {
    type Spoil = fn(&Path);
    let in_the_way: [(&str, Spoil); 6] = [
        ("a directory", |path| fs::create_dir_all(path.join("sub")).expect("a folder")),
        ("an absolute link", |path| symlink("/shared", path).expect("a link")),
        ("a dangling link", |path| symlink("/run/stub/none", path).expect("a link")),
        ("a link out of the root", |path| symlink("../../../../../../etc/shadow", path).expect("a link")),
        ("a link in a circle", |path| symlink(path.file_name().expect("a name"), path).expect("a link")),
        ("a pipe", |path| {
            mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
        }),
    ];
    for person in TestUser::all() {
        for (what, spoil) in in_the_way {
            let site = Site::of(person);
            let etc = site.root.path().join("etc");
            fs::remove_file(etc.join("passwd")).expect("removed");
            site.root.write("/shared", "the image's\n", 0o644);
            for name in ["hosts", "resolv.conf", "localtime", "passwd", "group"] {
                spoil(&etc.join(name));
            }
            site.root.write("/tmp", "a file", 0o644);
            site.root.give_to(person);
            let before = site.root.listing();
            let script = "for f in hosts passwd group; do [ -f /etc/$f ] && [ ! -L /etc/$f ] || echo no $f; done\n\
                          cat /etc/hosts | sha256sum | cut -c1-64; [ -d /tmp ] || echo no /tmp\n\
                          [ ! -e /shared ] || cat /shared; id -un";
            let hosts = printed(Command::new("sha256sum").arg("/etc/hosts"));
            let name = printed(Command::new("id").args(["-un", &person.uid.to_string()]));
            let expected = format!("{}\nthe image's\n{}", &hosts[..64], name.trim_end());
            for options in [&[][..], &["--writable-tmpfs"], &["--contain"]] {
                let output = site.run(options, &["sh", "-c", script]).output().expect("running esker");
                assert!(output.status.success(), "{what} {options:?}: {}", words(&output));
                assert_eq!(
                    String::from_utf8_lossy(&output.stdout).trim_end(),
                    expected,
                    "{what} {options:?}"
                );
                assert!(output.stderr.is_empty(), "{what} {options:?}: {}", words(&output));
            }
            assert_eq!(site.root.listing(), before);
            if what == "a directory" {
                let image = packed(&site);
                let mut call = site.world.esker(&["run", &image, "--", "sh", "-c", script]);
                assert_eq!(printed(call.current_dir(site.home())).trim_end(), expected);
            }
        }
    }
}

#[test]
fn mounts_that_fail_are_left_out_with_a_warning() {
    let site = Site::new();
    // The link leads to a folder of the host, where nothing is created.
    let etc = site.root.path().join("etc");
    fs::remove_dir_all(&etc).expect("removed");
    symlink("/tmp/none/of/the/host", &etc).expect("a link");
    let output = site.run(&[], &["echo", "runs"]).output().expect("running esker");
    assert!(output.status.success(), "{}", words(&output));
    let said = words(&output);
    assert!(said.contains("runs") && said.contains("the container is without /etc/hosts"), "{said}");
    assert!(!Path::new("/tmp/none").exists());
}

#[test]
fn a_command_does_not_start_in_an_inaccessible_directory() {
    let Some(_) = TestUser::root() else { skip!("only root calls with fewer rights than it has") };
    let site = Site::new();
    let closed = site.world.path("closed");
    fs::create_dir(&closed).expect("a folder");
    fs::set_permissions(&closed, Permissions::from_mode(0o700)).expect("a mode");
    let closed = closed.display().to_string();
    let started = |options: &[&str]| {
        let mut call = site.run(options, &["pwd"]);
        // The person is in it before being that person.
        let mut shell = Command::new("setpriv");
        let (uid, gid) = (site.world.person.uid.to_string(), site.world.person.gid.to_string());
        shell
            .args(["--reuid", &uid, "--regid", &gid, "--clear-groups"])
            .arg(call.get_program())
            .args(call.get_args());
        shell.env_clear().envs(call.get_envs().filter_map(|(name, value)| Some((name, value?))));
        call = shell;
        call.current_dir(&closed).output().expect("running setpriv")
    };
    let output = started(&[]);
    assert!(output.status.success(), "{}", words(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), site.home().display().to_string());
    assert!(words(&output).contains(&closed) && words(&output).contains("can't enter"), "{}", words(&output));
    let output = started(&["--pwd", &closed]);
    assert_eq!(output.status.code(), Some(1));
    assert!(words(&output).contains(&format!("can't change to {closed}")), "{}", words(&output));

    // A directory of the image's configuration may be missing.
    site.root.configure(r#"{"config":{"WorkingDir":"/srv/none"}}"#);
    let output = site.run(&["--contain"], &["pwd"]).output().expect("running esker");
    assert!(
        output.status.success() && words(&output).contains("/srv/none can't be entered"),
        "{}",
        words(&output)
    );
}

#[test]
fn a_file_that_is_no_image_is_refused_at_once() {
    for person in TestUser::all() {
        let site = Site::of(person);
        let pipe = site.world.path("pipe.sqfs");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
        std::os::unix::fs::chown(&pipe, Some(person.uid), Some(person.gid)).expect("given away");
        for (image, told) in [(pipe.display().to_string(), "is a pipe"), ("/dev/null".into(), "is a device")]
        {
            let said = complaint(&mut site.world.esker(&["run", &image, "--", "true"]), 2);
            assert!(said.contains(told) && said.contains("write it to a file first"), "{said}");
        }
        for name in ["docker://alpine", "oci:folder", "docker-archive:saved.tar"] {
            let said = complaint(&mut site.world.esker(&["run", name, "--", "true"]), 2);
            assert!(said.contains("esker image build") && said.contains(name), "{said}");
        }
    }
}

#[test]
fn a_device_that_can_not_be_opened_is_explained() {
    let Some(_) = TestUser::root() else { skip!("only root calls with fewer rights than it has") };
    let site = Site::new();
    let image = packed(&site);
    let device = site.world.path("fuse");
    mknodat(CWD, &device, FileType::CharacterDevice, Mode::RUSR | Mode::WUSR, rustix::fs::makedev(10, 229))
        .expect("a device");
    let file = site.world.path("plain");
    fs::write(&file, "").expect("a file");
    fs::set_permissions(&file, Permissions::from_mode(0o666)).expect("a mode");
    let with = |device: &Path, what: &str| {
        let call = site.world.esker(&["run", what, "--", "echo", "runs"]);
        let (uid, gid) = (site.world.person.uid.to_string(), site.world.person.gid.to_string());
        let script = "mount --make-rprivate / && mount --bind \"$1\" /dev/fuse && shift && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, "sh"]).arg(device);
        command.args(["setpriv", "--reuid", &uid, "--regid", &gid, "--clear-groups"]);
        command.arg(call.get_program()).args(call.get_args()).current_dir(site.home());
        command.env_clear().envs(call.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    };
    let said = complaint(&mut with(&device, &image), 1);
    assert!(said.contains("can't open /dev/fuse: its mode is 0600"), "{said}");
    assert!(said.contains("chmod 0666 /dev/fuse") && said.contains("image extract"), "{said}");
    let said = complaint(&mut with(&file, &image), 1);
    assert!(said.contains("can't open /dev/fuse: it is not a device"), "{said}");
    // The advice works.
    let folder = site.root.path().display().to_string();
    assert_eq!(printed(&mut with(&device, &folder)), "runs\n");
}

#[test]
fn a_missing_interpreter_is_reported() {
    for person in TestUser::all() {
        let site = Site::of(person);
        site.root.write("/bin/script", "#!/usr/bin/python9 -E\nprint()\n", 0o755);
        site.root.write("/bin/dos", "#!/bin/sh\r\necho\r\n", 0o755);
        site.root.write("/bin/plain", "echo plain $1\n", 0o755);
        site.root.write("/bin/closed", "echo\n", 0o644);
        let said = |command: &str, code: i32| complaint(&mut site.run(&[], &[command]), code);
        let told = said("script", 127);
        assert!(told.contains("/usr/bin/python9") && told.contains("`#!/usr/bin/python9 -E`"), "{told}");
        assert!(said("dos", 127).contains("carriage returns"));
        assert!(said("closed", 126).contains("chmod +x"));
        assert!(said("none", 127).contains("no such program"));
        assert_eq!(site.says(&[], &["plain", "text"]), "plain text", "as a shell does");
    }
}
