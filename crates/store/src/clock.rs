//! Reads the system clock.

use std::time::SystemTime;

/// Returns the seconds since 1970-01-01 UTC.
pub(crate) fn unix_now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}
