//! Options of `--bind` take effect, or are refused by name.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use esker_testkit::skip;

use super::Site;
use crate::test_env::{printed, words};
use crate::test_user::TestUser;

/// A site with a folder of data: a file, a program, a set-user-ID program, and a folder.
fn site_with_data(person: TestUser) -> Site {
    let site = Site::of(person);
    site.root.add_programs(&["chroot"]);
    let data = site.world.path("data");
    fs::create_dir_all(data.join("sub")).expect("folders");
    fs::write(data.join("a"), "one").expect("a file");
    for (name, mode) in [("id", 0o755), ("suid", 0o4755)] {
        fs::copy(site.root.path().join("bin/id"), data.join(name)).expect("a program");
        fs::set_permissions(data.join(name), Permissions::from_mode(mode)).expect("a mode");
    }
    for folder in [data.clone(), data.join("sub")] {
        fs::set_permissions(folder, Permissions::from_mode(0o777)).expect("a mode");
    }
    site
}

#[test]
fn options_of_binds_take_effect() {
    for person in TestUser::all() {
        let site = site_with_data(person);
        let data = site.world.path("data").display().to_string();
        let says = |bind: &str, script: &str| {
            site.says(&["--bind", &format!("{data}:/d:{bind}")], &["sh", "-c", script])
        };
        let write = "echo two 2> /dev/null > /d/new && echo written || echo read-only";
        let run = "/d/id -u > /dev/null 2>&1 && echo runs || echo refused";
        for (options, written, runs) in [
            ("ro", "read-only", "runs"),
            ("rw", "written", "runs"),
            ("ro,z", "read-only", "runs"),
            ("Z,ro", "read-only", "runs"),
            ("rslave,ro", "read-only", "runs"),
            ("rprivate,noexec", "written", "refused"),
            ("noexec,ro", "read-only", "refused"),
            ("nosuid,nodev", "written", "runs"),
        ] {
            assert_eq!(says(options, write), written, "{options}");
            assert_eq!(says(options, run), runs, "{options}");
        }
        let flags = says("nosuid,nodev", "grep ' /d ' /proc/self/mountinfo | cut -d' ' -f6");
        assert!(flags.contains("nosuid") && flags.contains("nodev"), "{flags}");
        // Several binds in one option.
        let both = format!("{data}:/d:ro,{data}/a:/b,{data}/sub:/c:ro,noexec");
        let script = format!("cat /b; {write}; echo x 2> /dev/null > /c/x || echo closed");
        assert_eq!(site.says(&["--bind", &both], &["sh", "-c", &script]), "oneread-only\nclosed");
        assert!(!site.world.path("d:ro,z").exists());
    }
}

#[test]
fn nosuid_takes_rights_from_programs_and_ro_reaches_mounts_below() {
    let Some(person) = TestUser::root() else { skip!("only root mounts a data set with rights") };
    let site = site_with_data(person);
    let data = site.world.path("data").display().to_string();
    let says = |options: &str| {
        let bind = format!("{data}:/d:{options}");
        site.says(&["--bind", &bind], &["chroot", "--userspec=1:1", "/", "/d/suid", "-u"])
    };
    assert_eq!((&*says("rw"), &*says("nosuid")), ("0", "1"));

    let call = site.run(&["--bind", &format!("{data}:/d:ro")], &["sh", "-c", "echo x > /d/sub/x"]);
    let script = "mount --make-rprivate / && mount -t tmpfs below \"$1/sub\" && shift && exec \"$@\"";
    let mut below = Command::new("unshare");
    below.args(["-m", "sh", "-c", script, "sh", &data]).arg(call.get_program()).args(call.get_args());
    below.env_clear().envs(call.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = below.output().expect("running unshare");
    assert!(!output.status.success() && words(&output).contains("ead-only"), "{}", words(&output));
}

#[test]
fn binds_that_fail_are_refused_by_name() {
    for person in TestUser::all() {
        let site = site_with_data(person);
        let data = site.world.path("data").display().to_string();
        for (bind, code, told) in [
            (":/d:nosuch", 2, "no option nosuch"),
            (":/d:ro,nosuch", 2, "no option nosuch"),
            (":/d:rshared", 2, "rshared is not supported"),
            (":/d:U", 2, "U is not supported"),
            (":/d:O", 2, "O is not supported"),
            (":/d:ro:z", 2, "more than SRC:DST:OPTIONS"),
            (":d", 2, "neither an absolute destination nor an option"),
            (":/", 2, "the root directory"),
            (":/etc/..", 2, "the root directory"),
            ("/none:/d", 1, "No such file"),
            ("/a:/etc", 1, "that is a directory, this a file"),
            (":/etc/passwd", 1, "that is a file, this a directory"),
        ] {
            let said = site.refused(&["--bind", &format!("{data}{bind}")], code);
            assert!(said.contains(told) && said.lines().count() > 1, "{bind}: {said}");
        }
        let said = site.refused(&["--home", &format!("{data}:/h:ro")], 2);
        assert!(said.contains("SRC[:DST]"), "{said}");
        // A destination that the image lacks is made beside it, and a colon may be part of a path.
        let odd = site.world.path("home").join("a:b,c");
        fs::write(&odd, "odd").expect("a file");
        let bind =
            format!("{}:/new/pl\\:ace/x", odd.display().to_string().replace(':', "\\:").replace(',', "\\,"));
        let mut call = site.run(&["--bind", &bind], &["cat", "/new/pl:ace/x"]);
        assert_eq!(printed(&mut call), "odd");
    }
}
