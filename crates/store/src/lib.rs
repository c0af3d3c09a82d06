//! Fetches, verifies, caches and stores objects: from folders and over HTTP, with proxies and fail-over.
//!
//! ```text
//!   ObjectStore::get ─► Cache ─► single-flight ─► Source: Routed(Verifying(HttpSource))
//!        ▲                                          │ stored bytes, hash checked
//!        └── Handle ◄── entry ◄── write once ◄── decompress
//! ```
//!
//! Nothing blocks: a request is answered through [`Callback`], at once if the object is in the cache, otherwise
//! from the thread that finishes it. Only bytes whose hash was checked become a [`Handle`].
#![deny(unsafe_code)]

mod beneath;
mod cache;
mod callback;
mod cancel_token;
mod clock;
mod counter;
mod destinations;
mod engine;
mod error;
mod escaping;
pub mod exact_path;
mod failover;
mod file_lock;
mod folder_owner;
mod folder_spool;
mod head;
pub mod interruption;
mod large_bytes;
mod memory_budget;
mod named_file;
mod objects;
mod own_file;
mod pool;
mod priority;
mod progress;
mod remote_file;
mod request_thread;
mod servers;
mod sink;
mod storage_problem;
mod sys;
mod transport;
mod wait_stats;

pub use beneath::{Links, RootedDir};
pub use cache::admin::{CachedObject, CheckProgress, DamagedObject, Goal};
pub use cache::block_cache::{BlockCache, FileBlocks};
pub use cache::disk::{
    Disk, FileFacts, RealDisk, WritePiece, make_dirs, persist, persist_with, read_file,
    refuse_link_of_others, remove_unfinished, replace,
};
pub use cache::evict::Freed;
pub use cache::lower::{Lower, LowerForm, make_alien};
pub use cache::pins::PinSet;
pub use cache::status::{CacheStatus, LowerStatus, Room};
pub use cache::verify_plain::StockZlib;
pub use cache::{Cache, CacheOptions, DESCRIPTOR_LIFETIME};
pub use callback::Callback;
pub use cancel_token::CancelToken;
pub use counter::Counter;
pub use destinations::{DestinationRule, Destinations};
pub use engine::{Engine, EngineOptions, connect, connect_straight};
pub use error::{Blame, Cause, Phase, StoreError, is_full, names};
pub use failover::retry::RetryPolicy;
pub use file_lock::{FileLock, LockHolder, Locking};
pub use folder_owner::{CacheKind, foreign_entry};
pub use folder_spool::FolderSpool;
pub use head::{HeadKeeper, HeadOptions, HeadStatus, OFFLINE_MAX_AGE, Offline, Refreshed, Started};
pub use interruption::interrupt;
pub use large_bytes::{LargeBytes, LargeWriter, inflated};
pub use memory_budget::{MemoryBudget, Share};
pub use named_file::{FileOpener, open_named, open_named_or, set_file_opener};
pub use objects::Objects;
pub use objects::handle::{Handle, Mapped, OpenObject};
pub use objects::object_store::{Holder, ObjectStore, Warmed};
pub use objects::request::{CacheKey, External, ObjectRequest, UNSTATED_SIZE_LIMIT};
pub use objects::status::{StoreStatus, TrafficStatus};
pub use own_file::{changeable_part, changeable_record, changeable_way, open_log, open_own_file};
pub use pool::WorkStatus;
pub use priority::{Priority, Urgency};
pub use progress::{ObjectOrigin, Progress, Requester};
pub use remote_file::{Block, BlockCheck, RemoteFile};
pub use request_thread::RequestThread;
pub use servers::{
    Authorities, Dns, Family, InfoHeaders, KeptAuthorities, Login, Order, Proxies, Proxy, ProxyError,
    Servers, ServersError, Timings, without_passwords,
};
pub use sink::{Listed, LocalSink, Put, SignedPut, Sink, StoredFiles, Swap};
pub use storage_problem::StorageProblem;
pub use transport::range_file::RangeFile;
pub use transport::relay::{Relay, RelayPart};
pub use transport::source::{
    AttemptRoute, Check, Expected, Fetch, FilePart, FileVersion, HttpRequest, MEMORY_MAX, Source, Spool,
    SpoolAccount, Stored, Validator,
};
pub use transport::status::{EndpointStatus, NetworkStatus, RouteStatus};
pub use transport::{
    Client, ClientOptions, ComposeDatagram, DatagramTarget, Datagrams, Download, EventHandler, HttpOptions,
    Poster, Received, Receiver, SseListener, SseOptions, SseStatus, TlsProblem, addresses_of,
    downloads_in_flight, files_of_machine, full_name, host_of,
};
pub use wait_stats::WaitStatus;
