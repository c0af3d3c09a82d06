//! Reads a repository in a bucket, for servers without a copy of their own.

use std::sync::Arc;
use std::time::Duration;

use esker_store::{
    Callback, Cause, Fetch, MemoryBudget, Receiver, RequestThread, Share, Source, StorageProblem, StoreError,
    Stored,
};
use futures_util::stream::StreamExt;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::THREAD;
use super::requests::Requests;
use crate::settings::StorageSettings;
use crate::url::Bucket;

/// Longest wait for the begin of an answer, repetitions included. Clients of a server give up after 5 to 10 s.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// A repository in a bucket. It answers requests for whole files.
pub(crate) struct BucketSource {
    reader: Arc<Reader>,
    budget: Arc<MemoryBudget>,
    thread: RequestThread,
}

struct Reader {
    place: String,
    requests: Requests,
    permits: Semaphore,
}

impl BucketSource {
    /// Opens a bucket, without a request to it.
    pub(crate) fn open(
        bucket: &Bucket,
        settings: &StorageSettings,
        budget: Arc<MemoryBudget>,
    ) -> Result<Self, StoreError> {
        let place = bucket.to_string();
        let failed = |problem| {
            let cause =
                Cause::Bucket { doing: "opening", key: ".".to_owned(), bucket: place.clone(), problem };
            StoreError::new("the storage", cause)
        };
        let requests = Requests::new(bucket, settings).map_err(failed)?;
        let thread = RequestThread::start(THREAD).map_err(|error| {
            failed(StorageProblem::Unavailable(format!("a thread can't be started: {error}")))
        })?;
        let permits = Semaphore::new(settings.connections());
        Ok(Self { reader: Arc::new(Reader { place, requests, permits }), budget, thread })
    }
}

impl Reader {
    async fn read(&self, fetch: &Fetch, share: Share) -> Result<Stored, Cause> {
        if fetch.part.is_some() || fetch.http.form.is_some() || fetch.http.header_only {
            return Err(Cause::WholeFile);
        }
        // The semaphore is never closed.
        let _permit = self.permits.acquire().await;
        let failed = |problem| Cause::Bucket {
            doing: "reading",
            key: fetch.path.clone(),
            bucket: self.place.clone(),
            problem,
        };
        let unavailable = |reason: String| failed(StorageProblem::Unavailable(reason));
        let found = timeout(ANSWER_MAX, self.requests.pieces_soon(&fetch.path)).await;
        let found = found.map_err(|_| unavailable(format!("no answer within {} s", ANSWER_MAX.as_secs())))?;
        let Some((announced, mut pieces)) = found.map_err(failed)? else {
            return Err(Cause::Missing { status: "404".to_owned() });
        };
        if announced > fetch.limit {
            return Err(Cause::TooLarge { limit: fetch.limit });
        }
        let receiver = Receiver::new(fetch.limit, Some(announced), share, fetch.spool.clone());
        let mut receiver = receiver.relayed(fetch.relay.clone(), Some(announced));
        while let Some(piece) = pieces.next().await {
            receiver.take(&piece.map_err(failed)?).await?;
            fetch.progress.mark();
        }
        if receiver.received() != announced {
            return Err(unavailable(format!("{} of {announced} bytes came", receiver.received())));
        }
        receiver.finish().await
    }
}

impl Source for BucketSource {
    fn fetch(&self, fetch: Fetch, done: Callback<Stored>) {
        let (reader, share) = (self.reader.clone(), self.budget.share());
        self.thread.start_task(async move {
            let outcome = reader.read(&fetch, share).await;
            done.give(outcome.map_err(|cause| fetch.error(cause).from_place(reader.place.clone())));
        });
    }

    fn describe(&self) -> String {
        self.reader.place.clone()
    }
}
