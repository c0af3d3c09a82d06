//! Mounting through `fusermount3`, the setuid program of libfuse. It opens `/dev/fuse`, mounts it and sends the
//! descriptor back over a socket.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::sys;
use crate::{MountError, MountOptions, Unmount, handover};

/// Environment variable that passes the socket's descriptor to fusermount3.
const SOCKET: &str = "_FUSE_COMMFD";

pub(crate) fn mount(mountpoint: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let fail = |reason: String, source| MountError::new("mounting on", mountpoint, reason, source);
    let (program, mode) = find().ok_or_else(|| {
        fail("fusermount3 is not installed; an administrator can install the package fuse3".into(), None)
    })?;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|e| fail("no socket can be had".into(), Some(e.into())))?;
    let mut command = Command::new(&program);
    command.arg("-o").arg(option_text(options)).arg("--").arg(mountpoint);
    command.env(SOCKET, theirs.as_raw_fd().to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    sys::inherit(&mut command, theirs.as_fd());
    let child = command.spawn().map_err(|e| fail(format!("{} can't be run", program.display()), Some(e)))?;
    drop(theirs);
    let device = handover::receive_device(&ours);
    let output = child
        .wait_with_output()
        .map_err(|e| fail(format!("{} can't be waited for", program.display()), Some(e)))?;
    match device {
        Ok(device) if output.status.success() => Ok(device),
        Ok(_) | Err(_) => Err(fail(refusal(&program, mode, &output), None)),
    }
}

pub(crate) fn unmount(mountpoint: &Path, how: Unmount) -> Result<(), MountError> {
    let fail = |reason: String, source| MountError::new("unmounting", mountpoint, reason, source);
    let (program, mode) = find().ok_or_else(|| {
        fail("only root may, and fusermount3 is not installed (package fuse3)".into(), None)
    })?;
    let mut command = Command::new(&program);
    command.arg(match how {
        Unmount::IfUnused => "-u",
        Unmount::Lazy => "-uz",
    });
    let output = command
        .arg("--")
        .arg(mountpoint)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| fail(format!("{} can't be run", program.display()), Some(e)))?;
    if output.status.success() { Ok(()) } else { Err(fail(refusal(&program, mode, &output), None)) }
}

/// Finds fusermount3; returns its path, mode and owner.
fn find() -> Option<(PathBuf, (u32, u32))> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Where it is even if PATH is short, as it is under some schedulers.
    let usual = ["/usr/bin", "/bin", "/usr/local/bin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let places: Vec<PathBuf> = std::env::split_paths(&path).chain(usual).collect();
    ["fusermount3", "fusermount"].iter().find_map(|name| {
        places.iter().find_map(|place| {
            let file = place.join(name);
            let metadata = std::fs::metadata(&file).ok()?;
            metadata.is_file().then(|| (file, (metadata.permissions().mode(), metadata.uid())))
        })
    })
}

fn option_text(options: &MountOptions) -> OsString {
    let mut text = String::from("ro,nosuid,nodev,noatime,default_permissions,subtype=esker");
    if options.allow_other {
        text.push_str(",allow_other");
    }
    if options.noexec {
        text.push_str(",noexec");
    }
    for label in &options.labels {
        // It takes the commas in there for separators, and hands all parts to the kernel in their order.
        text.push_str(&format!(",{}", label.text()));
    }
    if !options.source.is_empty() {
        let name = options.source.replace('\0', "").replace('\\', "\\\\").replace(',', "\\,");
        text.push_str(",fsname=");
        text.push_str(&name);
    }
    text.into()
}

/// Returns the error text of fusermount3, with a hint if the reason is known.
fn refusal(program: &Path, (mode, owner): (u32, u32), output: &Output) -> String {
    let name = program.display();
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim();
    let setuid_root = mode & 0o4000 != 0 && owner == 0;
    if !setuid_root && !rustix::process::geteuid().is_root() {
        return format!(
            "{name} has no setuid bit and can't mount ({said}); an administrator can give it one: chmod u+s \
             {name}"
        );
    }
    // It looks only for mounts of the calling user.
    if said.contains("not found in /etc/mtab") {
        return format!("nothing is mounted there by you ({said})");
    }
    if said.contains("user_allow_other") {
        return format!("{said}; without allow_other, or with user_allow_other in /etc/fuse.conf, it works");
    }
    let nosuid = rustix::thread::no_new_privs().unwrap_or(false);
    if nosuid {
        return format!("{name} gains no privilege here because no_new_privs is set ({said}); use esker run");
    }
    if said.is_empty() { format!("{name} failed ({})", output.status) } else { said.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_a_url_do_not_become_options() {
        let options = MountOptions {
            source: r"http://a/b,suid\x".into(),
            allow_other: true,
            ..MountOptions::default()
        };
        let text = option_text(&options).into_string().expect("text");
        assert!(text.ends_with(r"fsname=http://a/b\,suid\\x"), "{text}");
    }

    #[test]
    fn a_refusal_comes_with_a_hint() {
        let output = Output {
            status: std::os::unix::process::ExitStatusExt::from_raw(256),
            stdout: vec![],
            stderr: b"fusermount3: option allow_other only allowed if 'user_allow_other' is set".to_vec(),
        };
        let text = refusal(Path::new("/usr/bin/fusermount3"), (0o104_755, 0), &output);
        assert!(text.contains("/etc/fuse.conf"), "{text}");
    }
}
