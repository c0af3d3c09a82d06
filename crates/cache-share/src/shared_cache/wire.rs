//! Protocol between the writer of a cache and its clients.
//!
//! Packets over a `SOCK_SEQPACKET` socket in the cache directory, one JSON message each; an object is sent as
//! a read-only descriptor beside its message.
//!
//! ```text
//!  client → writer   hello      first: protocol version, repository and its servers
//!                    get        an object for a user; many may be in flight, distinguished by their ids
//!                    warm       bring an object into the cache; many may be in flight, too
//!                    over       prefetches of this token are cancelled
//!                    doubt      the file of this object could not be read: compare it, or fetch it
//!                    released   answer to `release`: objects that the kernel still uses
//!                    status     asks for the state of the cache
//!                    care       first, in place of `hello`: an administrative task (cache_admin.rs), then more of them
//!  writer → client   welcome    answer to `hello`
//!                    object     answer to `get`, with the descriptor
//!                    warmed     answer to `warm`
//!                    progress   bytes came for these requests, or for those before them in a queue
//!                    failed     answer to `hello` (id 0), `get` or `warm`
//!                    release    the writer wants to evict these: ask the kernel to release them
//!                    status     answer to `status`
//! ```
//!
//! A client that loses its writer repeats all pending requests with the next one.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use esker_format::compress::Compression;
use esker_format::object::ObjectName;
use esker_store::{Blame, CacheKey, Cause, External, ObjectRequest, Requester, StoreError, StoreStatus};
use esker_threads::waits::WaitTimes;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Version of the protocol, which changes with every change of the messages: writer and client may be different
/// builds.
pub(crate) const VERSION: u32 = 8;

/// Maximum length of a message in bytes. The longest regular one is a release of [`RELEASE_MAX`] keys or a long
/// path.
const MESSAGE_MAX: usize = 64 * 1024;

/// Maximum number of keys in one release.
pub(super) const RELEASE_MAX: usize = 512;

/// Maximum number of concurrent prefetches of a client.
pub(super) const WARMING_MAX: usize = 8192;

/// Longest text of an error or path that is sent; the rest is cut.
const TEXT_MAX: usize = 8 * 1024;

/// Administrative task on a cache.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CacheTask {
    Report,
    List,
    Pins,
    /// Pins objects, given with their plain lengths; the set is complete with the last part.
    Pin {
        label: String,
        part: Vec<(CacheKey, u64)>,
        last: bool,
    },
    Unpin {
        label: String,
    },
    EvictTo {
        bytes: u64,
    },
    Evict {
        keys: Vec<CacheKey>,
    },
    Wipe {
        even_pinned: bool,
        heads: bool,
    },
    Check {
        remove: bool,
    },
}

/// Message of a client.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToWriter {
    /// First message of a client: protocol version, repository and servers.
    Hello {
        version: u32,
        servers: String,
    },
    /// Administrative task, in place of `hello`.
    Care {
        version: u32,
        task: CacheTask,
    },
    /// Requests an object; others speak for themselves.
    Get {
        id: u64,
        user: Option<u32>,
        object: WantedMessage,
    },
    Warm {
        id: u64,
        #[serde(rename = "errand")]
        token: u64,
        object: WantedMessage,
    },
    Over {
        #[serde(rename = "errand")]
        token: u64,
    },
    Doubt {
        object: WantedMessage,
    },
    Released {
        id: u64,
        held: Vec<bool>,
    },
    Status {
        id: u64,
    },
}

/// Message of the writer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ToClient {
    Welcome,
    Object {
        id: u64,
        len: u64,
        /// Microseconds for which the writer waited for network, disk, processing and threads. Other builds of this
        /// version may lack it.
        #[serde(default)]
        waits_us: [u64; 4],
    },
    /// Reply to a prefetch; without a number the object was cached already.
    Warmed {
        id: u64,
        fetched_bytes: Option<u64>,
    },
    /// Reports progress: bytes arrived since the last such message for these requests, or for those ahead of
    /// them. Requests with ids above `heard` are still unread, behind the others.
    Progress {
        ids: Vec<u64>,
        heard: u64,
    },
    Failed {
        id: u64,
        error: ErrorMessage,
    },
    Release {
        id: u64,
        keys: Vec<CacheKey>,
    },
    Status {
        id: u64,
        status: Box<StoreStatus>,
    },
}

/// Returns waits as they are sent.
pub(super) fn micros(waits: WaitTimes) -> [u64; 4] {
    waits.all().map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

/// Returns the waits of a message.
pub(super) fn waits(micros: [u64; 4]) -> WaitTimes {
    let [network, disk, processing, thread] = micros.map(Duration::from_micros);
    WaitTimes { network, disk, processing, thread }
}

/// A [`ObjectRequest`] on the wire.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WantedMessage {
    name: String,
    compression: u8,
    size: Option<u64>,
    limit: u64,
    what: String,
    alternative_path: bool,
    /// Path and offset of external data.
    external: Option<(String, Option<u64>)>,
}

impl WantedMessage {
    pub(super) fn new(wanted: &ObjectRequest) -> Self {
        Self {
            name: wanted.name.to_string(),
            compression: wanted.compression.to_flag(),
            size: wanted.size,
            limit: wanted.limit,
            what: cut(&wanted.what),
            alternative_path: wanted.alternative_path,
            external: wanted.external.as_ref().map(|external| (external.path.clone(), external.offset)),
        }
    }

    pub(super) fn read(self) -> Option<ObjectRequest> {
        Some(ObjectRequest {
            name: ObjectName::parse(&self.name)?,
            compression: Compression::from_flag(self.compression)?,
            size: self.size,
            limit: self.limit,
            what: self.what,
            alternative_path: self.alternative_path,
            external: self.external.map(|(path, offset)| Box::new(External { path, offset })),
            requester: Requester::default(),
        })
    }
}

/// A [`StoreError`] on the wire.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ErrorMessage {
    blame: Blame,
    may_pass: bool,
    text: String,
}

impl ErrorMessage {
    pub(super) fn new(error: &StoreError) -> Self {
        // The client puts its own name of the object in front.
        let text = error.full_text();
        let rest = text.strip_prefix(error.object()).unwrap_or(&text);
        let rest = rest.strip_prefix(':').unwrap_or(rest).trim_start();
        Self { blame: error.blame(), may_pass: error.may_pass(), text: cut(rest) }
    }

    pub(super) fn read(self, object: String) -> StoreError {
        StoreError::new(object, Cause::Remote { blame: self.blame, may_pass: self.may_pass, text: self.text })
    }
}

/// Returns the start of a text that is not too long for a message.
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_MAX)].to_owned()
}

/// Sends one message, with a descriptor if there is one.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MESSAGE_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is too long"));
    }
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    rustix::io::retry_on_intr(|| {
        sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)
    })?;
    Ok(())
}

/// Receives messages; reuses its buffer.
pub(crate) struct Receiver {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Receiver {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket, buffer: vec![0; MESSAGE_MAX] }
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Receives the next message; an error if the peer is gone or sends an invalid one.
    pub(crate) fn next<T: DeserializeOwned>(&mut self) -> io::Result<(T, Option<OwnedFd>)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let got = loop {
            let mut into = [IoSliceMut::new(&mut self.buffer)];
            match recvmsg(self.socket.as_fd(), &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Err(rustix::io::Errno::INTR) => {}
                other => break other?.bytes,
            }
        };
        let descriptor = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        match self.buffer.get(..got) {
            Some(bytes) if !bytes.is_empty() => Ok((serde_json::from_slice(bytes)?, descriptor)),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}
