//! Signals for commands that wait for a server which accepts their requests and never answers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use esker_testkit::fixture;
use esker_testkit::mirror::Fault;
use esker_testkit::s3::{BUCKET, S3Fault, S3Request, S3Server};
use esker_testkit::waiting::{Pace, until};
use rustix::process::{Pid, Signal, kill_process};

use crate::daemons::files_of;
use crate::publishing::NAME;
use crate::running::processes_naming;
use crate::test_env::{PATIENCE, TestEnv, words};
use crate::test_user::TestUser;

/// Time limit for the end of a command after a signal: the promised two seconds, and what a busy machine adds.
const ENDS_WITHIN: Duration = Duration::from_secs(6);
/// Exit code of a command that was interrupted.
const INTERRUPTED: i32 = 130;

/// Returns true for a folder of caches.
fn is_cache(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "cache" || name == ".cache")
}

/// Sends a signal to a command once `waits` holds, and returns what it said. It must end in time.
#[track_caller]
fn interrupted(mut command: Command, waits: impl Fn() -> bool, with: Signal) -> String {
    let what = format!("{command:?} {with:?}");
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("esker");
    if !until(PATIENCE, || waits() || child.try_wait().expect("its state").is_some()) || !waits() {
        let _ = child.kill();
        panic!(
            "no request of it met the silence: {what}: {}",
            words(&child.wait_with_output().expect("its end"))
        );
    }
    let began = Instant::now();
    kill_process(Pid::from_child(&child), with).expect("a signal");
    let ended = until(PATIENCE, || child.try_wait().expect("its state").is_some());
    let took = began.elapsed();
    if !ended {
        let _ = child.kill();
    }
    let output = child.wait_with_output().expect("its end");
    let said = words(&output);
    assert!(took < ENDS_WITHIN, "{took:?}: {what}: {said}");
    assert_eq!(output.status.code(), Some(INTERRUPTED), "{what}: {said}");
    assert!(said.contains("interrupt"), "{what}: {said}");
    said
}

/// A publisher whose repository is in a bucket.
struct Site {
    world: TestEnv,
    server: S3Server,
}

impl Site {
    fn home(&self, name: &str) -> String {
        self.world.path("home").join(name).display().to_string()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.world.esker(arguments);
        command.env("ESKER_STORAGE", self.home("machine")).env("TMPDIR", self.home("tmp"));
        command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret");
        command
    }

    #[track_caller]
    fn esker(&self, arguments: &[&str]) {
        let output = self.command(arguments).output().expect("esker");
        assert!(output.status.success(), "{arguments:?}: {}", words(&output));
    }

    /// Interrupts a command at the first request that is picked, by either signal; nothing that wasn't there is left but
    /// what is named.
    #[track_caller]
    fn interrupts(&self, arguments: &[&str], picks: fn(&S3Request) -> bool, may_stay: &str) {
        for with in [Signal::TERM, Signal::INT] {
            let before = files_of(&self.world, is_cache);
            let is_silent = Arc::new(AtomicBool::new(true));
            let silent = is_silent.clone();
            let rule = self
                .server
                .fault(move |request| silent.load(Ordering::SeqCst) && picks(request), S3Fault::NoAnswer);
            interrupted(self.command(arguments), || rule.hits() > 0, with);
            is_silent.store(false, Ordering::SeqCst);
            let left: Vec<PathBuf> = files_of(&self.world, is_cache).difference(&before).cloned().collect();
            let is_named = |path: &PathBuf| !may_stay.is_empty() && path.to_string_lossy().contains(may_stay);
            assert!(left.iter().all(is_named), "{arguments:?} {with:?} leaves {left:#?}");
        }
    }
}

/// > U14: A command that publishes, replicates, checks or collects ends soon after SIGTERM or Ctrl-C, also while a server accepts its requests and never answers, and the next one uses what was stored.
#[test]
fn commands_on_a_silent_bucket_end_soon_after_a_signal() {
    let site = Site { world: TestEnv::new(TestUser::ordinary(), fixture::RMD), server: S3Server::start() };
    let (tree, keys) = (site.home("tree"), site.home("keys"));
    let write = |number: u8| {
        site.world.person.does(|| {
            fs::create_dir_all(&tree).and_then(|()| fs::create_dir_all(site.home("tmp"))).expect("folders");
            for file in 0..20 {
                fs::write(Path::new(&tree).join(format!("{file}")), [number, file].repeat(5_000))
                    .expect("a file");
            }
        });
    };
    write(0);
    let bucket = format!("s3://{BUCKET}/cvmfs");
    let keys = ["--keys", &*keys];
    let create = ["repo", "create", NAME, "--storage", &bucket, "--endpoint", &site.server.endpoint()];
    let is_put = |request: &S3Request| request.method == "PUT";
    let is_data = |request: &S3Request| request.method == "PUT" && request.key.contains("/data/");
    let is_head = |request: &S3Request| request.method == "PUT" && request.key.ends_with(".cvmfspublished");
    let is_any = |_: &S3Request| true;
    site.esker(&[&create[..], &keys].concat());
    let publish = [&["publish", NAME, &tree, "--quiet"][..], &keys].concat();
    site.interrupts(&publish, is_any, "");
    site.interrupts(&publish, is_data, "machine");
    site.interrupts(&publish, is_head, "machine");
    // What was stored is used: only the last objects are put again.
    let puts = |is_it: fn(&S3Request) -> bool| site.server.requests().iter().filter(|it| is_it(it)).count();
    let before = puts(is_data);
    site.esker(&publish);
    assert!(puts(is_data) - before < 10, "{} objects are stored again", puts(is_data) - before);
    write(1);
    site.esker(&publish);
    site.interrupts(&[&["tag", "add", NAME, "v1"][..], &keys].concat(), is_put, "machine");
    site.interrupts(&[&["rollback", NAME, "--to", "1"][..], &keys].concat(), is_put, "machine");
    site.interrupts(&[&["repo", "resign", NAME][..], &keys].concat(), is_put, "machine");
    let collect = ["collect", NAME, "--keep-tags", "--automatic-tags", "1s", "--grace", "0", "--quiet"];
    let collect = [&collect[..], &keys].concat();
    site.interrupts(&collect, is_any, "machine");
    site.interrupts(&collect, |request| request.query.contains_key("list-type"), "machine");
    for check in [&["check", NAME][..], &["check", NAME, "--data"]] {
        site.interrupts(&[check, &keys].concat(), is_any, "machine");
        site.interrupts(&[check, &keys].concat(), |request| request.key.contains("/data/"), "machine");
        site.esker(&[check, &keys].concat());
    }
    site.esker(&collect);
    let replicate = [
        "replicate",
        &site.world.url(),
        "--to",
        "s3://bucket/replica",
        "--endpoint",
        &site.server.endpoint(),
    ];
    let key = site.world.path("key.pub").display().to_string();
    let replicate = [&replicate[..], &["--public-key", &key, "--quiet"]].concat();
    site.interrupts(&replicate, is_data, "machine");
    site.esker(&replicate);
}

/// > U14: A command that publishes, replicates, checks or collects ends soon after SIGTERM or Ctrl-C, also while a server accepts its requests and never answers, and the next one uses what was stored.
#[test]
fn commands_that_fetch_from_a_silent_server_end_soon_after_a_signal() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let (url, replica) = (world.url(), world.path("home/replica").display().to_string());
    let key = world.path("key.pub").display().to_string();
    let is_data = |path: &str| path.contains("/data/");
    let is_any = |_: &str| true;
    for with in [Signal::TERM, Signal::INT] {
        for (arguments, picks) in [
            (&["replicate", &url, "--to", &replica, "--quiet"][..], is_any as fn(&str) -> bool),
            (&["replicate", &url, "--to", &replica, "--quiet"], is_data),
            (&["check", &url], is_any),
            (&["check", &url, "--data"], is_data),
        ] {
            let rule = world.mirror.fault(picks, Fault::NoAnswer);
            let mut command = world.esker(arguments);
            command.args(["--public-key", &key]).env("ESKER_STORAGE", world.path("home/machine"));
            interrupted(command, || rule.hits() > 0, with);
            rule.lift();
        }
    }
    let mut again = world.esker(&["replicate", &url, "--to", &replica, "--quiet", "--public-key", &key]);
    let output = again.env("ESKER_STORAGE", world.path("home/machine")).output().expect("esker");
    assert!(output.status.success(), "{}", words(&output));
    let temporary: Vec<PathBuf> =
        files_of(&world, is_cache).into_iter().filter(|path| is_temporary(path)).collect();
    assert!(temporary.is_empty(), "{temporary:?}");
}

/// True for names that stand for a file that isn't finished.
fn is_temporary(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    ["tmp", "temp", "partial", ".new"].iter().any(|part| name.contains(part))
}

/// Commands that only read keep nothing that a signal could leave behind.
#[test]
fn readers_of_a_silent_server_are_gone_soon_after_a_signal() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let key = world.path("key.pub").display().to_string();
    let (url, mountpoint) = (world.url(), world.mountpoint().display().to_string());
    for with in [Signal::TERM, Signal::INT] {
        for arguments in [
            &["ls", &url][..],
            &["find", &url],
            &["stat", &url, "/"],
            &["revision", &url],
            &["log", &url],
            &["mount", &url, &mountpoint],
            &["run", &url],
        ] {
            let rule = world.mirror.fault(|_| true, Fault::NoAnswer);
            let mut command = world.esker(arguments);
            command.args(["--public-key", &key]);
            if arguments[0] == "run" {
                command.args(["--", "true"]);
            }
            let what = format!("{arguments:?} {with:?}");
            let mut child = command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("esker");
            rule.wait_for_hits(1);
            let began = Instant::now();
            kill_process(Pid::from_child(&child), with).expect("a signal");
            assert!(until(PATIENCE, || child.try_wait().expect("its state").is_some()), "{what}");
            let output = child.wait_with_output().expect("its end");
            assert!(!output.status.success(), "{what}: {}", words(&output));
            let is_gone = Pace::PROCESS.until(PATIENCE, || processes_naming(&url).is_empty());
            assert!(is_gone && began.elapsed() < ENDS_WITHIN, "{what}: {:?}", began.elapsed());
            assert!(!world.is_mounted(), "{what}");
            rule.lift();
        }
    }
}
