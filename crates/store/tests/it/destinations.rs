//! Forbidden addresses, which no form of a request may reach.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use esker_store::{Cause, Destinations, Engine, Proxies, Servers, Source, StoreError, connect};

use crate::rig::{Rig, bytes, engine_with, objects, roomy};

fn only(named: &str) -> Engine {
    let named = Destinations::Named(vec![named.parse().unwrap()]);
    engine_with(|options| options.http.destinations = named)
}

fn ask(engine: Engine, servers: Servers) -> StoreError {
    let rig = Rig::with(engine, roomy());
    let source: std::sync::Arc<dyn Source> = connect(&rig.engine, servers).unwrap();
    bytes(&rig.store(source), &objects(1)[0].wanted).unwrap_err()
}

/// A server of this node that users must not reach.
struct Secret(TcpListener);

impl Secret {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.2:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Self(listener)
    }

    fn url(&self) -> String {
        format!("http://{}", self.0.local_addr().unwrap())
    }

    fn assert_unreached(&self) {
        assert!(self.0.accept().is_err(), "it was connected to");
    }
}

fn is_refused(error: &StoreError) -> bool {
    matches!(error.cause(), Cause::NotAllowed { .. }) && !error.may_pass()
}

#[test]
fn servers_proxies_and_redirects_lead_to_no_other_address() {
    let secret = Secret::new();
    let error = ask(only("127.0.0.1"), Servers::direct(secret.url()));
    assert!(is_refused(&error), "{error}");
    let mut behind = Servers::direct("http://127.0.0.1:9/repo");
    behind.proxies = Proxies::parse(&secret.url(), None).unwrap();
    let error = ask(only("127.0.0.1"), behind);
    assert!(is_refused(&error), "{error}");
    // A server that sends on to it.
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/repo", server.local_addr().unwrap());
    let location = secret.url();
    let answering = std::thread::spawn(move || {
        let (mut client, _) = server.accept().unwrap();
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let _ = client.read(&mut [0; 4096]).unwrap();
        let answer = format!("HTTP/1.1 302 Found\r\nLocation: {location}/x\r\nContent-Length: 0\r\n\r\n");
        client.write_all(answer.as_bytes()).unwrap();
    });
    let mut sending = Servers::direct(&url);
    sending.redirects = true;
    let error = ask(only("127.0.0.1"), sending);
    answering.join().unwrap();
    assert!(is_refused(&error), "{error}");
    secret.assert_unreached();
}

/// A name is judged by the address it has when it is connected to.
#[test]
fn a_name_of_this_node_is_refused_too() {
    let error = ask(only("any"), Servers::direct("http://localhost:9/repo"));
    assert!(is_refused(&error), "{error}");
}
