//! The gateway: its leases, database and repositories, for any number of threads.
//!
//! Three locks, taken in this order and held for short times: `changing` while a change of the leases becomes durable, `leases`
//! while it is applied or read, `working` while a lease is claimed. None is held while objects are received or a commit runs:
//! the commits of one repository take turns of their own.

mod commits;
mod joint_commits;
mod uploads;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use esker_format::name::RepositoryName;
use esker_repository::Settings;
use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio::sync::watch;

use crate::authorization::Authorization;
use crate::clock::Clock;
use crate::database::{Database, DatabaseError, Record};
use crate::error::GatewayError;
use crate::granted::Granted;
use crate::keys::{AccessError, KeyRing, PublisherKey};
use crate::lease::{Change, Lease, Leases, Millis, Refused, State};
use crate::lease_path::{LeasePath, LeasePathError};
use crate::queue::Queue;
use crate::target::{OpenTarget, PublicFiles, Target};
use crate::token::Token;
use crate::usage::Usage;
use crate::wire::{self, VERSION_MAX, VERSION_MIN};

use joint_commits::Commits;

/// Most names in a question which objects are there.
pub(crate) const NAMES_MAX: usize = 10_000;
/// Event of a new lease in the audit log.
const ACQUIRED: &str = "acquired";
/// Event of a lease that makes room for one of the same key.
const TAKEN_OVER: &str = "taken over";
/// Event of a lease whose time is over.
const EXPIRED: &str = "expired";
/// Longest name of a publisher's host that is kept.
const HOST_MAX: usize = 255;

/// Settings of a gateway.
#[derive(Clone)]
pub struct GatewayOptions {
    /// Longest time that a lease lives without a renewal, in milliseconds.
    pub lease_max: i64,
    /// Time for which the result of a commit is kept, in milliseconds.
    pub result_kept: i64,
    /// Folder for temporary files of large objects.
    pub temporary: PathBuf,
    /// True if publishers may store objects in the storage themselves, with URLs that are signed for them.
    pub signed_puts: bool,
    /// The clock that leases end by.
    pub clock: Clock,
}

/// A key that signed a request.
#[derive(Clone, Debug)]
pub struct Signer {
    /// Name of the key.
    pub name: String,
    /// The key.
    pub key: PublisherKey,
}

/// A gateway.
pub struct Gateway {
    database: Database,
    keys: RwLock<Arc<KeyRing>>,
    leases: RwLock<Leases>,
    changing: Mutex<()>,
    /// Leases whose commit is carried out, or whose end is found out, by a thread of this process.
    working: Mutex<BTreeSet<Token>>,
    repositories: Mutex<BTreeMap<RepositoryName, Arc<Served>>>,
    disabled: RwLock<BTreeSet<RepositoryName>>,
    open: OpenTarget,
    options: GatewayOptions,
    usage: Usage,
    granted: Granted,
    queue: Queue,
    counters: Counters,
    /// True if the leases may be others than those of the database, because a change failed.
    stale: AtomicBool,
    changes: watch::Sender<u64>,
}

/// What the gateway has done since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Commits that published a revision.
    pub published: u64,
    /// Commits that published nothing.
    pub failed: u64,
    /// Objects that were received and stored.
    pub objects: u64,
    /// Bytes of these objects.
    pub bytes: u64,
}

#[derive(Debug, Default)]
struct Counters {
    published: AtomicU64,
    failed: AtomicU64,
    objects: AtomicU64,
    bytes: AtomicU64,
}

/// A repository that is open.
struct Served {
    target: Arc<dyn Target>,
    commits: Commits,
}

impl Gateway {
    /// Creates a gateway with the leases of a database. Finds out how commits ended that a crash interrupted.
    pub fn new(
        database: Database,
        keys: KeyRing,
        open: OpenTarget,
        options: GatewayOptions,
    ) -> Result<Self, GatewayError> {
        let (leases, disabled) = (database.leases()?, database.disabled()?);
        let usage = Usage::of(database.sent()?);
        let gateway = Self {
            database,
            keys: RwLock::new(Arc::new(keys)),
            leases: RwLock::new(leases),
            changing: Mutex::default(),
            working: Mutex::default(),
            repositories: Mutex::default(),
            disabled: RwLock::new(disabled),
            open,
            options,
            usage,
            granted: Granted::default(),
            queue: Queue::default(),
            counters: Counters::default(),
            stale: AtomicBool::new(false),
            changes: watch::Sender::new(0),
        };
        gateway.settle_all(|_| true);
        Ok(gateway)
    }

    /// Replaces the keys, after their files changed.
    pub fn set_keys(&self, keys: KeyRing) {
        *self.keys.write() = Arc::new(keys);
    }

    /// Returns the keys.
    pub fn keys(&self) -> Arc<KeyRing> {
        self.keys.read().clone()
    }

    /// Returns a receiver of a notification for each change of a lease.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns the time by the clock that leases end by.
    pub fn now(&self) -> Millis {
        (self.options.clock)()
    }

    /// Returns true if an operator disabled a repository.
    pub fn is_disabled(&self, repository: &RepositoryName) -> bool {
        self.disabled.read().contains(repository)
    }

    /// Refuses new leases of a repository, or allows them again.
    pub fn set_enabled(&self, repository: &RepositoryName, is_enabled: bool) -> Result<(), GatewayError> {
        let mut disabled = self.disabled.write();
        self.noted(self.database.set_disabled(repository, !is_enabled))?;
        match is_enabled {
            true => disabled.remove(repository),
            false => disabled.insert(repository.clone()),
        };
        Ok(())
    }

    /// Returns the public key and the certificate of a repository, for a key of it.
    pub fn public_files(
        &self,
        signer: &Signer,
        repository: &RepositoryName,
    ) -> Result<PublicFiles, GatewayError> {
        if !signer.key.grants.iter().any(|grant| grant.repository == *repository) {
            return Err(AccessError::Key.into());
        }
        Ok(self.served(repository)?.target.public_files()?)
    }

    /// Returns the key that signed an input, and counts the request.
    pub fn signer(&self, header: Option<&str>, input: &[u8]) -> Result<Signer, GatewayError> {
        let authorization = header.and_then(Authorization::parse).ok_or(AccessError::Signature)?;
        let keys = self.keys();
        let key = keys.signer(&authorization, input)?.clone();
        if !self.usage.may_ask(&authorization.key, key.limits.requests, self.now()) {
            return Err(GatewayError::TooManyRequests);
        }
        Ok(Signer { name: authorization.key, key })
    }

    /// Refuses a request that no operator signed.
    pub fn check_operator(&self, header: Option<&str>, input: &[u8]) -> Result<(), GatewayError> {
        Ok(self.keys().check_operator(header, input)?)
    }

    /// Returns the publishers that wait.
    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Returns the number of publishers that wait for a directory.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Returns the number of commits that wait for another one of their repository.
    pub fn waiting_commits(&self) -> usize {
        self.repositories.lock().values().map(|served| served.commits.waiting()).sum()
    }

    /// Takes a publisher from the queue, and tells the others.
    pub(crate) fn leave_queue(&self, publisher: (&str, &str), path: &LeasePath) {
        self.queue.leave(publisher, path);
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Returns what the gateway has done since it started.
    pub fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { published, failed, objects, bytes } = &self.counters;
        Counts {
            published: read(published),
            failed: read(failed),
            objects: read(objects),
            bytes: read(bytes),
        }
    }

    /// Returns the leases that are held, by path.
    pub fn leases(&self) -> Vec<(Token, Lease)> {
        let now = self.now();
        let leases = self.leases.read();
        let held = leases.held(now).map(|(token, lease)| (token.clone(), lease.clone()));
        let mut held: Vec<_> = held.collect();
        held.sort_by(|(_, one), (_, other)| one.path.cmp(&other.path));
        held
    }

    /// Returns a lease that is held.
    pub fn lease(&self, token: &Token) -> Result<Lease, GatewayError> {
        let now = self.now();
        let leases = self.leases.read();
        let found = leases.held(now).find(|(other, _)| *other == token);
        Ok(found.map(|(_, lease)| lease.clone()).ok_or(Refused::Unknown)?)
    }

    /// Leases a directory to a publisher.
    pub fn acquire(&self, signer: &Signer, request: &wire::Acquire) -> Result<(Token, Lease), GatewayError> {
        let protocol = u32::try_from(request.api_version).unwrap_or(u32::MAX);
        if protocol < VERSION_MIN {
            return Err(GatewayError::Version(request.api_version));
        }
        let path = LeasePath::parse(&request.path)?;
        let keys = self.keys();
        if !keys.repositories().contains(&path.repository) {
            return Err(LeasePathError::Repository(path.repository.to_string()).into());
        }
        if self.is_disabled(&path.repository) {
            return Err(GatewayError::Disabled);
        }
        keys.check(&signer.key, &path)?;
        self.settle_all(|lease| lease.path.overlaps(&path));
        let lease = |now: Millis| Lease {
            key: signer.name.clone(),
            path: path.clone(),
            hostname: request.hostname.chars().take(HOST_MAX).collect(),
            protocol: protocol.min(VERSION_MAX),
            expires: now.after(self.life(&signer.key, None)),
            state: State::Open,
        };
        let proposed = request.token.as_deref().and_then(Token::proposed);
        let token = proposed.unwrap_or_else(Token::random);
        let made = self.change_each(ACQUIRED, |leases, now| {
            match leases.get(&token) {
                // The answer to the same request was lost.
                Some(known) if known.is_held(now) && known.key == signer.name && known.path == path => {
                    return Ok(Vec::new());
                }
                Some(_) => return Err(Refused::OtherKey.into()),
                None => {}
            }
            let mut changes = leases.expire(now, self.options.result_kept);
            changes.extend(match &request.take_over {
                Some(named) => leases.take_over(token.clone(), lease(now), named, now)?,
                None => leases.acquire(token.clone(), lease(now), now)?,
            });
            if let Some(most) = signer.key.limits.leases {
                let stays = |token: &Token, lease: &Lease| {
                    lease.key == signer.name && !changes.contains(&Change::Remove(token.clone()))
                };
                let held = leases.held(now).filter(|(token, lease)| stays(token, lease)).count();
                if held >= most as usize {
                    return Err(GatewayError::TooManyLeases(most));
                }
            }
            Ok(changes)
        })?;
        self.forget(&made);
        Ok((token.clone(), self.lease(&token)?))
    }

    /// Returns the time that a lease lives from now, in milliseconds.
    fn life(&self, key: &PublisherKey, wanted_seconds: Option<u64>) -> i64 {
        let of_key = key.limits.lease_seconds.map(|seconds| i64::from(seconds) * 1000);
        let wanted =
            wanted_seconds.map(|seconds| i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1000));
        [of_key, wanted].into_iter().flatten().fold(self.options.lease_max, i64::min)
    }

    /// Renews a lease; returns it with its new end.
    pub fn renew(&self, signer: &Signer, token: &Token, seconds: Option<u64>) -> Result<Lease, GatewayError> {
        let life = self.life(&signer.key, seconds);
        self.change("renewed", |leases, now| {
            Ok(vec![leases.renew(token, &signer.name, now.after(life), now)?])
        })?;
        self.lease(token)
    }

    /// Gives up a lease.
    pub fn give_up(&self, signer: &Signer, token: &Token) -> Result<(), GatewayError> {
        self.settle(token)?;
        self.change("given up", |leases, _| Ok(vec![leases.drop(token, &signer.name)?]))?;
        Ok(())
    }

    /// Ends all leases of a directory and of those below it; a commit under way is not ended. Returns their number.
    pub fn end_below(&self, path: &LeasePath) -> Result<usize, GatewayError> {
        self.settle_all(|lease| path.covers(&lease.path));
        let mut ended = 0;
        for (token, _) in self.leases().iter().filter(|(_, lease)| path.covers(&lease.path)) {
            match self.change("ended by an operator", |leases, _| Ok(vec![leases.end(token)?])) {
                Ok(_) => ended += 1,
                Err(GatewayError::Lease(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(ended)
    }

    /// Removes leases that expired, and finds out how commits ended that were interrupted.
    pub fn expire(&self) -> Result<(), GatewayError> {
        self.settle_all(|_| true);
        let kept = self.options.result_kept;
        if self.leases.read().expire(self.now(), kept).is_empty() {
            return Ok(());
        }
        let gone = self.change_each(EXPIRED, |leases, now| Ok(leases.expire(now, kept)))?;
        self.forget(&gone);
        Ok(())
    }

    /// Forgets what leases have sent that are gone.
    fn forget(&self, changes: &[Change]) {
        let is_gone = |token: &Token| changes.contains(&Change::Remove(token.clone()));
        self.usage.forget(is_gone);
        self.granted.forget(is_gone);
    }

    /// Returns the settings of the repository of a lease.
    pub fn settings(&self, signer: &Signer, token: &Token) -> Result<Settings, GatewayError> {
        let lease = self.open_lease(signer, token)?;
        Ok(self.served(&lease.path.repository)?.target.settings()?)
    }

    /// Notes that the database has to be opened again, if a change failed.
    fn noted(&self, changed: Result<(), DatabaseError>) -> Result<(), GatewayError> {
        if changed.is_err() {
            self.stale.store(true, Ordering::Relaxed);
        }
        Ok(changed?)
    }

    /// Plans changes of the leases, makes them durable, and applies them. The last one is recorded.
    fn change(
        &self,
        event: &str,
        plan: impl FnOnce(&Leases, Millis) -> Result<Vec<Change>, GatewayError>,
    ) -> Result<Vec<Change>, GatewayError> {
        self.change_and_record(event, 1, plan)
    }

    /// Changes leases, as `change` does, and records each of them.
    fn change_each(
        &self,
        event: &str,
        plan: impl FnOnce(&Leases, Millis) -> Result<Vec<Change>, GatewayError>,
    ) -> Result<Vec<Change>, GatewayError> {
        self.change_and_record(event, usize::MAX, plan)
    }

    fn change_and_record(
        &self,
        event: &str,
        recorded: usize,
        plan: impl FnOnce(&Leases, Millis) -> Result<Vec<Change>, GatewayError>,
    ) -> Result<Vec<Change>, GatewayError> {
        let changing = self.changing.lock();
        self.refresh(&changing)?;
        let now = self.now();
        let changes = plan(&self.leases.read(), now)?;
        if changes.is_empty() {
            return Ok(changes);
        }
        let recorded = changes.iter().skip(changes.len().saturating_sub(recorded));
        let records: Vec<Record> = recorded.filter_map(|change| self.record(event, change, now)).collect();
        self.noted(self.database.write(&changes, &records))?;
        for Record { event, key, path, lease, .. } in &records {
            // Publishers that lost a lease are referred to the log.
            if matches!(&**event, EXPIRED | TAKEN_OVER) {
                tracing::info!("lease {lease} of {path} by key {key}: {event}");
            }
        }
        let mut leases = self.leases.write();
        changes.iter().for_each(|change| leases.apply(change.clone()));
        drop((leases, changing));
        self.changes.send_modify(|changes| *changes += 1);
        Ok(changes)
    }

    /// Reads the leases again if a change failed, which the database has or not.
    fn refresh(&self, _changing: &MutexGuard<'_, ()>) -> Result<(), GatewayError> {
        if self.stale.load(Ordering::Relaxed) {
            *self.leases.write() = self.database.reopen()?;
            self.stale.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    fn record(&self, event: &str, change: &Change, at: Millis) -> Option<Record> {
        let leases = self.leases.read();
        let (token, lease) = match change {
            Change::Put(token, lease) => (token, &**lease),
            Change::Remove(token) => (token, leases.get(token)?),
        };
        // One that makes room for another lease was taken over, or has expired; a result that is no longer kept was no lease.
        let makes_room = event == ACQUIRED && leases.get(token).is_some();
        let event = match (&lease.state, change) {
            (State::Ended { .. }, Change::Remove(_)) => return None,
            _ if makes_room && lease.is_held(at) => TAKEN_OVER,
            _ if makes_room => EXPIRED,
            _ => event,
        };
        let detail = match &lease.state {
            State::Open => lease.hostname.clone(),
            State::Committing { candidate: None, request } => request.new_root.clone(),
            State::Committing { candidate: Some(candidate), .. } => candidate.revision.to_string(),
            State::Ended { revision, .. } => revision.to_string(),
        };
        Some(Record {
            at,
            event: event.to_owned(),
            key: lease.key.clone(),
            path: lease.path.to_string(),
            lease: token.short().to_owned(),
            detail,
        })
    }

    /// Returns the newest records of the audit log, newest first.
    pub fn records(&self, count: usize) -> Result<Vec<Record>, GatewayError> {
        Ok(self.database.records(count)?)
    }

    /// Opens a repository ahead of the first request for it. One that can't be opened is tried again by each request.
    pub fn open(&self, name: &RepositoryName) -> Result<(), GatewayError> {
        self.served(name).map(drop)
    }

    fn served(&self, name: &RepositoryName) -> Result<Arc<Served>, GatewayError> {
        if let Some(served) = self.repositories.lock().get(name) {
            return Ok(served.clone());
        }
        // Without the lock: opening reads the storage. A second thread takes what the first one opened.
        let opened = Arc::new(Served { target: (self.open)(name)?, commits: Commits::default() });
        Ok(self.repositories.lock().entry(name.clone()).or_insert(opened).clone())
    }
}
