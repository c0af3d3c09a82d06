//! A session: the lease of a directory, which is renewed, and the commit that ends it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::http::Method;
use esker_format::object::{ObjectKind, ObjectName};
use esker_repository::{BuiltRevision, GatewayCommit, GatewayFailure, GatewaySession, Settings};
use esker_store::{Put, RequestThread, StoreError};
use parking_lot::Mutex;
use serde_json::json;

use super::failure::{Failed, Heard, of_storing};
use super::requests::{GatewayAddress, Requests, Wanted, pause, start_thread};
use super::uploads::Uploads;
use crate::lease_path::LeasePath;
use crate::token::Token;

/// Version of the protocol that publishers of the reference speak.
const VERSION: &str = "2";
/// Longest wait for the first answer, so that a wrong address is noticed soon.
const FIRST_WAIT: Duration = Duration::from_secs(5);
/// Time for which one request waits in the queue of a gateway.
const STEP: Duration = Duration::from_secs(20);
/// Interval of renewals of a lease whose lifetime the gateway doesn't tell.
const RENEWAL: Duration = Duration::from_secs(60);
/// Longest wait for the gateway when a lease is given up, which ends by itself otherwise.
const GIVE_UP: Duration = Duration::from_secs(2);

/// A directory that a publisher wants to change.
pub struct LeaseWish<'a> {
    /// The directory.
    pub path: LeasePath,
    /// Longest wait for other publishers; none waits without limit.
    pub wait: Option<Duration>,
    /// Called once when the wait begins.
    pub waits: &'a dyn Fn(&GatewayFailure),
    /// Lease of an earlier session, which goes on unless it has ended.
    pub token: Option<String>,
    /// True to end the leases that the same key has in the directory, because their publisher is gone.
    pub take_over: bool,
}

/// A gateway, and the lease of a session.
pub(super) struct Leased {
    pub(super) requests: Requests,
    pub(super) token: String,
    pub(super) path: String,
    /// True if the gateway is one of Esker.
    pub(super) is_esker: bool,
    /// Reason why the lease is no longer held.
    ended: Mutex<Option<String>>,
    /// True if the gateway has no renewals.
    is_fixed: AtomicBool,
    /// True while the gateway may let the publisher store objects itself.
    pub(super) signs_puts: AtomicBool,
}

/// A session with a gateway. Its lease is given up when it is dropped, unless it is to be kept.
pub struct Session {
    leased: Arc<Leased>,
    uploads: Uploads,
    settings: Option<Settings>,
    is_kept: AtomicBool,
    /// Last: its tasks use all of the above.
    thread: Arc<RequestThread>,
}

impl Session {
    /// Leases a directory, after waiting for other publishers.
    pub fn begin(address: GatewayAddress, wish: LeaseWish<'_>) -> Result<Self, GatewayFailure> {
        let (requests, thread) = (Requests::new(address), Arc::new(start_thread()?));
        let begun = thread.wait_for(async {
            let welcome = Wanted::new(Method::GET, "", "", "");
            let is_esker = requests.send_within(&welcome, FIRST_WAIT).await?.esker.is_some();
            let renewed = match &wish.token {
                Some(token) => renew(&requests, token, is_esker).await?,
                None => None,
            };
            let (token, life) = match renewed {
                Some(renewed) => renewed,
                None => acquire(&requests, &wish, is_esker).await?,
            };
            let settings = if is_esker { settings(&requests, &token).await? } else { None };
            Ok::<_, Failed>((token, life, is_esker, settings))
        });
        let (token, life, is_esker, settings) = begun.map_err(Failed::into_failure)?;
        let (path, ended) = (wish.path.to_string(), Mutex::default());
        let is_fixed = AtomicBool::new(false);
        let signs_puts = AtomicBool::new(is_esker);
        let leased = Arc::new(Leased { requests, token, path, is_esker, ended, is_fixed, signs_puts });
        thread.start_task(keep_renewed(leased.clone(), life));
        let uploads = Uploads::new(leased.clone(), thread.clone());
        Ok(Self { leased, uploads, settings, is_kept: AtomicBool::new(false), thread })
    }

    /// Returns the settings of the repository, if the gateway tells them.
    pub fn settings(&self) -> Option<&Settings> {
        self.settings.as_ref()
    }

    /// Returns the token of the lease, for a later session.
    pub fn token(&self) -> &str {
        &self.leased.token
    }

    /// Sets whether the lease stays after the session, for a later one.
    pub fn keep(&self, is_kept: bool) {
        self.is_kept.store(is_kept, Ordering::Relaxed);
    }

    /// Gives up the lease of an earlier session. If the gateway can't be reached, it ends by itself.
    pub fn end_lease(address: GatewayAddress, token: &str) {
        let requests = Requests::new(address);
        if let Ok(thread) = start_thread() {
            give_up(&thread, &requests, token);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.is_kept.load(Ordering::Relaxed) || self.leased.ended.lock().is_some() {
            return;
        }
        give_up(&self.thread, &self.leased.requests, &self.leased.token);
    }
}

fn give_up(thread: &RequestThread, requests: &Requests, token: &str) {
    let wanted = Wanted::new(Method::DELETE, &format!("/leases/{token}"), token.to_owned(), "");
    if let Err(failed) = thread.wait_for(requests.send_within(&wanted, GIVE_UP)) {
        let failure = failed.into_failure();
        tracing::debug!("the lease ends by itself: {failure}");
    }
}

impl Leased {
    /// Fails if the lease is known to have ended.
    pub(super) fn check(&self) -> Result<(), GatewayFailure> {
        match &*self.ended.lock() {
            Some(reason) => Err(GatewayFailure::LeaseEnded(reason.clone())),
            None => Ok(()),
        }
    }

    fn end(&self, reason: &str) {
        self.ended.lock().get_or_insert_with(|| reason.to_owned());
    }

    /// Returns what a refusal means, and notes the end of the lease.
    pub(super) fn refused(&self, heard: Heard) -> GatewayFailure {
        let mut failure = heard.failure(&self.path);
        if let GatewayFailure::LeaseEnded(reason) = &mut failure {
            if self.is_fixed.load(Ordering::Relaxed) {
                reason.push_str("; this gateway renews no leases");
            }
            self.end(reason);
        }
        failure
    }

    fn wanted(&self, method: Method, body: String) -> Wanted {
        Wanted::new(method, &format!("/leases/{}", self.token), self.token.clone(), body)
    }

    /// Publishes. A request to a gateway of Esker is repeated, which carries it out once.
    async fn commit(&self, built: &BuiltRevision<'_>) -> Result<GatewayCommit, Failed> {
        let name = |hash| ObjectName::new(hash, ObjectKind::Catalog).to_string();
        let mut body = json!({
            "old_root_hash": name(built.base),
            "new_root_hash": name(built.root),
            "tag_name": built.tag,
            "tag_channel": 0,
            "tag_description": built.description,
        });
        if !built.removed_tags.is_empty() {
            body["delete_tags"] = built.removed_tags.join(" ").into();
        }
        let wanted = self.wanted(Method::POST, body.to_string());
        loop {
            let heard = match self.is_esker {
                true => self.requests.send(&wanted).await?,
                false => match self.requests.send_once(&wanted).await {
                    Err(Failed::Lost(text)) => return self.look_at_lease(text).await,
                    other => other?,
                },
            };
            if heard.is_ok() {
                self.end("its changes were published");
                return Ok(GatewayCommit { revision: heard.final_revision, left_out: heard.dropped });
            }
            if !heard.is_under_way() {
                return Err(self.refused(heard).into());
            }
        }
    }

    /// Finds out how a commit ended whose answer was lost: a lease ends with the commit, and stays if it failed.
    async fn look_at_lease(&self, lost: String) -> Result<GatewayCommit, Failed> {
        let wanted = self.wanted(Method::GET, String::new());
        let begun = Instant::now();
        for round in 0.. {
            match self.requests.send_once(&wanted).await {
                Ok(heard) if heard.is_ok() => {}
                // The reference answers with status 500.
                Ok(heard) if heard.reason.contains("invalid lease") => break,
                Err(Failed::Lost(text)) if text.contains("invalid lease") => break,
                Ok(heard) => return Err(self.refused(heard).into()),
                Err(Failed::Lost(_)) => {}
                Err(other) => return Err(other),
            }
            if begun.elapsed() >= self.requests.patience() {
                let text = format!("the answer to the commit was lost, and its lease has not ended: {lost}");
                return Err(GatewayFailure::Unavailable(text).into());
            }
            pause(round).await;
        }
        self.end("its changes were published");
        Ok(GatewayCommit::default())
    }
}

impl GatewaySession for Session {
    fn describe(&self) -> String {
        self.leased.requests.describe()
    }

    fn put(&self, name: &ObjectName, stored: &[u8]) -> Result<Put, StoreError> {
        self.uploads.put(name, stored).map_err(|failure| of_storing(&self.describe(), failure))
    }

    fn has(&self, name: &ObjectName) -> Result<bool, StoreError> {
        Ok(self.uploads.expect(name))
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.uploads.flush().map_err(|failure| of_storing(&self.describe(), failure))
    }

    fn compares_revisions(&self) -> bool {
        self.leased.is_esker
    }

    fn commit(&self, built: &BuiltRevision<'_>) -> Result<GatewayCommit, GatewayFailure> {
        self.uploads.flush()?;
        self.uploads.check_expected()?;
        self.leased.check()?;
        let committed = self.thread.wait_for(self.leased.commit(built)).map_err(Failed::into_failure);
        if let Err(GatewayFailure::Lacks(_)) = committed {
            self.uploads.forget();
        }
        committed
    }
}

/// Leases a directory; returns the token, and the time that the lease lives if the gateway tells it.
async fn acquire(
    requests: &Requests,
    wish: &LeaseWish<'_>,
    is_esker: bool,
) -> Result<(String, Option<Duration>), Failed> {
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let path = wish.path.to_string();
    let token = Token::random();
    let begun = Instant::now();
    let (mut is_waiting, mut taken_over) = (false, Vec::<String>::new());
    for round in 0.. {
        let left = wish.wait.map_or(STEP, |limit| limit.saturating_sub(begun.elapsed()).min(STEP));
        let mut body = json!({ "path": path, "api_version": VERSION, "hostname": hostname.trim() });
        let interface = if is_esker { "/api/esker/v1/leases" } else { "/api/v1/leases" };
        if is_esker {
            body["wait_seconds"] = left.as_secs().into();
            body["take_over"] = wish.take_over.then_some(&*taken_over).into();
            body["token"] = token.secret().into();
        }
        let body = body.to_string();
        let wanted =
            Wanted { path: interface.to_owned(), ..Wanted::new(Method::POST, "", body.clone(), body) };
        let heard = requests.send(&wanted).await?;
        if heard.is_ok() {
            return Ok((heard.session_token, heard.lease_seconds.map(Duration::from_secs)));
        }
        if wish.take_over && !heard.own_leases.is_empty() {
            taken_over = heard.own_leases;
            pause(0).await;
            continue;
        }
        let failure = heard.failure(&path);
        let is_late = wish.wait.is_some_and(|limit| begun.elapsed() >= limit);
        if is_late || !matches!(failure, GatewayFailure::Busy { .. }) {
            return Err(failure.into());
        }
        if !std::mem::replace(&mut is_waiting, true) {
            (wish.waits)(&failure);
        }
        pause(round).await;
    }
    unreachable!("the rounds end with the wait")
}

/// Renews the lease of an earlier session; none if it has ended.
async fn renew(
    requests: &Requests,
    token: &str,
    is_esker: bool,
) -> Result<Option<(String, Option<Duration>)>, Failed> {
    let path = format!("/leases/{token}");
    let method = if is_esker { Method::PATCH } else { Method::GET };
    let heard = requests.send_within(&Wanted::new(method, &path, token.to_owned(), ""), FIRST_WAIT).await;
    match heard {
        Ok(heard) if heard.is_ok() => {
            Ok(Some((token.to_owned(), heard.lease_seconds.map(Duration::from_secs))))
        }
        Ok(_) => Ok(None),
        Err(Failed::Lost(text)) if text.contains("invalid lease") => Ok(None),
        Err(other) => Err(other),
    }
}

/// Asks for the settings of the repository.
async fn settings(requests: &Requests, token: &str) -> Result<Option<Settings>, Failed> {
    let path = format!("/api/esker/v1/leases/{token}/settings");
    let wanted = Wanted { path, ..Wanted::new(Method::GET, "", token.to_owned(), "") };
    Ok(requests.send(&wanted).await?.settings)
}

/// Renews a lease until it has ended, or the gateway has no renewals.
async fn keep_renewed(leased: Arc<Leased>, life: Option<Duration>) {
    let interval = life.map_or(RENEWAL, |life| (life / 3).min(RENEWAL)).max(Duration::from_millis(200));
    loop {
        tokio::time::sleep(interval).await;
        if leased.check().is_err() {
            return;
        }
        let renewal = leased.wanted(Method::PATCH, String::new());
        // A gateway that is back is asked before the lease ends.
        match leased.requests.send_often(&renewal, interval, interval / 4).await {
            Ok(heard) if heard.is_ok() => {}
            Ok(heard) => {
                let is_over = matches!(leased.refused(heard), GatewayFailure::LeaseEnded(_));
                leased.is_fixed.store(!is_over, Ordering::Relaxed);
                return;
            }
            Err(failed) => tracing::debug!("the lease is not renewed: {}", failed.into_failure()),
        }
    }
}
