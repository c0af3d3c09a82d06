//! End of the waits of a command that the user interrupts.
//!
//! A signal is for the whole process, and so is this: libraries wait for servers that may never answer at many places, and
//! each of these waits ends soon after [`interrupt`]. Requests that a server answers at once still succeed for a moment, so
//! that a command can tidy up.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Time after an interruption in which waits go on.
const GRACE: Duration = Duration::from_secs(1);
/// Interval at which a wait checks for an interruption, because a signal only sets a value.
pub const POLL_INTERVAL: Duration = Duration::from_millis(100);

static INTERRUPTED: OnceLock<Instant> = OnceLock::new();

/// Ends the waits of this process for servers, those that begin later too.
pub fn interrupt() {
    // The first interruption counts.
    let _ = INTERRUPTED.set(Instant::now());
}

/// Returns true if waits are to end.
pub fn is_over() -> bool {
    INTERRUPTED.get().is_some_and(|at| at.elapsed() >= GRACE)
}

/// Completes when waits are to end.
pub async fn over() {
    while !is_over() {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
