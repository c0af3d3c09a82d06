//! What answers and failed requests mean to a publisher.

use std::collections::BTreeMap;

use esker_repository::{GatewayFailure, Settings};
use esker_store::{Cause, StorageProblem, StoreError};
use serde::Deserialize;

use super::operator::HeldLease;
use crate::database::Record;
use crate::error::GatewayError;

/// A request by which the publisher stores an object itself.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct SignedUpload {
    pub(super) name: String,
    pub(super) url: String,
    pub(super) fields: BTreeMap<String, String>,
}

/// An answer of a gateway. Each has some of the fields.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Heard {
    pub(super) status: String,
    pub(super) reason: String,
    pub(super) detail: String,
    /// Version of Esker's additions; none from another gateway.
    pub(super) esker: Option<u32>,
    pub(super) session_token: String,
    /// Time that a lease lives.
    pub(super) lease_seconds: Option<u64>,
    pub(super) time_remaining: serde_json::Value,
    /// Leases of the same key that keep the directory busy.
    pub(super) own_leases: Vec<String>,
    pub(super) missing: Vec<String>,
    /// Objects that the publisher stores itself.
    pub(super) uploads: Vec<SignedUpload>,
    pub(super) final_revision: Option<u64>,
    pub(super) dropped: Vec<String>,
    pub(super) conflicts: Vec<String>,
    pub(super) leases: Vec<HeldLease>,
    /// Number of publishers that wait.
    pub(super) waiting: u64,
    /// Number of leases that an operator ended.
    pub(super) ended: u64,
    pub(super) records: Vec<Record>,
    /// Number of objects of a revision that are not stored.
    pub(super) lacking: u64,
    pub(super) settings: Option<Settings>,
}

impl Heard {
    /// Parses a body; a gateway that answers with a text refuses with it.
    pub(super) fn parse(body: &[u8]) -> Self {
        serde_json::from_slice(body).unwrap_or_else(|_| {
            let text = String::from_utf8_lossy(body);
            let reason = text.trim().chars().take(200).collect();
            Self { status: "error".to_owned(), reason, ..Self::default() }
        })
    }

    pub(super) fn is_ok(&self) -> bool {
        self.status == "ok"
    }

    /// Returns true if the same request is to be sent again.
    pub(super) fn is_for_later(&self) -> bool {
        self.reason == GatewayError::TooManyRequests.to_string()
    }

    /// Returns true if the gateway still carries out the same commit.
    pub(super) fn is_under_way(&self) -> bool {
        self.reason == GatewayError::UnderWay.to_string()
    }

    /// Returns the failure that a refusal means.
    pub(super) fn failure(self, path: &str) -> GatewayFailure {
        let Self { status, reason, detail, time_remaining, conflicts, lacking, .. } = self;
        if lacking > 0 {
            return GatewayFailure::Lacks(lacking);
        }
        if status == "path_busy" {
            let remaining = time_remaining.as_str().unwrap_or_default().to_owned();
            return GatewayFailure::Busy { path: path.to_owned(), remaining };
        }
        let is_of_key = ["invalid_hmac", "invalid_key", "invalid_path", "invalid_repo", "no_admin_key"];
        if is_of_key.iter().any(|text| reason.ends_with(text)) {
            return GatewayFailure::Denied(reason);
        }
        if reason.starts_with("invalid lease") {
            return GatewayFailure::LeaseEnded(if detail.is_empty() { reason } else { detail });
        }
        if reason.starts_with("merge_error") {
            return GatewayFailure::Conflict(conflicts);
        }
        let unsaid = if reason.is_empty() { "it gives no reason".to_owned() } else { reason };
        GatewayFailure::Refused(if detail.is_empty() { unsaid } else { format!("{unsaid}: {detail}") })
    }
}

/// A request failed, or was refused.
#[derive(Clone, Debug)]
pub(super) enum Failed {
    /// There is no answer.
    Lost(String),
    Other(GatewayFailure),
}

impl Failed {
    pub(super) fn into_failure(self) -> GatewayFailure {
        match self {
            Self::Lost(text) => GatewayFailure::Unavailable(text),
            Self::Other(failure) => failure,
        }
    }
}

impl From<GatewayFailure> for Failed {
    fn from(failure: GatewayFailure) -> Self {
        Self::Other(failure)
    }
}

impl From<StorageProblem> for Failed {
    fn from(problem: StorageProblem) -> Self {
        Self::Other(match problem {
            StorageProblem::Interrupted => GatewayFailure::Interrupted,
            problem => GatewayFailure::Unavailable(problem.to_string()),
        })
    }
}

/// Returns the error of storing objects.
pub(super) fn of_storing(gateway: &str, failure: GatewayFailure) -> StoreError {
    let problem = match failure {
        GatewayFailure::Interrupted => StorageProblem::Interrupted,
        failure => StorageProblem::Gateway(failure.to_string()),
    };
    let (key, bucket) = ("objects".to_owned(), gateway.to_owned());
    StoreError::new("the gateway", Cause::Bucket { doing: "storing", key, bucket, problem })
}
