//! Data of the dashboard: what the served folders say about their repositories.
//!
//! ```text
//! route ─► Dashboard ─► OpenRepository ─► revisions, tree, search, catalogs, comparison ─► objects ─► folder
//!              └─► Overview: heads, totals, tags and sizes of all repositories
//! ```
//!
//! Every reader has a [`Budget`] of time and bytes, and what it could not read within it is said so on the page. Nothing is
//! verified but that objects have the bytes of their names: clients verify signatures.

mod budget;
mod catalogs;
mod changed_paths;
mod comparison;
mod disk_space;
mod objects;
mod overview;
mod recent;
mod revisions;
mod search;
mod size_history;
mod state;
mod tags;
mod traffic;
mod tree;

use std::sync::Arc;
use std::time::Duration;

use esker_format::hash::ContentHash;
use esker_format::manifest::{self, Manifest};
use esker_format::name::RepositoryName;
use esker_repository::RepositoryError;
use parking_lot::Mutex;

use crate::repositories::{Repositories, Unread, manifest_of};

pub(crate) use budget::Budget;
pub(crate) use catalogs::{CatalogList, CatalogRow};
pub(crate) use changed_paths::ChangedPath;
pub(crate) use comparison::{Comparison, Ended};
pub(crate) use disk_space::DiskSpace;
pub(crate) use overview::Overview;
pub(crate) use revisions::{RevisionList, RevisionRow};
pub(crate) use search::Search;
pub(crate) use size_history::Point;
#[cfg(test)]
pub(crate) use state::Status;
pub(crate) use state::{Head, Known, RepositoryState};
pub(crate) use tags::{TagList, TagSummary};
pub(crate) use traffic::{Answered, INTERVAL as SECONDS, Sample, SlowAnswer, Traffic, TrafficReport};
pub(crate) use tree::{Directory, Found, LISTED as TREE_PAGE};

use objects::{CatalogCache, Objects};
use recent::Recent;

/// Longest time that one request reads for a page.
const TIME: Duration = Duration::from_millis(600);
/// Plain bytes of catalogs that one request reads at most.
const BYTES: u64 = 512 << 20;
/// Number of comparisons and of catalog lists that are kept.
const KEPT: usize = 64;

/// The readers of the dashboard and their caches.
pub(crate) struct Dashboard {
    repositories: Arc<Repositories>,
    overview: Mutex<Overview>,
    catalogs: CatalogCache,
    comparisons: Recent<(ContentHash, ContentHash), Comparison>,
    catalog_lists: Recent<ContentHash, CatalogList>,
    traffic: Arc<Traffic>,
}

impl Dashboard {
    pub(crate) fn new(repositories: Arc<Repositories>, traffic: Arc<Traffic>) -> Self {
        Self {
            repositories,
            overview: Mutex::default(),
            catalogs: CatalogCache::default(),
            comparisons: Recent::new(KEPT),
            catalog_lists: Recent::new(KEPT),
            traffic,
        }
    }

    /// Returns the state of all repositories, after reading changes until the budget is spent.
    pub(crate) fn overview(&self) -> Arc<[RepositoryState]> {
        self.overview.lock().now(&self.repositories, &Budget::new(TIME, BYTES))
    }

    /// Returns the space on the file systems of the served folders; those whose space is unknown are left out.
    pub(crate) fn disks(&self) -> Vec<DiskSpace> {
        self.repositories.places().filter_map(|folder| DiskSpace::of(&folder)).collect()
    }

    /// Returns the counters of the server.
    pub(crate) fn traffic(&self) -> TrafficReport {
        self.traffic.report()
    }

    /// Opens a repository for one request.
    pub(crate) fn repository(&self, name: &RepositoryName) -> Result<OpenRepository<'_>, RepositoryError> {
        let mut failure = None;
        for folder in self.repositories.candidates(name) {
            match manifest_of(&folder) {
                Ok(manifest) => {
                    let objects = Objects::new(folder, Budget::new(TIME, BYTES), &self.catalogs);
                    return Ok(OpenRepository { dashboard: self, name: name.clone(), manifest, objects });
                }
                Err(error) if error.is_absent() => {}
                Err(error) => failure = Some(error),
            }
        }
        Err(match failure {
            None => RepositoryError::NoRepository(name.as_str().to_owned()),
            Some(Unread::Io(source)) => {
                RepositoryError::File { doing: "reading", path: manifest::PATH.into(), source }
            }
            Some(Unread::Malformed(reason)) => {
                RepositoryError::Missing { what: "a manifest that can be read".to_owned(), object: reason }
            }
        })
    }
}

/// A repository that a request reads.
pub(crate) struct OpenRepository<'d> {
    dashboard: &'d Dashboard,
    name: RepositoryName,
    manifest: Manifest,
    objects: Objects<'d>,
}

impl OpenRepository<'_> {
    /// Returns the name of the repository in its URL.
    pub(crate) fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Returns its state, as the list of repositories has it.
    pub(crate) fn state(&self) -> RepositoryState {
        let listed = self.dashboard.overview();
        let known = listed.iter().find(|state| state.folder == self.name.as_str());
        known.cloned().unwrap_or_else(|| RepositoryState::of(self.name.as_str(), self.objects.folder()))
    }

    /// Returns its tags, newest first.
    pub(crate) fn tags(&self) -> Result<TagList, RepositoryError> {
        tags::list(&self.objects, &self.manifest)
    }

    /// Returns the root catalog of the revision with this tag, number or hash.
    pub(crate) fn resolve(&self, name: &str) -> Result<ContentHash, RepositoryError> {
        revisions::resolve(&self.objects, &self.manifest, name)
    }

    /// Lists revisions with their changes, from one root catalog backwards.
    pub(crate) fn revisions(&self, from: ContentHash) -> Result<RevisionList, RepositoryError> {
        let tags = self.tags().unwrap_or_default();
        revisions::list(&self.objects, from, &tags, &mut |old, new| self.compare(old, new))
    }

    /// Compares two revisions.
    pub(crate) fn compare(
        &self,
        old: ContentHash,
        new: ContentHash,
    ) -> Result<Arc<Comparison>, RepositoryError> {
        let comparisons = &self.dashboard.comparisons;
        comparisons.get_or(&(old, new), Comparison::is_final, || Comparison::read(&self.objects, old, new))
    }

    /// Finds a path of a revision, and lists a part of the directory there.
    pub(crate) fn find(
        &self,
        root: ContentHash,
        path: &[u8],
        first: usize,
    ) -> Result<Found, RepositoryError> {
        tree::find(&self.objects, root, path, first)
    }

    /// Searches for names at and below a directory of a revision.
    pub(crate) fn search(
        &self,
        root: ContentHash,
        below: &[u8],
        text: &str,
    ) -> Result<Search, RepositoryError> {
        search::run(&self.objects, root, below, text)
    }

    /// Lists the catalogs of a revision by size.
    pub(crate) fn catalogs(&self, root: ContentHash) -> Result<Arc<CatalogList>, RepositoryError> {
        let lists = &self.dashboard.catalog_lists;
        lists.get_or(&root, CatalogList::is_final, || catalogs::list(&self.objects, root))
    }
}

#[cfg(test)]
mod tests {
    use esker_testkit::fixture::FULL;

    use super::*;
    use crate::pages;
    use esker_format::time::UnixTime;

    fn dashboard(folder: &std::path::Path) -> Dashboard {
        let repositories = Repositories::open(&[folder.to_owned()]).expect("a folder");
        Dashboard::new(Arc::new(repositories), Arc::default())
    }

    /// Makes a repository whose request has no time left.
    fn without_time(opened: OpenRepository<'_>) -> OpenRepository<'_> {
        let OpenRepository { dashboard, name, manifest, objects } = opened;
        let folder = objects.folder().clone();
        let objects = Objects::new(folder, Budget::new(Duration::ZERO, 0), &dashboard.catalogs);
        OpenRepository { dashboard, name, manifest, objects }
    }

    #[test]
    fn requests_without_time_end_and_keep_no_incomplete_result() {
        let repository = FULL.unpack();
        let dashboard = dashboard(repository.document_root());
        let name = RepositoryName::parse("full.test").expect("a name");
        let open = || dashboard.repository(&name).expect("a repository");
        let root = |tag: &str| open().resolve(tag).expect("a tag");
        let (old, new) = (root("v1"), root("v3"));
        let cut = without_time(open()).compare(old, new).expect("an incomplete comparison");
        assert_eq!((&cut.end, cut.is_final()), (&Ended::Budget, false));
        let whole = open().compare(old, new).expect("a comparison");
        assert_eq!(whole.end, Ended::Whole);
        // It is kept, so the next one takes no time.
        let again = without_time(open()).compare(old, new).expect("a comparison");
        assert!(Arc::ptr_eq(&whole, &again));
        let interrupted =
            |result: Result<(), RepositoryError>| matches!(result, Err(RepositoryError::Interrupted));
        // No catalog is open, so that nothing is read.
        let cold = super::tests::dashboard(repository.document_root());
        let opened = without_time(cold.repository(&name).expect("a repository"));
        assert!(interrupted(opened.find(new, b"", 0).map(drop)));
        assert!(interrupted(opened.search(new, b"", "f").map(drop)));
        assert!(interrupted(opened.catalogs(new).map(drop)));
        assert!(interrupted(opened.revisions(new).map(drop)));
    }

    /// Catalogs are data of others: whatever is in their place, a page says so.
    #[test]
    fn damaged_objects_become_pages() {
        let repository = FULL.unpack();
        let contents = repository.contents("v3");
        for (path, hash) in &contents.catalogs {
            let object = format!("data/{}/{}C", &hash[..2], &hash[2..]);
            repository.write(&object, b"damaged");
            let dashboard = dashboard(repository.document_root());
            for page in ["tree", "search?q=f", "catalogs", "revisions", "compare?from=v1"] {
                let (page, query) = page.split_once('?').unwrap_or((page, ""));
                let query = format!("{query}&path={path}");
                let address = format!("/dashboard/repo/full.test/{page}");
                let made = pages::respond(&dashboard, &address, &query, UnixTime(0));
                assert!([200, 404, 500].contains(&made.status), "{address}: {}", made.status);
                assert!(made.body.contains("<h1>"), "{address}: {}", made.body);
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn no_address_causes_a_panic(page in "(repo/full.test/)?[a-z/%.]{0,12}", query in "[ -~]{0,40}") {
            let folder = tempfile::tempdir().expect("a folder");
            let dashboard = dashboard(folder.path());
            let made = pages::respond(&dashboard, &format!("/dashboard/{page}"), &query, UnixTime(0));
            proptest::prop_assert!(made.status == 404 || made.status == 200);
        }
    }
}
