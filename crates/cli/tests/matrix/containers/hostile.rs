//! A hostile program in a container, as root and as an ordinary user.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;
use std::process::Command;

use super::Site;
use crate::sys::{SharedMemory, inherit};
use crate::test_env::{printed, words};
use crate::test_user::TestUser;

/// End of a line about an attempt that succeeded.
const REACHED: &str = "REACHED";

/// A system with the hostile program in it, as a directory and as an image.
struct Hostile {
    site: Site,
    image: PathBuf,
    bound: PathBuf,
}

impl Hostile {
    fn of(person: TestUser) -> Self {
        let site = Site::of(person);
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/matrix/containers/hostile.c");
        let program = site.world.path("hostile");
        printed(Command::new("cc").args(["-w", "-O1", source, "-o"]).arg(&program));
        site.root.add(&program, "/bin/hostile".as_ref());
        site.root.write("/mnt/below", "", 0o644);
        // Execution by the program that starts the container.
        site.root.write("/bin/again", "#!/proc/self/exe\n", 0o755);
        site.root.write("/bin/again-and-again", "#!/bin/again\n", 0o755);
        std::os::unix::fs::symlink("/proc/self/exe", site.root.path().join("bin/itself")).expect("a link");
        let image = site.world.path("image.sqfs");
        let mut make = Command::new("mksquashfs");
        make.arg(site.root.path()).arg(&image).args(["-all-root", "-quiet", "-no-progress", "-noappend"]);
        printed(&mut make);
        let bound = site.home().join("bound");
        person.does(|| fs::create_dir(&bound)).expect("a folder");
        Self { site, image, bound }
    }

    /// Returns calls with the directory and with the image as root.
    fn calls(&self, options: &[&str], command: &[&str]) -> [Command; 2] {
        [self.site.root.path(), &self.image].map(|root| {
            let mut call = self.site.world.esker(&["run"]);
            call.arg(root).args(options).arg("--").args(command).current_dir(self.site.home());
            call.env("SECRET_OF_THE_CALLER", "a token");
            call
        })
    }
}

/// > N10: Under `--contain`, also as root of the host, a command reaches nothing of the host but its binds, network and clock: its root isn't the host's, `/proc` and `/sys` show or change nothing of the machine, and the caller's terminal, open files, keys, shared memory and variables stay closed unless `--share` names them.
#[test]
fn a_contained_command_reaches_nothing_of_the_host() {
    for person in TestUser::all() {
        let hostile = Hostile::of(person);
        let memory = SharedMemory::new();
        let name = format!("esker-test-{}-{}", std::process::id(), person.uid);
        let address = SocketAddr::from_abstract_name(&name).expect("an address");
        let _listener = UnixListener::bind_addr(&address).expect("a socket");
        let open = fs::File::open(hostile.site.home()).expect("a folder");
        let bind = format!("{}:/bound:ro", hostile.bound.display());
        let key = memory.key.to_string();
        let attack = ["hostile", "/bound", &name, &key, "contained"];
        for more in [&[][..], &["--fakeroot"], &["--writable-tmpfs"]] {
            let options = [&["--contain", "--bind", &bind], more].concat();
            for mut call in hostile.calls(&options, &attack) {
                inherit(&mut call, open.as_raw_fd());
                let output = call.output().expect("running esker");
                let said = words(&output);
                assert!(
                    output.status.success() && said.contains("outside it is"),
                    "{person:?} {more:?}: {said}"
                );
                assert!(!said.contains(REACHED), "{person:?} {more:?}: {said}");
                // The number is that of the namespace above, which is the host's own one for root.
                let outside = said.rsplit("outside it is ").next().expect("a number").trim();
                assert!(!person.is_root() || outside.parse::<u32>().is_ok_and(|id| id > 65_535), "{outside}");
            }
        }
        // The command shares what `--share` names.
        let share = "terminal,descriptors,keyring,ipc,environment";
        for mut call in hostile.calls(&["--contain", "--bind", &bind, "--share", share], &attack) {
            inherit(&mut call, open.as_raw_fd());
            let said = words(&call.output().expect("running esker"));
            let wanted = ["typing", "console", "descriptors", "shared memory", "environment"];
            for what in wanted {
                assert!(said.contains(&format!("{what}: {REACHED}")), "{what}: {said}");
            }
            let reached =
                said.matches(REACHED).count() - usize::from(said.contains(&format!("keys: {REACHED}")));
            assert_eq!(reached, wanted.len() + 1, "{said}");
        }
        assert_eq!(fs::read_dir(&hostile.bound).expect("the folder").count(), 0);
    }
}

/// Options of binds and what hides the host stay as they are, also for root of the namespace without `--contain`.
#[test]
fn root_of_a_namespace_undoes_no_mount() {
    for person in TestUser::all() {
        let hostile = Hostile::of(person);
        let bind = format!("{}:/bound:ro", hostile.bound.display());
        for more in [&[][..], &["--writable-tmpfs"], &["--cleanenv"]] {
            let options = [&["--fakeroot", "--bind", &bind], more].concat();
            for mut call in hostile.calls(&options, &["hostile", "/bound"]) {
                let output = call.output().expect("running esker");
                let said = words(&output);
                assert!(output.status.success() && said.contains("unmount"), "{person:?} {more:?}: {said}");
                assert!(!said.contains(REACHED), "{person:?} {more:?}: {said}");
            }
        }
        assert_eq!(fs::read_dir(&hostile.bound).expect("the folder").count(), 0);
    }
}

/// Neither program nor working directory of an image lead to what the starting process still has of the host.
#[test]
fn an_image_names_nothing_of_the_process_that_starts_it() {
    for person in TestUser::all() {
        let hostile = Hostile::of(person);
        for program in ["/proc/self/exe", "/bin/again", "/bin/again-and-again", "itself"] {
            for mut call in hostile.calls(&["--contain"], &[program]) {
                let output = call.output().expect("running esker");
                let said = words(&output);
                assert!(
                    !output.status.success() && said.contains("a link of a process"),
                    "{program}: {said}"
                );
            }
        }
        for mut call in hostile.calls(&["--contain"], &["ls", "/proc/self/fd/0/.."]) {
            let output = call.stdin(fs::File::open(hostile.site.home()).expect("a folder")).output();
            let said = words(&output.expect("running esker"));
            assert!(said.contains("standard input is a directory"), "{said}");
        }
        let open = fs::File::open(hostile.site.home()).expect("a folder");
        for share in [&["--contain"][..], &["--contain", "--share", "descriptors"]] {
            let at = format!("/proc/self/fd/{}", open.as_raw_fd());
            let options = [share, &["--pwd", &at]].concat();
            for mut call in hostile.calls(&options, &["pwd"]) {
                inherit(&mut call, open.as_raw_fd());
                let output = call.output().expect("running esker");
                assert!(!output.status.success(), "{share:?}: {}", words(&output));
            }
        }
    }
}

/// Files of root in an image are root's in a container of root, which may change them; those of the host are of no user there.
#[test]
fn root_of_a_container_owns_its_image_and_nothing_of_the_host() {
    let Some(root) = TestUser::root() else {
        esker_testkit::skip!("only root has a container with other ids");
    };
    let hostile = Hostile::of(root);
    fs::write(hostile.bound.join("private"), "for root").expect("a file");
    let bind = format!("{}:/bound", hostile.bound.display());
    let script = "id -u; ls -ln /made-for-this-test /etc/passwd | cut -d' ' -f3,4; ls -ldn /. /etc $HOME | cut -d' ' -f3,4; \
                  echo changed > /made-for-this-test && cat /made-for-this-test; touch $HOME/own /dev/shm/own /tmp/own; \
                  touch /bound/made 2> /dev/null || echo refused";
    for mut call in hostile.calls(&["--contain", "--writable-tmpfs", "--bind", &bind], &["sh", "-c", script])
    {
        let said = printed(&mut call);
        let lines: Vec<&str> = said.lines().collect();
        let (last, owners) = (&lines[lines.len() - 2..], &lines[1..lines.len() - 2]);
        assert!(lines[0] == "0" && owners.iter().all(|owner| *owner == "0 0"), "{said}");
        assert_eq!(last, ["changed", "refused"], "{said}");
    }
    for mut call in hostile.calls(
        &["--contain", "--bind", &format!("{bind}:idmap")],
        &["sh", "-c", "cat /bound/private && touch /bound/made"],
    ) {
        assert_eq!(printed(&mut call), "for root");
        fs::remove_file(hostile.bound.join("made")).expect("made by root");
    }
    let mut call = hostile.site.run(&["--bind", &format!("{bind}:idmap")], &["true"]);
    let told = words(&call.output().expect("running esker"));
    assert!(told.contains("idmap is for root with --contain"), "{told}");
}
