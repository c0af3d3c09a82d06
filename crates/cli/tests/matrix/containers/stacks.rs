//! `esker run IMAGE --at PATH`: an image in the host's own root directory.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::Site;
use crate::test_env::{complaint, printed};
use crate::test_user::TestUser;

#[test]
fn an_image_is_shown_at_a_path_of_the_host() {
    for person in TestUser::all() {
        let site = Site::of(person);
        let image = site.world.path("stack.sqfs");
        let mut make = Command::new("mksquashfs");
        make.arg(site.root.path()).arg(&image).args(["-all-root", "-quiet", "-no-progress", "-noappend"]);
        printed(&mut make);
        let folder = site.root.path().display().to_string();
        let image = image.display().to_string();
        let new = "/esker-none/deep/stack";
        for what in [&image, &folder] {
            let run = |options: &[&str], command: &[&str]| {
                let mut call = site.world.esker(&["run", what]);
                call.args(options).arg("--").args(command).current_dir(site.home());
                call
            };
            let path = format!("{new}/made-for-this-test");
            assert_eq!(printed(&mut run(&["--at", new], &["cat", &path])), "a system\n");
            // Everything else is the host's, including the user.
            let script =
                "pwd; id -u; echo $PATH; [ -d /esker-none/deep ] && ls /esker-none/deep; ls -d /etc/hostname";
            let path = std::env::var("PATH").expect("PATH");
            let expected =
                format!("{}\n{}\n{path}\nstack\n/etc/hostname\n", site.home().display(), person.uid);
            assert_eq!(printed(&mut run(&["--at", new], &["sh", "-c", script])), expected);
            // Also those that are no shell find the working directory where shells say it.
            let home = site.home().display().to_string();
            let mut call = run(&["--at", new], &["printenv", "PWD"]);
            assert_eq!(printed(call.env("PWD", "/")).trim_end(), home);
            let mut call = run(&["--at", new, "--cleanenv", "--pwd", "/etc"], &["printenv", "PWD"]);
            assert_eq!(printed(&mut call), "/etc\n");
            // The way over a link, as shells have it, stays.
            let link = site.world.path("home/link");
            let _ = std::os::unix::fs::symlink(site.home(), &link);
            let mut call = run(&["--at", new], &["printenv", "PWD"]);
            assert_eq!(printed(call.env("PWD", &link)).trim_end(), link.display().to_string());
            // A directory that is there, and more options.
            let there = site.world.path("home/there");
            fs::create_dir_all(&there).expect("a folder");
            fs::write(there.join("hidden"), "").expect("a file");
            let there = there.display().to_string();
            let options = ["--at", &there, "--env", "A=b", "--pwd", "/", "--bind", "/etc:/esker-etc:ro"];
            let script = "ls $0 | grep -c hidden; echo $A $PWD; pwd; ls -d /esker-etc/hostname";
            let shown = printed(&mut run(&options, &["sh", "-c", script, &there]));
            assert!(shown.starts_with("0\nb "), "{shown}");
            assert!(shown.ends_with("/\n/esker-etc/hostname\n"), "{shown}");
            for (options, told) in [
                (&["--at", "relative"][..], "not an absolute path"),
                (&["--at", "/"], "the root directory"),
                (&["--at", "/opt/../x"], "not an absolute path"),
                (&["--at", "/proc/x"], "the kernel has that directory"),
                (&["--at", new, "--writable-tmpfs"], "--writable-tmpfs"),
                (&["--at", new, "--contain"], "--contain"),
            ] {
                let said = complaint(&mut run(options, &["true"]), 2);
                assert!(said.contains(told), "{options:?}: {said}");
            }
            let said = complaint(&mut run(&["--at", "/etc/hostname"], &["true"]), 1);
            assert!(said.contains("that is a file"), "{said}");
        }
        assert!(!Path::new("/esker-none").exists(), "nothing is created on the host");
    }
}
