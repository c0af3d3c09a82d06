//! `esker run` with its own root directory: the command's view of the container, and its remains.

mod apart;
mod binding;
mod hostile;
mod odd;
mod packages;
pub(crate) mod rootfs;
mod sharing;
mod stacks;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use esker_testkit::fixture;

use crate::test_env::{TestEnv, complaint, printed, words};
use crate::test_user::TestUser;
use rootfs::Rootfs;

/// A person with a system in a directory.
struct Site {
    world: TestEnv,
    root: Rootfs,
}

impl Site {
    fn new() -> Site {
        Site::of(TestUser::ordinary())
    }

    fn of(person: TestUser) -> Site {
        let world = TestEnv::new(person, fixture::RMD);
        let root = Rootfs::new(&world.path("root"));
        Site { world, root }
    }

    /// Returns a call of `esker run` with the system as root directory, from the user's home directory.
    fn run(&self, options: &[&str], command: &[&str]) -> Command {
        let mut call = self.world.esker(&["run"]);
        call.arg(self.root.path()).args(options).current_dir(self.home());
        if !command.is_empty() {
            call.arg("--").args(command);
        }
        call
    }

    fn home(&self) -> PathBuf {
        self.world.path("home")
    }

    /// Returns the output of the command, which must succeed.
    #[track_caller]
    fn says(&self, options: &[&str], command: &[&str]) -> String {
        printed(&mut self.run(options, command)).trim_end().to_owned()
    }

    /// Returns the error of a command that must not start.
    #[track_caller]
    fn refused(&self, options: &[&str], code: i32) -> String {
        complaint(&mut self.run(options, &["true"]), code)
    }
}

/// > N3: `esker run DIR` makes the directory the root of a command, who is who they are outside, starts where they were and has their home; exit code and signal are the command's.
#[test]
fn a_command_in_a_container_has_its_home_directory() {
    let site = Site::new();
    let home = site.home().display().to_string();
    let person = site.world.person;
    assert_eq!(site.says(&[], &["cat", "/made-for-this-test"]), "a system");
    assert_eq!(site.says(&[], &["pwd"]), home);
    assert_eq!(
        site.says(&[], &["sh", "-c", "echo $HOME; id -u; id -g"]),
        format!("{home}\n{}\n{}", person.uid, person.gid)
    );
    fs::write(site.home().join("written"), "").expect("a file");
    assert_eq!(
        site.says(&["--pwd", "/tmp"], &["sh", "-c", "pwd; ls ~/written"]),
        format!("/tmp\n{home}/written")
    );
    // Not below home, and visible through a default bind (the temporary folder) or an explicit one.
    let elsewhere = site.world.path("root");
    let mut call = site.run(&[], &["pwd"]);
    assert_eq!(printed(call.current_dir(&elsewhere)).trim_end(), elsewhere.display().to_string());
    let line = site.says(&[], &["cat", "/etc/passwd"]);
    assert!(line.lines().any(|line| line.split(':').nth(5) == Some(&home)), "{line}");

    let output = site.run(&[], &["sh", "-c", "exit 42"]).output().expect("running esker");
    assert_eq!(output.status.code(), Some(42), "{}", words(&output));
    let output = site.run(&[], &["sh", "-c", "kill -TERM $$"]).output().expect("running esker");
    assert_eq!(output.status.signal(), Some(libc::SIGTERM), "{}", words(&output));
    complaint(&mut site.run(&[], &["no-such-program"]), 127);
    let told = complaint(&mut site.run(&[], &[]), 2);
    assert!(told.contains("there is no command") && told.contains("-- COMMAND"), "{told}");
}

/// > N4: An image is never written, also where it lacks mount points; with `--writable-tmpfs` (Linux 5.11 or newer without root) the command may write everywhere, and what it wrote is gone with it.
#[test]
fn a_container_never_writes_its_image() {
    let site = Site::new();
    let before = site.root.listing();
    assert!(
        !before.iter().any(|path| path.starts_with("home") || path.starts_with("proc")),
        "no mount points"
    );
    let refused =
        site.run(&[], &["sh", "-c", "echo x > /made-for-this-test"]).output().expect("running esker");
    assert!(!refused.status.success() && words(&refused).contains("ead-only"), "{}", words(&refused));
    site.says(&[], &["sh", "-c", "ls /proc/self/fd /sys /dev/null /etc/hosts && echo x > /dev/null"]);
    // Whatever its owner, a directory of another user is no more writable in a namespace than outside.
    site.root.give_to(site.world.person);
    let script =
        "echo new > /made-for-this-test && mkdir -p /deep/er && cat /made-for-this-test && ls -d /deep/er";
    assert_eq!(site.says(&["--writable-tmpfs"], &["sh", "-c", script]), "new\n/deep/er");
    assert_eq!(site.root.listing(), before);
    assert_eq!(site.says(&[], &["cat", "/made-for-this-test"]), "a system");
}

/// > N5: `--bind` shows what it names, `:ro` read-only, at any place of the image and nowhere else; nothing is created on the host.
#[test]
fn binds_show_the_named_files() {
    let site = Site::new();
    let data = site.world.path("home/data");
    site.world
        .person
        .does(|| fs::create_dir(&data).and_then(|()| fs::write(data.join("a"), "one")))
        .expect("data");
    let bind = |rest: &str| format!("{}{rest}", data.display());
    assert_eq!(
        site.says(&["--no-home", "--bind", &bind("/a:/new/place/b")], &["cat", "/new/place/b"]),
        "one"
    );
    let script = "cat /d/a && ! echo two > /d/a 2> /dev/null";
    assert_eq!(site.says(&["--bind", &bind(":/d:ro")], &["sh", "-c", script]), "one");
    assert_eq!(site.says(&["-B", &bind(":/d")], &["sh", "-c", "echo two > /d/a; cat /d/a"]), "two");
    let inside = site.home().join("none").display().to_string();
    let told = site.refused(&["--bind", &bind(&format!(":{inside}"))], 1);
    assert!(told.contains(&inside) && told.contains("create it first"), "{told}");
    assert!(!site.home().join("none").exists());
    let told = site.refused(&["--bind", "/no/such/place"], 1);
    assert!(told.contains("/no/such/place"), "{told}");

    let hidden = site.says(&["--contain"], &["sh", "-c", "ls ~ | wc -w; ls -d ~"]);
    assert_eq!(hidden, format!("0\n{}", site.home().display()));
    let told = site.says(&["--no-bind", "--no-home"], &["sh", "-c", "pwd; ls / | grep -c home || true"]);
    assert_eq!(told, "/\n0");
}

/// Requested binds count, wherever the command is started.
#[test]
fn the_current_directory_covers_no_requested_bind() {
    let site = Site::of(TestUser::myself());
    // Not in /tmp, which is shown anyway.
    let here = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let at = |name: &str| here.path().join(name);
    let (real, other, home) = (at("real"), at("other"), at("home"));
    for folder in [&real, &other, &home.join("project")] {
        fs::create_dir_all(folder).expect("a folder");
    }
    fs::write(other.join("of-other"), "").expect("a file");
    let calls = |from: &Path, options: &[&str], script: &str| {
        let mut call = site.run(options, &["sh", "-c", script, &real.display().to_string()]);
        printed(call.current_dir(from).env("HOME", &home)).trim_end().to_owned()
    };
    let bind = |from: &Path| format!("{}:{}:ro", from.display(), real.display());
    let bound = "ls $0 && ! touch $0/written 2> /dev/null";
    for from in [&*real, here.path(), &*home] {
        assert_eq!(calls(from, &["--bind", &bind(&other)], bound), "of-other", "{}", from.display());
    }
    assert_eq!(calls(&real, &["--bind", &bind(&other)], "pwd"), home.display().to_string());
    let shown = calls(&real, &["--bind", &bind(&real)], "pwd; ! touch written 2> /dev/null");
    assert_eq!(shown, real.display().to_string(), "where it was, as it was asked for");
    let options = ["--home", &other.display().to_string()];
    for from in [home.clone(), home.join("project")] {
        assert_eq!(calls(&from, &options, "ls $HOME"), "of-other", "{}", from.display());
    }
    assert!(!real.join("written").exists() && !other.join("written").exists());
}

/// > N6: Variables come from the host, but not those that name its files; the image's win over them, `ESKER_ENV_…` and `--env` over both.
#[test]
fn variables_follow_rules() {
    let site = Site::new();
    site.root.configure(
        r#"{"config":{"Env":["PATH=/bin:/own","A=image","B=image"],"WorkingDir":"/etc",
        "Entrypoint":["sh","-c","echo entry $0 $PWD"],"Cmd":["usual"]}}"#,
    );
    let shown = |options: &[&str]| {
        let mut call = site.run(options, &["sh", "-c", "echo $PATH,$LD_PRELOAD,$A,$B,$C,$D"]);
        call.env("LD_PRELOAD", "").env("A", "host").env("C", "host").env("ESKER_ENV_B", "wished");
        printed(&mut call).trim_end().to_owned()
    };
    assert_eq!(shown(&["--env", "D=x=y"]), "/bin:/own,,image,wished,host,x=y");
    assert_eq!(shown(&["--cleanenv"]), "/bin:/own,,image,wished,,");
    assert_eq!(site.says(&["--env", "HOME=/asked"], &["sh", "-c", "echo $HOME"]), "/asked");
    assert_eq!(site.refused(&["--env", "=x"], 2).lines().count(), 2);

    assert_eq!(site.says(&["--contain"], &[]), "entry usual /etc");
    assert_eq!(site.says(&["--contain", "--entrypoint"], &["mine"]), "entry mine /etc");
    site.root.configure("no JSON");
    assert!(site.refused(&[], 4).contains("/.esker/config.json"));
}

/// An image built by Apptainer runs with its own script and variables.
#[test]
fn images_of_apptainer_run_by_their_own_script() {
    let site = Site::new();
    site.root.write("/.singularity.d/env/90-environment.sh", "export FROM=apptainer\n", 0o644);
    site.root.write("/.singularity.d/runscript", "#!/bin/sh\necho ran $FROM $1\n", 0o755);
    assert_eq!(site.says(&[], &["sh", "-c", "echo $FROM"]), "apptainer");
    assert_eq!(site.says(&["--entrypoint"], &["it"]), "ran apptainer it");
    assert_eq!(site.says(&[], &[]), "ran apptainer");
}

/// Scripts of an image count as the image's variables do.
#[test]
fn requested_variables_override_scripts_of_an_image() {
    let site = Site::new();
    let scripts =
        "export A=script B=script C=script HOME=/script PATH=/bin:/script LD_LIBRARY_PATH=/script\n";
    site.root.write("/.singularity.d/env/90-environment.sh", scripts, 0o644);
    let script = "echo \"$A|$B|$C|$D|$HOME|$PATH|$LD_LIBRARY_PATH|$1\"; env | grep ESKER_ENV_ || true";
    let shown = |options: &[&str]| {
        let mut call = site.run(options, &["sh", "-c", script, "sh", "one word"]);
        call.env("ESKER_ENV_B", "wished").env("C", "host").env("D", "host");
        printed(&mut call).trim_end().to_owned()
    };
    let usual = "/bin:/script|/script|one word";
    assert_eq!(shown(&[]), format!("script|wished|script|host|/script|{usual}"));
    let awkward = "it's \"$B\" `pwd` $(pwd) \\ *\n--";
    let options = ["--env", &format!("A={awkward}"), "--env", "HOME=/asked", "--env", "no.name=x"];
    assert_eq!(shown(&options), format!("{awkward}|wished|script|host|/asked|{usual}"));
    let rules = site.home().join("site.hook");
    fs::write(&rules, "lib libc.so.6\nlib libc.musl-*\nbin true\nset C=ruled\n").expect("rules");
    let options = ["--hook", &rules.display().to_string(), "--env", "LD_LIBRARY_PATH=/asked"];
    let before = "/.esker/host/bin:/bin:/script|/.esker/host/lib";
    assert_eq!(shown(&options[..2]), format!("script|wished|ruled|host|/script|{before}:/script|one word"));
    assert_eq!(shown(&options), format!("script|wished|ruled|host|/script|{before}:/asked|one word"));
}

/// Parts of the host that match the rules are mounted; a rule without a match is reported.
#[test]
fn hooks_mount_existing_parts_of_the_host() {
    let site = Site::new();
    let rules = site.home().join("site.hook");
    fs::write(&rules, "lib libc.so.6\nlib libc.musl-*\nbin true\nset RULED=yes\ndev /dev/nul?\n")
        .expect("rules");
    let rules = rules.display().to_string();
    let script = "echo $RULED; ls /.esker/host/lib | wc -l; ls /.esker/host/bin; echo $LD_LIBRARY_PATH";
    let told = site.says(&["--hook", &rules], &["sh", "-c", script]);
    assert_eq!(told, "yes\n1\ntrue\n/.esker/host/lib");
    fs::write(site.home().join("none.hook"), "dev /dev/no-such-device*\n").expect("rules");
    let none = site.home().join("none.hook").display().to_string();
    let output: Output = site.run(&["--hook", &none], &["true"]).output().expect("running esker");
    assert!(output.status.success() && words(&output).contains("/dev/no-such-device*"), "{}", words(&output));
    assert_eq!(site.refused(&["--hook", "no-such-rules"], 2).lines().count(), 2);
}
