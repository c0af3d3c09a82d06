//! Restricts paths and ports with Landlock, as far as the kernel has it.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError,
};

use crate::role::{Network, Reading, Role};

/// Version of Landlock whose rights are known here; older kernels enforce those that they have.
const KNOWN: ABI = ABI::V5;

/// Paths that every daemon may read: settings, names of servers, certificates, and facts about itself and the machine.
pub(crate) const READ_BY_ALL: [&str; 12] = [
    "/etc",
    "/usr/share",
    "/usr/local/share",
    "/usr/lib/ssl",
    "/var/lib/ca-certificates",
    "/run/systemd/resolve",
    "/run/NetworkManager",
    "/run/resolvconf",
    "/proc",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
    "/dev/urandom",
];
/// The device to read from and to write to for all.
const NULL: &str = "/dev/null";
/// The device of mounts.
pub(crate) const FUSE: &str = "/dev/fuse";

/// Restricts this thread and those that it starts. Returns the version of Landlock; `None` if the kernel has none.
pub(crate) fn restrict(
    role: Role,
    read: &[PathBuf],
    write: &[PathBuf],
) -> Result<Option<i32>, RulesetError> {
    let reading = AccessFs::ReadFile | AccessFs::ReadDir;
    let writing = AccessFs::from_write(KNOWN) & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev);
    let mut handled = AccessFs::from_write(KNOWN) | AccessFs::Execute;
    if role.reading() == Reading::Named {
        handled |= reading;
    }
    let rights = |wanted: BitFlags<AccessFs>| wanted & handled;
    let rules = Ruleset::default().set_compatibility(CompatLevel::BestEffort).handle_access(handled)?;
    // A role without sockets needs no rule for them; the others connect, and listen at the sockets that they have.
    let rules = match role.network() {
        Network::None => rules.handle_access(AccessNet::from_all(KNOWN))?,
        Network::Internet => rules.handle_access(AccessNet::BindTcp)?,
    };
    let mut rules = rules.create()?;
    let everywhere = if role == Role::Replayer { &[][..] } else { &READ_BY_ALL[..] };
    for path in everywhere.iter().map(Path::new).chain(read.iter().map(PathBuf::as_path)) {
        rules = add(rules, path, rights(reading.into()))?;
    }
    for path in write {
        rules = add(rules, path, rights(reading | writing))?;
    }
    rules = add(rules, Path::new(NULL), rights(AccessFs::ReadFile | AccessFs::WriteFile))?;
    if role.has_device() {
        let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
        rules = add(rules, Path::new(FUSE), rights(device))?;
    }
    let status = rules.restrict_self()?;
    Ok(match status.landlock {
        LandlockStatus::Available { effective_abi, .. } => Some(effective_abi as i32),
        _ => None,
    })
}

/// Adds a rule for a path. A path that is absent has nothing to read, and no right would be empty.
fn add(
    rules: landlock::RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<landlock::RulesetCreated, RulesetError> {
    let Ok(opened) = PathFd::new(path) else { return Ok(rules) };
    // Rights to a folder's entries are no rights to a file.
    let access = if path.is_dir() { access } else { access & AccessFs::from_file(KNOWN) };
    if access.is_empty() { Ok(rules) } else { rules.add_rule(PathBeneath::new(opened, access)) }
}
