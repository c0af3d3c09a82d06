//! The network thread and its command queue.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::LocalSet;
use tokio::time::timeout;

use super::context::NetworkContext;
use super::dial::Endpoint;
use super::dns::{Names, Resolved};
use super::fair_queue::User;
use super::host::Host;
use super::host_queue::Job;
use super::options::HttpOptions;
use super::site::Site;
use super::tls::Tls;
use crate::callback::Callback;
use crate::error::{Cause, Phase};
use crate::memory_budget::MemoryBudget;
use crate::priority::Urgency;
use crate::servers::Dns;
use crate::transport::source::{Fetch, Stored};

/// Handle of the network thread.
pub(crate) struct Network {
    /// Sender of commands, taken at the end, which ends the thread.
    commands: Mutex<Option<UnboundedSender<Command>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    requests: AtomicU64,
}

enum Command {
    Fetch(Box<Job>),
    /// The priority of this request to this server rose.
    Raised(Arc<Site>, u64),
    /// A further user waits for this request to this server.
    Joined(Arc<Site>, u64, User),
    /// Queued requests of this route must take another one.
    Requeue(Arc<Site>),
    Resolve(String, Dns, OnResolved),
    Later(Duration, Box<dyn FnOnce() + Send>),
}

type OnResolved = Box<dyn FnOnce(Result<Resolved, Cause>) + Send>;

impl Network {
    /// Starts the network thread.
    pub(crate) fn start(options: HttpOptions, budget: Arc<MemoryBudget>) -> io::Result<Arc<Self>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            // For writes of spooled bodies; each is short, and disks don't get faster by more at once.
            .max_blocking_threads(4)
            .build()?;
        let (commands, queue) = unbounded_channel();
        let thread = esker_threads::spawn("esker-net", move || {
            let tls = Tls::new(options.kept_authorities.clone());
            let context = Rc::new(NetworkContext { options, budget, names: Names::default(), tls });
            LocalSet::new().block_on(&runtime, work(context, queue));
            // Requests in flight are dropped here, and thereby completed.
        })?;
        let (commands, thread) = (Mutex::new(Some(commands)), Mutex::new(Some(thread)));
        Ok(Arc::new(Self { commands, thread, requests: AtomicU64::new(0) }))
    }

    /// Fetches a file of a site.
    pub(super) fn fetch(self: &Arc<Self>, site: Arc<Site>, fetch: Fetch, done: Callback<Stored>) {
        let (weak, place) = (Arc::downgrade(self), site.clone());
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let priority = fetch.priority.clone();
        let queued = priority.urgency() == Urgency::Prefetch;
        self.command(Command::Fetch(Box::new(Job { number, site, fetch, done, alone: false })));
        let (network, site) = (weak.clone(), place.clone());
        priority.on_join(move |user| {
            if let Some(network) = network.upgrade() {
                network.command(Command::Joined(site.clone(), number, user));
            }
        });
        if queued {
            priority.on_raise(move || {
                if let Some(network) = weak.upgrade() {
                    network.command(Command::Raised(place, number));
                }
            });
        }
    }

    /// Calls `then` on the network's thread after a pause; it must not block. If the network ends before, it
    /// is dropped.
    pub(crate) fn later(&self, pause: Duration, then: impl FnOnce() + Send + 'static) {
        self.command(Command::Later(pause, Box::new(then)));
    }

    /// Completes requests that are queued for a site and not sent yet with [`Cause::RouteDown`].
    pub(crate) fn requeue(&self, site: Arc<Site>) {
        self.command(Command::Requeue(site));
    }

    /// Resolves a name; calls back on the network thread.
    pub(crate) fn resolve(
        &self,
        name: &str,
        dns: Dns,
        told: impl FnOnce(Result<Resolved, Cause>) + Send + 'static,
    ) {
        self.command(Command::Resolve(name.to_owned(), dns, Box::new(told)));
    }

    fn command(&self, command: Command) {
        let refused = match &*self.commands.lock() {
            Some(commands) => commands.send(command).err().map(|refused| refused.0),
            None => Some(command),
        };
        // Outside the lock: dropping a request answers it, and that may lead back here.
        drop(refused);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.commands.lock().take());
        if let Some(thread) = self.thread.lock().take()
            // The last owner may be a callback on the thread itself.
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

async fn work(context: Rc<NetworkContext>, mut queue: UnboundedReceiver<Command>) {
    let hosts: RefCell<HashMap<Endpoint, Rc<Host>>> = RefCell::default();
    while let Some(command) = queue.recv().await {
        let mut next = Some(command);
        // All received commands are queued before any request starts, so that batches are complete.
        while let Some(command) = next {
            take(&context, &hosts, command);
            next = queue.try_recv().ok();
        }
        let all: Vec<_> = hosts.borrow().values().cloned().collect();
        all.iter().for_each(Host::schedule);
    }
}

fn take(context: &Rc<NetworkContext>, hosts: &RefCell<HashMap<Endpoint, Rc<Host>>>, command: Command) {
    match command {
        Command::Fetch(job) => {
            let mut hosts = hosts.borrow_mut();
            let new = || Host::new(context.clone(), &job.site);
            hosts.entry(job.site.endpoint.clone()).or_insert_with(new).queue.add(*job);
        }
        Command::Raised(site, number) => {
            if let Some(host) = hosts.borrow().get(&site.endpoint) {
                host.raised(number);
            }
        }
        Command::Joined(site, number, user) => {
            if let Some(host) = hosts.borrow().get(&site.endpoint) {
                host.joined(number, user);
            }
        }
        Command::Requeue(site) => {
            if let Some(host) = hosts.borrow().get(&site.endpoint) {
                host.requeue(&site);
            }
        }
        Command::Resolve(name, dns, told) => {
            let context = context.clone();
            tokio::task::spawn_local(async move {
                let limit = dns.timeout.saturating_mul(dns.retries.saturating_add(1));
                let late = Cause::TimedOut { phase: Phase::Resolve, limit };
                let resolved = timeout(limit, context.names.resolve(&name, &dns)).await;
                told(resolved.unwrap_or(Err(late)));
            });
        }
        Command::Later(pause, then) => {
            tokio::task::spawn_local(async move {
                tokio::time::sleep(pause).await;
                then();
            });
        }
    }
}
