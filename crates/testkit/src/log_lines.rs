//! Collects the log lines of a test.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex, MutexGuard};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Metadata, Subscriber};

/// Log lines of the thread that collects them, and of the threads that it starts with `esker_threads::spawn`.
#[derive(Debug)]
pub struct LogLines {
    lines: Arc<Mutex<Vec<String>>>,
    _collecting: DefaultGuard,
}

impl LogLines {
    /// Collects messages of the level `INFO` and above until the value is dropped.
    #[must_use]
    pub fn collect() -> Self {
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let collector = Collector { lines: Arc::clone(&lines) };
        Self { lines, _collecting: tracing::subscriber::set_default(collector) }
    }

    /// Returns the lines so far.
    pub fn all(&self) -> Vec<String> {
        self.lock().clone()
    }

    /// Removes and returns the lines so far.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.lock())
    }

    /// Returns whether a line so far contains the words.
    pub fn contain(&self, words: &str) -> bool {
        self.lock().iter().any(|line| line.contains(words))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.lines.lock().unwrap()
    }
}

struct Collector {
    lines: Arc<Mutex<Vec<String>>>,
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        self.lines.lock().unwrap().push(message.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The message of an event.
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            let _ = write!(self.0, "{value:?}");
        }
    }
}
