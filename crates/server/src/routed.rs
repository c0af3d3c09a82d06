//! Servers of other crates: their router answers over the connections of this one.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use hyper::Uri;
use hyper::header::{CONTENT_TYPE, HeaderValue};

use crate::answer::Answer;
use crate::counters::Counters;
use crate::metrics;
use crate::pages::{self, PageTable};
use crate::server::{Options, ServeError, Server};
use crate::site::Pages;
use crate::transport::body::Piece;
use crate::transport::{Answering, Call, Handler};

/// Address of the client, or of its proxy, as an extension of requests.
#[derive(Clone, Copy, Debug)]
pub struct ClientAddress(pub SocketAddr);

/// The handlers of a server, and what they need of its connections.
pub struct RoutedService {
    /// Handlers of all requests but those for the page at `/`, metrics and health.
    pub router: Router,
    /// Largest length of a request's body, in bytes.
    pub body_max: u64,
    /// Returns the content type and the body of a refusal that no handler made, of its status and reason.
    pub failure: fn(u16, &str) -> (&'static str, String),
    /// Title of the page at `/`.
    pub title: &'static str,
    /// Returns the tables of the page at `/`.
    pub tables: Arc<dyn Fn() -> Vec<PageTable> + Send + Sync>,
    /// Returns the metrics of the handlers in the form of Prometheus.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
}

/// What the handler of metrics reads.
#[derive(Clone)]
struct Measured {
    counters: Arc<Counters>,
    further: Arc<dyn Fn() -> String + Send + Sync>,
}

/// Answers the requests of a routed service.
struct Routed {
    pages: Pages,
    body_max: u64,
    failure: fn(u16, &str) -> (&'static str, String),
}

impl Handler for Routed {
    fn answer(self: Arc<Self>, mut call: Call) -> Answering {
        let client = ClientAddress(call.client());
        call.parts.extensions.insert(client);
        Box::pin(async move { self.pages.page(call).await })
    }

    fn body_max(&self) -> u64 {
        self.body_max
    }

    fn failure(&self, mut answer: Answer) -> Answer {
        let (kind, text) = (self.failure)(answer.status, answer.reason());
        answer.fields.retain(|(name, _)| *name != CONTENT_TYPE);
        answer.fields.push((CONTENT_TYPE, HeaderValue::from_static(kind)));
        answer.body = vec![Piece::Bytes(text.into())];
        answer
    }
}

impl Server {
    /// Creates a server whose requests the router of another crate answers.
    pub fn of_router(
        listeners: Vec<TcpListener>,
        service: RoutedService,
        options: Options,
    ) -> Result<Self, ServeError> {
        let counters = Arc::new(Counters::new(options.access_log.clone()));
        let measured = Measured { counters: counters.clone(), further: service.metrics };
        let monitor = Router::new()
            .route("/metrics", get(measure))
            .route("/healthz", get(async || Answer::current("text/plain", "ok\n".into())))
            .with_state(measured);
        let (title, tables) = (service.title, service.tables);
        let shown = Router::new()
            .route("/", get(async move || Answer::page(pages::page_of_tables(title, &tables()))))
            .route("/dashboard/{file}", get(async |uri: Uri| Answer::page(pages::file(uri.path()))));
        let router = service.router.merge(shown);
        let router = match &options.metrics {
            Some(_) => router,
            None => router.merge(monitor.clone()),
        };
        let (body_max, failure) = (service.body_max, service.failure);
        let routed = Arc::new(Routed { pages: Pages(router), body_max, failure });
        Self::of(listeners, (routed, Arc::new(Pages(monitor))), counters, options)
    }
}

async fn measure(State(measured): State<Measured>) -> Answer {
    let further = (measured.further)();
    Answer::current(metrics::CONTENT_TYPE, metrics::write_with(&measured.counters, Vec::new(), &further))
}
