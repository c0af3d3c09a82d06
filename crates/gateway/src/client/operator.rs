//! What an operator of a gateway asks for: leases, their end, and the audit log.

use std::fmt::Write as _;

use axum::http::Method;
use esker_repository::GatewayFailure;
use serde::{Deserialize, Serialize};

use super::failure::{Failed, Heard};
use super::requests::{GatewayAddress, Requests, Wanted, start_thread};
use crate::database::Record;
use crate::lease_path::LeasePath;

/// Path of what only Esker's gateways have.
const ADDITIONS: &str = "/api/esker/v1";

/// A lease as an operator sees it. Field names are an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeldLease {
    /// Repository and directory.
    pub path: String,
    /// Name of the key.
    pub key_id: String,
    /// Host of the publisher, as it says.
    pub hostname: String,
    /// End of the lease, unless it is renewed.
    pub expires: String,
    /// Use of the lease: `open` or `committing`.
    pub state: String,
    /// Beginning of its token.
    pub lease: String,
}

/// An operator of a gateway, whose key it knows as one.
pub struct Operator(GatewayAddress);

impl Operator {
    /// Creates an operator with the address and the key of a gateway.
    pub fn new(address: GatewayAddress) -> Self {
        Self(address)
    }

    /// Returns the leases that are held, and the number of publishers that wait for one.
    pub fn leases(self) -> Result<(Vec<HeldLease>, u64), GatewayFailure> {
        let heard = self.ask(Method::GET, format!("{ADDITIONS}/leases"))?;
        Ok((heard.leases, heard.waiting))
    }

    /// Ends the leases of a directory and of those below it; returns their number.
    pub fn end(self, path: &LeasePath) -> Result<u64, GatewayFailure> {
        let path = encoded(&path.to_string());
        Ok(self.ask(Method::DELETE, format!("/api/v1/leases-by-path/{path}"))?.ended)
    }

    /// Returns the newest records of the audit log, newest first.
    pub fn records(self) -> Result<Vec<Record>, GatewayFailure> {
        Ok(self.ask(Method::GET, format!("{ADDITIONS}/records"))?.records)
    }

    fn ask(self, method: Method, path: String) -> Result<Heard, GatewayFailure> {
        let (requests, thread) = (Requests::new(self.0), start_thread()?);
        let wanted = Wanted { method, input: path.clone().into(), path, body: "".into(), message: None };
        let heard = thread.wait_for(requests.send_once(&wanted)).map_err(Failed::into_failure)?;
        if heard.is_ok() { Ok(heard) } else { Err(heard.failure(&wanted.path)) }
    }
}

/// Returns a path as URLs have it.
fn encoded(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => {
                text.push(char::from(byte));
            }
            other => _ = write!(text, "%{other:02X}"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_those_of_urls() {
        assert_eq!(encoded("r.test/a b/ü%?#"), "r.test/a%20b/%C3%BC%25%3F%23");
    }
}
