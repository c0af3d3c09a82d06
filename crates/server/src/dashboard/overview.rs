//! State of all repositories, read in the order of what a page needs first.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_format::hash::ContentHash;
use esker_format::name::RepositoryName;

use super::budget::Budget;
use super::size_history::SizeHistory;
use super::state::{Known, RepositoryState};
use super::tags::TagSummary;
use crate::file::Folder;
use crate::repositories::Repositories;

/// Time for which a complete overview is not read again.
const FRESH: Duration = Duration::from_secs(1);

/// Cache of the summaries of all repositories. Values of immutable objects stay until the head changes.
#[derive(Default)]
pub(crate) struct Overview {
    records: HashMap<RepositoryName, Record>,
    made: Option<(Instant, Arc<[RepositoryState]>)>,
}

/// Values of one repository that come from objects.
#[derive(Default)]
struct Record {
    sizes: SizeHistory,
    tags: Option<(ContentHash, Result<TagSummary, String>)>,
}

impl Overview {
    /// Returns the state of all repositories. Values for which the budget is not enough are pending, and the next
    /// request goes on with them.
    pub(crate) fn now(&mut self, repositories: &Repositories, budget: &Budget) -> Arc<[RepositoryState]> {
        if let Some((when, states)) = &self.made
            && when.elapsed() < FRESH
        {
            return states.clone();
        }
        let all = repositories.all();
        let mut states: Vec<RepositoryState> =
            all.iter().map(|(name, folder)| RepositoryState::of(name.as_str(), folder)).collect();
        let mut known = std::mem::take(&mut self.records);
        self.records =
            all.iter().map(|(name, _)| (name.clone(), known.remove(name).unwrap_or_default())).collect();
        for step in [Record::read_head, Record::read_tags, Record::read_older] {
            for ((name, folder), state) in all.iter().zip(&states) {
                if let Some(record) = self.records.get_mut(name) {
                    step(record, folder, state, budget);
                }
            }
        }
        let mut unfinished = false;
        for ((name, _), state) in all.iter().zip(&mut states) {
            if let Some(record) = self.records.get(name) {
                record.describe(state);
                unfinished |= record.sizes.is_unfinished() || state.is_pending();
            }
        }
        let states: Arc<[RepositoryState]> = states.into();
        self.made = (!unfinished).then(|| (Instant::now(), states.clone()));
        states
    }
}

impl RepositoryState {
    fn is_pending(&self) -> bool {
        self.head.is_ok() && (self.tags == Known::Pending || self.sizes == Known::Pending)
    }
}

impl Record {
    fn read_head(&mut self, folder: &Folder, state: &RepositoryState, budget: &Budget) {
        if let Ok(head) = &state.head {
            self.sizes.read_head(folder, head.root, head.revision, budget);
        }
    }

    fn read_tags(&mut self, folder: &Folder, state: &RepositoryState, budget: &Budget) {
        let Some(history) = state.head.as_ref().ok().and_then(|head| head.history) else { return };
        let is_known = self.tags.as_ref().is_some_and(|(known, _)| *known == history);
        if is_known || budget.is_spent() {
            return;
        }
        let read = TagSummary::read(folder, history).map(|(summary, bytes)| {
            budget.spend(bytes);
            summary
        });
        self.tags = Some((history, read));
    }

    fn read_older(&mut self, folder: &Folder, _: &RepositoryState, budget: &Budget) {
        self.sizes.read_older(folder, budget);
    }

    /// Fills in what is known.
    fn describe(&self, state: &mut RepositoryState) {
        let Ok(head) = &state.head else { return };
        state.sizes = match self.sizes.points(head.root) {
            None => Known::Pending,
            Some(Ok(points)) => Known::Value(points),
            Some(Err(reason)) => Known::Failed(reason),
        };
        state.tags = match (head.history, &self.tags) {
            (None, _) => Known::Value(TagSummary::default()),
            (Some(history), Some((known, tags))) if *known == history => match tags {
                Ok(summary) => Known::Value(summary.clone()),
                Err(reason) => Known::Failed(reason.clone()),
            },
            _ => Known::Pending,
        };
    }
}

#[cfg(test)]
mod tests {
    use esker_testkit::fixture::{FULL, Repository, TAGS};

    use super::*;

    const ENOUGH: Duration = Duration::from_secs(600);

    fn state(overview: &mut Overview, repository: &Repository, time: Duration) -> RepositoryState {
        let repositories = Repositories::open(&[repository.document_root().to_owned()]).expect("a folder");
        // Another look at once would take what is fresh.
        overview.made = None;
        let states = overview.now(&repositories, &Budget::new(time, u64::MAX));
        assert_eq!(states.len(), 1);
        states[0].clone()
    }

    fn roots(state: &RepositoryState) -> Vec<String> {
        match &state.sizes {
            Known::Value(points) => points.iter().map(|point| point.root.to_string()).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_spent_budget_leaves_values_pending_for_the_next_request() {
        let repository = FULL.unpack();
        let mut overview = Overview::default();
        let first = state(&mut overview, &repository, Duration::ZERO);
        assert!(first.head.is_ok() && first.whitelist.is_ok());
        assert_eq!((first.sizes, first.tags), (Known::Pending, Known::Pending));
        let next = state(&mut overview, &repository, ENOUGH);
        assert!(matches!(&next.tags, Known::Value(tags) if tags.count >= TAGS.len()), "{:?}", next.tags);
        // What is known needs no budget.
        let last = state(&mut overview, &repository, Duration::ZERO);
        assert_eq!((roots(&last), last.tags), (roots(&next), next.tags));
    }

    #[test]
    fn sizes_follow_the_head() {
        let repository = FULL.unpack();
        let mut overview = Overview::default();
        let root = |tag: &str| repository.tag(tag).root;
        for (tag, newest) in [("v1", 1), ("v2", 2), ("v3", 3), ("v1", 1), ("v3", 3)] {
            repository.publish(&repository.head_at(tag));
            let found = roots(&state(&mut overview, &repository, ENOUGH));
            let tail: Vec<String> = TAGS[..newest].iter().map(|tag| root(tag)).collect();
            assert!(found.ends_with(&tail), "{tag}: {found:?} {tail:?}");
        }
    }

    #[test]
    fn a_head_that_can_not_be_read_is_reported_until_it_can() {
        let repository = FULL.unpack();
        let mut overview = Overview::default();
        let head = repository.read(".cvmfspublished");
        let root = repository.manifest().get('C').expect("a root");
        let object = format!("data/{}/{}C", &root[..2], &root[2..]);
        let catalog = repository.read(&object);
        repository.write(&object, b"damaged");
        let broken = state(&mut overview, &repository, ENOUGH);
        assert!(
            matches!(&broken.sizes, Known::Failed(reason) if reason.contains(&root)),
            "{:?}",
            broken.sizes
        );
        let older = repository.head_at("v2");
        repository.write(".cvmfspublished", b"nonsense");
        assert!(state(&mut overview, &repository, ENOUGH).head.is_err());
        repository.write(&object, &catalog);
        repository.publish(&older);
        roots(&state(&mut overview, &repository, ENOUGH));
        repository.publish(&head);
        assert!(roots(&state(&mut overview, &repository, ENOUGH)).contains(&root));
    }
}
