//! Failures to write an image.

use esker_squashfs::writer::WriteError;

use crate::error::{Failure, Kind, chain_after};

/// Converts the failure to write an image.
pub(super) fn of_write(what: &str, error: &WriteError) -> Failure {
    let kind = match error {
        WriteError::Interrupted => Kind::Interrupted,
        _ => Kind::Failed,
    };
    let failure = Failure::new(kind, format!("{what}: {}", chain_after(what, error)));
    match error {
        WriteError::Refused { .. } => failure.hint("exclude it with --exclude, or correct the input"),
        _ => failure,
    }
}
