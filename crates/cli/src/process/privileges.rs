//! The user that a service runs as once it listens, and the privileges that it keeps.
//!
//! | Process          | User                                       | Capabilities                                     |
//! |------------------|--------------------------------------------|--------------------------------------------------|
//! | a server         | `--user`, or `esker` if there is such a user, or ids of its own ([`Service`]) | none; for a broker with `--lower`, `CAP_DAC_READ_SEARCH` |
//! | a mount of root  | root                                       | [`OF_A_MOUNT`]                                   |
//!
//! Processes of other users have no privileges to give up. All of them set `no_new_privs`. Everything here is for the time
//! before a process starts threads: a thread keeps what it has.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, chownat, fchown, fstat, openat};
use rustix::io::Errno;
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities, set_no_new_privs,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
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

/// A server that root starts, with ids of its own for machines without a user `esker`.
///
/// Esker's ids lie between those of systemd's dynamic users (61184 to 65519) and `nobody` (65534): other programs use these.
/// No system gives Esker's ids to users, and Debian reserves them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    Serve = 65521,
    Proxy = 65522,
    Broker = 65523,
    Metrics = 65524,
}

impl Service {
    const ALL: [Service; 4] = [Service::Serve, Service::Proxy, Service::Broker, Service::Metrics];

    /// Returns the user that root's server becomes: the named one, or `esker`, or one that nothing else on this machine
    /// runs as. `None` to keep the current user.
    pub(crate) fn account(self, user: Option<&str>) -> Result<Option<Account>, Failure> {
        if user.is_some() || !geteuid().is_root() {
            return named(user);
        }
        if !can_become_another() {
            return Ok(None);
        }
        let passwd = fs::read_to_string(PASSWD).unwrap_or_default();
        let group = fs::read_to_string(GROUP).unwrap_or_default();
        if let Some(usual) = account(USUAL, &passwd, &group) {
            return Ok(Some(usual));
        }
        let id = self as u32;
        let is_taken = |file: &str| {
            let id = id.to_string();
            file.lines().any(|line| line.split(':').nth(2) == Some(&id))
        };
        if is_taken(&passwd) || is_taken(&group) {
            return Err(Failure::usage(format!(
                "root starts a server as a user of its own, and id {id} belongs to another one"
            ))
            .hint("make a user for it with `useradd --system --no-create-home esker`, or name one with --user USER"));
        }
        // Root of a namespace without that id is an ordinary user of the machine.
        if !esker_run::has_ids(id, id, 1).unwrap_or(true) {
            return Ok(None);
        }
        Ok(Some(Account { name: id.to_string(), uid: id, gid: id, groups: Vec::new() }))
    }
}

/// Returns true if root may become another user here: a service manager may have taken that away from it, which is a
/// decision for root.
fn can_become_another() -> bool {
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
    let may = capabilities(None).is_ok_and(|sets| sets.effective.contains(needed));
    if !may {
        tracing::warn!(
            "the server stays root, which may not become another user: add CAP_SETUID and CAP_SETGID"
        );
    }
    may
}

/// Returns the owner of a folder, for root to write there; `None` to keep the current user.
pub(crate) fn owner(folder: &Path) -> Result<Option<Account>, Failure> {
    let facts = fs::metadata(folder).context(Kind::Failed, format!("can't look at {}", folder.display()))?;
    if !geteuid().is_root() || facts.uid() == 0 {
        return Ok(None);
    }
    let id = facts.uid().to_string();
    let nameless =
        Account { name: id.clone(), uid: facts.uid(), gid: facts.gid(), groups: vec![facts.gid()] };
    Ok(Some(find(&id).unwrap_or(nameless)))
}

/// Returns the owner of all folders, for root to write there; `None` to keep the current user. The hint tells what to do if they
/// belong to different users.
pub(crate) fn common_owner<'f>(
    folders: impl Iterator<Item = &'f PathBuf>,
    hint: &str,
) -> Result<Option<Account>, Failure> {
    let mut owners =
        folders.map(|folder| Ok((owner(folder)?, folder))).collect::<Result<Vec<_>, Failure>>()?;
    let Some((first, of)) = owners.pop() else { return Ok(None) };
    match owners.into_iter().find(|(other, _)| *other != first) {
        None => Ok(first),
        Some((_, other)) => {
            let (one, other) = (of.display(), other.display());
            Err(Failure::usage(format!("{one} and {other} belong to different users")).hint(hint))
        }
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

/// Switches to another user, if one is given, and drops all capabilities except `kept`, of which this process keeps those
/// that it has.
pub(crate) fn become_user(account: Option<&Account>, kept: CapabilitySet) -> Result<(), Failure> {
    let given_up = |source: io::Error| Failure::failed(format!("can't give up privileges: {source}"));
    give_up(account, kept).map_err(given_up)
}

/// Limits the capabilities of executed programs to `kept`, if `effective` permits that.
pub(super) fn bound(effective: CapabilitySet, kept: CapabilitySet) -> rustix::io::Result<()> {
    if effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().iter() {
            if !kept.contains(capability) && matches!(capability_is_in_bounding_set(capability), Ok(true)) {
                remove_capability_from_bounding_set(capability)?;
            }
        }
    }
    // Kernels before 4.3 have no ambient capabilities.
    let _ = clear_ambient_capability_set();
    Ok(())
}

fn give_up(account: Option<&Account>, kept: CapabilitySet) -> io::Result<()> {
    set_no_new_privs(true)?;
    let before = capabilities(None)?;
    bound(before.effective, kept)?;
    if let Some(account) = account {
        set_keep_capabilities(!kept.is_empty())?;
        let groups: Vec<Gid> = account.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        let (uid, gid) = (Uid::from_raw(account.uid), Gid::from_raw(account.gid));
        set_thread_groups(&groups)?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
    }
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

/// Gives a folder and its content to a user, made if it is missing: what root owns, and what a server's own ids own once there is
/// a user for it. A folder of another user stays unchanged. `is_shared` is true for a cache in which root writes, too: then
/// what root left in a folder of the user is given as well.
pub(crate) fn give_folder(folder: &Path, account: &Account, is_shared: bool) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let opened = match rustix::fs::open(folder, FOLDER | OFlags::NOFOLLOW, Mode::empty()) {
        // A link's target is not given; opening the cache says so.
        Err(Errno::LOOP | Errno::NOTDIR) => return Ok(()),
        other => other?,
    };
    let owner = fstat(&opened)?.st_uid;
    if is_ours(owner) && owner != account.uid || owner == account.uid && is_shared {
        give(opened, account)
    } else {
        Ok(())
    }
}

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn is_ours(owner: u32) -> bool {
    owner == 0 || Service::ALL.iter().any(|service| *service as u32 == owner)
}

/// Gives an open folder and what is below it. The user may change the folder meanwhile, so each entry is opened before its
/// owner is looked at, no link is followed, and a file with other names is left alone.
fn give(folder: OwnedFd, account: &Account) -> io::Result<()> {
    let (uid, gid) = (Some(Uid::from_raw(account.uid)), Some(Gid::from_raw(account.gid)));
    for entry in Dir::read_from(&folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if [c".", c".."].contains(&name) {
            continue;
        }
        let how = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = match openat(&folder, name, how, Mode::empty()) {
            Err(Errno::NOENT) => continue,
            other => other?,
        };
        let facts = fstat(&opened)?;
        if FileType::from_raw_mode(facts.st_mode) == FileType::Directory {
            give(openat(&opened, c".", FOLDER, Mode::empty())?, account)?;
        } else if is_ours(facts.st_uid) && facts.st_uid != account.uid && facts.st_nlink == 1 {
            chownat(&opened, c"", uid, gid, AtFlags::EMPTY_PATH)?;
        }
    }
    let owner = fstat(&folder)?.st_uid;
    if is_ours(owner) && owner != account.uid { Ok(fchown(&folder, uid, gid)?) } else { Ok(()) }
}

/// Restricts the umask, so that other users can't write to files of this process.
pub(crate) fn mend_umask() {
    use rustix::process::umask;
    let before = umask(Mode::from_raw_mode(0o077));
    // A mask that allows every user to write was not chosen for a group either.
    let group = if before.contains(Mode::WOTH) { Mode::empty() } else { Mode::WGRP };
    umask(before | Mode::WOTH | group);
}

/// Lets other users read what this process makes, for a process that can't change modes afterwards.
pub(crate) fn let_others_read() {
    use rustix::process::umask;
    let before = umask(Mode::from_raw_mode(0o022));
    umask((before & Mode::from_raw_mode(0o222)) | Mode::WOTH);
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
            give_up(Some(&esker), CapabilitySet::empty()).expect("giving up");
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
        let tried = std::thread::spawn(|| {
            let esker = account("esker", USERS, GROUPS).expect("a user");
            give_up(Some(&esker), CapabilitySet::DAC_READ_SEARCH).expect("giving up");
            let now = capabilities(None).expect("capabilities");
            assert_eq!(now.effective, CapabilitySet::DAC_READ_SEARCH);
            assert!(set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).is_err());
        });
        tried.join().expect("giving up");
    }

    #[test]
    fn a_folder_is_given_without_what_links_lead_to() {
        if !geteuid().is_root() {
            esker_testkit::skip!("only root gives files away");
        }
        let place = tempfile::tempdir().expect("a folder");
        let at = |name: &str| place.path().join(name);
        fs::create_dir_all(at("cache/objects/ab")).expect("folders");
        for name in ["cache/lock", "cache/objects/ab/1", "outside", "linked"] {
            fs::write(at(name), name).expect("a file");
        }
        std::os::unix::fs::symlink(at("outside"), at("cache/link")).expect("a link");
        std::os::unix::fs::symlink(place.path(), at("cache/up")).expect("a link");
        fs::hard_link(at("linked"), at("cache/name")).expect("a name");
        let owner = |name: &str| fs::symlink_metadata(at(name)).expect("attributes").uid();
        let esker = account("esker", USERS, GROUPS).expect("a user");
        give_folder(&at("cache"), &esker, false).expect("giving");
        for name in ["cache", "cache/lock", "cache/objects/ab/1", "cache/link"] {
            assert_eq!(owner(name), 990, "{name}");
        }
        for name in ["outside", "linked", ""] {
            assert_eq!(owner(name), 0, "{name}");
        }
        // What root writes there later is given if root shares the cache.
        fs::write(at("cache/objects/ab/2"), "x").expect("a file");
        give_folder(&at("cache"), &esker, false).expect("giving");
        assert_eq!(owner("cache/objects/ab/2"), 0);
        give_folder(&at("cache"), &esker, true).expect("giving");
        assert_eq!(owner("cache/objects/ab/2"), 990);
        let other = account("other", USERS, GROUPS).expect("a user");
        give_folder(&at("cache"), &other, true).expect("nothing");
        assert_eq!(owner("cache"), 990);
    }
}
