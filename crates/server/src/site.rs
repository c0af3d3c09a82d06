//! The handler of `esker serve`: files, batches and event streams of the served folders, then pages by their routes.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use bytes::Bytes;
use esker_format::name::RepositoryName;
use esker_format::object::ObjectName;
use hyper::{Response, Uri};
use hyper_util::service::TowerToHyperService;
use tokio::sync::{Mutex, Semaphore};

use crate::answer::{Answer, BROKEN, BUSY, NOT_FOUND};
use crate::batch::{self, Batches};
use crate::counters::{Counters, Limit};
use crate::dashboard::{Dashboard, RepositoryState};
use crate::date;
use crate::events::{Events, Stream};
use crate::geo::GeoDatabase;
use crate::listing::Listing;
use crate::metrics::Kind;
use crate::pages;
use crate::repositories::Repositories;
use crate::route::{self, Allowed, Route};
use crate::routes;
use crate::storages::Storages;
use crate::transport::Limits;
use crate::transport::body::{Body, Step};
use crate::transport::exchange::Exchange;
use crate::transport::request::{Method, Request};
use crate::transport::{Answering, Call, Handler};

/// Number of pages that are made at once.
const PAGES: usize = 2;

/// State that the handlers of routes share.
pub(crate) struct Site {
    pub(crate) repositories: Arc<Repositories>,
    /// Repositories in object storage, which are among the others, too.
    pub(crate) storages: Option<Arc<Storages>>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) names: Arc<Mutex<Listing>>,
    pub(crate) dashboard: Arc<Dashboard>,
    pub(crate) page_permits: Semaphore,
    pub(crate) batches: Batches,
    pub(crate) events: Events,
    pub(crate) geo: Option<Arc<GeoDatabase>>,
    /// Held while the state of all repositories is read for monitoring.
    pub(crate) monitoring: Mutex<()>,
}

impl Site {
    pub(crate) fn new(
        repositories: Repositories,
        storages: Option<Arc<Storages>>,
        limits: &Limits,
        counters: Arc<Counters>,
        geo: Option<Arc<GeoDatabase>>,
    ) -> Arc<Self> {
        let repositories = Arc::new(repositories);
        Arc::new(Self {
            events: Events::new(repositories.clone(), limits.listeners),
            dashboard: Arc::new(Dashboard::new(repositories.clone(), counters.traffic.clone())),
            page_permits: Semaphore::new(PAGES),
            repositories,
            storages,
            counters,
            names: Arc::default(),
            batches: Batches::new(),
            geo,
            monitoring: Mutex::default(),
        })
    }

    fn file(&self, request: &Request, repository: &RepositoryName, file: &Allowed) -> Answer {
        let mut failure = None;
        for folder in self.repositories.candidates(repository) {
            match folder.open(&file.path()) {
                Ok(opened) => return Answer::file(request, file, opened),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            Some(error) => Answer::unreadable(&error),
            // Clients would take a missing file for the state of the repository, and turn to another server only after this.
            None if self.repositories.is_gone(repository) => Answer::explained(BUSY, "the storage is gone"),
            None => Answer::failure(NOT_FOUND),
        }
    }

    pub(crate) fn batch(&self, repository: &RepositoryName, names: &[ObjectName], client: IpAddr) -> Answer {
        match self.batches.take(client) {
            Some(permit) => batch::make(&self.repositories, repository, names).holding(permit),
            None => {
                self.counters.limited(Limit::Batches);
                batch::nothing(names)
            }
        }
    }

    /// Returns the storages if the repository is in one of them.
    fn stored(&self, repository: &RepositoryName) -> Option<&Arc<Storages>> {
        self.storages.as_ref().filter(|storages| storages.has(repository))
    }

    /// Returns a batch of a repository in object storage.
    async fn stored_batch(
        &self,
        call: &Call,
        storages: &Storages,
        repository: &RepositoryName,
        names: Vec<ObjectName>,
    ) -> Response<Body> {
        match self.batches.take(call.client().ip()) {
            Some(permit) => {
                let answer = storages.batch(call, repository, names).await;
                answer.map(|body| body.holding(permit))
            }
            None => {
                self.counters.limited(Limit::Batches);
                batch::nothing(&names).into_response()
            }
        }
    }

    /// Opens the event stream of a repository.
    async fn revisions(&self, call: &Call, repository: RepositoryName) -> Response<Body> {
        match self.events.has(&repository).await {
            // A 404 tells clients that nothing is announced here, and they stay away for long.
            Ok(false) => return Answer::failure(NOT_FOUND).into_response(),
            Err(_) => return Answer::failure(BUSY).into_response(),
            Ok(true) => {}
        }
        let stream = (call.request.method == Method::Get).then(|| self.events.listen(repository)).flatten();
        let Some(stream) = stream else {
            self.counters.limited(Limit::Streams);
            return Answer::failure(BUSY).into_response();
        };
        call.exchange.begin_stream();
        Answer::events(Body::stream(told(stream, call.exchange.clone())))
    }

    /// Returns a page of the dashboard. It reads the disk, so a blocking task makes it, and few at a time.
    pub(crate) async fn page(&self, target: Uri) -> Answer {
        let Ok(_permit) = self.page_permits.acquire().await else { return Answer::failure(BUSY) };
        let dashboard = self.dashboard.clone();
        let make = move || {
            pages::respond(&dashboard, target.path(), target.query().unwrap_or_default(), date::now())
        };
        let made = tokio::task::spawn_blocking(make).await;
        made.map_or_else(|_| Answer::failure(BROKEN), Answer::page)
    }

    /// Returns a response from the current repositories. That reads the disk, so one blocking task does it,
    /// while other requests wait for it without a thread.
    pub(crate) async fn listed(
        &self,
        listing: &Arc<Mutex<Listing>>,
        make: fn(&[RepositoryState]) -> Answer,
    ) -> Answer {
        let (mut listing, repositories) = (listing.clone().lock_owned().await, self.repositories.clone());
        let made = tokio::task::spawn_blocking(move || make(&listing.now(&repositories))).await;
        made.unwrap_or_else(|_| Answer::failure(BROKEN))
    }
}

fn kind(file: &Allowed) -> Kind {
    if matches!(file, Allowed::Object(_)) { Kind::Object } else { Kind::Metadata }
}

/// Sends new revisions until the client or the server closes.
fn told(mut stream: Stream, exchange: Arc<Exchange>) -> Step {
    Step(Box::pin(async move {
        let next = tokio::select! {
            next = stream.next() => next.ok()?,
            () = exchange.transport.unwanted(true) => return None,
        };
        Some((Bytes::from(next), told(stream, exchange)))
    }))
}

/// Answers the requests of a server of repositories.
pub(crate) struct Files {
    site: Arc<Site>,
    pages: Pages,
}

impl Files {
    pub(crate) fn new(site: Arc<Site>, has_metrics: bool) -> Self {
        Self { pages: Pages(routes::all(site.clone(), has_metrics)), site }
    }

    async fn respond(&self, call: Call) -> Response<Body> {
        if call.request.method == Method::Other {
            return Answer::method().into_response();
        }
        let (kind, mut response) = match route::find(&call.request.path) {
            Some(Route::File { repository, file }) => {
                let kind = kind(&file);
                let response = match self.site.stored(&repository) {
                    Some(storages) => storages.file(&call, &repository, file).await,
                    None => self.site.file(&call.request, &repository, &file).into_response(),
                };
                (kind, response)
            }
            Some(Route::Batch { repository, names }) => {
                let response = match self.site.stored(&repository) {
                    Some(storages) => self.site.stored_batch(&call, storages, &repository, names).await,
                    None => self.site.batch(&repository, &names, call.client().ip()).into_response(),
                };
                (Kind::Batch, response)
            }
            Some(Route::Revisions { repository }) => {
                (Kind::Events, self.site.revisions(&call, repository).await)
            }
            None => (Kind::Page, self.pages.page(call).await),
        };
        response.extensions_mut().insert(kind);
        response
    }
}

/// Answers the requests that have a route.
pub(crate) struct Pages(pub(crate) Router);

impl Pages {
    pub(crate) async fn page(&self, call: Call) -> Response<Body> {
        use hyper::service::Service;
        let Call { mut parts, exchange, upload, .. } = call;
        parts.extensions.insert(exchange);
        let request = hyper::Request::from_parts(parts, axum::body::Body::new(upload));
        match TowerToHyperService::new(self.0.clone()).call(request).await {
            Ok(response) => response.map(Body::page),
            Err(never) => match never {},
        }
    }
}

impl Handler for Pages {
    fn answer(self: Arc<Self>, call: Call) -> Answering {
        Box::pin(async move { self.page(call).await })
    }
}

impl Handler for Files {
    fn answer(self: Arc<Self>, call: Call) -> Answering {
        Box::pin(async move { self.respond(call).await })
    }

    fn file(&self, path: &str) -> Option<(Kind, Answer)> {
        let Some(Route::File { repository, file }) = route::find(path) else { return None };
        // A file in object storage has to be waited for.
        if self.site.stored(&repository).is_some() {
            return None;
        }
        Some((kind(&file), self.site.file(&Request::get(), &repository, &file)))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn site(folder: &std::path::Path) -> Arc<Site> {
        let repositories = Repositories::open(&[folder.to_owned()]).expect("a folder");
        Site::new(repositories, None, &Limits::default(), Arc::default(), None)
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(READERS)
            .enable_all()
            .build()
            .expect("a runtime")
    }

    /// Number of threads that read.
    const READERS: usize = 4;

    /// Slowly received batches of one address hold only a part of the permits.
    #[test]
    fn clients_at_one_address_leave_batches_to_others() {
        let repository = esker_testkit::fixture::FULL.unpack();
        let site = site(&repository.path());
        let name = RepositoryName::parse("full.test").expect("a name");
        let client = |number: u8| IpAddr::from([192, 0, 2, number]);
        // An object that isn't there, so that a batch of it never stays.
        let is_full =
            |client: IpAddr| site.batches.shares.take_below(client, batch::FOR_ONE_ADDRESS).is_none();
        let under_way: Vec<_> = (0..batch::AT_ONCE).map(|_| site.batch(&name, &[], client(1))).collect();
        assert!(is_full(client(1)) && !is_full(client(2)));
        assert_eq!(site.batches.permits.available_permits(), batch::AT_ONCE - batch::FOR_ONE_ADDRESS);
        drop(under_way);
        assert!(!is_full(client(1)));
    }

    /// A page takes as long as its catalogs do, on threads that other requests need.
    #[test]
    fn a_read_waiting_for_a_page_blocks_no_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let (runtime, shared) = (runtime(), site(folder.path()));
        let pages = u32::try_from(PAGES).expect("a small number");
        let permits = shared.page_permits.try_acquire_many(pages).expect("no page is made yet");
        runtime.block_on(async {
            let mut waiting = [(); 2 * READERS].map(|()| Box::pin(shared.page(Uri::from_static("/"))));
            let asked = poll_fn(|context| {
                Poll::Ready(waiting.iter_mut().all(|page| page.as_mut().poll(context).is_pending()))
            });
            assert!(asked.await);
            let name = RepositoryName::parse("some.test").expect("a name");
            let found = timeout(Duration::from_secs(60), shared.events.has(&name)).await;
            assert!(matches!(found, Ok(Ok(false))), "{found:?}");
        });
        drop(permits);
    }
}
