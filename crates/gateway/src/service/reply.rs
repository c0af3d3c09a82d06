//! Answers, and the reasons of refusals.

use std::error::Error;

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;

use crate::error::GatewayError;
use crate::lease::{Millis, Refused};
use crate::target::PublishFailure;
use crate::wire::Answer;

/// Type of all answers, as the reference's gateway says it.
const TYPE: &str = "text/plain; charset=utf-8";
/// Reason for a lease that is unknown, has ended, or belongs to another key.
const INVALID_LEASE: &str = "invalid lease";

/// An answer with its status.
#[derive(Debug)]
pub(super) struct Reply {
    status: u16,
    answer: Answer,
}

impl Reply {
    /// Creates a refusal that is no answer of the protocol.
    pub(super) fn of_status(status: u16, reason: &str) -> Self {
        Self { status, answer: Answer::error(reason) }
    }
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Self { status: 200, answer }
    }
}

impl From<GatewayError> for Reply {
    fn from(error: GatewayError) -> Self {
        let answer = match &error {
            GatewayError::Lease(Refused::Busy { remaining, .. }) => Answer::busy(*remaining),
            GatewayError::Lease(Refused::Own(leases)) => Answer::held(leases),
            GatewayError::Queued => Answer::busy(Millis(0)).with("detail", error.to_string()),
            GatewayError::Lease(refused @ (Refused::Unknown | Refused::OtherKey | Refused::Ended)) => {
                Answer::error(INVALID_LEASE).with("detail", refused.to_string())
            }
            GatewayError::Database(_) => {
                tracing::error!("{}", with_causes(&error));
                Answer::error("the gateway's database can't be used")
            }
            GatewayError::Publish(PublishFailure::Conflict { paths }) => {
                Answer::error(error.to_string()).with("conflicts", paths.clone())
            }
            GatewayError::Publish(PublishFailure::MissingObjects(count)) => {
                Answer::error(error.to_string()).with("lacking", *count)
            }
            GatewayError::Intake(_) | GatewayError::Publish(_) => {
                tracing::warn!("{}", with_causes(&error));
                Answer::error(error.to_string())
            }
            error => Answer::error(error.to_string()),
        };
        answer.into()
    }
}

/// Returns the text of an error with those of its causes.
fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(found) = cause {
        let more = found.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = found.source();
    }
    text
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.answer.body()));
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap_or_default();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TYPE));
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

/// Returns the form of a refusal that no handler made.
pub(super) fn failure(_status: u16, reason: &str) -> (&'static str, String) {
    (TYPE, String::from_utf8_lossy(&Answer::error(reason).body()).into_owned())
}
