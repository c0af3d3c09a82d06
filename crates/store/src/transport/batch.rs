//! Fetches many small objects in one round trip, if the server offers batches.
//!
//! Batches are only for servers without a proxy: a proxy would see another combination of objects each time, and cache
//! none of them for other clients. Over a long path they save round trips, and over a short one processor time, which
//! a request takes more of than the few kilobytes of its response. Objects missing in a batch, or all if the response
//! is no batch, are requested one by one.

use std::rc::Rc;
use std::sync::Arc;

use esker_format::batch;
use esker_format::object::ObjectName;
use tokio::time::Instant;

use super::attempt;
use super::host::Host;
use super::host_queue::Job;
use super::in_flight::InFlight;
use super::site::Site;
use super::stream_rate::FIRST_ROUND;
use crate::error::Cause;
use crate::priority::{Priority, Urgency};
use crate::transport::source::{Fetch, Stored};

/// Maximum size of an object for a batch; larger ones are worth a request of their own.
const SMALL: u64 = 32 << 10;
/// Maximum expected size of a batch in bytes; all of it arrives before the first object can be processed.
const EXPECTED_MAX: u64 = 256 << 10;
/// Maximum number of queued prefetches examined for small ones.
const SCANNED_MAX: usize = 256;
impl Host {
    /// Removes small prefetches from the queue that can be batched with this one.
    pub(super) fn gather(&self, first: Job) -> Vec<Job> {
        let most = first.site.capabilities.in_batch().min(self.context.options.batch);
        let first_site_has_proxy = first.site.via.is_some();
        let mut jobs = vec![first];
        let is_demand = jobs[0].fetch.priority.urgency() == Urgency::Demand;
        if is_demand || most < 2 || first_site_has_proxy || !self.is_small(&jobs[0]) {
            return jobs;
        }
        let mut expected = self.expected(&jobs[0].fetch);
        let limit = self.fair_share(expected);
        let (site, mut count) = (jobs[0].site.clone(), 1);
        jobs.extend(self.queue.take_prefetches(SCANNED_MAX, |job| {
            if !Arc::ptr_eq(&job.site, &site) || !self.is_small(job) {
                return Some(false);
            }
            expected += self.expected(&job.fetch);
            count += 1;
            (count <= most && expected <= limit).then_some(true)
        }));
        jobs
    }

    /// Returns the maximum size of the batch of the first job: the queued bytes divided by the requests that
    /// may start. Connections start slowly, so several with a little each are faster than one with all.
    fn fair_share(&self, first: u64) -> u64 {
        let small = |job: &Job| if self.is_small(job) { self.expected(&job.fetch) } else { 0 };
        let queued = self.queue.sum(SCANNED_MAX, small);
        let window = self.path.window(self.most_prefetched());
        let free = window.saturating_sub(self.load.active()).max(1) as u64;
        ((first + queued) / free).clamp(FIRST_ROUND, EXPECTED_MAX)
    }

    fn is_small(&self, job: &Job) -> bool {
        let fetch = &job.fetch;
        !job.alone && !fetch.http.fresh && fetch.object.is_some() && self.expected(fetch) <= SMALL
    }

    /// Fetches all of these objects with one request.
    pub(super) fn start_batch(self: &Rc<Self>, jobs: Vec<Job>) {
        let jobs: Vec<Job> = jobs
            .into_iter()
            .filter_map(|job| {
                if !job.fetch.priority.give_up_if_pointless() {
                    return Some(job);
                }
                let error = job.fetch.error(Cause::Cancelled);
                job.done.err(error);
                None
            })
            .collect();
        let Some(site) = jobs.first().map(|job| job.site.clone()) else { return };
        let fetch = fetch_all(&jobs);
        for job in &jobs {
            let all = fetch.priority.clone();
            job.fetch.priority.on_raise(move || all.raise());
            job.fetch.progress.follow(&fetch.progress);
            if let Some(watch) = &job.fetch.attempt.watch {
                watch.sent(Instant::now());
            }
        }
        let expected = jobs.iter().map(|job| self.expected(&job.fetch)).sum();
        let in_flight = InFlight::take(self.clone(), &fetch.priority, expected);
        tokio::task::spawn_local(async move {
            let outcome = attempt::attempt(&site, &fetch, &in_flight).await;
            let host = in_flight.host.clone();
            host.note(&site, &outcome);
            drop(in_flight);
            jobs.iter().for_each(|job| job.fetch.progress.unfollow(&fetch.progress));
            host.hand_out(&site, jobs, outcome);
        });
    }

    fn hand_out(self: &Rc<Self>, site: &Site, jobs: Vec<Job>, outcome: Result<Stored, Cause>) {
        let passing = matches!(&outcome, Err(cause) if cause.may_pass());
        let bytes = outcome.ok().and_then(|stored| stored.into_bytes().ok());
        let parts = bytes.as_deref().and_then(|bytes| batch::split(bytes, jobs.len()));
        if parts.is_none() && !passing {
            // The response is no batch although the server offers it: a middlebox interferes.
            site.capabilities.no_batches();
        }
        let parts = parts.unwrap_or_else(|| vec![None; jobs.len()]);
        for (mut job, part) in jobs.into_iter().zip(parts) {
            match part.filter(|part| part.len() as u64 <= job.fetch.limit) {
                Some(part) => {
                    if let Some(plain) = job.fetch.plain_size {
                        self.path.learn(plain, part.len() as u64);
                    }
                    let mut share = self.context.budget.share();
                    // However full the budget is: the bytes are here.
                    share.grow(part.len() as u64);
                    job.done.ok(Stored::in_shared_memory(part.to_vec(), Some(share)));
                }
                None => {
                    job.alone = true;
                    self.queue.add(job);
                }
            }
        }
        self.start();
    }
}

fn fetch_all(jobs: &[Job]) -> Fetch {
    let names: Vec<ObjectName> = jobs.iter().filter_map(|job| job.fetch.object).collect();
    Fetch {
        priority: Priority::new(Urgency::Prefetch),
        ..Fetch::new(batch::path(&names), "a batch of objects", batch::BYTES_MAX as u64)
    }
}
