//! A repository of Esker as a target: what publishers submit ends in the commit of all publishers.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

use esker_format::hash::ContentHash;
use esker_format::time::UnixTime;
use esker_publish::{Filter, PublishError, PublishOptions, SubmissionRules, TagRequest, is_revision};
use esker_repository::{Repository, RepositoryError, Settings};
use esker_store::Sink;
use parking_lot::Mutex;

use crate::lease::{Candidate, Request};
use crate::target::{PublicFiles, PublishFailure, Published, Submission, Target};

/// Beginning of the names of automatic tags, which the publisher of the reference makes itself.
const AUTOMATIC: &str = "generic";

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
}

impl Target for PublishedRepository {
    fn sink(&self) -> &dyn Sink {
        self.opened.sink()
    }

    fn settings(&self) -> Result<Settings, PublishFailure> {
        Ok(*(self.open)().map_err(failed)?.settings())
    }

    fn publish(&self, submission: &Submission<'_>) -> Result<Published, PublishFailure> {
        let repository = (self.open)().map_err(failed)?;
        // The reason of the gateway, which the commit hands back as a text.
        let withdrawn = Mutex::new(None);
        let before_head = |next: Option<(&ContentHash, u64)>| {
            let candidate = next.map(|(root, revision)| Candidate { root: root.to_string(), revision });
            (submission.before_head)(candidate).map_err(|failure| {
                let text = failure.to_string();
                *withdrawn.lock() = Some(failure);
                PublishError::Withdrawn(text)
            })
        };
        let request = submission.request;
        let rules = SubmissionRules {
            before_head: &before_head,
            removed_tags: &request.removed_tags,
            tags_before: request.tags_before.map(UnixTime),
        };
        let (mut quiet, mut confirmed) = (|_| (), |_| true);
        let options = PublishOptions {
            tag: tag(request, repository.settings().automatic_tags),
            threads: self.threads,
            stop: Arc::new(AtomicBool::new(false)),
            profiles: Vec::new(),
            filter: Filter::default(),
            progress: &mut quiet,
            // The publisher saw what it removes.
            confirm_shrink: &mut confirmed,
        };
        let submitted = esker_publish::Submission {
            root: submission.root,
            directory: submission.path.directory().as_bytes().to_vec(),
            is_own: submission.has_uploaded,
            rules,
            options,
        }
        .run(&repository, now());
        match submitted {
            Ok(submitted) => {
                Ok(Published { revision: submitted.report.revision, dropped: submitted.left_out })
            }
            Err(error) => Err(withdrawn.into_inner().unwrap_or_else(|| failure(error))),
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
    let name = Some(&request.tag).filter(|name| !name.is_empty() && !name.starts_with(AUTOMATIC));
    // The publisher of the reference may send a description without a tag, which is no mistake there.
    let description = if automatic || name.is_some() { request.description.clone() } else { String::new() };
    TagRequest { name: name.cloned(), description, branch: None }
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
