//! Sends each request once, over HTTP.

use std::sync::Arc;

use super::network::Network;
use super::site::Site;
use super::source::{Fetch, Source, Stored};
use super::status::NetworkStatus;
use crate::callback::Callback;
use crate::error::StoreError;
use crate::progress::ObjectOrigin;

/// A repository on a web server, over one route. Makes one attempt for a request: retries and the choice of a
/// route are the task of [`Routed`](crate::failover::Routed).
pub(crate) struct HttpSource {
    network: Arc<Network>,
    site: Arc<Site>,
    place: Arc<str>,
}

impl HttpSource {
    pub(crate) fn new(network: Arc<Network>, site: Arc<Site>) -> Self {
        let place = match &site.via {
            Some(proxy) => format!("{} through the proxy {proxy}", site.base),
            None => site.base.to_string(),
        };
        Self { network, site, place: place.into() }
    }
}

impl Source for HttpSource {
    fn fetch(&self, fetch: Fetch, done: Callback<Stored>) {
        let (place, progress) = (self.place.clone(), fetch.progress.clone());
        let named = Callback::new(move |outcome: Result<Stored, StoreError>| {
            if outcome.is_ok() {
                progress.came_from(ObjectOrigin::Server(place.clone()));
            }
            done.give(outcome.map_err(|error| error.from_place(place)));
        });
        self.network.fetch(self.site.clone(), fetch, named);
    }

    fn describe(&self) -> String {
        self.place.to_string()
    }

    fn network(&self) -> NetworkStatus {
        self.site.counts.status()
    }
}
