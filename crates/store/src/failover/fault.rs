//! Attributes a failed attempt to the proxy or the server.

use crate::error::{Blame, Cause, Phase, StoreError};

/// Suspicion that a failure raises against its route. Larger numbers are stronger suspicions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fault {
    /// Suspicion against the proxy, or against connecting directly.
    pub(super) egress: u32,
    /// Suspicion against the server.
    pub(super) server: u32,
    /// True if the proxy is down for every server.
    pub(super) no_egress: bool,
    /// True if the server is down on this route.
    pub(super) no_server: bool,
    /// True if the same route may succeed on the next attempt.
    pub(super) again: bool,
}

/// Squid's names for failures between it and the server.
const BEHIND_SQUID: [&str; 9] = [
    "ERR_CONNECT_FAIL",
    "ERR_DNS_FAIL",
    "ERR_READ_ERROR",
    "ERR_READ_TIMEOUT",
    "ERR_WRITE_ERROR",
    "ERR_ZERO_SIZE_OBJECT",
    "ERR_INVALID_RESP",
    "ERR_CANNOT_FORWARD",
    "ERR_LIFETIME_EXP",
];

impl Fault {
    /// Suspicion of both components.
    pub(super) const EITHER: Self =
        Self { egress: 1, server: 1, no_egress: false, no_server: false, again: false };

    /// Returns the suspicion of a failure; `None` if no other route would do better.
    pub(super) fn of(error: &StoreError, through_proxy: bool) -> Option<Self> {
        match error.blame() {
            Blame::Host | Blame::Proxy | Blame::Object => {}
            Blame::Disk | Blame::Caller => return None,
        }
        Some(if through_proxy { Self::behind_proxy(error.cause()) } else { Self::direct(error.cause()) })
    }

    fn direct(cause: &Cause) -> Self {
        let server = Self { server: 2, ..Self::default() };
        match cause {
            Cause::Insecure { .. } => Self { no_server: true, ..server },
            Cause::Unresolved { .. } | Cause::Unreachable(_) | Cause::TimedOut { .. } => {
                // A firewall may let nothing out, so that a proxy would do.
                Self { egress: 1, server: 4, no_server: true, ..server }
            }
            Cause::Broken(_) | Cause::Status(429) => Self { egress: 1, again: true, ..server },
            _ => server,
        }
    }

    fn behind_proxy(cause: &Cause) -> Self {
        let either = Self::EITHER;
        let server = Self { server: 2, ..Self::default() };
        match cause {
            Cause::Unresolved { .. }
            | Cause::Unreachable(_)
            | Cause::TimedOut { phase: Phase::Connect | Phase::Resolve, .. } => {
                Self { egress: 4, no_egress: true, ..Self::default() }
            }
            Cause::Broken(_) => Self { again: true, ..either },
            Cause::ProxyLogin { .. } => Self { egress: 4, no_egress: true, ..Self::default() },
            Cause::ProxyStatus { said, .. } if BEHIND_SQUID.iter().any(|name| said.starts_with(name)) => {
                server
            }
            Cause::ProxyStatus { .. } => Self { egress: 2, server: 1, ..either },
            Cause::Status(429) => Self { again: true, ..server },
            Cause::Missing { .. }
            | Cause::Status(_)
            | Cause::Overloaded { .. }
            | Cause::Redirected { .. } => server,
            // A silence or damage may come from either.
            _ => either,
        }
    }
}
