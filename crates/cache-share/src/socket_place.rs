//! Binds sockets at paths, also in folders of other users, without changing anything else there.
//!
//! Between binding and a change of the mode or owner another user could put a link in place of the socket, and the change
//! would be one of its target. So the socket is bound below an open folder, and changed through a descriptor of itself.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use esker_store::changeable_way;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, chmodat, fchmod, fstat, open, openat, renameat, unlinkat,
};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, bind};

/// Maximum number of names that are tried while other files have them.
const NAMES_MAX: u32 = 100;

/// Folder and name of a socket.
#[derive(Debug)]
pub struct SocketPlace {
    folder: OwnedFd,
    name: OsString,
}

impl SocketPlace {
    /// Opens the folder. Refuses a path that other users can make lead elsewhere, by the name of the part that they can change; the
    /// folder itself may be theirs.
    pub fn open(path: &Path) -> io::Result<Self> {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        if let Some(part) = changeable_way(folder)? {
            let why = format!("other users can change {}, on the way to the socket", part.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { folder: open(folder, flags, Mode::empty())?, name: name.to_owned() })
    }

    /// Binds a socket with this mode, in place of what has its name. `give` may change the owner, of a descriptor of the
    /// socket's file.
    pub fn bind(
        &self,
        socket: impl AsFd,
        mode: u32,
        give: impl FnOnce(OwnedFd) -> io::Result<()>,
    ) -> io::Result<()> {
        // The file gets the mode of the socket.
        fchmod(&socket, Mode::from_raw_mode(0o600))?;
        let (file, new) = self.bind_anew(&socket)?;
        let mode = Mode::from_raw_mode(mode);
        // The link in /proc is the file itself, whatever has its name now.
        let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
        let put = chmodat(CWD, &itself, mode, AtFlags::empty()).map_err(io::Error::from);
        let put = put.and_then(|()| give(file));
        let put = put.and_then(|()| Ok(renameat(&self.folder, &new, &self.folder, &self.name)?));
        put.inspect_err(|_| _ = unlinkat(&self.folder, &new, AtFlags::empty()))
    }

    /// Binds a socket under a name of its own; returns a descriptor of the file, and the name.
    fn bind_anew(&self, socket: impl AsFd) -> io::Result<(OwnedFd, OsString)> {
        for number in 0..NAMES_MAX {
            let name = OsString::from(format!(".esker-{}-{number}", std::process::id()));
            let mut path = OsString::from(format!("/proc/self/fd/{}/", self.folder.as_raw_fd()));
            path.push(&name);
            match bind(&socket, &SocketAddrUnix::new(Path::new(&path))?) {
                Ok(()) => return Ok((self.bound(&name)?, name)),
                Err(Errno::ADDRINUSE) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::ADDRINUSE.into())
    }

    /// Opens the file of a socket that this process has just bound.
    fn bound(&self, name: &OsStr) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.folder, name, flags, Mode::empty())?;
        let facts = fstat(&file)?;
        let is_socket = FileType::from_raw_mode(facts.st_mode) == FileType::Socket;
        let is_ours = facts.st_uid == rustix::process::geteuid().as_raw() && facts.st_nlink == 1;
        if is_socket && is_ours {
            return Ok(file);
        }
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "another user has replaced the socket"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::PathBuf;

    use rustix::fs::{Uid, chownat};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, listen, socket_with};

    use super::*;

    fn socket() -> OwnedFd {
        socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a socket")
    }

    #[test]
    fn a_socket_is_changed_and_nothing_that_is_put_in_its_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::write(at("victim"), "x").expect("a file");
        fs::set_permissions(at("victim"), Permissions::from_mode(0o600)).expect("a mode");
        symlink(at("victim"), at("talk")).expect("a link");
        // One that a killed process has left.
        drop(UnixListener::bind(at(&format!(".esker-{}-0", std::process::id()))).expect("a socket"));
        let owner =
            if rustix::process::geteuid().is_root() { 61_001 } else { rustix::process::geteuid().as_raw() };
        let mut moved = PathBuf::new();
        let bound = socket();
        let put = SocketPlace::open(&at("talk")).expect("a folder").bind(&bound, 0o660, |file| {
            // The attack: at the moment between binding and giving away, a link takes the place of the socket.
            let new = fs::read_dir(folder.path()).expect("a folder").flatten().map(|entry| entry.path());
            let mine = |path: &PathBuf| path.to_string_lossy().ends_with("-1");
            let new = new.into_iter().find(mine).expect("the new socket");
            moved = at("moved");
            fs::rename(&new, &moved).expect("moving");
            symlink(at("victim"), &new).expect("a link");
            Ok(chownat(&file, "", Some(Uid::from_raw(owner)), None, AtFlags::EMPTY_PATH)?)
        });
        put.expect("bound");
        let facts = fs::metadata(at("victim")).expect("a file");
        let me = rustix::process::geteuid().as_raw();
        assert_eq!((facts.uid(), facts.mode() & 0o777), (me, 0o600), "the victim is as it was");
        let facts = fs::symlink_metadata(&moved).expect("the socket");
        assert!(facts.file_type().is_socket());
        assert_eq!((facts.uid(), facts.mode() & 0o777), (owner, 0o660));
    }

    #[test]
    fn a_socket_is_bound_in_place_of_another_and_connected_to() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("talk");
        for _ in 0..2 {
            let bound = socket();
            SocketPlace::open(&path).expect("a folder").bind(&bound, 0o666, |_| Ok(())).expect("bound");
            listen(&bound, 1).expect("listening");
            UnixStream::connect(&path).expect("connected");
            assert_eq!(fs::metadata(&path).expect("a socket").mode() & 0o777, 0o666);
            assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "no other name is left");
        }
        let failed = SocketPlace::open(&path)
            .expect("a folder")
            .bind(socket(), 0o600, |_| Err(io::ErrorKind::PermissionDenied.into()));
        failed.expect_err("it can't be given away");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "no other name is left");
    }

    #[test]
    fn a_way_that_others_can_change_is_refused_by_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().canonicalize().expect("a folder").join(name);
        fs::create_dir_all(at("theirs/talk")).expect("a folder");
        fs::set_permissions(at("theirs"), Permissions::from_mode(0o777)).expect("a mode");
        let refused = SocketPlace::open(&at("theirs/talk/socket")).expect_err("a way of others");
        assert!(refused.to_string().contains(at("theirs").to_str().expect("text")), "{refused}");
        // In a folder of others that they can't exchange, it is bound.
        fs::create_dir(at("spool")).expect("a folder");
        if rustix::process::geteuid().is_root() {
            chown(at("spool"), Some(61_001), None).expect("an owner");
        }
        SocketPlace::open(&at("spool/socket")).expect("a folder");
    }
}
