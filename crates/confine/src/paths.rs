//! Restricts paths and ports with the rights that the kernel's Landlock supports.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, Scope,
};

use crate::exchange;
use crate::role::{Network, ReadAccess, Role};

/// Version of Landlock whose rights are known here; older kernels enforce those that they have.
const KNOWN: ABI = ABI::V5;

/// The device to read from and to write to for all.
const NULL: &str = "/dev/null";
/// The device of mounts.
pub(crate) const FUSE: &str = "/dev/fuse";

/// Paths of a policy, by what the process may do with what is at them and below.
#[derive(Clone, Debug, Default)]
pub(crate) struct Paths {
    pub(crate) read: Vec<PathBuf>,
    /// Paths that are read again, whatever is there by then.
    pub(crate) reopen: Vec<PathBuf>,
    pub(crate) write: Vec<PathBuf>,
    pub(crate) list: Vec<PathBuf>,
    /// Folders that are not opened as a whole for the sake of something in them.
    pub(crate) private: Vec<PathBuf>,
}

/// Opened paths of a policy: to open one may block on a disk that doesn't answer.
#[derive(Debug)]
pub(crate) struct OpenedPaths {
    read: Vec<PathFd>,
    write: Vec<PathFd>,
    list: Vec<PathFd>,
}

impl OpenedPaths {
    /// Opens the paths. One that is absent grants nothing.
    pub(crate) fn open(role: Role, paths: &Paths) -> Self {
        let reopened = || paths.reopen.iter().map(PathBuf::as_path);
        let around = exchange::folders(reopened(), &paths.private);
        let of_all = role.read_by_all().iter().map(Path::new);
        let read = of_all.chain(paths.read.iter().map(PathBuf::as_path));
        let read = read.chain(reopened()).chain(around.iter().map(PathBuf::as_path));
        let opened = |paths: &[PathBuf]| paths.iter().filter_map(|path| PathFd::new(path).ok()).collect();
        Self {
            read: read.filter_map(|path| PathFd::new(path).ok()).collect(),
            write: opened(&paths.write),
            list: opened(&paths.list),
        }
    }

    /// Restricts this thread and those that it starts. Returns the version of Landlock; `None` if the kernel has none.
    pub(crate) fn restrict(self, role: Role) -> Result<Option<i32>, RulesetError> {
        let reading = AccessFs::ReadFile | AccessFs::ReadDir;
        let devices = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev;
        let writing = AccessFs::from_write(KNOWN) & !devices;
        let mut handled = AccessFs::from_write(KNOWN) | AccessFs::Execute;
        if role.reading() == ReadAccess::Named {
            handled |= reading;
        }
        let rules = Ruleset::default().set_compatibility(CompatLevel::BestEffort).handle_access(handled)?;
        // A role without sockets needs no rule for them; the others connect, and listen at the sockets that they have.
        let rules = match role.network() {
            Network::None | Network::Local => rules.handle_access(AccessNet::from_all(KNOWN))?,
            Network::Internet => rules.handle_access(AccessNet::BindTcp)?,
        };
        // Kernels before 6.12 have none. A process that creates no Unix sockets may still have been given some.
        let rules = rules.scope(Scope::AbstractUnixSocket)?;
        let mut rules = rules.create()?;
        for path in self.read {
            rules = add(rules, path, reading & handled)?;
        }
        for path in self.list {
            rules = add(rules, path, handled & AccessFs::ReadDir)?;
        }
        for path in self.write {
            rules = add(rules, path, (reading | writing) & handled)?;
        }
        let null = AccessFs::ReadFile | AccessFs::WriteFile;
        let device = null | AccessFs::IoctlDev;
        let devices = [(NULL, null), (FUSE, device)];
        for (path, access) in devices.into_iter().take(if role.has_device() { 2 } else { 1 }) {
            if let Ok(path) = PathFd::new(path) {
                rules = add(rules, path, access & handled)?;
            }
        }
        let status = rules.restrict_self()?;
        Ok(match status.landlock {
            LandlockStatus::Available { effective_abi, .. } => Some(effective_abi as i32),
            _ => None,
        })
    }
}

/// Adds a rule for a path, unless it would grant nothing.
fn add(
    rules: RulesetCreated,
    path: PathFd,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    // Rights to a folder's entries are no rights to a file.
    let is_folder = rustix::fs::fstat(&path).is_ok_and(|facts| {
        rustix::fs::FileType::from_raw_mode(facts.st_mode) == rustix::fs::FileType::Directory
    });
    let access = if is_folder { access } else { access & AccessFs::from_file(KNOWN) };
    if access.is_empty() { Ok(rules) } else { rules.add_rule(PathBeneath::new(path, access)) }
}
