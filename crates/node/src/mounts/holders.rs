//! Finds the mount namespaces that hold a mount whose place is gone here, and their processes.
//!
//! `/proc/PID/mountinfo` is that of the namespace and root directory of a process, and any user may read it. So it is
//! read once for each pair of the two; where the caller may not learn the namespace of a process, the number of the
//! first mount tells whether its namespace is known already.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{Device, MountLine, parse};

/// Maximum number of processes that are named of one namespace.
const NAMED_MAX: usize = 8;
/// Maximum length of a list of mounts in bytes.
const LIST_MAX: u64 = 64 << 20;
/// Number of bytes that contain the number of the first mount.
const FIRST_ID: usize = 24;

/// Identity of a mount.
#[derive(Clone, Copy, Debug)]
pub struct Held<'a> {
    /// Device number, if the daemon has recorded it.
    pub device: Option<Device>,
    /// Mount point of the mount before it was gone.
    pub mountpoint: &'a Path,
    /// Source of the mount.
    pub source: &'a str,
}

/// A mount namespace that holds a mount. Field names are an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// Number of the mount namespace; none if the caller may not learn it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<u64>,
    /// True for the namespace of the caller, which has the mount at another place.
    pub here: bool,
    /// Mount point there, as the processes of the namespace see it.
    #[serde(with = "esker_store::exact_path")]
    pub mountpoint: PathBuf,
    /// True if another user namespace owns it: then the kernel refuses to unmount what came with it.
    pub locked: bool,
    /// Processes in the namespace, those with the lowest numbers.
    pub processes: Vec<Process>,
    /// Number of further processes.
    pub further: usize,
}

/// A process in a mount namespace. Field names are an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Name of its program, which the process chooses.
    pub program: String,
    /// User as which it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
}

/// The mounts of Esker in all mount namespaces that the caller can see.
pub struct Scan {
    proc: PathBuf,
    own_user_namespace: Option<PathBuf>,
    namespaces: Vec<Namespace>,
}

struct Namespace {
    number: Option<u64>,
    here: bool,
    lines: Vec<MountLine>,
    processes: Vec<u32>,
}

/// Namespace of a process, as far as the caller may learn it.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Key {
    Link(PathBuf, Option<PathBuf>),
    FirstMount(u64),
}

impl Scan {
    /// Reads the mounts of all namespaces.
    pub fn read() -> Self {
        Self::of(Path::new("/proc"), &Path::new("/proc").join(std::process::id().to_string()))
    }

    fn of(proc: &Path, own: &Path) -> Self {
        let mut known: HashMap<Key, usize> = HashMap::new();
        let mut namespaces: Vec<Namespace> = Vec::new();
        let own_link = fs::read_link(own.join("ns/mnt")).ok();
        if let Ok((first, lines)) = lines(own) {
            namespaces.push(Namespace {
                number: own_link.as_deref().and_then(number),
                here: true,
                lines,
                processes: Vec::new(),
            });
            known.extend(first.map(|first| (Key::FirstMount(first), 0)));
        }
        for pid in pids(proc) {
            let folder = proc.join(pid.to_string());
            let link = fs::read_link(folder.join("ns/mnt")).ok();
            if link.is_some() && link == own_link {
                continue;
            }
            let key = match &link {
                Some(link) => Some(Key::Link(link.clone(), fs::read_link(folder.join("root")).ok())),
                None => first_mount(&folder).ok().flatten().map(Key::FirstMount),
            };
            // It has ended, or is hidden from this user.
            let Some(key) = key else { continue };
            if let Some(at) = known.get(&key) {
                namespaces[*at].processes.push(pid);
                continue;
            }
            let Ok((first, lines)) = lines(&folder) else { continue };
            let number = link.as_deref().and_then(number);
            known.insert(key, namespaces.len());
            // Processes of other users in it may keep their namespace to themselves.
            if let Some(first) = first {
                known.entry(Key::FirstMount(first)).or_insert(namespaces.len());
            }
            namespaces.push(Namespace { number, here: false, lines, processes: vec![pid] });
        }
        let own_user_namespace = fs::read_link(own.join("ns/user")).ok();
        Self { proc: proc.to_owned(), own_user_namespace, namespaces }
    }

    /// Returns the namespaces that hold a mount.
    pub fn holders(&self, held: &Held<'_>) -> Vec<Holder> {
        let is_it = |line: &&MountLine| match held.device {
            Some(device) => line.device == device,
            None => line.mountpoint == held.mountpoint && line.source_text() == held.source,
        };
        let mut found: BTreeMap<(Option<u64>, PathBuf), Holder> = BTreeMap::new();
        for namespace in &self.namespaces {
            let Some(line) = namespace.lines.iter().find(is_it) else { continue };
            let key = (namespace.number, line.mountpoint.clone());
            let holder = found.entry(key).or_insert_with(|| Holder {
                namespace: namespace.number,
                here: namespace.here,
                mountpoint: line.mountpoint.clone(),
                locked: !namespace.here && self.is_of_another_user_namespace(&namespace.processes),
                processes: Vec::new(),
                further: 0,
            });
            let room = NAMED_MAX - holder.processes.len();
            let named = namespace.processes.iter().take(room).map(|pid| self.process(*pid));
            holder.processes.extend(named);
            holder.further += namespace.processes.len().saturating_sub(room);
        }
        found.into_values().collect()
    }

    /// Returns true if the mount namespace of a process has a mount.
    pub fn has_process(&self, held: &Held<'_>, pid: u32) -> bool {
        let mut with = self.namespaces.iter().filter(|one| one.processes.contains(&pid));
        with.any(|one| one.lines.iter().any(|line| Some(line.device) == held.device))
    }

    fn is_of_another_user_namespace(&self, processes: &[u32]) -> bool {
        let of = |pid: &u32| fs::read_link(self.proc.join(pid.to_string()).join("ns/user")).ok();
        processes.first().and_then(of).is_some_and(|link| Some(link) != self.own_user_namespace)
    }

    fn process(&self, pid: u32) -> Process {
        let folder = self.proc.join(pid.to_string());
        let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
        // The owner of the folder is root for a process that may not be examined.
        let user = |status: &str| {
            status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split('\t').nth(2)?.parse().ok()
        };
        Process { pid, program: text("comm").trim_end().to_owned(), user: user(&text("status")) }
    }
}

/// Returns the numbers of all processes in order.
fn pids(proc: &Path) -> Vec<u32> {
    let all = fs::read_dir(proc).into_iter().flatten().flatten();
    let mut pids: Vec<u32> = all.filter_map(|one| one.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids
}

/// Returns the number in a link such as `mnt:[4026531841]`.
fn number(link: &Path) -> Option<u64> {
    link.to_str()?.strip_prefix("mnt:[")?.strip_suffix(']')?.parse().ok()
}

/// Returns the number of the first mount, and the lines of mounts of Esker.
fn lines(process: &Path) -> io::Result<(Option<u64>, Vec<MountLine>)> {
    let mut text = Vec::new();
    File::open(process.join("mountinfo"))?.take(LIST_MAX).read_to_end(&mut text)?;
    let lines = text.split(|byte| *byte == b'\n').filter_map(parse).filter(MountLine::is_ours);
    Ok((first_id(&text), lines.collect()))
}

/// Returns the number of the first mount that a process sees.
fn first_mount(process: &Path) -> io::Result<Option<u64>> {
    let mut start = [0; FIRST_ID];
    let len = File::open(process.join("mountinfo"))?.read(&mut start)?;
    Ok(first_id(&start[..len]))
}

fn first_id(text: &[u8]) -> Option<u64> {
    str::from_utf8(text.split(|byte| *byte == b' ').next()?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const DEVICE: Device = Device { major: 0, minor: 77 };

    /// A folder like `/proc`.
    struct Processes(tempfile::TempDir);

    impl Processes {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("a folder"))
        }

        /// Adds a process; without a link its namespace is not shown to the caller.
        fn add(&self, pid: u32, namespace: Option<&str>, mountinfo: &str) -> PathBuf {
            let folder = self.0.path().join(pid.to_string());
            fs::create_dir_all(folder.join("ns")).expect("a folder");
            if let Some(namespace) = namespace {
                symlink(format!("mnt:[{namespace}]"), folder.join("ns/mnt")).expect("a link");
                let user = if namespace == "1" { "user:[1]" } else { "user:[2]" };
                symlink(user, folder.join("ns/user")).expect("a link");
                symlink("/", folder.join("root")).expect("a link");
            }
            fs::write(folder.join("mountinfo"), mountinfo).expect("a file");
            fs::write(folder.join("comm"), format!("p{pid}\n")).expect("a file");
            fs::write(folder.join("status"), "Name:\tx\nUid:\t1\t1000\t1\t1\n").expect("a file");
            folder
        }

        fn scan(&self, own: &Path) -> Scan {
            Scan::of(self.0.path(), own)
        }
    }

    fn line(id: u64, minor: u32, place: &str) -> String {
        format!(
            "{id} 1 0:1 / / rw - ext4 /dev/a rw\n{} 1 0:{minor} / {place} rw - fuse.esker file:///a rw\n",
            id + 1
        )
    }

    fn held(device: Option<Device>) -> Held<'static> {
        Held { device, mountpoint: Path::new("/mnt"), source: "file:///a" }
    }

    #[test]
    fn all_processes_of_a_namespace_are_named_and_its_mounts_are_read_once() {
        let all = Processes::new();
        let own = all.add(1, Some("1"), &line(10, 78, "/mnt"));
        all.add(2, Some("1"), &line(10, 77, "/unread"));
        all.add(30, Some("5"), &line(20, 77, "/kept"));
        // Read again, these would name other places.
        for pid in 31..41 {
            all.add(pid, Some("5"), &line(20, 77, "/read-again"));
        }
        all.add(50, Some("6"), &line(40, 78, "/mnt"));
        let scan = all.scan(&own);
        let holders = scan.holders(&held(Some(DEVICE)));
        let [holder] = &*holders else { panic!("{holders:?}") };
        assert_eq!(
            (holder.namespace, holder.mountpoint.to_str(), holder.locked),
            (Some(5), Some("/kept"), true)
        );
        assert_eq!(holder.processes.len() + holder.further, 11);
        let first = Process { pid: 30, program: "p30".into(), user: Some(1000) };
        assert_eq!(holder.processes[0], first);
        assert!(scan.has_process(&held(Some(DEVICE)), 35) && !scan.has_process(&held(Some(DEVICE)), 50));
    }

    #[test]
    fn namespaces_that_the_caller_may_not_learn_are_told_apart_by_their_first_mount() {
        let all = Processes::new();
        let own = all.add(1, Some("1"), &line(10, 78, "/mnt"));
        // Of another user, in the caller's namespace.
        all.add(2, None, &line(10, 77, "/unread"));
        all.add(3, None, &line(20, 77, "/kept"));
        all.add(4, None, &line(20, 77, "/read-again"));
        let holders = all.scan(&own).holders(&held(Some(DEVICE)));
        let [holder] = &*holders else { panic!("{holders:?}") };
        assert_eq!((holder.namespace, holder.mountpoint.to_str()), (None, Some("/kept")));
        assert_eq!(holder.processes.iter().map(|one| one.pid).collect::<Vec<_>>(), [3, 4]);
    }

    #[test]
    fn a_copy_at_another_place_of_the_own_namespace_is_a_holder() {
        let all = Processes::new();
        let own = all.add(1, Some("1"), &line(10, 77, "/bound"));
        let holders = all.scan(&own).holders(&held(Some(DEVICE)));
        assert!(matches!(&*holders, [Holder { here: true, locked: false, .. }]), "{holders:?}");
    }

    /// Daemons of earlier versions have not recorded the device.
    #[test]
    fn a_mount_without_a_known_device_is_found_by_place_and_source() {
        let all = Processes::new();
        let own = all.add(1, Some("1"), "10 1 0:1 / / rw - ext4 /dev/a rw\n");
        all.add(3, Some("5"), &line(20, 99, "/mnt"));
        all.add(4, Some("6"), &line(30, 99, "/other"));
        let holders = all.scan(&own).holders(&held(None));
        assert!(matches!(&*holders, [Holder { namespace: Some(5), .. }]), "{holders:?}");
    }

    #[test]
    fn the_namespaces_of_this_machine_are_read() {
        assert!(Scan::read().namespaces.iter().any(|one| one.here));
    }
}
