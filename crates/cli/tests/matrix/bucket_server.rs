//! Servers of buckets for tests of whole processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use esker_testkit::s3::{S3Fault, S3Program, S3Server};

/// The server of a bucket: gofakes3 where it is installed, else the one of the test kit.
pub(crate) enum BucketServer {
    Program(S3Program),
    /// A thread; while the flag is set it closes every connection.
    Thread(S3Server, Arc<AtomicBool>),
}

impl BucketServer {
    /// Starts a server that keeps its objects when it is killed.
    pub(crate) fn start() -> Self {
        Self::start_program(S3Program::gofakes3_on_disk())
    }

    /// Starts a server that keeps its objects in memory.
    pub(crate) fn start_in_memory() -> Self {
        Self::start_program(S3Program::gofakes3())
    }

    fn start_program(program: Option<S3Program>) -> Self {
        match program {
            Some(program) => Self::Program(program),
            None => {
                let (server, is_away) = (S3Server::start(), Arc::new(AtomicBool::new(false)));
                let away = is_away.clone();
                server.fault(move |_| away.load(Ordering::SeqCst), S3Fault::Drop);
                Self::Thread(server, is_away)
            }
        }
    }

    /// Returns what serves the bucket.
    pub(crate) fn describe(&self) -> &'static str {
        match self {
            Self::Program(_) => "gofakes3",
            Self::Thread(..) => "the test kit's server",
        }
    }

    pub(crate) fn endpoint(&self) -> String {
        match self {
            Self::Program(program) => program.endpoint(),
            Self::Thread(server, _) => server.endpoint(),
        }
    }

    pub(crate) fn kill(&mut self) {
        match self {
            Self::Program(program) => program.kill(),
            Self::Thread(_, is_away) => is_away.store(true, Ordering::SeqCst),
        }
    }

    pub(crate) fn start_again(&mut self) {
        match self {
            Self::Program(program) => program.restart(),
            Self::Thread(_, is_away) => is_away.store(false, Ordering::SeqCst),
        }
    }
}
