//! The user that a service runs as once it listens, and the privileges that it keeps.
//!
//! | Process          | User                                       | Capabilities                                     |
//! |------------------|--------------------------------------------|--------------------------------------------------|
//! | `esker serve`    | `--user`, or `esker` if there is such a user, or root | none                                  |
//! | `esker broker`   | `--user`, or root                          | none; as root with `--lower`, `CAP_DAC_READ_SEARCH` |
//! | a mount of root  | root                                       | [`OF_A_MOUNT`]                                   |
//!
//! Processes of other users have no privileges to give up. All of them set `no_new_privs`. Everything here is for the time
//! before a process starts threads: a thread keeps what it has.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::Path;

use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

use crate::error::{Context, Failure, Kind, warn};

/// Name of the user that services run as by default, if it exists.
const USUAL: &str = "esker";
const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";

/// Capabilities for a mount of root: to mount and pass files through, to identify readers, to read and keep its cache,
/// its mount point and its sockets, and to start its helpers.
pub(crate) const OF_A_MOUNT: CapabilitySet = CapabilitySet::SYS_ADMIN
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::SYS_NICE)
    .union(CapabilitySet::SYS_RESOURCE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::SETFCAP);

/// A user to run as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

/// Returns the user that `--user` names; `None` to keep the current user.
pub(crate) fn named(user: Option<&str>) -> Result<Option<Account>, Failure> {
    let Some(user) = user else { return Ok(None) };
    let account = find(user)?;
    let own = geteuid().as_raw();
    if account.uid == own {
        return Ok(None);
    }
    if own != 0 {
        return Err(Failure::usage(format!("only root can run as user {user}"))
            .hint("leave out --user, or start it as root"));
    }
    Ok(Some(account))
}

/// Returns the named user, or for root the user `esker`, if it exists.
pub(crate) fn named_or_usual(user: Option<&str>) -> Result<Option<Account>, Failure> {
    match user {
        None if geteuid().is_root() => Ok(find(USUAL).ok()),
        user => named(user),
    }
}

fn find(user: &str) -> Result<Account, Failure> {
    let passwd = fs::read_to_string(PASSWD).context(Kind::Failed, format!("can't read {PASSWD}"))?;
    let group = fs::read_to_string(GROUP).unwrap_or_default();
    account(user, &passwd, &group).ok_or_else(|| {
        Failure::usage(format!("there is no user {user} in {PASSWD}"))
            .hint("make one, with `useradd --system --no-create-home NAME`, or name another one")
    })
}

fn account(user: &str, passwd: &str, group: &str) -> Option<Account> {
    let fields = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let mut known = fields.filter(|fields| fields.len() >= 4);
    let fields = known.find(|fields| fields[0] == user || (fields[2] == user && !user.is_empty()))?;
    let (name, uid, gid) = (fields[0].to_owned(), fields[2].parse().ok()?, fields[3].parse().ok()?);
    let member = |line: &str| {
        let mut fields = line.split(':').skip(2);
        let number = fields.next()?.parse().ok()?;
        fields.next()?.split(',').any(|member| member == name).then_some(number)
    };
    let groups = std::iter::once(gid).chain(group.lines().filter_map(member)).collect();
    Some(Account { name, uid, gid, groups })
}

/// Switches to another user, if one is given, and drops all capabilities except `kept`, which only root can
/// keep.
pub(crate) fn become_user(account: Option<&Account>, kept: CapabilitySet) -> Result<(), Failure> {
    let given_up = |source: io::Error| Failure::failed(format!("can't give up privileges: {source}"));
    give_up(account, kept).map_err(given_up)
}

fn give_up(account: Option<&Account>, kept: CapabilitySet) -> io::Result<()> {
    set_no_new_privs(true)?;
    let before = capabilities(None)?;
    if before.effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().iter() {
            let is_needed = account.is_none() && kept.contains(capability);
            if !is_needed && matches!(capability_is_in_bounding_set(capability), Ok(true)) {
                remove_capability_from_bounding_set(capability)?;
            }
        }
    }
    // Kernels before 4.3 have none.
    let _ = clear_ambient_capability_set();
    if let Some(account) = account {
        let groups: Vec<Gid> = account.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        let (uid, gid) = (Uid::from_raw(account.uid), Gid::from_raw(account.gid));
        set_thread_groups(&groups)?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
    }
    let kept = if account.is_some() { CapabilitySet::empty() } else { kept };
    let sets = CapabilitySets {
        effective: before.effective & kept,
        permitted: before.permitted & kept,
        inheritable: CapabilitySet::empty(),
    };
    Ok(set_capabilities(None, sets)?)
}

/// Drops the capabilities that a mount of root doesn't need; a failure is only a warning.
pub(crate) fn narrow_mount() {
    if geteuid().is_root()
        && let Err(error) = give_up(None, OF_A_MOUNT)
    {
        warn(Some(&format!("the mount keeps all privileges of root: {error}")));
    }
}

/// Drops the capabilities that this thread and those that it starts don't need; a failure is only a warning.
pub(crate) fn narrow_thread(kept: CapabilitySet) {
    if let Err(error) = narrow(kept) {
        warn(Some(&format!("a thread keeps its privileges: {error}")));
    }
}

fn narrow(kept: CapabilitySet) -> io::Result<()> {
    let before = capabilities(None)?;
    let sets = CapabilitySets {
        effective: before.effective & kept,
        permitted: before.permitted & kept,
        inheritable: CapabilitySet::empty(),
    };
    if sets.permitted == before.permitted && sets.effective == before.effective {
        return Ok(());
    }
    Ok(set_capabilities(None, sets)?)
}

/// Changes the owner of a folder of root and its content to a user. A folder of another user stays unchanged.
pub(crate) fn give_folder(folder: &Path, account: &Account) -> io::Result<()> {
    let facts = match fs::symlink_metadata(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(folder)?;
            fs::symlink_metadata(folder)?
        }
        other => other?,
    };
    if facts.is_dir() && facts.uid() == 0 { give(folder, account) } else { Ok(()) }
}

fn give(path: &Path, account: &Account) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() {
        for entry in fs::read_dir(path)? {
            give(&entry?.path(), account)?;
        }
    }
    lchown(path, Some(account.uid), Some(account.gid))
}

/// Restricts the umask, so that other users can't write to files of this process.
pub(crate) fn mend_umask() {
    use rustix::fs::Mode;
    use rustix::process::umask;
    let before = umask(Mode::from_raw_mode(0o077));
    // A mask that allows every user to write was not chosen for a group either.
    let group = if before.contains(Mode::WOTH) { Mode::empty() } else { Mode::WGRP };
    umask(before | Mode::WOTH | group);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_umask_lets_every_user_write() {
        let folder = tempfile::tempdir().expect("a folder");
        for (mask, expected) in [(0o000, 0o644), (0o002, 0o664), (0o020, 0o644), (0o077, 0o600)] {
            let path = folder.path().join(format!("{mask:o}"));
            esker_testkit::sys::with_umask(mask, || {
                mend_umask();
                fs::write(&path, "").expect("a file");
            });
            let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&path).expect("it")) & 0o777;
            assert_eq!(mode, expected, "umask {mask:03o}");
        }
    }

    const USERS: &str =
        "root:x:0:0:root:/root:/bin/sh\nesker:x:990:980::/:/bin/false\nbroken:x\nother:x:991:981::/:/x\n";
    const GROUPS: &str = "root:x:0:\ncvmfs:x:50:other,esker\nweb:x:51:esker2\n";

    #[test]
    fn accounts_are_found_by_name_and_number() {
        let esker = account("esker", USERS, GROUPS).expect("a user");
        assert_eq!(esker, Account { name: "esker".into(), uid: 990, gid: 980, groups: vec![980, 50] });
        assert_eq!(account("991", USERS, GROUPS).map(|account| account.name), Some("other".into()));
        for absent in ["", "nobody", "broken", "x"] {
            assert_eq!(account(absent, USERS, GROUPS), None, "{absent:?}");
        }
    }

    /// Runs on another thread, because a thread can't regain dropped privileges.
    #[test]
    fn another_user_has_no_privileges() {
        if !geteuid().is_root() {
            esker_testkit::skip!("only root has privileges to give up");
        }
        let tried = std::thread::spawn(|| {
            let esker = account("esker", USERS, GROUPS).expect("a user");
            give_up(Some(&esker), OF_A_MOUNT).expect("giving up");
            let now = capabilities(None).expect("capabilities");
            assert!(now.effective.is_empty() && now.permitted.is_empty());
            assert_eq!(rustix::process::geteuid().as_raw(), 990);
            assert!(rustix::thread::no_new_privs().expect("a flag"));
            assert!(set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).is_err());
        });
        tried.join().expect("giving up");
        let tried = std::thread::spawn(|| {
            give_up(None, CapabilitySet::DAC_READ_SEARCH).expect("giving up");
            let now = capabilities(None).expect("capabilities");
            assert!(CapabilitySet::DAC_READ_SEARCH.contains(now.permitted));
            assert!(set_thread_groups(&[]).is_err());
        });
        tried.join().expect("giving up");
    }
}
