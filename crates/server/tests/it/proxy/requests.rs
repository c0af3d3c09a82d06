use std::io::Write;

use esker_server::proxy::{AllowedHost, ProxyOptions};
use esker_store::Proxies;

use super::site::{MANIFEST, Origin, Proxy, options};

#[test]
fn a_proxy_behind_another_one_asks_the_servers_through_it() {
    let (origin, outer, inner) = (Origin::start(), tempfile::tempdir(), tempfile::tempdir());
    let (outer, inner) = (outer.expect("a folder"), inner.expect("a folder"));
    let parent = Proxy::start(options(outer.path(), &[&origin]));
    let parents = Proxies::parse(&parent.url(), None).expect("a proxy");
    let proxy = Proxy::start(ProxyOptions { parents, ..options(inner.path(), &[&origin]) });
    let object = origin.add(b"content");
    assert_eq!((proxy.get(MANIFEST).status, proxy.get(&object).body), (200, origin.stored(&object)));
    let fetched = parent.status()["objects"]["fetched"].as_u64();
    assert!(fetched >= Some(1), "{fetched:?}");
    assert_eq!(origin.asked(&object), 1);
}

#[test]
fn other_destinations_are_forbidden() {
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let proxy = Proxy::start(options(cache.path(), &[&origin]));
    origin.mirror.put("/secret", "no");
    let url = origin.url();
    for target in [
        format!("{url}/secret"),
        format!("{url}/cvmfs/full.test/keys/full.test.key"),
        format!("{url}/cvmfs/full.test/../../secret"),
        format!("{url}/cvmfs/full.test/%2e%2e/%2e%2e/secret"),
        "http://127.0.0.1:1/cvmfs/full.test/.cvmfspublished".to_owned(),
        "http://other.test/cvmfs/full.test/.cvmfspublished".to_owned(),
        "/secret".to_owned(),
        "/".to_owned(),
    ] {
        let response = proxy.get(&target);
        assert_eq!(response.status, 403, "{target}");
        assert!(response.text().len() > 20, "the body gives the reason: {:?}", response.text());
    }
    let tunnel = proxy.client().ask("CONNECT", "other.test:443", "");
    assert!([400, 403].contains(&tunnel.status));
    assert_eq!(proxy.client().ask("POST", MANIFEST, "").status, 405);
    assert_eq!(origin.mirror.requests().len(), 0);
    assert!(proxy.status()["requests"]["refused"].as_u64() >= Some(8));
}

#[test]
fn an_allowed_host_is_reached_by_its_url_only() {
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let host = AllowedHost::parse(&origin.mirror.address().to_string()).expect("a host");
    let proxy = Proxy::start(ProxyOptions { allowed: vec![host], ..options(cache.path(), &[]) });
    assert_eq!(proxy.get(&format!("{}{MANIFEST}", origin.url())).status, 200);
    assert_eq!(proxy.get(MANIFEST).status, 403, "there is no server for it");
}

#[test]
fn a_proxy_that_is_its_own_server_ends_the_loop() {
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let listener = super::site::socket();
    let own = listener.local_addr().expect("an address");
    let upstream = esker_server::proxy::Upstream::parse(&format!("http://{own}")).expect("a URL");
    let proxy =
        Proxy::on(listener, ProxyOptions { upstreams: vec![upstream], ..options(cache.path(), &[&origin]) });
    assert!(proxy.get(MANIFEST).status >= 500);
}

#[test]
fn malformed_requests_get_an_error_and_no_answer() {
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let proxy = Proxy::start(options(cache.path(), &[&origin]));
    for (request, statuses) in [
        ("GET\r\n\r\n".to_owned(), [400, 400]),
        ("\0\0\0\0\r\n\r\n".to_owned(), [400, 400]),
        (format!("GET {MANIFEST} HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), [400, 400]),
        (format!("GET {MANIFEST} HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nabcd"), [413, 400]),
        (
            format!("GET {MANIFEST} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            [413, 400],
        ),
        (format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(100_000)), [414, 431]),
        ("GET http:// HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), [400, 403]),
        (
            "GET http://u:p@s.test/cvmfs/a.test/.cvmfspublished HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
            [400, 403],
        ),
    ] {
        let mut client = proxy.client();
        // The proxy may close before it has read all.
        let _ = client.0.get_mut().write_all(request.as_bytes());
        let response = client.head();
        assert!(statuses.contains(&response.status), "{} for {request:.60}", response.status);
    }
    assert_eq!(proxy.get(MANIFEST).status, 200);
}
