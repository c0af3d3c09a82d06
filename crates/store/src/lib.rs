//! Fetches, verifies, caches and stores objects: from folders and over HTTP, with proxies and fail-over.
//!
//! ```text
//!   ObjectStore::get ─► Cache ─► single-flight ─► Source: Routed(Verifying(HttpSource))
//!        ▲                                          │ stored bytes, hash checked
//!        └── Handle ◄── entry ◄── write once ◄── decompress
//! ```
//!
//! Nothing blocks: a request is answered through [`Done`], at once if the object is in the cache, otherwise
//! from the thread that finishes it. Only bytes whose hash was checked become a [`Handle`].
#![deny(unsafe_code)]

mod below;
mod beneath;
mod cache;
mod counter;
mod destinations;
mod done;
mod engine;
mod errand;
mod error;
mod file_lock;
mod flight;
mod handle;
mod head;
mod http;
mod local;
mod memory;
mod objects;
mod parts;
mod pool;
mod progress;
mod prove;
mod ranged;
mod retry;
mod route;
mod servers;
mod sink;
mod source;
mod status;
mod store;
mod sys;
mod urgency;
mod verify;
mod waits;
mod wanted;

pub use below::{Lower, LowerForm, LowerStatus, make_alien};
pub use beneath::{Beneath, Links};
pub use cache::care::{CachedObject, CheckProgress, DamagedObject, Freed, Goal};
pub use cache::disk::{Disk, FileFacts, RealDisk, make_dirs, persist, read_file, remove_unfinished, replace};
pub use cache::pins::PinSet;
pub use cache::{Cache, CacheOptions};
pub use counter::Counter;
pub use destinations::{Destinations, Reachable};
pub use done::Done;
pub use engine::{Engine, EngineOptions, Log, connect, connect_straight};
pub use errand::Errand;
pub use error::{Blame, Cause, Phase, StoreError, names};
pub use file_lock::{FileLock, LockHolder, Locking};
pub use handle::{Handle, Mapped, OpenObject};
pub use head::{HeadKeeper, HeadOptions, HeadStatus, OFFLINE_MAX_AGE, Offline, Refreshed, Started};
pub use http::{
    Compose, Datagrams, Destination, Heard, HttpOptions, Listen, ListenStatus, Listening, TlsProblem,
    full_name, host_of,
};
pub use objects::Objects;
pub use parts::{PartCache, Parts};
pub use progress::{Progress, Requester};
pub use prove::StockZlib;
pub use ranged::{RangedFile, Version, Whole};
pub use retry::RetryPolicy;
pub use servers::{
    Authorities, Dns, Family, Login, Order, Proxies, Proxy, ProxyError, Servers, ServersError, Timings, Told,
    without_passwords,
};
pub use sink::{LocalSink, Put, Sink};
pub use source::{Check, Fetch, MEMORY_MAX, Source, Spool, SpoolAccount, Stored};
pub use status::{
    CacheStatus, NetworkStatus, Reach, Room, RouteStatus, StoreStatus, TrafficStatus, WaitStatus, WorkStatus,
};
pub use store::{Holder, ObjectStore, Warmed};
pub use urgency::{Priority, Urgency};
pub use wanted::{CacheKey, External, UNSTATED_SIZE_LIMIT, Wanted};
