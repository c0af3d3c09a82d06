//! Counters of the server's answers in the last minutes, and the slowest of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Length of an interval in seconds.
pub(crate) const INTERVAL: u64 = 10;
/// Number of intervals that are kept.
const INTERVALS: u64 = 90;
/// Number of slow answers that are kept.
const SLOWEST: usize = 10;
/// Longest part of a path that is kept.
const PATH_MAX: usize = 200;

/// An answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered<'a> {
    pub(crate) path: &'a str,
    pub(crate) status: u16,
    /// Bytes of its body.
    pub(crate) bytes: u64,
    /// Time from the request to the end of the answer.
    pub(crate) took: Duration,
}

/// Counters of an interval.
#[derive(Debug, Default)]
struct Bucket {
    /// Number of the interval, and one more.
    number: AtomicU64,
    requests: AtomicU64,
    /// Answers with content or the confirmation that the client has it.
    hits: AtomicU64,
    failures: AtomicU64,
    bytes: AtomicU64,
}

/// Counters of the answers of a server.
#[derive(Debug)]
pub(crate) struct Traffic {
    started: Instant,
    buckets: [Bucket; INTERVALS as usize],
    slowest: Mutex<Vec<SlowAnswer>>,
    /// Microseconds that an answer must take to be among the slowest.
    threshold: AtomicU64,
}

/// One of the slowest answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlowAnswer {
    pub(crate) path: String,
    pub(crate) status: u16,
    pub(crate) bytes: u64,
    pub(crate) took: Duration,
    /// Age of the answer in seconds.
    pub(crate) age: u64,
    /// Seconds from the start of the server.
    at: u64,
}

/// Counters of one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) requests: u64,
    pub(crate) hits: u64,
    pub(crate) failures: u64,
    pub(crate) bytes: u64,
}

/// Traffic of a server in the last minutes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TrafficReport {
    /// Complete intervals, oldest first.
    pub(crate) samples: Vec<Sample>,
    /// The slowest answers, slowest first.
    pub(crate) slowest: Vec<SlowAnswer>,
    /// Seconds since the start of the server.
    pub(crate) uptime: u64,
}

impl Default for Traffic {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            buckets: std::array::from_fn(|_| Bucket::default()),
            slowest: Mutex::default(),
            threshold: AtomicU64::new(0),
        }
    }
}

impl Traffic {
    /// Counts an answer. Threads that begin an interval at the same moment may lose a few counts.
    pub(crate) fn record(&self, answered: &Answered<'_>) {
        self.record_at(answered, self.started.elapsed().as_secs());
    }

    fn record_at(&self, answered: &Answered<'_>, second: u64) {
        let interval = second / INTERVAL;
        let Some(bucket) = self.buckets.get((interval % INTERVALS) as usize) else { return };
        let number = bucket.number.load(Ordering::Relaxed);
        let is_older = number != interval + 1;
        let swap =
            || bucket.number.compare_exchange(number, interval + 1, Ordering::Relaxed, Ordering::Relaxed);
        if is_older && swap().is_ok() {
            for counter in [&bucket.requests, &bucket.hits, &bucket.failures, &bucket.bytes] {
                counter.store(0, Ordering::Relaxed);
            }
        }
        bucket.requests.fetch_add(1, Ordering::Relaxed);
        bucket.hits.fetch_add(u64::from(answered.status < 400), Ordering::Relaxed);
        bucket.failures.fetch_add(u64::from(answered.status >= 500), Ordering::Relaxed);
        bucket.bytes.fetch_add(answered.bytes, Ordering::Relaxed);
        if micros(answered.took) >= self.threshold.load(Ordering::Relaxed) {
            self.record_slow(answered, second);
        }
    }

    fn record_slow(&self, answered: &Answered<'_>, second: u64) {
        let mut slowest = self.slowest.lock();
        slowest.retain(|slow| is_recent(slow.at, second));
        let at = slowest.partition_point(|slow| slow.took >= answered.took);
        let path = answered.path.chars().take(PATH_MAX).collect();
        let Answered { status, bytes, took, .. } = *answered;
        slowest.insert(at, SlowAnswer { path, status, bytes, took, age: 0, at: second });
        slowest.truncate(SLOWEST);
        let least = slowest.get(SLOWEST - 1).map_or(0, |slow| micros(slow.took).saturating_add(1));
        self.threshold.store(least, Ordering::Relaxed);
    }

    /// Returns the counters of the complete intervals.
    pub(crate) fn report(&self) -> TrafficReport {
        self.report_at(self.started.elapsed().as_secs())
    }

    fn report_at(&self, second: u64) -> TrafficReport {
        let now = second / INTERVAL;
        let samples = (now.saturating_sub(INTERVALS - 1)..now).map(|interval| self.sample(interval));
        let mut slowest = self.slowest.lock();
        let before = slowest.len();
        slowest.retain(|slow| is_recent(slow.at, second));
        if slowest.len() < before {
            self.threshold.store(0, Ordering::Relaxed);
        }
        let aged = slowest.iter().map(|slow| SlowAnswer { age: second - slow.at, ..slow.clone() });
        TrafficReport { samples: samples.collect(), slowest: aged.collect(), uptime: second }
    }

    fn sample(&self, interval: u64) -> Sample {
        let bucket = self.buckets.get((interval % INTERVALS) as usize);
        let bucket = bucket.filter(|bucket| bucket.number.load(Ordering::Relaxed) == interval + 1);
        let Some(bucket) = bucket else { return Sample::default() };
        Sample {
            requests: bucket.requests.load(Ordering::Relaxed),
            hits: bucket.hits.load(Ordering::Relaxed),
            failures: bucket.failures.load(Ordering::Relaxed),
            bytes: bucket.bytes.load(Ordering::Relaxed),
        }
    }
}

impl TrafficReport {
    /// Returns the sums of all intervals.
    pub(crate) fn total(&self) -> Sample {
        self.samples.iter().fold(Sample::default(), |sum, sample| Sample {
            requests: sum.requests + sample.requests,
            hits: sum.hits + sample.hits,
            failures: sum.failures + sample.failures,
            bytes: sum.bytes.saturating_add(sample.bytes),
        })
    }

    /// Returns the last complete interval.
    pub(crate) fn last(&self) -> Sample {
        self.samples.last().copied().unwrap_or_default()
    }
}

impl Sample {
    /// Returns the share of answers with content in percent; none without a request.
    pub(crate) fn hit_percent(&self) -> Option<u64> {
        self.hits.saturating_mul(100).checked_div(self.requests)
    }
}

fn is_recent(at: u64, second: u64) -> bool {
    at.saturating_add(INTERVAL * INTERVALS) > second
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(path: &str, status: u16, millis: u64) -> Answered<'_> {
        Answered { path, status, bytes: 100, took: Duration::from_millis(millis) }
    }

    #[test]
    fn answers_are_counted_in_the_interval_of_their_end() {
        let traffic = Traffic::default();
        traffic.record_at(&answered("/a", 200, 1), 3);
        traffic.record_at(&answered("/a", 304, 1), 9);
        traffic.record_at(&answered("/b", 404, 1), 10);
        traffic.record_at(&answered("/b", 503, 1), 10);
        let report = traffic.report_at(20);
        assert_eq!(report.samples.len(), 2);
        assert_eq!(report.samples[0], Sample { requests: 2, hits: 2, failures: 0, bytes: 200 });
        assert_eq!(report.last(), Sample { requests: 2, hits: 0, failures: 1, bytes: 200 });
        assert_eq!(report.total().hit_percent(), Some(50));
        assert_eq!(Sample::default().hit_percent(), None);
        // The present interval is incomplete, and old ones make room for new ones.
        assert_eq!(traffic.report_at(19).samples.len(), 1);
        let later = INTERVAL * INTERVALS;
        traffic.record_at(&answered("/c", 200, 1), later);
        assert_eq!(traffic.report_at(later).total().requests, 2);
        assert_eq!(traffic.report_at(later + INTERVAL).total().requests, 1);
    }

    #[test]
    fn the_slowest_answers_are_kept_for_a_while() {
        let traffic = Traffic::default();
        for millis in 1..=20 {
            traffic.record_at(&answered(&format!("/{millis}"), 200, millis), 1);
        }
        let slowest = traffic.report_at(5).slowest;
        assert_eq!(slowest.len(), SLOWEST);
        assert_eq!((slowest[0].path.as_str(), slowest[0].age), ("/20", 4));
        assert_eq!(slowest[SLOWEST - 1].path, "/11");
        traffic.record_at(&answered("/fast", 200, 2), 6);
        assert_eq!(traffic.report_at(6).slowest.len(), SLOWEST);
        let later = 1 + INTERVAL * INTERVALS;
        assert!(traffic.report_at(later).slowest.is_empty());
        traffic.record_at(&answered("/fast", 200, 2), later);
        assert_eq!(traffic.report_at(later).slowest[0].path, "/fast");
    }
}
