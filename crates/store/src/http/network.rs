//! The thread and its way in.

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

use super::dial::Endpoint;
use super::fair::User;
use super::host::{Host, Job};
use super::names::{Names, Resolved};
use super::tls::Tls;
use super::{HttpOptions, Site};
use crate::done::Done;
use crate::error::{Cause, Phase};
use crate::memory::Budget;
use crate::servers::Dns;
use crate::source::{Fetch, Stored};
use crate::urgency::Urgency;

/// The network's thread.
pub(crate) struct Network {
    /// Taken when the network ends, which ends the thread.
    orders: Mutex<Option<UnboundedSender<Order>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    requests: AtomicU64,
}

enum Order {
    Fetch(Box<Job>),
    /// The priority of this request to this server rose.
    Raised(Arc<Site>, u64),
    /// A further user waits for this request to this server.
    Joined(Arc<Site>, u64, User),
    /// What is queued on this way is to take another.
    Leave(Arc<Site>),
    Resolve(String, Dns, Told),
    Later(Duration, Box<dyn FnOnce() + Send>),
}

type Told = Box<dyn FnOnce(Result<Resolved, Cause>) + Send>;

/// What all servers share on the network's thread.
pub(super) struct World {
    pub(super) options: HttpOptions,
    pub(super) budget: Arc<Budget>,
    pub(super) names: Names,
    pub(super) tls: Tls,
}

impl Network {
    /// Starts the thread.
    pub(crate) fn start(options: HttpOptions, budget: Arc<Budget>) -> io::Result<Arc<Self>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            // For writes of spooled bodies; each is short, and disks don't get faster by more at once.
            .max_blocking_threads(4)
            .build()?;
        let (orders, queue) = unbounded_channel();
        let thread = std::thread::Builder::new().name("esker-net".to_owned()).spawn(move || {
            let world = Rc::new(World { options, budget, names: Names::default(), tls: Tls::default() });
            LocalSet::new().block_on(&runtime, work(world, queue));
            // What is under way is dropped here, and thereby answered.
        })?;
        let (orders, thread) = (Mutex::new(Some(orders)), Mutex::new(Some(thread)));
        Ok(Arc::new(Self { orders, thread, requests: AtomicU64::new(0) }))
    }

    /// Fetches a file of a site.
    pub(super) fn fetch(self: &Arc<Self>, site: Arc<Site>, fetch: Fetch, done: Done<Stored>) {
        let (weak, place) = (Arc::downgrade(self), site.clone());
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let priority = fetch.priority.clone();
        let queued = priority.urgency() == Urgency::Prefetch;
        self.order(Order::Fetch(Box::new(Job { number, site, fetch, done, alone: false })));
        let (network, site) = (weak.clone(), place.clone());
        priority.on_join(move |user| {
            if let Some(network) = network.upgrade() {
                network.order(Order::Joined(site.clone(), number, user));
            }
        });
        if queued {
            priority.on_raise(move || {
                if let Some(network) = weak.upgrade() {
                    network.order(Order::Raised(place, number));
                }
            });
        }
    }

    /// Calls `then` on the network's thread after a pause; it must not block. If the network ends before, it
    /// is dropped.
    pub(crate) fn later(&self, pause: Duration, then: impl FnOnce() + Send + 'static) {
        self.order(Order::Later(pause, Box::new(then)));
    }

    /// Answers what is queued on a way, and not sent yet, with [`Cause::Left`].
    pub(crate) fn leave(&self, site: Arc<Site>) {
        self.order(Order::Leave(site));
    }

    /// Finds the addresses of a name, and tells them on the network's thread.
    pub(crate) fn resolve(
        &self,
        name: &str,
        dns: Dns,
        told: impl FnOnce(Result<Resolved, Cause>) + Send + 'static,
    ) {
        self.order(Order::Resolve(name.to_owned(), dns, Box::new(told)));
    }

    fn order(&self, order: Order) {
        let refused = match &*self.orders.lock() {
            Some(orders) => orders.send(order).err().map(|refused| refused.0),
            None => Some(order),
        };
        // Outside the lock: dropping a request answers it, and that may lead back here.
        drop(refused);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.orders.lock().take());
        if let Some(thread) = self.thread.lock().take()
            // The last owner may be a callback on the thread itself.
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

async fn work(world: Rc<World>, mut queue: UnboundedReceiver<Order>) {
    let hosts: RefCell<HashMap<Endpoint, Rc<Host>>> = RefCell::default();
    while let Some(order) = queue.recv().await {
        let mut next = Some(order);
        // All that has come is queued before any of it starts, so that what belongs together goes together.
        while let Some(order) = next {
            take(&world, &hosts, order);
            next = queue.try_recv().ok();
        }
        let all: Vec<_> = hosts.borrow().values().cloned().collect();
        all.iter().for_each(Host::attend);
    }
}

fn take(world: &Rc<World>, hosts: &RefCell<HashMap<Endpoint, Rc<Host>>>, order: Order) {
    match order {
        Order::Fetch(job) => {
            let mut hosts = hosts.borrow_mut();
            let new = || Host::new(world.clone(), &job.site);
            hosts.entry(job.site.endpoint.clone()).or_insert_with(new).add(*job);
        }
        Order::Raised(site, number) => {
            if let Some(host) = hosts.borrow().get(&site.endpoint) {
                host.raised(number);
            }
        }
        Order::Joined(site, number, user) => {
            if let Some(host) = hosts.borrow().get(&site.endpoint) {
                host.joined(number, user);
            }
        }
        Order::Leave(site) => {
            if let Some(host) = hosts.borrow().get(&site.endpoint) {
                host.leave(&site);
            }
        }
        Order::Resolve(name, dns, told) => {
            let world = world.clone();
            tokio::task::spawn_local(async move {
                let limit = dns.timeout.saturating_mul(dns.retries.saturating_add(1));
                let late = Cause::TimedOut { phase: Phase::Resolve, limit };
                let resolved = timeout(limit, world.names.resolve(&name, &dns)).await;
                told(resolved.unwrap_or(Err(late)));
            });
        }
        Order::Later(pause, then) => {
            tokio::task::spawn_local(async move {
                tokio::time::sleep(pause).await;
                then();
            });
        }
    }
}
