//! Switches that remove one verification step at a time, so that tests can prove that each step matters.
//!
//! Without the cargo feature `canary` every question is answered `false` at compile time. With it, the
//! environment variable `ESKER_CANARY` names the one step to leave out.

/// Tells whether the named verification step is to be left out.
#[cfg(not(feature = "canary"))]
#[inline(always)]
pub const fn skipped(_check: &str) -> bool {
    false
}

/// Tells whether the named verification step is to be left out.
#[cfg(feature = "canary")]
pub fn skipped(check: &str) -> bool {
    std::env::var_os("ESKER_CANARY").is_some_and(|name| name == check)
}

/// The steps of this crate and of `store` that can be left out.
pub const CHECKS: &[&str] = &[
    "object-hash",
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
