//! Many commands with one image: how many mounts they have, and how long those live.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use esker_testkit::fixture;
use esker_testkit::mirror::Mirror;
use esker_testkit::waiting::until;
use esker_testkit::{skip, skip_optional};
use rustix::process::{Pid, Signal, kill_process};

use super::rootfs::Rootfs;
use crate::publishing::{NAME, Workshop};
use crate::running::processes_naming;
use crate::test_env::{PATIENCE, TestEnv, printed};
use crate::test_user::TestUser;

/// A person with a small system, in an image file or a repository.
struct Images {
    world: TestEnv,
    /// Image argument of `esker run`.
    image: String,
    options: Vec<String>,
}

/// A command that has printed its first line and waits for the end of its input.
struct Waiting {
    child: Child,
    line: String,
}

impl Waiting {
    #[track_caller]
    fn new(command: &mut Command) -> Waiting {
        Waiting::said(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("running esker"))
    }

    #[track_caller]
    fn said(mut child: Child) -> Waiting {
        let mut output = child.stdout.take().expect("its output");
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            // Byte by byte, so that later lines stay unread.
            let read = BufReader::with_capacity(1, &mut output).read_line(&mut line);
            // After the timeout the receiver is gone.
            let _ = sender.send((read.map(|_| line), output));
        });
        let mut waiting = Waiting { child, line: String::new() };
        // If nothing comes, dropping it ends the command.
        let (line, output) = receiver.recv_timeout(PATIENCE).expect("a line in time");
        waiting.child.stdout = Some(output);
        waiting.line = line.expect("a line").trim_end().to_owned();
        assert!(!waiting.line.is_empty(), "it ended: {:?}", waiting.child.try_wait());
        waiting
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().expect("its end").success());
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Images {
    fn new() -> Images {
        Images::with(|_| ())
    }

    /// Makes an image with more than a small system.
    fn with(more: impl FnOnce(&Rootfs)) -> Images {
        Images::of(TestUser::ordinary(), more)
    }

    fn of(person: TestUser, more: impl FnOnce(&Rootfs)) -> Images {
        let world = TestEnv::new(person, fixture::RMD);
        let root = Rootfs::new(&world.path("root"));
        more(&root);
        let image = world.path("image.sqfs");
        let mut make = Command::new("mksquashfs");
        make.arg(root.path()).arg(&image).args(["-all-root", "-quiet", "-no-progress", "-noappend"]);
        printed(&mut make);
        Images { world, image: image.display().to_string(), options: Vec::new() }
    }

    /// Publishes it as a folder of a repository.
    fn published(more: impl FnOnce(&Rootfs) + Send) -> Images {
        Images::published_by(TestUser::ordinary(), more)
    }

    fn published_by(person: TestUser, more: impl FnOnce(&Rootfs) + Send) -> Images {
        Images::published_as("system", person, more)
    }

    fn published_as(folder: &str, person: TestUser, more: impl FnOnce(&Rootfs) + Send) -> Images {
        let workshop = Workshop::with(person, |tree| more(&Rootfs::new(&tree.join(folder))));
        workshop.create();
        workshop.json(&["publish", NAME, &workshop.tree()]);
        let image = format!("file://{}/{NAME}:/{folder}", workshop.home("storage"));
        let (key, cache) = (workshop.home(&format!("keys/{NAME}.pub")), workshop.world.cache());
        let options = ["--public-key", &key, "--cache", &cache.display().to_string()];
        Images { image, options: options.map(str::to_owned).into(), world: workshop.world }
    }

    fn run(&self, command: &[&str]) -> Command {
        self.run_with(&[], command)
    }

    fn run_with(&self, options: &[&str], command: &[&str]) -> Command {
        let mut call = self.world.esker(&["run", "--no-bind"]);
        call.args(options)
            .args(&self.options)
            .arg(&self.image)
            .arg("--")
            .args(command)
            .current_dir(self.world.path("home"));
        call
    }

    /// Starts a command that prints its user namespace and the device of its root.
    #[track_caller]
    fn waiting(&self) -> Waiting {
        let script = "grep -m1 ' /bin /bin ' /proc/self/mountinfo | cut -d' ' -f3; read never; true";
        Waiting::new(&mut self.run(&["sh", "-c", script]))
    }

    fn mount_processes(&self) -> Vec<u32> {
        processes_naming("--keep=").into_iter().filter(|pid| self.is_of(*pid)).collect()
    }

    fn is_of(&self, pid: u32) -> bool {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&*self.image)
    }

    /// Asserts that no process, socket or log is left.
    #[track_caller]
    fn is_released(&self) {
        let left = || (self.mount_processes(), fs::read_dir(self.world.path("run/esker")).is_ok());
        assert!(until(PATIENCE, || left() == (Vec::new(), false)), "left: {:?}", left());
    }
}

fn namespace(pid: u32) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/ns/user")).expect("a namespace")
}

/// > N7: All commands of a job that run from the same image share one mount and one user namespace; it is released when the last of them ends, however that ends, and what a command leaves running keeps it until then.
#[test]
fn commands_of_a_job_share_one_mount() {
    let images = Images::new();
    let first = images.waiting();
    let others: Vec<Waiting> = (0..8).map(|_| images.waiting()).collect();
    let devices: BTreeSet<&str> =
        others.iter().chain([&first]).map(|waiting| waiting.line.as_str()).collect();
    assert_eq!(devices.len(), 1, "one mount: {devices:?}");
    let spaces: BTreeSet<PathBuf> = others.iter().map(|waiting| namespace(waiting.child.id())).collect();
    assert_eq!(spaces, BTreeSet::from([namespace(first.child.id())]));
    assert_eq!(images.mount_processes().len(), 1);
    first.end();
    assert_eq!(printed(&mut images.run(&["cat", "/made-for-this-test"])), "a system\n");
    others.into_iter().for_each(Waiting::end);
    images.is_released();

    // Killed, not asked.
    let waiting = images.waiting();
    assert_eq!(images.mount_processes().len(), 1);
    drop(waiting);
    images.is_released();

    // The background process reads from the image after all others have ended.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let script = "exec 3<&0; (read go <&3; cat /made-for-this-test) & echo left";
    let (behind, go) = std::io::pipe().expect("a pipe");
    let status =
        images.run(&["sh", "-c", script]).stdin(behind).stdout(writer).status().expect("running esker");
    assert!(status.success());
    drop(go);
    let lines: Vec<String> = BufReader::new(reader).lines().map(|line| line.expect("a line")).collect();
    assert_eq!(lines, ["left", "a system"]);
    images.is_released();
}

/// All users see command lines: the process of a shared mount gets a proxy's password another way, and uses it.
#[test]
fn a_shared_mount_shows_no_password_of_a_proxy() {
    let mut images = Images::new();
    let proxy = Mirror::serve(images.world.path("home"));
    let image = fs::read(&images.image).expect("the image");
    proxy.make(move |path| path.ends_with("/it.sqfs").then(|| image.clone()));
    images.image = "http://images.invalid/it.sqfs".to_owned();
    proxy.say("ETag", "\"one\"");
    let given = format!("http://me:not-to-be-seen@127.0.0.1:{}", proxy.port());
    images.options = vec![format!("--proxy={given}")];
    let waiting = images.waiting();
    let another = images.waiting();
    assert_eq!(another.line, waiting.line, "one mount");
    let [mount_process] = images.mount_processes()[..] else {
        panic!("one mount process: {:?}", images.mount_processes())
    };
    let line = fs::read(format!("/proc/{mount_process}/cmdline")).expect("its command line");
    let line = String::from_utf8_lossy(&line);
    assert!(line.contains("http://me:***@127.0.0.1") && !line.contains("not-to-be-seen"), "{line}");
    let requests = proxy.requests();
    let field = "Basic bWU6bm90LXRvLWJlLXNlZW4=";
    assert!(!requests.is_empty());
    assert!(requests.iter().all(|request| request.header("proxy-authorization") == Some(field)));
    another.end();
    waiting.end();
    images.is_released();
}

/// A scheduler's signals to a whole job are for the command, which keeps its files until it ends.
#[test]
fn a_shared_mount_survives_signals_to_the_whole_job() {
    let images = Images::new();
    let waiting = images.waiting();
    for mount_process in images.mount_processes() {
        let pid = Pid::from_raw(mount_process.cast_signed()).expect("a process");
        for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
            kill_process(pid, signal).expect("sent");
        }
    }
    assert_eq!(printed(&mut images.run(&["cat", "/made-for-this-test"])), "a system\n");
    waiting.end();
    images.is_released();
}

/// Many commands start at the same moment, and one mount is made.
#[test]
fn simultaneous_commands_share_one_mount() {
    let images = Images::new();
    let holder = images.waiting();
    let rush: Vec<Child> = (0..32)
        .map(|_| {
            let mut command =
                images.run(&["sh", "-c", "grep -m1 ' /bin /bin ' /proc/self/mountinfo | cut -d' ' -f3"]);
            command.stdout(Stdio::piped()).spawn().expect("running esker")
        })
        .collect();
    for child in rush {
        let output = child.wait_with_output().expect("its end");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), holder.line);
    }
    assert_eq!(images.mount_processes().len(), 1);
    holder.end();
    images.is_released();
}

/// A control group of the version 1 or 2 hierarchy, as a job has one.
struct Job(PathBuf);

impl Job {
    /// Makes a job; `None` where this process may make none.
    fn new(name: &str) -> Option<Job> {
        let own = fs::read_to_string("/proc/self/cgroup").expect("control groups");
        let unified =
            own.lines().find_map(|line| line.strip_prefix("0::"))?.trim_start_matches('/').to_owned();
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(PathBuf::from);
        let root = roots.into_iter().find(|root| root.join("cgroup.procs").exists())?;
        let path = root.join(unified).join(format!("esker-{}-{name}", std::process::id()));
        fs::create_dir(&path).ok().map(|()| Job(path))
    }

    /// Starts a command in the group: a shell waits until it is in there, and becomes `esker run`.
    #[track_caller]
    fn start(&self, images: &Images, script: &str) -> Waiting {
        let call = images.run(&["sh", "-c", script]);
        let mut shell = images.world.person.command("/bin/sh");
        shell.args(["-c", "read joined && exec \"$@\"", "sh"]).arg(call.get_program()).args(call.get_args());
        shell.env_clear().envs(call.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.current_dir(images.world.path("home")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = shell.spawn().expect("running a shell");
        fs::write(self.0.join("cgroup.procs"), child.id().to_string()).expect("joining the group");
        child.stdin.as_mut().expect("its input").write_all(b"joined\n").expect("told");
        Waiting::said(child)
    }

    fn kill(&self) {
        for line in fs::read_to_string(self.0.join("cgroup.procs")).expect("processes").lines() {
            let pid = Pid::from_raw(line.parse().expect("a number")).expect("a process");
            // It may have ended by itself since.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.kill();
        until(PATIENCE, || fs::remove_dir(&self.0).is_ok());
    }
}

/// > N8: Each job (control group; with Slurm each step) has a mount of its own, so a job that is killed as a whole takes nothing from another.
#[test]
fn a_killed_job_does_not_affect_another() {
    let images = Images::new();
    let (Some(one), Some(two)) = (Job::new("one"), Job::new("two")) else {
        skip_optional!("control groups can't be made here");
        return;
    };
    let script =
        "grep -m1 ' /bin /bin ' /proc/self/mountinfo | cut -d' ' -f3; read go; cat /made-for-this-test";
    let first = one.start(&images, script);
    let mut second = two.start(&images, script);
    assert_ne!(first.line, second.line, "a mount for each");
    assert_eq!(images.mount_processes().len(), 2);
    one.kill();
    drop(first);
    assert!(
        until(PATIENCE, || images.mount_processes().len() <= 1),
        "the first job's mount process lives on"
    );
    drop(second.child.stdin.take());
    let mut rest = String::new();
    second.child.stdout.as_mut().expect("its output").read_to_string(&mut rest).expect("the rest");
    assert_eq!(rest, "a system\n");
    assert!(second.child.wait().expect("its end").success());
}

/// Files of a start, of which so many are enough to know it by.
const STARTS_WITH: (u32, u32) = (300, 120);
/// Letters of each: one that can't be compressed, and so takes a block of its own.
const LETTERS: u32 = 64 << 10;

fn noise(seed: u32) -> String {
    let mut state = seed + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        char::from(b' ' + (state % 95) as u8)
    };
    (0..LETTERS).map(|_| next()).collect()
}

#[test]
fn a_replayer_prefetches_for_a_command_with_a_recorded_start() {
    if !TestUser::myself().is_root() {
        skip!("only root sees what a mount process has read");
    }
    let (all, _) = STARTS_WITH;
    let start = |root: &Rootfs| {
        (0..all).for_each(|number| root.write(&format!("/start/{number}"), &noise(number), 0o644));
    };
    // Letters of 95 take 0.82 of a byte each in an image; the objects of a repository are plain in the cache.
    is_gone_ahead_of(&Images::with(start), u64::from(LETTERS) * 8 / 10);
    // Each is compared with its digest before it is read, so it is read twice.
    is_gone_ahead_of(&Images::published(start), 2 * u64::from(LETTERS));
}

/// Checks that a replayer prefetches. `stored` is the least size of each file of the start.
#[track_caller]
fn is_gone_ahead_of(images: &Images, stored: u64) {
    let (all, known_by) = STARTS_WITH;
    let reads = |count: u32, options: &[&str]| {
        let script = "i=0; while [ $i -lt $0 ]; do cat /start/$i; i=$((i+1)); done > /dev/null; echo so far; read never; true";
        let command = ["sh", "-c", script, &count.to_string()];
        Waiting::new(&mut images.run_with(options, &command))
    };
    // Returns the bytes read by the process that keeps the system, nearly all of them of the system.
    let has_read = || -> u64 {
        let mount_processes = images.mount_processes();
        let [mount_process] = mount_processes[..] else { panic!("{mount_processes:?}") };
        let counts = fs::read_to_string(format!("/proc/{mount_process}/io")).expect("what it has read");
        let line = counts.lines().find_map(|line| line.strip_prefix("rchar: ")).expect("a count");
        line.parse().expect("a number")
    };
    let stored = stored * u64::from(all);
    reads(all, &[]).end();
    images.is_released();

    let again = reads(known_by, &[]);
    // Some steps are kept back, to see whether the command comes by.
    let goes_ahead = until(PATIENCE, || has_read() >= stored * 9 / 10);
    assert!(goes_ahead, "the replayer did not read ahead: {} bytes", has_read());
    again.end();
    images.is_released();

    let alone = reads(known_by, &["--no-prefetch"]);
    assert!(has_read() < stored * 8 / 10, "no node should go ahead");
    alone.end();
    images.is_released();
}

/// The packed or published tree may have been the layer of another overlay. Its marks are for that one.
#[test]
fn overlay_marks_below_a_command_have_no_effect() {
    let Some(person) = TestUser::root() else { skip!("only root sets marks of overlays") };
    let mark = |root: &Rootfs| {
        root.write("/sub/file", "seen\n", 0o644);
        let (folder, none) = (root.path().join("sub"), rustix::fs::XattrFlags::empty());
        rustix::fs::setxattr(&folder, "trusted.overlay.redirect", b"/elsewhere", none).expect("an attribute");
    };
    let published = Images::published_by(person, mark);
    let show = ["cat", "/sub/file"];
    assert_eq!(printed(&mut Images::of(person, mark).run(&show)), "seen\n");
    assert_eq!(printed(&mut published.run_with(&["--fixed"], &show)), "seen\n");
    let (repository, _) = published.image.rsplit_once(':').expect("a folder of a repository");
    let mut around = published.world.esker(&["run", "--fixed", repository]);
    around.args(&published.options).args(["--", "cat", &format!("/cvmfs/{NAME}/system/sub/file")]);
    assert_eq!(printed(&mut around), "seen\n");
}

/// Names of container images have colons, and other characters are allowed, too.
#[test]
fn a_folder_name_may_contain_separators_of_overlay_options() {
    let images = Images::published_as("a:latest,b\\", TestUser::ordinary(), |_| ());
    let script = "echo new > /made-for-this-test && cat /made-for-this-test";
    assert_eq!(printed(&mut images.run_with(&["--writable-tmpfs"], &["sh", "-c", script])), "new\n");
}

/// The process of a shared mount resolves paths as the command's user does, and a command that names the same image by
/// another path joins the same mount.
#[test]
fn paths_are_those_of_the_directory_that_the_command_is_started_in() {
    let mut images = Images::published(|_| ());
    let waiting =
        |images: &Images| Waiting::new(&mut images.run(&["sh", "-c", "echo here; read never; true"]));
    let first = waiting(&images);
    let key = format!("keys/{NAME}.pub");
    images.options = ["--public-key", &key, "--cache", "cache"].map(str::to_owned).into();
    let second = waiting(&images);
    assert_eq!(images.mount_processes().len(), 1);
    first.end();
    second.end();
    images.is_released();
    fs::remove_dir_all(images.world.cache()).expect("it was there");
    assert_eq!(printed(&mut images.run(&["cat", "/made-for-this-test"])), "a system\n");
    assert!(images.world.cache().is_dir(), "made where it was named");
}
