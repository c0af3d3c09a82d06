//! A daemon's connection to its supervisor.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::Arc;

use esker_fuse::{MEMORY_VERSION, Session, SessionDescriptors};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};

use super::messages::{self, Kind};
use crate::helper_process::Helper;
use crate::status::Presentation;
use crate::sys;

/// Name of the memory file of the session.
const MEMORY: &str = "memory";
/// Name of the journal of names that the kernel knows.
const NAMES: &str = "names";
/// Prefix of the names of the session's devices, before their number.
const DEVICE: &str = "device ";

/// Facts of a mount that a successor can't find out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inherited {
    /// Layout of the memory file.
    pub layout: u32,
    /// Mount point, resolved: asking for it would be a request to the mount itself.
    #[serde(with = "esker_store::exact_path")]
    pub mountpoint: std::path::PathBuf,
    /// File system through which the mount is presented.
    pub presentation: Presentation,
    /// Start of the mount, in seconds since the epoch.
    pub mounted: u64,
    /// Identity of the content, if the tree is an image.
    pub fingerprint: Option<String>,
}

/// A daemon's connection to its supervisor, and what it has inherited from the daemon before.
#[derive(Debug)]
pub struct Supervision {
    socket: OwnedFd,
    inherited: Option<Inherited>,
    descriptors: Mutex<HashMap<String, OwnedFd>>,
}

impl Supervision {
    /// Takes over the descriptor from the supervisor, and waits for all that it has kept.
    pub fn adopt(socket: RawFd) -> io::Result<Self> {
        let socket = sys::adopt(socket)?;
        let (mut state, mut descriptors) = (None, HashMap::new());
        while let Some(message) = messages::receive(&socket)? {
            match (message.kind, message.descriptor) {
                (Kind::Keep, Some(descriptor)) => {
                    descriptors.insert(String::from_utf8_lossy(&message.text).into_owned(), descriptor);
                }
                (Kind::State, _) => state = Some(message.text),
                (Kind::Complete, _) => break,
                _ => {}
            }
        }
        let inherited: Option<Inherited> =
            state.map(|state| serde_json::from_slice(&state)).transpose().map_err(io::Error::other)?;
        if let Some(Inherited { layout, .. }) = inherited
            && layout != MEMORY_VERSION
        {
            let text =
                format!("the mount's memory has layout {layout}, and this program needs {MEMORY_VERSION}");
            return Err(io::Error::other(text));
        }
        Ok(Self { socket, inherited, descriptors: Mutex::new(descriptors) })
    }

    /// Returns the facts of the mount to go on with; `None` for a daemon that makes the mount.
    pub fn inherited(&self) -> Option<&Inherited> {
        self.inherited.as_ref()
    }

    /// Takes an inherited descriptor.
    pub fn take(&self, name: &str) -> Option<OwnedFd> {
        self.descriptors.lock().remove(name)
    }

    /// Has the supervisor keep a copy of a descriptor, in place of another one of this name.
    pub fn keep(&self, name: &str, descriptor: impl AsFd) -> io::Result<()> {
        messages::send(&self.socket, Kind::Keep, name.as_bytes(), Some(descriptor.as_fd()))
    }

    pub(crate) fn keep_session(&self, session: &Session) -> io::Result<()> {
        let SessionDescriptors { devices, memory, names } = session.descriptors()?;
        names.iter().try_for_each(|names| self.keep(NAMES, names))?;
        self.keep(MEMORY, memory)?;
        devices
            .iter()
            .enumerate()
            .try_for_each(|(number, device)| self.keep(&format!("{DEVICE}{number}"), device))
    }

    pub(crate) fn take_session(&self) -> io::Result<SessionDescriptors> {
        let memory = self.take(MEMORY).ok_or(io::ErrorKind::NotFound)?;
        let devices = (0..).map_while(|number: usize| self.take(&format!("{DEVICE}{number}"))).collect();
        Ok(SessionDescriptors { devices, memory, names: self.take(NAMES) })
    }

    /// Has the supervisor keep facts of the mount for a successor.
    pub(crate) fn describe(&self, facts: &Inherited) -> io::Result<()> {
        let text = serde_json::to_vec(facts).map_err(io::Error::other)?;
        messages::send(&self.socket, Kind::State, &text, None)
    }

    /// Reports that the mount is served. A supervisor that was killed is no reason to end.
    pub(crate) fn serving(&self) {
        let _ = messages::send(&self.socket, Kind::Serving, b"", None);
    }

    /// Has the supervisor replace this daemon by one with these options.
    pub(crate) fn renew(&self, options: OwnedFd) -> io::Result<()> {
        messages::send(&self.socket, Kind::Options, b"", Some(options.as_fd()))
    }

    /// Reports why this daemon can't serve the mount.
    pub fn failed(&self, why: &str) {
        let len = why.floor_char_boundary(messages::TEXT_MAX);
        let _ = messages::send(&self.socket, Kind::Failed, &why.as_bytes()[..len], None);
    }

    /// Reports that the mount is gone, so that no other daemon is started.
    pub(crate) fn ended(&self) {
        let _ = messages::send(&self.socket, Kind::Ended, b"", None);
    }

    /// Calls `retire` once the supervisor wants to start another daemon, or the helper of this one has ended.
    pub fn on_retire(
        self: &Arc<Self>,
        helper: Arc<Helper>,
        retire: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let link = Arc::clone(self);
        esker_threads::spawn("supervision", move || {
            loop {
                // An end of the helper is an event, also if none is requested.
                let mut wait =
                    [PollFd::new(&link.socket, PollFlags::IN), PollFd::new(&*helper, PollFlags::empty())];
                let is_interrupted = poll(&mut wait, None).is_err();
                if !is_interrupted && !wait[1].revents().is_empty() {
                    tracing::warn!("the helper of this mount has ended; another daemon takes over");
                    return retire();
                }
                if is_interrupted || wait[0].revents().is_empty() {
                    continue;
                }
                match messages::receive(&link.socket) {
                    Ok(Some(message)) if message.kind == Kind::Retire => return retire(),
                    Ok(Some(_)) => {}
                    // The mount goes on without a supervisor, as those in the foreground do.
                    Ok(None) | Err(_) => return tracing::warn!("the supervisor of this mount has ended"),
                }
            }
        })?;
        Ok(())
    }
}
