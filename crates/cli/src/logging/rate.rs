//! Limits the lines that one call site writes: a server that fails a thousand times a second fills no disk.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::Metadata;
use tracing::callsite::Identifier;

/// Lines of one call site in one period.
const LINES: u64 = 50;
/// Length of a period.
const PERIOD: Duration = Duration::from_secs(30);

/// Lines of each call site in its current period.
#[derive(Default)]
pub(super) struct RateLimit(Mutex<HashMap<Identifier, Site>>);

struct Site {
    metadata: &'static Metadata<'static>,
    began: Instant,
    lines: u64,
}

/// Decision about a line.
pub(super) struct Admission {
    pub(super) is_admitted: bool,
    /// Call sites whose period has ended, and the number of their lines that were left out.
    pub(super) left_out: Vec<(&'static Metadata<'static>, u64)>,
}

impl RateLimit {
    /// Counts a line. Lines that were left out are reported by the first line of any call site after their period.
    pub(super) fn admit(&self, metadata: &'static Metadata<'static>, now: Instant) -> Admission {
        // There are as many call sites as the program has.
        let mut sites = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left_out = Vec::new();
        sites.retain(|_, site| {
            let is_over = now.saturating_duration_since(site.began) >= PERIOD;
            if is_over && site.lines > LINES {
                left_out.push((site.metadata, site.lines - LINES));
            }
            !is_over
        });
        let site = sites.entry(metadata.callsite()).or_insert(Site { metadata, began: now, lines: 0 });
        site.lines += 1;
        Admission { is_admitted: site.lines <= LINES, left_out }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tracing::{Event, Subscriber};
    use tracing_subscriber::Layer;
    use tracing_subscriber::layer::{Context, SubscriberExt};

    use super::*;

    struct Sites(Arc<Mutex<Vec<&'static Metadata<'static>>>>);

    impl<S: Subscriber> Layer<S> for Sites {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            self.0.lock().expect("sites").push(event.metadata());
        }
    }

    /// Returns two call sites.
    fn sites() -> [&'static Metadata<'static>; 2] {
        let seen = Arc::<Mutex<Vec<_>>>::default();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(Sites(seen.clone())), || {
            tracing::warn!("one");
            tracing::warn!("two");
        });
        let seen = seen.lock().expect("sites");
        [seen[0], seen[1]]
    }

    #[test]
    fn a_loud_call_site_leaves_the_others_their_lines() {
        let ([loud, quiet], rate, start) = (sites(), RateLimit::default(), Instant::now());
        let admitted = (0..LINES + 7).filter(|_| rate.admit(loud, start).is_admitted).count();
        assert_eq!(admitted as u64, LINES);
        let other = rate.admit(quiet, start);
        assert!(other.is_admitted && other.left_out.is_empty());
        let later = rate.admit(quiet, start + PERIOD);
        let counts: Vec<_> = later.left_out.iter().map(|(site, count)| (site.callsite(), *count)).collect();
        assert_eq!(counts, [(loud.callsite(), 7)]);
        let again = rate.admit(loud, start + PERIOD);
        assert!(again.is_admitted && again.left_out.is_empty(), "reported once");
    }
}
