//! Test environment: a user's folder with a cache, keys and a mount point, and calls of `esker`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use esker_testkit::fixture::{Fixture, Repository};
use esker_testkit::mirror::Mirror;
use esker_testkit::programs;
use esker_testkit::waiting::Pace;
use serde_json::Value;

use crate::exclusive::{self, Pass};
use crate::test_user::TestUser;

/// Time limit of any wait; exceeding it is a failure, not slowness.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Path of the `esker` that cargo built with these tests.
pub(crate) const BUILT: &str = env!("CARGO_BIN_EXE_esker");

/// Returns the `esker` that is tested.
pub(crate) fn esker_binary() -> PathBuf {
    programs::esker(BUILT)
}

/// A fixture on a mirror, and a user.
pub(crate) struct TestEnv {
    pub(crate) person: TestUser,
    pub(crate) repository: Repository,
    pub(crate) mirror: Mirror,
    folder: tempfile::TempDir,
    esker: PathBuf,
    _pass: Pass,
}

impl TestEnv {
    pub(crate) fn new(person: TestUser, fixture: Fixture) -> TestEnv {
        let repository = fixture.unpack();
        let mirror = Mirror::serve(repository.document_root());
        TestEnv::at(person, repository, mirror)
    }

    pub(crate) fn at(person: TestUser, repository: Repository, mirror: Mirror) -> TestEnv {
        TestEnv::with(exclusive::among_others(), person, repository, mirror)
    }

    /// Makes the only world there is, for measuring time.
    pub(crate) fn alone(person: TestUser, repository: Repository, mirror: Mirror) -> TestEnv {
        TestEnv::with(exclusive::alone(), person, repository, mirror)
    }

    fn with(pass: Pass, person: TestUser, repository: Repository, mirror: Mirror) -> TestEnv {
        let folder = tempfile::Builder::new().prefix("esker-matrix-").tempdir().expect("a temporary folder");
        for name in ["home", "run", "mnt"] {
            fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        fs::copy(repository.fixture().public_key(), folder.path().join("key.pub")).expect("copying the key");
        let everyone =
            |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).expect("a mode");
        everyone(folder.path(), 0o755);
        everyone(&folder.path().join("key.pub"), 0o644);
        // Other users may be unable to reach the source tree, and guides call it by its name.
        let built = esker_binary();
        let is_named = built.file_name().is_some_and(|name| name == "esker");
        let esker = if is_named && person.does(|| fs::File::open(&built).is_ok()) {
            built
        } else {
            let copy = folder.path().join("esker");
            programs::copy(&built, &copy);
            copy
        };
        for name in ["home", "run", "mnt"] {
            let path = folder.path().join(name);
            std::os::unix::fs::chown(&path, Some(person.uid), Some(person.gid))
                .expect("giving a folder away");
            everyone(&path, 0o700);
        }
        TestEnv { person, repository, mirror, folder, esker, _pass: pass }
    }

    pub(crate) fn fixture(&self) -> Fixture {
        self.repository.fixture()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn cache(&self) -> PathBuf {
        self.path("home/cache")
    }

    pub(crate) fn empty_cache(&self) {
        match fs::remove_dir_all(self.cache()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                panic!("emptying the cache: {error}")
            }
            _ => {}
        }
    }

    pub(crate) fn mountpoint(&self) -> PathBuf {
        self.path("mnt")
    }

    pub(crate) fn url(&self) -> String {
        self.mirror.url(self.fixture().name())
    }

    /// Returns the binary, where this world's person can start it.
    pub(crate) fn program(&self) -> &Path {
        &self.esker
    }

    /// Returns a call of `esker` by this world's person.
    pub(crate) fn esker(&self, arguments: &[&str]) -> Command {
        let mut command = self.person.command(&self.esker);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.path("home"))
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("ESKER_CACHE", self.path("home/.cache/esker"))
            .env("ESKER_CONFIG_ROOT", self.config_root())
            .current_dir("/");
        command
    }

    /// Returns the folder that stands for `/` when configuration is read: nothing of this machine's own is.
    pub(crate) fn config_root(&self) -> PathBuf {
        self.path("root")
    }

    /// Adds the arguments that `mount` and `run` share.
    fn repository_arguments(&self, command: &mut Command, options: &[&str]) {
        command.arg("--public-key").arg(self.path("key.pub")).arg("--cache").arg(self.cache()).args(options);
    }

    fn call_mount(&self, options: &[&str]) -> Output {
        self.call_mount_of(&self.url(), options)
    }

    fn call_mount_of(&self, url: &str, options: &[&str]) -> Output {
        let mut command = self.esker(&["mount", url]);
        command.arg(self.mountpoint());
        self.repository_arguments(&mut command, options);
        command.output().expect("running esker")
    }

    /// Returns the mount that was made in another way.
    pub(crate) fn mounted(&self) -> Mounted<'_> {
        assert!(self.is_mounted());
        Mounted { world: self }
    }

    /// Mounts where something may be mounted already.
    pub(crate) fn try_mount_over(&self) -> Result<(), Output> {
        let output = self.call_mount(&[]);
        if output.status.success() { Ok(()) } else { Err(output) }
    }

    pub(crate) fn try_mount(&self, options: &[&str]) -> Result<Mounted<'_>, Output> {
        let output = self.call_mount(options);
        if output.status.success() {
            Ok(Mounted { world: self })
        } else {
            assert!(!self.is_mounted(), "a failed mount leaves nothing mounted: {}", words(&output));
            Err(output)
        }
    }

    #[track_caller]
    pub(crate) fn mount(&self, options: &[&str]) -> Mounted<'_> {
        self.try_mount(options).unwrap_or_else(|output| panic!("esker mount failed: {}", words(&output)))
    }

    /// Mounts the repository from another server than the mirror.
    #[track_caller]
    pub(crate) fn mount_of(&self, url: &str, options: &[&str]) -> Mounted<'_> {
        let output = self.call_mount_of(url, options);
        assert!(output.status.success(), "esker mount failed: {}", words(&output));
        Mounted { world: self }
    }

    /// Returns `esker run …` up to and including the `--`; the caller adds the command.
    pub(crate) fn run(&self, options: &[&str]) -> Command {
        let mut command = self.esker(&["run", &self.url()]);
        self.repository_arguments(&mut command, options);
        command.arg("--");
        command
    }

    /// Returns the text of all logs of this world's daemons.
    pub(crate) fn logs(&self) -> String {
        self.person.does(|| {
            let folders = fs::read_dir(self.path("run")).into_iter().flatten().flatten();
            let files =
                folders.flat_map(|folder| fs::read_dir(folder.path()).into_iter().flatten().flatten());
            let logs =
                files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|end| end == "log"));
            logs.map(|log| String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned()).collect()
        })
    }

    pub(crate) fn is_mounted(&self) -> bool {
        let mounts = mountinfo();
        let mountpoint = self.mountpoint();
        mounts.lines().any(|line| line.split(' ').nth(4).is_some_and(|at| Path::new(at) == mountpoint))
    }
}

/// A mount that is unmounted on drop, which is verified.
pub(crate) struct Mounted<'w> {
    world: &'w TestEnv,
}

impl Mounted<'_> {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.world.mountpoint().join(name)
    }

    /// Returns the output of `esker status --json` for this mount.
    pub(crate) fn status(&self) -> Value {
        let output = self.world.esker(&["status", "--json"]).output().expect("running esker");
        assert!(output.status.success(), "esker status failed: {}", words(&output));
        let all: Value = serde_json::from_slice(&output.stdout).expect("JSON from esker status");
        let mountpoint = self.world.mountpoint();
        all["mounts"]
            .as_array()
            .unwrap_or_else(|| panic!("no mounts in {all}"))
            .iter()
            .find(|mount| mount["mountpoint"].as_str().is_some_and(|at| Path::new(at) == mountpoint))
            .unwrap_or_else(|| panic!("{} is not in {all}", mountpoint.display()))
            .clone()
    }

    /// Waits until the status satisfies the predicate.
    #[track_caller]
    pub(crate) fn wait_until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let held = Pace::PROCESS.until_some(PATIENCE, || Some(self.status()).filter(&holds));
        held.unwrap_or_else(|| panic!("{what} did not come about: {:#}", self.status()))
    }

    /// Runs a function with the rights of the mounting user.
    pub(crate) fn does<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        self.world.person.does(what)
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let mut said = String::new();
        let ended = Pace::PROCESS.until_some(PATIENCE, || {
            let mut umount = self.world.esker(&["umount"]);
            let output = umount.arg(self.world.mountpoint()).output().expect("running esker");
            if output.status.success() && !self.world.is_mounted() {
                return Some(true);
            }
            // Another test that looks at all mounts may be using ours.
            said = words(&output);
            let is_busy = ["still uses it", "busy"].iter().any(|word| said.contains(word));
            (!is_busy).then_some(false)
        });
        assert!(ended == Some(true) || std::thread::panicking(), "esker umount failed: {said}");
    }
}

/// Returns the output of a command, which must succeed.
#[track_caller]
pub(crate) fn printed(command: &mut Command) -> String {
    String::from_utf8(printed_bytes(command)).expect("text")
}

/// Returns the output of a command as bytes.
#[track_caller]
pub(crate) fn printed_bytes(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap_or_else(|error| panic!("running {command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", words(&output));
    output.stdout
}

/// Returns the error of a command on stderr, which must fail with this exit code.
#[track_caller]
pub(crate) fn complaint(command: &mut Command, code: i32) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("running {command:?}: {error}"));
    assert_eq!(output.status.code(), Some(code), "{command:?}: {}", words(&output));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the output of a process, for a message.
pub(crate) fn words(output: &Output) -> String {
    format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Gives the calling thread and its children mounts of their own: those of other tests end there, and other tests don't
/// see what is mounted there. Needs root.
pub(crate) fn with_private_mounts() {
    use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
    crate::sys::unshare_mounts().expect("a mount namespace for this thread");
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).expect("private mounts");
    // A daemon goes on while its mount is in any namespace.
    for line in mountinfo().lines().filter(|line| line.contains(" - fuse.esker ")) {
        let mountpoint = line.split(' ').nth(4).expect("a mount point");
        // Mount points with spaces are escaped and stay, and one below another is gone already.
        let _ = unmount(mountpoint, UnmountFlags::DETACH);
    }
}

/// Hides the configuration of this machine from the test that calls it and from all that it starts: for tests of a user's
/// own settings, which count beside those of the machine. Only root can do that; without root's rights the machine
/// must not have any.
pub(crate) fn hide_configuration() {
    use rustix::mount::{MountFlags, mount};
    let there = ["/etc/cvmfs", "/etc/esker"].into_iter().filter(|folder| Path::new(folder).exists());
    let there: Vec<_> = there.collect();
    if there.is_empty() || !TestUser::myself().is_root() {
        return;
    }
    with_private_mounts();
    for folder in there {
        mount("none", folder, "tmpfs", MountFlags::empty(), None).expect("an empty folder");
    }
}

/// Returns the list of mounts. Not all of their names are text, other tests see to that.
pub(crate) fn mountinfo() -> String {
    String::from_utf8_lossy(&fs::read("/proc/thread-self/mountinfo").expect("the list of mounts"))
        .into_owned()
}
