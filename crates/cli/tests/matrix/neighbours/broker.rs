//! The broker of a node with a small cache, and the disk on which that is.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};

use crate::test_env::{Mounted, PATIENCE, TestEnv, esker_binary};
use crate::test_user::TestUser;

/// Lines of the broker's that are kept.
const LINES: usize = 50;

/// A disk of its own for the cache, which can be filled; where that can't be had, a folder that can't.
pub(super) struct SmallDisk {
    path: PathBuf,
    is_small: bool,
}

impl SmallDisk {
    pub(super) fn new(path: PathBuf, size: u64) -> SmallDisk {
        fs::create_dir(&path).expect("a folder");
        let is_small = TestUser::myself().is_root();
        if is_small {
            let options = std::ffi::CString::new(format!("size={size}")).expect("text");
            let flags = rustix::mount::MountFlags::empty();
            rustix::mount::mount("tmpfs", &path, "tmpfs", flags, Some(options.as_c_str()))
                .expect("a small disk");
        } else {
            println!("not run by root: full disks and other users are left to a run as root");
        }
        SmallDisk { path, is_small }
    }

    pub(super) fn is_small(&self) -> bool {
        self.is_small
    }

    pub(super) fn cache(&self) -> PathBuf {
        self.path.join("cache")
    }

    /// Fills the disk, if it has a limit.
    pub(super) fn fill(&self) -> bool {
        if self.is_small {
            let mut ballast = fs::File::create(self.path.join("ballast")).expect("a file");
            for piece in [64 << 10, 4 << 10] {
                let piece = vec![1; piece];
                while ballast.write_all(&piece).is_ok() {}
            }
        }
        self.is_small
    }

    /// Frees the filled space.
    pub(super) fn empty(&self) {
        if self.is_small {
            fs::remove_file(self.path.join("ballast")).expect("the ballast");
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if self.is_small {
            // A failure would be one of the folder's removal as well.
            let _ = rustix::mount::unmount(&self.path, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// A running `esker broker`, killed when dropped.
pub(super) struct NodeBroker {
    process: Child,
    socket: PathBuf,
    cache: PathBuf,
    said: Arc<Mutex<VecDeque<String>>>,
    listener: Option<JoinHandle<()>>,
}

impl NodeBroker {
    pub(super) fn start(world: &TestEnv, disk: &SmallDisk) -> NodeBroker {
        let folder = world.path("broker");
        fs::create_dir(&folder).expect("a folder");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("a mode");
        let (socket, cache) = (folder.join("socket"), disk.cache());
        let mut command = std::process::Command::new(esker_binary());
        command.args(["broker", "--connect", "127.0.0.1", "--quota", &super::QUOTA.to_string()]);
        command.arg("--cache").arg(&cache).arg("--socket").arg(&socket);
        command.env_clear().env("ESKER_CONFIG_ROOT", world.config_root());
        let mut process = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("esker broker");
        let said = Arc::<Mutex<VecDeque<String>>>::default();
        let (lines, output) = (said.clone(), process.stderr.take().expect("its output"));
        let (ready, serves) = channel();
        let listener = std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // Only the first one is waited for.
                let _ = ready.send(line.clone());
                let mut lines = lines.lock().expect("lines");
                lines.push_back(line);
                if lines.len() > LINES {
                    lines.pop_front();
                }
            }
        });
        let first = serves.recv_timeout(PATIENCE).expect("a word of the broker");
        assert!(first.contains("serving the cache"), "{first}");
        NodeBroker { process, socket, cache, said, listener: Some(listener) }
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the options of a mount that uses and trusts it.
    pub(super) fn options(&self) -> [String; 4] {
        let uid = TestUser::myself().uid.to_string();
        ["--broker".into(), self.socket.display().to_string(), "--broker-user".into(), uid]
    }

    /// Returns its last output.
    pub(super) fn said(&self) -> String {
        let lines = self.said.lock().expect("lines");
        lines.iter().map(|line| format!("broker: {line}\n")).collect()
    }

    /// Returns the bytes on disk of the cache's objects, and of nameless files that the broker writes or passes on.
    pub(super) fn taken(&self) -> u64 {
        let mut files = self.nameless();
        let mut folders = vec![self.cache.join("objects"), self.cache.join("txn")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                match entry.metadata() {
                    Ok(facts) if facts.is_dir() => folders.push(entry.path()),
                    Ok(facts) => drop(files.insert(facts.ino(), facts.blocks() * 512)),
                    // It was evicted.
                    Err(_) => {}
                }
            }
        }
        files.values().sum()
    }

    /// Returns the nameless files below the cache that the broker has open.
    fn nameless(&self) -> HashMap<u64, u64> {
        let open = fs::read_dir(format!("/proc/{}/fd", self.process.id())).expect("its open files");
        let facts = open.flatten().filter_map(|entry| {
            let target = fs::read_link(entry.path()).ok()?;
            let facts =
                fs::metadata(entry.path()).ok().filter(|facts| facts.is_file() && facts.nlink() == 0)?;
            target.starts_with(&self.cache).then(|| (facts.ino(), facts.blocks() * 512))
        });
        facts.collect()
    }

    /// Waits until it writes and passes on nothing any more, and the cache is below its quota.
    pub(super) fn wait_until_idle(&self, mounted: &Mounted<'_>) {
        mounted.wait_until("a cache at rest", |_| self.nameless().is_empty() && self.taken() <= super::QUOTA);
    }

    /// Stops it as its administrator would.
    pub(super) fn stop(mut self) {
        kill_process(Pid::from_child(&self.process), Signal::TERM).expect("a signal");
        assert!(self.process.wait().expect("its end").success(), "{}", self.said());
        self.listener.take().map(JoinHandle::join).expect("a listener").expect("its output");
    }
}

impl Drop for NodeBroker {
    fn drop(&mut self) {
        // Whether there is one to kill is the business of the test.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
