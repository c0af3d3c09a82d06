//! A repository of the tests: its storage is real, and its head is a list.

use std::sync::Arc;

use esker_format::name::RepositoryName;
use esker_gateway::{Candidate, OpenTarget, PublicFiles, PublishFailure, Published, Submissions, Target};
use esker_object_storage::{ObjectSink, StorageSettings, StorageUrl};
use esker_repository::Settings;
use esker_store::{LocalSink, Sink};
use esker_testkit::s3::{BUCKET, S3Server};
use parking_lot::Mutex;
use tempfile::TempDir;

/// What happens at the next attempt to replace the head.
pub(crate) type OnHead = Box<dyn FnOnce() -> Outcome + Send>;

/// Result of an attempt to replace the head, as the storage tells it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Replaced,
    /// The head was not replaced.
    Failed,
    /// The head was replaced, and the storage tells of a failure.
    ReplacedAndFailed,
}

/// A repository of the tests.
pub(crate) struct TestTarget {
    sink: Box<dyn Sink>,
    _folder: TempDir,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    head: Vec<Candidate>,
    on_head: Option<OnHead>,
    before_head: Option<Box<dyn FnOnce() + Send>>,
    /// Paths that other publishers changed.
    conflict: Vec<String>,
    /// Number of objects that a revision lacks.
    lacking: u64,
    /// True while the storage does not answer.
    is_away: bool,
    /// Number of questions whether a revision was published.
    asked: usize,
}

impl TestTarget {
    pub(crate) fn new() -> Arc<Self> {
        let folder = tempfile::tempdir().unwrap();
        let sink = Box::new(LocalSink::open(folder.path()));
        Arc::new(Self { sink, _folder: folder, state: Mutex::default() })
    }

    /// Makes a repository in the bucket of a server.
    pub(crate) fn in_bucket(server: &S3Server) -> Arc<Self> {
        let credentials = [("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")];
        let (endpoint, environment) = (Some(server.endpoint()), credentials.into_iter().collect());
        let settings = StorageSettings { endpoint, environment, ..StorageSettings::default() };
        let url = StorageUrl::parse(&format!("s3://{BUCKET}")).unwrap();
        let sink = Box::new(ObjectSink::open(url.bucket().unwrap(), &settings).unwrap());
        let folder = tempfile::tempdir().unwrap();
        Arc::new(Self { sink, _folder: folder, state: Mutex::default() })
    }

    /// Makes the folders of objects, which most tests don't need.
    pub(crate) fn make_folders(&self) {
        self.sink.make_folders().unwrap();
    }

    pub(crate) fn head(&self) -> Vec<Candidate> {
        self.state.lock().head.clone()
    }

    pub(crate) fn on_head(&self, act: impl FnOnce() -> Outcome + Send + 'static) {
        self.state.lock().on_head = Some(Box::new(act));
    }

    /// Sets what happens before the lease is asked for the last time.
    pub(crate) fn before_head(&self, act: impl FnOnce() + Send + 'static) {
        self.state.lock().before_head = Some(Box::new(act));
    }

    pub(crate) fn conflict(&self, paths: &[&str]) {
        self.state.lock().conflict = paths.iter().map(|path| (*path).to_owned()).collect();
    }

    pub(crate) fn lack(&self, objects: u64) {
        self.state.lock().lacking = objects;
    }

    pub(crate) fn asked(&self) -> usize {
        self.state.lock().asked
    }

    pub(crate) fn set_away(&self, is_away: bool) {
        self.state.lock().is_away = is_away;
    }
}

fn failure(text: &str) -> PublishFailure {
    PublishFailure::Failed(text.into())
}

impl TestTarget {
    /// Publishes submissions as one revision, which has the root of the first one.
    fn publish_joined(&self, submissions: &Submissions<'_>) -> Result<u64, PublishFailure> {
        let (revision, on_head) = {
            let mut state = self.state.lock();
            if !state.conflict.is_empty() {
                return Err(PublishFailure::Conflict { paths: std::mem::take(&mut state.conflict) });
            }
            if state.lacking > 0 {
                return Err(PublishFailure::MissingObjects(std::mem::take(&mut state.lacking)));
            }
            (state.head.len() as u64 + 2, state.on_head.take())
        };
        let before = self.state.lock().before_head.take();
        before.into_iter().for_each(|act| act());
        let candidate = Candidate { root: submissions.all[0].root.to_string(), revision };
        let places: Vec<usize> = (0..submissions.all.len()).collect();
        (submissions.before_head)(&places, Some(candidate.clone()))?;
        let outcome = on_head.map_or(Outcome::Replaced, |act| act());
        if outcome != Outcome::Failed {
            self.state.lock().head.push(candidate);
        }
        if outcome == Outcome::Replaced { Ok(revision) } else { Err(failure("the storage does not answer")) }
    }
}

impl Target for TestTarget {
    fn sink(&self) -> &dyn Sink {
        &*self.sink
    }

    fn settings(&self) -> Result<Settings, PublishFailure> {
        Ok(Settings { nanoseconds: false, ..Settings::default() })
    }

    fn publish(&self, submissions: &Submissions<'_>) -> Vec<Result<Published, PublishFailure>> {
        let published = self.publish_joined(submissions);
        let outcome = || match &published {
            Ok(revision) => Ok(Published { revision: *revision, dropped: Vec::new() }),
            Err(PublishFailure::Conflict { paths }) => Err(PublishFailure::Conflict { paths: paths.clone() }),
            Err(PublishFailure::MissingObjects(count)) => Err(PublishFailure::MissingObjects(*count)),
            Err(PublishFailure::LeaseEnded) => Err(PublishFailure::LeaseEnded),
            Err(PublishFailure::Failed(error)) => Err(failure(&error.to_string())),
        };
        submissions.all.iter().map(|_| outcome()).collect()
    }

    fn public_files(&self) -> Result<PublicFiles, PublishFailure> {
        Ok(PublicFiles { key: "public".into(), certificate: "certificate".into() })
    }

    fn has_published(&self, candidate: &Candidate) -> Result<bool, PublishFailure> {
        let mut state = self.state.lock();
        state.asked += 1;
        if state.is_away { Err(failure("the storage is away")) } else { Ok(state.head.contains(candidate)) }
    }
}

/// Returns a function that opens some repositories.
pub(crate) fn opens(targets: &[(&'static str, Arc<TestTarget>)]) -> OpenTarget {
    let targets = targets.to_vec();
    Box::new(move |name: &RepositoryName| {
        let found = targets.iter().find(|(known, _)| *known == name.as_str());
        found
            .map(|(_, target)| target.clone() as Arc<dyn Target>)
            .ok_or_else(|| failure("there is no such repository"))
    })
}
