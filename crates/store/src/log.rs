//! Sink for log lines.

use std::fmt;
use std::sync::Arc;

/// Sink for log lines. Cheap to clone.
#[derive(Clone)]
pub struct Log(Arc<dyn Fn(&str) + Send + Sync>);

impl Log {
    /// Creates a log that passes each line to `write`, which must not block.
    pub fn new(write: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(write))
    }

    /// Passes on a line.
    pub fn say(&self, line: &str) {
        (self.0)(line);
    }
}

impl Default for Log {
    /// Returns a log that discards its lines.
    fn default() -> Self {
        Self::new(|_| {})
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Log")
    }
}
