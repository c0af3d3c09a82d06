//! Looks up the full name of a host at name servers.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

/// Timeout for silent name servers.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Cache of results, also of failures: several files ask, and each wait for a silent name server is long.
static FOUND: Mutex<BTreeMap<String, Option<String>>> = Mutex::new(BTreeMap::new());

/// Returns the full name of a host; `None` if no name server returns one in time. Each is asked once.
pub(crate) fn full_name(host: &str) -> Option<String> {
    once(host, || esker_store::full_name(host, TIMEOUT).filter(|name| name.contains('.')))
}

fn once(host: &str, ask: impl FnOnce() -> Option<String>) -> Option<String> {
    FOUND.lock().entry(host.to_owned()).or_insert_with(ask).clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_server_is_queried_once() {
        for answer in [Some("wn12.example.org".to_owned()), None] {
            let host = format!("test-of-{answer:?}");
            assert_eq!(once(&host, || answer.clone()), answer);
            assert_eq!(once(&host, || panic!("asked again")), answer);
        }
    }
}
