//! Pauses between attempts to replace a file that other processes replace too.

use std::time::Duration;

use crate::random;

/// Upper limit of the first pause.
const FIRST: Duration = Duration::from_millis(4);
/// Upper limit of all pauses.
const MAX: Duration = Duration::from_millis(500);

/// Pauses of a random length below a limit that doubles each time, so that competitors don't stay in step.
#[derive(Clone, Debug)]
pub struct BackOff {
    limit: Duration,
}

impl Default for BackOff {
    fn default() -> Self {
        Self { limit: FIRST }
    }
}

impl BackOff {
    /// Waits before the next attempt.
    pub fn pause(&mut self) {
        std::thread::sleep(self.next());
    }

    /// Returns the next pause.
    fn next(&mut self) -> Duration {
        let limit = self.limit;
        self.limit = (limit * 2).min(MAX);
        limit.mul_f64(random::number() as f64 / u64::MAX as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_stay_below_a_limit_that_doubles() {
        let mut back_off = BackOff::default();
        let mut limit = FIRST;
        for _ in 0..20 {
            assert!(back_off.next() <= limit);
            limit = (limit * 2).min(MAX);
        }
    }
}
