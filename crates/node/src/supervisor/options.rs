//! Checks the options of a mount that replace those which the supervisor keeps.
//!
//! A process from outside of the mount may change all of them. The daemon may change only what the commands of `cvmfs_talk`
//! change, because the next daemon reads them before it is confined: no path, socket, user or helper can be among them.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use serde_json::Value;

/// Maximum length of the options in bytes. An environment has at most a few megabytes.
const LEN_MAX: u64 = 64 << 20;
/// Seals of a file that doesn't change any more.
const FIXED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE);

/// Name of the object with the options of a repository, and of the one of an image in a repository.
const REPOSITORIES: [&str; 2] = ["/content/Repository", "/content/Image/place/Object/repository"];
/// Version of an image on a server, which the first daemon finds out.
const KNOWN: &str = "/content/Image/place/Url/known";
/// Caches, which may be in the memory of a daemon.
const CACHES: [&str; 3] = [
    "/content/Repository/options/cache",
    "/content/Image/place/Object/repository/options/cache",
    "/content/Image/place/Url/cache",
];
/// Folder of a process's descriptors, in which its memory is.
const MEMORY: &str = "/proc/self/fd/";

/// Fields of a repository that commands of `cvmfs_talk` change, beside its servers.
const COMMANDED: [&str; 3] = ["/options/quota", "/view/ttl_max", "/talk/longest_ttl"];
/// First words of the lines about servers that commands of `cvmfs_talk` change.
const SERVERS: [&str; 7] =
    ["server", "proxies", "fallback", "order", "time-proxy", "time-direct", "dns-server"];

/// Reads the options from a sealed memory file; another file could change later, or never answer.
fn read(file: impl AsFd) -> io::Result<Vec<u8>> {
    if !fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(FIXED)) {
        return Err(io::Error::other("they are in no sealed memory file"));
    }
    let (mut file, mut text) = (File::from(file.as_fd().try_clone_to_owned()?), Vec::new());
    file.seek(SeekFrom::Start(0))?;
    file.take(LEN_MAX).read_to_end(&mut text)?;
    Ok(text)
}

/// Returns a sealed memory file with the options of a mount.
pub(crate) fn sealed(text: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(memfd_create(c"esker-mount", flags)?);
    file.write_all(text)?;
    fcntl_add_seals(&file, FIXED | SealFlags::SEAL)?;
    Ok(file.into())
}

/// Returns the options that come from outside of the mount, which may be any.
pub(super) fn from_outside(given: OwnedFd) -> io::Result<OwnedFd> {
    read(&given).map(|_| given)
}

/// Returns the options of the daemon, of which all but those that it may change are the kept ones.
pub(super) fn from_daemon(kept: impl AsFd, given: OwnedFd) -> io::Result<OwnedFd> {
    let parse = |text: Vec<u8>| serde_json::from_slice::<Value>(&text).map_err(io::Error::other);
    let (kept, given) = (parse(read(kept)?)?, parse(read(given)?)?);
    let merged = merge(&kept, given).map_err(|name| {
        io::Error::new(io::ErrorKind::PermissionDenied, format!("the daemon may not change {name}"))
    })?;
    sealed(&serde_json::to_vec(&merged)?)
}

/// Returns the changed options, or the name of one that may not change.
fn merge(kept: &Value, mut given: Value) -> Result<Value, String> {
    let mut merged = kept.clone();
    for cache in CACHES {
        let is_memory = |value: &Value| value.as_str().is_some_and(|path| path.starts_with(MEMORY));
        if let (Some(old), Some(new)) = (kept.pointer(cache), given.pointer_mut(cache))
            && is_memory(old)
            && is_memory(new)
        {
            // Each daemon makes its own.
            *new = old.clone();
        }
    }
    if kept.pointer(KNOWN).is_some_and(Value::is_null) {
        take(&mut merged, &given, KNOWN);
    }
    for repository in REPOSITORIES {
        let at = |field: &str| format!("{repository}{field}");
        // A successor accepts no head that is older than the one which its predecessor accepted.
        let forgets = at("/options/forget_history");
        if given.pointer(&forgets) == Some(&Value::Bool(false)) {
            take(&mut merged, &given, &forgets);
        }
        COMMANDED.iter().for_each(|field| take(&mut merged, &given, &at(field)));
        let servers = at("/options/servers");
        let text = |all: &Value| all.pointer(&servers).and_then(Value::as_str).map(str::to_owned);
        if let (Some(old), Some(new)) = (text(kept), text(&given)) {
            are_servers(&old, &new)?;
            take(&mut merged, &given, &servers);
        }
    }
    match difference(&merged, &given) {
        None => Ok(merged),
        Some(name) => Err(name),
    }
}

/// Takes a field that both have.
fn take(merged: &mut Value, given: &Value, field: &str) {
    if let (Some(old), Some(new)) = (merged.pointer_mut(field), given.pointer(field)) {
        *old = new.clone();
    }
}

/// Checks that only lines differ that commands change.
fn are_servers(kept: &str, given: &str) -> Result<(), String> {
    fn lines(text: &str) -> Vec<&str> {
        if text.contains('\n') { text.lines().collect() } else { Vec::new() }
    }
    fn words(line: &str) -> (&str, &str) {
        match line.split_once(' ') {
            Some(("external", rest)) => words(rest),
            Some(words) => words,
            None => (line, ""),
        }
    }
    // Text of one line is the URL of a server.
    let urls = |text: &str| -> Vec<String> {
        let is_url = |line: &&str| words(line).0 == "server";
        let named = lines(text).into_iter().filter(is_url).map(|line| words(line).1.to_owned());
        named.chain((!text.contains('\n')).then(|| text.to_owned())).collect()
    };
    let fixed = |text: &str| -> Vec<String> {
        let is_fixed = |line: &&str| !SERVERS.contains(&words(line).0);
        lines(text).into_iter().filter(is_fixed).map(str::to_owned).collect()
    };
    let known = urls(kept);
    let is_remote = |url: &String| url.starts_with("http://") || url.starts_with("https://");
    let mut new = urls(given).into_iter().filter(|url| !known.contains(url));
    match new.find(|url| !is_remote(url)) {
        None if fixed(kept) == fixed(given) => Ok(()),
        None => Err("settings of servers beside their names, proxies and time limits".to_owned()),
        Some(url) => Err(format!("the servers to {url}")),
    }
}

/// Returns the name of the first field that differs.
fn difference(kept: &Value, given: &Value) -> Option<String> {
    match (kept, given) {
        _ if kept == given => None,
        (Value::Object(old), Value::Object(new)) => {
            let nothing = Value::Null;
            let mut names = old.keys().chain(new.keys());
            names.find_map(|name| {
                let of = |all: &serde_json::Map<String, Value>| all.get(name).unwrap_or(&nothing).clone();
                let inner = difference(&of(old), &of(new))?;
                Some(if inner.is_empty() { name.clone() } else { inner })
            })
        }
        _ => Some(String::new()),
    }
}

#[cfg(test)]
mod tests;
