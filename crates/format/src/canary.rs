//! Switches that disable one verification step at a time, so that tests can prove that each step matters.
//!
//! Without the cargo feature `canary` every check is enabled at compile time. With it, the environment
//! variable `ESKER_CANARY` names the step to disable.

/// Returns true if the named verification step is disabled.
#[cfg(not(feature = "canary"))]
#[inline(always)]
pub const fn skipped(_check: &str) -> bool {
    false
}

/// Returns true if the named verification step is disabled.
#[cfg(feature = "canary")]
pub fn skipped(check: &str) -> bool {
    std::env::var_os("ESKER_CANARY").is_some_and(|name| name == check)
}

/// Verification steps of this crate, `store` and `config` that can be disabled.
pub const CHECKS: &[&str] = &[
    "object-hash",
    "inflated-length",
    "late-route",
    "own-file-links",
    "own-file-names",
    "own-file-owner",
    "changeable-part",
    "local-parameters",
    "relayed-hash",
    "manifest-name",
    "root-path",
    "older-timestamp",
    "older-revision",
    "two-roots",
    "revision-jump",
    "older-whitelist",
    "manifest-hash",
    "manifest-signature",
    "whitelist-expiry",
    "whitelist-name",
    "whitelist-hash",
    "whitelist-signature",
    "certificate-blacklisted",
    "revision-blacklisted",
    "certificate-listed",
];
