use std::io::Read as _;

use esker_server::{ClientNetworks, Limits, Options};
use esker_testkit::fixture::FULL;

use crate::client::Running;

const TOP: &str = "/cvmfs/full.test/.cvmfspublished";

#[test]
fn a_client_with_too_many_connections_is_told_to_wait() {
    let repository = FULL.unpack();
    let limits = Limits { client_connections: Some(2), ..Limits::default() };
    let server = Running::start(&[repository.document_root().to_owned()], limits);
    let mut held = [server.client(), server.client()];
    for client in &mut held {
        assert_eq!(client.ask("GET", TOP, "").status, 200);
    }
    let mut third = server.client();
    let refused = third.ask("GET", TOP, "");
    assert_eq!((refused.status, refused.field("Retry-After")), (429, Some("1")));
    assert_eq!(refused.field("Connection"), Some("close"));
    assert_eq!(third.rest(), b"");
    assert_eq!(server.client_from([127, 0, 0, 2].into()).ask("GET", TOP, "").status, 200, "another client");
    for client in &mut held {
        assert_eq!(client.ask("GET", TOP, "").status, 200, "connections that exist stay");
    }
    let metrics = held[0].ask("GET", "/metrics", "");
    assert!(metrics.text().contains("esker_http_limits_hit_total{limit=\"client_connections\"} 1\n"));
}

#[test]
fn a_client_with_too_many_requests_is_told_to_wait() {
    let repository = FULL.unpack();
    // A second's worth is allowed at once, and the next request only after most of a second.
    let limits = Limits { client_rate: Some(1), ..Limits::default() };
    let server = Running::start(&[repository.document_root().to_owned()], limits);
    let mut client = server.client_from([127, 0, 0, 3].into());
    assert_eq!(client.ask("GET", TOP, "").status, 200);
    let asked = (0..100).map(|_| client.ask("GET", TOP, "")).find(|response| response.status != 200);
    let refused = asked.expect("no request of a hundred was refused");
    assert_eq!((refused.status, refused.field("Retry-After")), (429, Some("1")));
    assert_eq!(refused.field("Cache-Control"), Some("no-store"));
    assert_eq!(server.client_from([127, 0, 0, 4].into()).ask("GET", TOP, "").status, 200, "another client");
}

/// The limits, the log and the networks of clients are about the client behind a load balancer, and not about the balancer.
#[test]
fn a_load_balancer_tells_the_address_of_its_client() {
    let repository = FULL.unpack();
    let networks = |text: &str| Some(ClientNetworks::new(&[text.parse().expect("a network")], "server"));
    let options = Options {
        limits: Limits { client_connections: Some(1), ..Limits::default() },
        balancers: networks("127.0.0.0/8"),
        clients: networks("192.0.2.0/24"),
        ..Options::default()
    };
    let server = Running::with(&[repository.document_root().to_owned()], options);
    let behind = |header: &str| {
        let mut client = server.client();
        client.send(header.as_bytes());
        client
    };
    let of = |address: &str| behind(&format!("PROXY TCP4 {address} 127.0.0.1 4096 80\r\n"));
    let (mut one, mut other) = (of("192.0.2.1"), of("192.0.2.2"));
    assert_eq!((one.ask("GET", TOP, "").status, other.ask("GET", TOP, "").status), (200, 200));
    assert_eq!(of("192.0.2.1").ask("GET", TOP, "").status, 429, "its second connection");
    assert_eq!(behind("PROXY UNKNOWN\r\n").ask("GET", "/healthz", "").status, 200, "a check of the balancer");
    // A client that the administrator did not name, and one that sends no header.
    for mut refused in [of("198.51.100.1"), behind("")] {
        refused.send(format!("GET {TOP} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
        let mut answer = Vec::new();
        // The request was not read, so that the end may be a reset.
        let _ = refused.0.read_to_end(&mut answer);
        assert_eq!(answer, b"");
    }
}
