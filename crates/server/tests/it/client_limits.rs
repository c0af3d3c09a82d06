use esker_server::Limits;
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
