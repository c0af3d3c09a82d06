//! Status and fields of HTTP responses.

use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Response, StatusCode, header};

use crate::error::Cause;

/// Maximum length of a redirect's address, and of a token challenge.
const LOCATION_MAX: usize = 2000;
/// Maximum number of characters of a proxy's error text.
const SAID_MAX: usize = 200;

/// Returns the failure for an error status of a response.
pub(super) fn check_status(response: &Response<Incoming>) -> Result<(), Cause> {
    let status = response.status();
    if status == StatusCode::OK {
        return Ok(());
    }
    if let Some(said) = said_by_proxy(response) {
        return Err(Cause::ProxyStatus { status: status.as_u16(), said });
    }
    match status {
        StatusCode::NOT_FOUND | StatusCode::GONE => Err(Cause::Missing { status: status.to_string() }),
        StatusCode::UNAUTHORIZED => {
            // A server may offer several ways, each in a field of its own.
            let offered = response.headers().get_all(header::WWW_AUTHENTICATE);
            let offered: Vec<&str> = offered.iter().filter_map(|value| value.to_str().ok()).collect();
            let challenge = offered.join(", ");
            Err(Cause::Unauthorized { challenge: challenge.chars().take(LOCATION_MAX).collect() })
        }
        _ if status.is_redirection() => {
            let location = response.headers().get(header::LOCATION);
            let location = location.and_then(|value| value.to_str().ok()).unwrap_or("nowhere");
            Err(Cause::Redirected { location: location.chars().take(LOCATION_MAX).collect() })
        }
        _ => Err(match (status, retry_after(response)) {
            (StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE, Some(after)) => {
                Cause::Overloaded { status: status.as_u16(), after }
            }
            _ => Cause::Status(status.as_u16()),
        }),
    }
}

/// Returns a proxy's description of an error, if the response is its own and not the server's.
pub(super) fn said_by_proxy<T>(response: &Response<T>) -> Option<String> {
    let field = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    let said =
        field("x-squid-error").or_else(|| field("proxy-status").filter(|said| said.contains("error=")))?;
    Some(said.chars().filter(|letter| !letter.is_control()).take(SAID_MAX).collect())
}

/// Returns the seconds of `Retry-After`; a date would need synchronised clocks.
pub(super) fn retry_after(response: &Response<Incoming>) -> Option<Duration> {
    let seconds = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Returns the time for which the server keeps the idle connection, less a second for the transit of its close.
pub(super) fn kept<T>(response: &Response<T>) -> Option<Duration> {
    let value = response.headers().get("keep-alive")?.to_str().ok()?;
    let timeout = value.split(',').find_map(|part| part.trim().strip_prefix("timeout="))?;
    Some(Duration::from_secs(timeout.trim().parse::<u64>().ok()?.saturating_sub(1)))
}

pub(super) fn length(response: &Response<Incoming>) -> Option<u64> {
    response.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

pub(super) fn broken(error: hyper::Error) -> Cause {
    use std::error::Error as _;
    let mut text = error.to_string();
    if let Some(source) = error.source() {
        text = format!("{text}: {source}");
    }
    Cause::Broken(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_kept_as_long_as_the_server_says() {
        let kept = |value: &str| kept(&Response::builder().header("keep-alive", value).body(()).unwrap());
        assert_eq!(kept("timeout=5, max=100"), Some(Duration::from_secs(4)));
        assert_eq!(kept("max=100, timeout=60"), Some(Duration::from_secs(59)));
        assert_eq!(kept("timeout=0"), Some(Duration::ZERO));
        assert_eq!(kept("timeout=99999999999999999999"), None);
        assert_eq!(kept("max=3"), None);
    }

    #[test]
    fn an_error_of_a_proxy_is_recognised() {
        let said = |name: &str, value: &str| {
            said_by_proxy(&Response::builder().header(name, value).body(()).unwrap())
        };
        assert_eq!(said("X-Squid-Error", "ERR_CONNECT_FAIL 111").as_deref(), Some("ERR_CONNECT_FAIL 111"));
        assert!(said("Proxy-Status", "proxy.example; error=connection_refused").is_some());
        assert_eq!(said("Proxy-Status", "proxy.example; received-status=503"), None);
        assert_eq!(said("Via", "1.1 squid"), None);
    }
}
