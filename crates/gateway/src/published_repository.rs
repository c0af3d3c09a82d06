//! A repository of Esker as a target: what publishers submit ends in the commit of all publishers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

use esker_format::hash::ContentHash;
use esker_format::time::UnixTime;
use esker_publish::{
    BeforeHead, Filter, PublishError, PublishOptions, SubmissionRules, Submitted, TagRequest, is_revision,
};
use esker_repository::{Repository, RepositoryError, Settings};
use esker_store::Sink;
use parking_lot::Mutex;

use crate::lease::{Candidate, Request};
use crate::target::{PublicFiles, PublishFailure, Published, Submissions, Target};

/// Opens the repository with its keys.
pub type OpenRepository = Box<dyn Fn() -> Result<Repository, RepositoryError> + Send + Sync>;

/// A repository that the gateway holds the keys of.
pub struct PublishedRepository {
    /// For its storage; its settings and keys are those of the time at which it was opened.
    opened: Repository,
    open: OpenRepository,
    /// Threads that compress catalogs.
    threads: usize,
}

impl PublishedRepository {
    /// Opens a repository; each commit opens it anew, with the settings and keys of then.
    pub fn new(open: OpenRepository, threads: usize) -> Result<Self, RepositoryError> {
        Ok(Self { opened: open()?, open, threads })
    }

    /// Publishes submissions. A failure that is not of one of them is returned as such.
    fn publish_by(
        &self,
        submissions: &Submissions<'_>,
        before_head: &BeforeHead<'_>,
    ) -> Result<Vec<Result<Submitted, PublishError>>, PublishError> {
        let repository = (self.open)()?;
        let all: Vec<_> = submissions
            .all
            .iter()
            .map(|submission| esker_publish::Submission {
                root: submission.root,
                directory: submission.path.directory().as_bytes().to_vec(),
                is_own: &submission.has_uploaded,
            })
            .collect();
        let requests = || submissions.all.iter().map(|submission| submission.request);
        // Requests with a tag, a description or tags to remove are not joined with others.
        let Some(first) = requests().next() else { return Ok(Vec::new()) };
        let (mut quiet, mut confirmed) = (|_| (), |_| true);
        let options = PublishOptions {
            tag: tag(first, repository.settings().automatic_tags),
            threads: self.threads,
            stop: Arc::new(AtomicBool::new(false)),
            profiles: Vec::new(),
            filter: Filter::default(),
            progress: &mut quiet,
            // The publisher saw what it removes.
            confirm_shrink: &mut confirmed,
        };
        let rules = SubmissionRules {
            before_head,
            removed_tags: &first.removed_tags,
            tags_before: requests().filter_map(|request| request.tags_before).max().map(UnixTime),
        };
        esker_publish::Submissions { all, rules, options }.run(&repository, now())
    }
}

impl Target for PublishedRepository {
    fn sink(&self) -> &dyn Sink {
        self.opened.sink()
    }

    fn settings(&self) -> Result<Settings, PublishFailure> {
        Ok(*(self.open)().map_err(failed)?.settings())
    }

    fn publish(&self, submissions: &Submissions<'_>) -> Vec<Result<Published, PublishFailure>> {
        // The reasons of the gateway, which the commit hands back as texts.
        let withdrawn = Mutex::new(BTreeMap::new());
        let before_head = |places: &[usize], next: Option<(&ContentHash, u64)>| {
            let candidate = next.map(|(root, revision)| Candidate { root: root.to_string(), revision });
            (submissions.before_head)(places, candidate).map_err(|failure| {
                let text = failure.to_string();
                withdrawn.lock().extend(places.first().map(|place| (*place, failure)));
                PublishError::Withdrawn(text)
            })
        };
        let published = self.publish_by(submissions, &before_head);
        let mut withdrawn = withdrawn.into_inner();
        let mut outcome = |place, submitted| match submitted {
            Ok(Submitted { report, left_out, .. }) => {
                Ok(Published { revision: report.revision, dropped: left_out })
            }
            Err(PublishError::Withdrawn(text)) => {
                Err(withdrawn.remove(&place).unwrap_or_else(|| PublishFailure::Failed(text.into())))
            }
            Err(error) => Err(failure(error)),
        };
        match published {
            Ok(all) => all.into_iter().enumerate().map(|(place, one)| outcome(place, one)).collect(),
            Err(error) => {
                let others = submissions.all.len().saturating_sub(1);
                let text = error.to_string();
                let failed = || Err(PublishFailure::Failed(text.clone().into()));
                [Err(failure(error))].into_iter().chain(std::iter::repeat_with(failed).take(others)).collect()
            }
        }
    }

    fn public_files(&self) -> Result<PublicFiles, PublishFailure> {
        let (key, certificate) = self.opened.keys().public_files().map_err(failed)?;
        Ok(PublicFiles { key, certificate })
    }

    fn has_published(&self, candidate: &Candidate) -> Result<bool, PublishFailure> {
        let Ok(root) = ContentHash::parse(&candidate.root) else { return Ok(false) };
        let repository = (self.open)().map_err(failed)?;
        is_revision(&repository, &root).map_err(failed)
    }
}

/// Returns the tag of the new revision. The commit names automatic ones itself, if the repository has them.
fn tag(request: &Request, automatic: bool) -> TagRequest {
    let name = request.named_tag();
    // The publisher of the reference may send a description without a tag, which is no mistake there.
    let description = if automatic || name.is_some() { request.description.clone() } else { String::new() };
    TagRequest { name: name.map(str::to_owned), description, branch: None }
}

fn failure(error: PublishError) -> PublishFailure {
    match error {
        PublishError::Conflict { paths, .. } => PublishFailure::Conflict { paths },
        PublishError::Repository(RepositoryError::Collected { objects }) => {
            PublishFailure::MissingObjects(objects)
        }
        error => failed(error),
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> PublishFailure {
    PublishFailure::Failed(Box::new(error))
}

fn now() -> UnixTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixTime(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_the_reference_that_are_automatic_are_named_by_the_commit() {
        let named = |name: &str| tag(&Request { tag: name.to_owned(), ..Request::default() }, true).name;
        assert_eq!(named(""), None);
        assert_eq!(named("generic-2026-11-30T12:00:00Z"), None);
        assert_eq!(named("v1").as_deref(), Some("v1"));
    }

    #[test]
    fn a_description_without_a_tag_is_left_out() {
        let described = |name: &str, automatic| {
            let request = Request { tag: name.into(), description: "new".into(), ..Request::default() };
            tag(&request, automatic).description
        };
        let all =
            [("", true), ("v1", false), ("", false)].map(|(name, automatic)| described(name, automatic));
        assert_eq!(all, ["new", "new", ""]);
    }
}
