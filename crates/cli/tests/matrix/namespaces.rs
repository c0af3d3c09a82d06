//! `esker run`: the command's inherited state, its end, and errors where it can't be run.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use esker_testkit::fixture;
use esker_testkit::mirror::Fault;
use esker_testkit::skip;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use serde_json::Value;

use crate::daemons::{serving_daemon, signal, wait_until_gone};
use crate::test_env::{PATIENCE, TestEnv, mountinfo, words};
use crate::test_user::TestUser;

fn shell(world: &TestEnv, script: &str) -> Output {
    world.run(&[]).args(["sh", "-c", script]).output().expect("running esker")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn exit_codes_and_deaths_are_passed_on() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::RMD);
        for code in [0, 1, 2, 77, 255] {
            assert_eq!(shell(&world, &format!("exit {code}")).status.code(), Some(code));
        }
        for number in [libc::SIGKILL, libc::SIGTERM, libc::SIGSEGV] {
            let output = shell(&world, &format!("kill -{number} $$"));
            assert_eq!(output.status.signal(), Some(number), "{}", words(&output));
        }
        let missing = world.run(&[]).arg("/no/such/program").output().expect("running esker");
        assert_eq!(missing.status.code(), Some(127));
        assert!(text(&missing.stderr).contains("/no/such/program"), "{}", words(&missing));
        let unusable = world.run(&[]).arg("/etc/passwd").output().expect("running esker");
        assert_eq!(unusable.status.code(), Some(126), "{}", words(&unusable));
    }
}

#[test]
fn a_command_keeps_its_user_directory_and_environment() {
    // A file of the caller's with a relative path, standard input, limits, groups and the environment.
    let script = "id -u; id -g; pwd; ulimit -n; cat; cat key.pub | wc -c; echo $GREETING; ls / | grep -c .";
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::RMD);
        let outcome = |mut command: Command| {
            let mut child = command
                .args(["sh", "-c", script])
                .env("GREETING", "hello")
                .current_dir(world.path(""))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("starting");
            child.stdin.take().expect("a pipe").write_all(b"through\n").expect("writing");
            let output = child.wait_with_output().expect("it ends");
            assert!(output.status.success(), "{}", words(&output));
            text(&output.stdout)
        };
        let mut plain = person.command("env");
        plain.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        let outside = outcome(plain);
        let inside = outcome(world.run(&[]));
        let split = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let (mut outside, mut inside) = (split(&outside), split(&inside));
        // Only /cvmfs may be more than there was.
        let names = |lines: &mut Vec<String>| lines.pop().expect("a count").parse::<u64>().expect("a number");
        let more = u64::from(fs::symlink_metadata("/cvmfs").is_err());
        assert_eq!(names(&mut inside), names(&mut outside) + more);
        assert_eq!(inside, outside);
    }
}

#[test]
fn a_command_gets_no_privilege_and_can_change_nothing() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let output = shell(
        &world,
        "grep CapEff /proc/self/status; touch /new 2>&1; touch /cvmfs/new 2>&1; touch /cvmfs/rmd.test/new 2>&1; :",
    );
    let said = text(&output.stdout);
    assert!(said.contains("0000000000000000"), "{said}");
    // Where the machine has a folder /cvmfs, it is the machine's own that refuses.
    let refused = ["Read-only file system", "Permission denied"].map(|words| said.matches(words).count());
    assert_eq!(refused.iter().sum::<usize>(), 3, "{said}");
    assert!(said.contains("/cvmfs/rmd.test/new': Read-only file system"), "{said}");
}

#[test]
fn mounts_of_a_command_are_invisible_outside() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::RMD);
        let had = Path::new("/cvmfs/rmd.test").exists();
        let (mut child, mut lines) = say_and_wait(&world, "echo up; cat");
        assert_eq!(next(&mut lines), "up");
        assert_eq!(Path::new("/cvmfs/rmd.test").exists(), had);
        let mounts = mountinfo();
        assert!(!mounts.contains(&world.url()));
        drop(child.stdin.take());
        assert!(child.wait().expect("it ends").success());
    }
}

/// Runs one repository's command inside another's.
#[test]
fn runs_can_be_nested() {
    for person in TestUser::all() {
        let (outer, inner) = (TestEnv::new(person, fixture::FULL), TestEnv::new(person, fixture::RMD));
        let mut command = outer.run(&[]);
        let nested = inner.run(&[]);
        command.arg(nested.get_program()).args(nested.get_args());
        let output = command
            .args(["sh", "-c", "ls /cvmfs && ls /cvmfs/full.test/sw && ls /cvmfs/rmd.test | head -1"])
            .output()
            .expect("running esker");
        assert!(output.status.success(), "{}", words(&output));
        let said = text(&output.stdout);
        assert!(said.contains("full.test\nrmd.test\n"), "{said}");
    }
}

fn say_and_wait(world: &TestEnv, script: &str) -> (Child, BufReader<ChildStdout>) {
    let mut child = world
        .run(&[])
        .args(["sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("running esker");
    let lines = BufReader::new(child.stdout.take().expect("a pipe"));
    (child, lines)
}

/// Returns the next line of a command that prints one at a time.
fn next(lines: &mut BufReader<ChildStdout>) -> String {
    let mut ready = [PollFd::new(lines.get_ref(), PollFlags::IN)];
    let patience = Timespec::try_from(PATIENCE).expect("a timeout");
    assert_eq!(poll(&mut ready, Some(&patience)).expect("poll"), 1, "no line comes");
    let mut line = String::new();
    lines.read_line(&mut line).expect("a line");
    line.trim_end().to_owned()
}

#[test]
fn signals_reach_the_command() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::RMD);
        let signals = [
            ("TERM", Signal::TERM),
            ("HUP", Signal::HUP),
            ("INT", Signal::INT),
            ("QUIT", Signal::QUIT),
            ("USR1", Signal::USR1),
            ("USR2", Signal::USR2),
        ];
        for (name, number) in signals {
            // Not `read`: a shell doesn't look for signals between its decision to read and the reading, and one that
            // came there would wait for the line. `wait` misses none.
            let script = format!("trap 'echo got {name}; kill $!; exit 9' {name}; sleep 60 & echo up; wait");
            let (mut child, mut lines) = say_and_wait(&world, &script);
            assert_eq!(next(&mut lines), "up");
            signal(child.id(), number);
            assert_eq!(next(&mut lines), format!("got {name}"), "{person:?}");
            assert_eq!(child.wait().expect("it ends").code(), Some(9));
        }
    }
}

#[test]
fn a_command_ends_with_the_process_that_serves_it() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::RMD);
        let (mut child, mut lines) = say_and_wait(&world, "echo $$; exec cat");
        let command = next(&mut lines).parse().expect("a process id");
        child.kill().expect("killing");
        child.wait().expect("it ends");
        // Its standard input is still open: only the signal can have ended it.
        wait_until_gone(command);
        let mut rest = String::new();
        lines.read_to_string(&mut rest).expect("the end");
        assert_eq!(rest, "");
    }
}

/// > D1: Bytes that do not match what the signed head leads to never reach a reader: the read fails with EIO, and `esker status` names object and cause.
#[test]
fn a_command_can_ask_for_the_status_of_its_mount() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::RMD);
        let contents = world.repository.contents("v3");
        let (name, object) = fixture::RMD
            .listing("v3")
            .into_iter()
            .filter(|entry| entry.is_file() && entry.mode & 0o444 == 0o444)
            .find_map(|entry| {
                let name = String::from_utf8(entry.path.clone()).ok()?;
                Some((name, contents.files.get(&entry.path)?.whole.clone()?))
            })
            .expect("a file");
        let rule = world.mirror.fault(move |path| path.ends_with(&object), Fault::FlipByte(3));
        let esker = world.esker(&[]).get_program().to_owned();
        let mut command = world.run(&[]);
        let script = "cat /cvmfs/rmd.test\"$1\" 2>&1; \"$0\" status --json";
        let output =
            command.args(["sh", "-c", script]).arg(esker).arg(&name).output().expect("running esker");
        rule.assert_hit();
        let said = text(&output.stdout);
        let (error, status) = said.split_once('\n').expect("two lines");
        assert!(error.contains("Input/output error"), "{}", words(&output));
        let status: Value = serde_json::from_str(status).expect("JSON");
        let mounts = status["mounts"].as_array().expect("mounts");
        let mut here = mounts.iter().filter(|mount| mount["mountpoint"] == "/cvmfs/rmd.test");
        assert!(here.all(|mount| mount["state"] != "unregistered"), "told twice: {status:#}");
        let mine = mounts.iter().find(|mount| mount["url"] == world.url());
        let mine = mine.unwrap_or_else(|| panic!("no {} in {status:#}", world.url()));
        assert_eq!(mine["command"], "sh");
        let last = mine["errors"].as_array().expect("errors").last().expect("an error");
        assert_eq!(last["object"], name, "{last:#}");
        assert!(last["cause"].as_str().expect("a cause").contains("hash"), "{last:#}");
    }
}

#[test]
fn errors_are_reported_before_the_command_starts() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let started = world.path("home/started");
    world.mirror.put("rmd.test/.cvmfspublished", b"nonsense".to_vec());
    let output = world.run(&[]).args(["touch"]).arg(&started).output().expect("running esker");
    assert_eq!(output.status.code(), Some(4), "{}", words(&output));
    assert!(!started.exists());
}

/// Calls `esker run … -- true` from a shell of `unshare` that made something impossible.
fn run_where(world: &TestEnv, obstacle: &str) -> Output {
    call_where(world, world.run(&[]).arg("true"), obstacle)
}

/// Calls `esker` from a shell of `unshare` that made something impossible.
pub(crate) fn call_where(world: &TestEnv, call: &Command, obstacle: &str) -> Output {
    let mut command = world.person.command("unshare");
    command
        .args([
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            &format!("{obstacle} && exec \"$@\""),
            "sh",
        ])
        // Root of a user namespace that may not mount is like an ordinary user.
        .args(["setpriv", "--bounding-set=-sys_admin"])
        .arg(call.get_program())
        .args(call.get_args())
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", world.path("home"))
        .env("ESKER_CACHE", world.path("home/.cache/esker"))
        .current_dir("/");
    command.output().expect("running unshare")
}

#[test]
fn the_setting_that_forbids_namespaces_is_named() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let output = run_where(&world, "echo 0 > /proc/sys/user/max_user_namespaces");
    assert_eq!(output.status.code(), Some(1), "{}", words(&output));
    let said = text(&output.stderr);
    assert!(said.contains("user.max_user_namespaces is 0") && said.contains("sysctl -w"), "{said}");
}

#[test]
fn a_missing_device_is_reported() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    // Files that are bound keep working below a /dev without fuse.
    let hide = "mkdir /tmp/esker-dev-$$ && mount -t tmpfs none /tmp/esker-dev-$$ && \
                for name in null zero urandom; do : >/tmp/esker-dev-$$/$name && \
                mount --bind /dev/$name /tmp/esker-dev-$$/$name; done && mount --rbind /tmp/esker-dev-$$ /dev && \
                umount -l /tmp/esker-dev-$$ && rmdir /tmp/esker-dev-$$";
    let output = run_where(&world, hide);
    assert_eq!(output.status.code(), Some(1), "{}", words(&output));
    let said = text(&output.stderr);
    assert!(
        said.contains("/dev/fuse") && said.contains("doesn't exist") && said.contains("modprobe"),
        "{said}"
    );
}

/// Needs a device of its own with another mode, which only root can make.
#[test]
fn the_mode_of_the_device_is_named() {
    if !TestUser::myself().is_root() {
        skip!("only root can make a device with another mode");
    }
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let device = world.path("fuse");
    let script = "mknod -m 600 \"$DEVICE\" c 10 229 && mount --bind \"$DEVICE\" /dev/fuse && \
                  exec setpriv --reuid \"$WHO\" --regid \"$WHO\" --clear-groups \"$@\"";
    let call = |command: Command| {
        let mut whole = Command::new("unshare");
        whole
            .args(["--mount", "sh", "-c", script, "sh"])
            .arg(command.get_program())
            .args(command.get_args())
            .env("DEVICE", &device)
            .env("WHO", world.person.uid.to_string())
            .env("HOME", world.path("home"))
            .env("ESKER_CACHE", world.path("home/.cache/esker"))
            .env("XDG_RUNTIME_DIR", world.path("run"));
        let output = whole.output().expect("running unshare");
        fs::remove_file(&device).expect("removing the device");
        output
    };
    let mut run = world.run(&[]);
    run.arg("true");
    let mut mount = world.esker(&["mount", &world.url()]);
    mount.arg(world.mountpoint()).arg("--public-key").arg(world.path("key.pub"));
    for command in [run, mount] {
        let output = call(command);
        assert_eq!(output.status.code(), Some(1), "{}", words(&output));
        let said = text(&output.stderr);
        assert!(said.contains("mode is 0600") && said.contains("chmod 0666 /dev/fuse"), "{said}");
    }
    assert!(!world.is_mounted());
}

/// A process in a mount namespace of its own, like the one with which podman keeps its namespaces.
struct Keeper(Child);

impl Keeper {
    /// Starts it; `None` where the user may not have such a namespace.
    fn start(person: &TestUser, how: &[&str]) -> Option<Self> {
        let mut keeper = person.command("unshare");
        keeper.args(how).args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            "echo ready; exec sleep 1000",
        ]);
        let mut keeper = Self(keeper.current_dir("/").stdout(Stdio::piped()).spawn().expect("unshare"));
        let mut line = String::new();
        let output = keeper.0.stdout.take().expect("its output");
        BufReader::new(output).read_line(&mut line).expect("a line");
        (line == "ready\n").then_some(keeper)
    }

    fn has(&self, world: &TestEnv) -> bool {
        let file = format!("/proc/{}/mountinfo", self.0.id());
        let mounts = world.person.does(|| fs::read_to_string(&file)).expect("its mounts");
        mounts.contains(&world.mountpoint().display().to_string())
    }
}

/// Returns the namespace of a process among those that hold a mount. Those of other tests may hold it too.
fn holder(mount: &Value, pid: u32) -> &Value {
    let mut holders = mount["held_elsewhere"].as_array().into_iter().flatten();
    let has = |holder: &&Value| {
        holder["processes"].as_array().into_iter().flatten().any(|process| process["pid"] == pid)
    };
    holders.find(has).unwrap_or_else(|| panic!("process {pid} holds it: {mount}"))
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// > L6: `esker umount` of a mount that another mount namespace keeps returns at once and names the processes there; its place is free for a new mount.
/// > L7: While another mount namespace holds a mount whose place is gone, `esker status` and `esker doctor` name the processes of that namespace, as far as the user may see them, and say what ends it.
#[test]
fn a_mount_that_another_namespace_keeps_frees_its_place() {
    for person in TestUser::all() {
        let is_root = person.is_root();
        let world = TestEnv::new(person, fixture::FULL);
        let mounted = world.mount(&[]);
        let daemon = serving_daemon(&mounted);
        let how: &[&str] = if is_root { &[] } else { &["--user", "--map-root-user"] };
        let Some(keeper) = Keeper::start(&world.person, how) else {
            esker_testkit::skip!("there are no user namespaces here");
        };
        let name = format!("{} (sleep, user {})", keeper.0.id(), world.person.uid);
        let advice = if is_root {
            format!("nsenter --target {} --mount umount", keeper.0.id())
        } else {
            "end these processes, or wait".to_owned()
        };
        let began = Instant::now();
        let output = world.esker(&["umount"]).arg(world.mountpoint()).output().expect("esker");
        assert!(output.status.success(), "{}", words(&output));
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        let said = words(&output);
        assert!(said.contains("mount namespace") && said.contains(&name) && said.contains(&advice), "{said}");
        assert!(!world.is_mounted());
        // The other namespace has it still: the fault is there.
        assert!(keeper.has(&world));
        std::mem::forget(mounted);
        let again = world.mount(&[]);
        let second = serving_daemon(&again);
        assert_ne!(second, daemon);
        again.does(|| fs::read(again.path("data/hex.txt"))).expect("reading");

        for command in ["status", "doctor"] {
            let said = words(&world.esker(&[command]).output().expect("esker"));
            assert!(said.contains(&name) && said.contains(&advice), "{command}: {said}");
        }
        let output = world.esker(&["status", "--json"]).arg(world.mountpoint()).output().expect("esker");
        let status: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let [here, gone] = &**status["mounts"].as_array().expect("mounts") else { panic!("{status}") };
        assert!(here["pid"] == second && here.get("held_elsewhere").is_none(), "{status}");
        assert!(gone["pid"] == daemon && gone["state"] == "serving", "{status}");
        let holder = holder(gone, keeper.0.id());
        assert_eq!(holder["mountpoint"], world.mountpoint().display().to_string());
        assert_eq!(holder["locked"], !is_root);
        let link = format!("/proc/{}/ns/mnt", keeper.0.id());
        let link = world.person.does(|| fs::read_link(&link)).expect("its namespace");
        assert_eq!(link.to_str(), Some(&*format!("mnt:[{}]", holder["namespace"])));

        if is_root {
            // What is advised ends it, while the process goes on.
            let pid = keeper.0.id().to_string();
            let mut umount = Command::new("nsenter");
            umount.args(["--target", &pid, "--mount", "umount"]).arg(world.mountpoint());
            assert!(umount.status().expect("nsenter").success());
            wait_until_gone(daemon);
        }
        drop(keeper);
        wait_until_gone(daemon);
        let said = words(&world.esker(&["status"]).arg(world.mountpoint()).output().expect("esker"));
        assert!(said.contains("full.test") && !said.contains("held"), "{said}");
        again.does(|| fs::read(again.path("data/hex.txt"))).expect("reading");
    }
}

/// The place is gone by `umount` of the system, of which the daemon learns nothing, and the daemon is replaced after it.
#[test]
fn a_mount_unmounted_by_other_programs_is_listed_with_its_holder() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let mounted = world.mount(&[]);
    let daemon = serving_daemon(&mounted);
    let Some(keeper) = Keeper::start(&world.person, &["--user", "--map-root-user"]) else {
        esker_testkit::skip!("there are no user namespaces here");
    };
    let unmount = world.person.command("fusermount3").arg("-u").arg(world.mountpoint()).status();
    assert!(unmount.expect("fusermount3").success() && keeper.has(&world));
    let shown = || {
        let output = world.esker(&["status", "--json"]).arg(world.mountpoint()).output().expect("esker");
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")["mounts"].clone()
    };
    let all = shown();
    holder(&all[0], keeper.0.id());
    std::mem::forget(mounted);
    let again = world.mount(&[]);
    signal(daemon, Signal::KILL);
    let next = again.wait_until("the next daemon", |_| {
        let all = shown();
        all[1]["state"] == "serving" && all[1]["pid"] != daemon
    });
    assert_eq!(next["repository"], shown()[1]["repository"]);
    holder(&shown()[1], keeper.0.id());
    let next = u32::try_from(shown()[1]["pid"].as_u64().expect("a process id")).expect("a process id");
    drop(keeper);
    wait_until_gone(next);
}
