//! The clock that leases end by.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::lease::Millis;

/// Returns the time; called by many threads.
pub type Clock = Arc<dyn Fn() -> Millis + Send + Sync>;

/// Returns a clock that never jumps: the time of the machine now, and what passes from then on.
///
/// A change of the machine's clock neither ends leases nor brings ended ones back.
pub fn steady_clock() -> Clock {
    let started = Instant::now();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let milliseconds = |span: std::time::Duration| i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
    Arc::new(move || Millis(milliseconds(since)).after(milliseconds(started.elapsed())))
}
