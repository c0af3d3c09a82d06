//! Chooses the folder of a cache without a configured one: the first candidate that is local, private, writable and
//! large enough.
//!
//! A cache on a network file system is as slow and as unreachable as the repository, and a lock there may mean
//! nothing; so it is refused unless the user insists. Memory is used only if no disk is suitable. A folder that others
//! may write to is used only if it is sticky, as `/tmp` is, and then for a folder of the user's own in it.

use std::fmt;
use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use esker_threads::watchdog;

/// A folder that is considered for the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Source of the path, for users: `$TMPDIR`.
    pub from: String,
    /// Path of the folder.
    pub path: PathBuf,
    /// True if the path is the cache itself; false if the cache is a folder of the user below it.
    pub is_cache: bool,
}

/// Requirements for the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocationRules {
    /// User of the cache.
    pub uid: u32,
    /// User id of the machine's own folders: 0, or in a user namespace the overflow id.
    pub root: u32,
    /// Minimum free bytes for a new cache.
    pub least: u64,
    /// True if a network file system will do.
    pub on_network: bool,
}

/// Chosen location of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheLocation {
    /// Path of the folder, which exists.
    pub path: PathBuf,
    /// Source of the path.
    pub from: String,
    /// Bytes of the file system it is on.
    pub total: u64,
    /// Rejected candidates before this one, with reasons.
    pub passed_over: Vec<RejectedCandidate>,
}

/// A rejected candidate.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct RejectedCandidate {
    /// Source of the path.
    pub from: String,
    /// Path of the folder.
    pub path: PathBuf,
    /// Reason for the rejection.
    pub why: String,
}

/// Error: no candidate is suitable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no folder for the cache{}", all(passed_over))]
pub struct NoCacheLocation {
    /// Rejected candidates, with reasons.
    pub passed_over: Vec<RejectedCandidate>,
}

fn all(passed_over: &[RejectedCandidate]) -> String {
    passed_over.iter().map(|one| format!("; {one}")).collect()
}

impl fmt::Display for RejectedCandidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.path.display(), self.from, self.why)
    }
}

/// Facts of a folder's file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileSystem {
    kind: u32,
    total: u64,
    free: u64,
    read_only: bool,
}

/// Network file systems, by magic number. FUSE is among them because its backend is unknown.
const NETWORK: [(u32, &str); 17] = [
    (0x6969, "NFS"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0x00c3_6400, "CephFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "SMB"),
    (0xfe53_4d42, "SMB"),
    (0x0102_1997, "9p"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0xaad7_aaea, "PanFS"),
    (0x7461_636f, "OCFS2"),
    (0x0116_1970, "GFS2"),
    (0x2003_0528, "OrangeFS"),
    (0x6573_5546, "FUSE"),
];
const MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// Returns the network file system of a folder, or of its parent if it doesn't exist; `None` if it is local.
pub fn network_of(path: &Path) -> io::Result<Option<&'static str>> {
    Ok(network(&look(path)?))
}

/// Returns the size of the disk of a folder, or of its parent if it doesn't exist, in bytes.
pub fn disk_size(path: &Path) -> io::Result<u64> {
    Ok(look(path)?.total)
}

/// Chooses the first suitable candidate and makes the folder. If none has enough room on a disk, the one with the most
/// room.
pub fn choose(candidates: &[Candidate], wish: &LocationRules) -> Result<CacheLocation, NoCacheLocation> {
    choose_with(candidates, wish, &look)
}

type FileSystemLookup<'a> = &'a dyn Fn(&Path) -> io::Result<FileSystem>;

fn choose_with(
    candidates: &[Candidate],
    wish: &LocationRules,
    look: FileSystemLookup<'_>,
) -> Result<CacheLocation, NoCacheLocation> {
    let mut passed_over = Vec::new();
    // Candidates that would do if they had more room, with the room they have.
    let mut cramped: Vec<(u64, PathBuf, FileSystem, RejectedCandidate)> = Vec::new();
    for candidate in candidates {
        let path = match candidate.is_cache {
            true => candidate.path.clone(),
            false => candidate.path.join(format!("esker-cache-{}", wish.uid)),
        };
        let mut pass = |why: String| {
            let passed = RejectedCandidate { from: candidate.from.clone(), path: path.clone(), why };
            passed_over.push(passed.clone());
            passed
        };
        let system = match look(&path) {
            Ok(system) => system,
            Err(error) => {
                pass(error.to_string());
                continue;
            }
        };
        if let Err(why) = fit(candidate, &path, wish, &system) {
            pass(why);
        } else if let Some(why) = cramped_because(&path, wish, &system) {
            let passed = pass(why);
            cramped.push((system.free, path, system, passed));
        } else if let Err(error) = make(candidate, &path, wish.uid) {
            pass(error.to_string());
        } else {
            let (from, total) = (candidate.from.clone(), system.total);
            return Ok(CacheLocation { path, from, total, passed_over });
        }
    }
    // The first of those with the most room.
    cramped.sort_by_key(|(free, ..)| std::cmp::Reverse(*free));
    for (_, path, system, passed) in cramped {
        let candidate = candidates.iter().find(|candidate| candidate.from == passed.from);
        if candidate.is_some_and(|candidate| make(candidate, &path, wish.uid).is_ok()) {
            passed_over.retain(|one| *one != passed);
            return Ok(CacheLocation { path, from: passed.from, total: system.total, passed_over });
        }
    }
    Err(NoCacheLocation { passed_over })
}

/// Checks whether a candidate may be used at all.
fn fit(candidate: &Candidate, path: &Path, wish: &LocationRules, system: &FileSystem) -> Result<(), String> {
    if let (Some(name), false) = (network(system), wish.on_network) {
        return Err(format!("it is on a network file system ({name})"));
    }
    if system.read_only {
        return Err("its file system is read-only".to_owned());
    }
    if !candidate.is_cache {
        let base = fs::metadata(&candidate.path).map_err(|error| error.to_string())?;
        trusted_base(&base, wish)?;
    }
    match fs::symlink_metadata(path) {
        Ok(found) => own(&found, wish.uid),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// Checks that only root and this user can replace entries of a folder.
fn trusted_base(base: &Metadata, wish: &LocationRules) -> Result<(), String> {
    if !base.is_dir() {
        return Err("it is not a folder".to_owned());
    }
    if ![0, wish.root, wish.uid].contains(&base.uid()) {
        return Err(format!("it is in a folder of user {}", base.uid()));
    }
    if base.mode() & 0o022 != 0 && base.mode() & 0o1000 == 0 {
        return Err("other users may rename files in its folder, which is not sticky".to_owned());
    }
    Ok(())
}

/// Checks that this user owns an existing folder.
fn own(found: &Metadata, uid: u32) -> Result<(), String> {
    if found.is_symlink() {
        Err("it is a symbolic link".to_owned())
    } else if !found.is_dir() {
        Err("it is not a folder".to_owned())
    } else if found.uid() != uid {
        Err(format!("it belongs to user {}", found.uid()))
    } else if found.mode() & 0o022 != 0 {
        Err("others may write to it".to_owned())
    } else if found.mode() & 0o300 != 0o300 {
        Err("it may not be written to".to_owned())
    } else {
        Ok(())
    }
}

/// Returns true if a folder already holds a cache: its objects, or only parts of remote images. The lock files tell
/// it from folders of other programs with the same names.
pub fn is_cache(folder: &Path) -> bool {
    let objects = folder.join("objects").is_dir() && folder.join("lock").is_file();
    objects || folder.join("images/lock").is_file()
}

fn cramped_because(path: &Path, wish: &LocationRules, system: &FileSystem) -> Option<String> {
    if MEMORY.contains(&system.kind) {
        return Some("it is in memory".to_owned());
    }
    // A cache that is there has its room already.
    let is_there = path.join("objects").is_dir();
    (!is_there && system.free < wish.least)
        .then(|| format!("{} MiB are free there, and {} are wanted", system.free >> 20, wish.least >> 20))
}

fn make(candidate: &Candidate, path: &Path, uid: u32) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    // Another process may create it meanwhile; that is checked afterwards.
    let made = if candidate.is_cache { builder.recursive(true).create(path) } else { builder.create(path) };
    match made {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    own(&fs::symlink_metadata(path)?, uid).map_err(io::Error::other)
}

fn network(system: &FileSystem) -> Option<&'static str> {
    NETWORK.iter().find(|(kind, _)| *kind == system.kind).map(|(_, name)| *name)
}

/// Returns the path, or its nearest existing parent.
fn existing(path: &Path) -> &Path {
    path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"))
}

/// Returns the file system of a folder, or of its nearest existing parent; an error if it doesn't answer.
fn look(path: &Path) -> io::Result<FileSystem> {
    let place = path.to_owned();
    let looked = watchdog::within(watchdog::TIMEOUT, move || statfs(existing(&place)));
    looked.unwrap_or_else(|| Err(io::Error::new(io::ErrorKind::TimedOut, "its disk does not answer")))
}

fn statfs(path: &Path) -> io::Result<FileSystem> {
    let found = rustix::fs::statfs(path)?;
    let counts = rustix::fs::statvfs(path)?;
    Ok(FileSystem {
        // The number has 32 bits, whatever the width and sign of the field.
        kind: (found.f_type as u64 & 0xffff_ffff) as u32,
        total: counts.f_blocks.saturating_mul(counts.f_frsize),
        free: counts.f_bavail.saturating_mul(counts.f_frsize),
        read_only: counts.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const LOCAL: FileSystem = FileSystem { kind: 0xef53, total: 100 << 30, free: 50 << 30, read_only: false };

    fn me() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn wish() -> LocationRules {
        LocationRules { uid: me(), root: 0, least: 1 << 30, on_network: false }
    }

    fn base(path: &Path) -> Candidate {
        Candidate { from: format!("${}", path.display()), path: path.to_owned(), is_cache: false }
    }

    /// Creates three folders that stand for different file systems.
    fn three() -> (tempfile::TempDir, Vec<Candidate>) {
        let folder = tempfile::tempdir().expect("a folder");
        let names = ["first", "second", "third"].map(|name| folder.path().join(name));
        names.iter().for_each(|name| fs::create_dir(name).expect("a folder"));
        let candidates = names.iter().map(|name| base(name)).collect();
        (folder, candidates)
    }

    fn only(name: &'static str, other: FileSystem) -> impl Fn(&Path) -> io::Result<FileSystem> {
        move |path| Ok(if path.components().any(|part| part.as_os_str() == name) { other } else { LOCAL })
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
    }

    #[test]
    fn the_first_suitable_folder_is_chosen_and_made_private() {
        let (_folder, candidates) = three();
        let place = choose_with(&candidates, &wish(), &only("none", LOCAL)).expect("a place");
        assert_eq!(place.path, candidates[0].path.join(format!("esker-cache-{}", me())));
        assert_eq!(fs::metadata(&place.path).expect("made").mode() & 0o7777, 0o700);
        assert_eq!((place.total, place.passed_over.len()), (100 << 30, 0));
    }

    #[test]
    fn network_file_systems_are_skipped_unless_the_user_insists() {
        let (_folder, candidates) = three();
        for (kind, name) in NETWORK {
            let look = only("first", FileSystem { kind, ..LOCAL });
            let place = choose_with(&candidates, &wish(), &look).expect("a place");
            assert!(place.path.starts_with(&candidates[1].path));
            assert!(place.passed_over[0].why.contains(name), "{:?}", place.passed_over);
            let insisting = LocationRules { on_network: true, ..wish() };
            let place = choose_with(&candidates, &insisting, &look).expect("a place");
            assert!(place.path.starts_with(&candidates[0].path));
        }
    }

    #[test]
    fn small_read_only_and_memory_folders_are_skipped() {
        let (_folder, candidates) = three();
        let small = FileSystem { free: 1 << 20, ..LOCAL };
        let memory = FileSystem { kind: MEMORY[0], ..LOCAL };
        for (system, why) in [
            (small, "1 MiB are free there, and 1024 are wanted"),
            (memory, "it is in memory"),
            (FileSystem { read_only: true, ..LOCAL }, "its file system is read-only"),
        ] {
            let place = choose_with(&candidates, &wish(), &only("first", system)).expect("a place");
            assert!(place.path.starts_with(&candidates[1].path));
            assert_eq!(place.passed_over[0].why, why);
        }
        // Where there is nothing better, the one with the most room.
        let look = |path: &Path| {
            let second = path.to_string_lossy().contains("second");
            Ok(if second { memory } else { small })
        };
        let place = choose_with(&candidates, &wish(), &look).expect("a place");
        assert!(place.path.starts_with(&candidates[1].path));
        let reasons: Vec<_> = place.passed_over.iter().map(|one| one.from.clone()).collect();
        assert_eq!(reasons, [candidates[0].from.clone(), candidates[2].from.clone()]);
        // A cache that is there has its room.
        fs::create_dir_all(candidates[2].path.join(format!("esker-cache-{}/objects", me())))
            .expect("a cache");
        mode(&candidates[2].path.join(format!("esker-cache-{}", me())), 0o700);
        let place = choose_with(&candidates, &wish(), &|_| Ok(small)).expect("a place");
        assert!(place.path.starts_with(&candidates[2].path));
    }

    #[test]
    fn folders_that_other_users_control_are_skipped() {
        let (_folder, candidates) = three();
        let name = format!("esker-cache-{}", me());
        symlink(&candidates[2].path, candidates[0].path.join(&name)).expect("a link");
        fs::create_dir(candidates[1].path.join(&name)).expect("a folder");
        mode(&candidates[1].path.join(&name), 0o777);
        let place = choose_with(&candidates, &wish(), &only("none", LOCAL)).expect("a place");
        let reasons: Vec<_> = place.passed_over.iter().map(|one| one.why.as_str()).collect();
        assert_eq!(reasons, ["it is a symbolic link", "others may write to it"]);
        assert!(place.path.starts_with(&candidates[2].path));
        // A folder in which other users may rename entries is not safe for a private folder.
        mode(&candidates[2].path, 0o777);
        let none = choose_with(&candidates, &wish(), &only("none", LOCAL)).expect_err("no place");
        assert!(none.to_string().contains("not sticky"), "{none}");
        mode(&candidates[2].path, 0o1777);
        choose_with(&candidates, &wish(), &only("none", LOCAL)).expect("a sticky one will do");
    }

    #[test]
    fn another_users_folder_is_skipped() {
        let (_folder, candidates) = three();
        let stranger = LocationRules { uid: me() + 1, ..wish() };
        fs::create_dir(candidates[0].path.join(format!("esker-cache-{}", me() + 1))).expect("a folder");
        let none = choose_with(&candidates, &stranger, &only("none", LOCAL)).expect_err("no place");
        let expected = if me() == 0 { "belongs to user 0" } else { "in a folder of user" };
        assert!(none.passed_over[0].why.contains(expected), "{none}");
    }
}
