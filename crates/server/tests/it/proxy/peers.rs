use std::time::Duration;

use esker_server::proxy::ProxyOptions;
use esker_testkit::mirror::Fault;
use tempfile::TempDir;

use super::site::{Origin, Proxy, options, socket};

/// Starts proxies that know each other.
fn site(origin: &Origin, count: usize) -> Vec<(Proxy, TempDir)> {
    let sockets: Vec<_> = (0..count).map(|_| socket()).collect();
    let url = |socket: &std::net::TcpListener| format!("http://{}", socket.local_addr().expect("an address"));
    let urls: Vec<String> = sockets.iter().map(url).collect();
    let start = |socket: std::net::TcpListener| {
        let cache = tempfile::tempdir().expect("a folder");
        let own_url = Some(url(&socket));
        let options = ProxyOptions { own_url, peers: urls.clone(), ..options(cache.path(), &[origin]) };
        (Proxy::on(socket, options), cache)
    };
    sockets.into_iter().map(start).collect()
}

#[test]
fn a_site_fetches_each_object_once() {
    let origin = Origin::start();
    let proxies = site(&origin, 3);
    let paths: Vec<String> = (0..30).map(|number| origin.add(format!("file {number}").as_bytes())).collect();
    for path in &paths {
        for (proxy, _) in &proxies {
            let response = proxy.get(path);
            assert_eq!((response.status, response.body), (200, origin.stored(path)));
        }
        assert_eq!(origin.asked(path), 1);
    }
}

#[test]
fn a_dead_peer_is_passed_over() {
    let origin = Origin::start();
    let mut proxies = site(&origin, 2);
    let (dead, _cache) = proxies.pop().expect("a proxy");
    let url = dead.url();
    dead.stop();
    let (proxy, _) = &proxies[0];
    for number in 0..20 {
        let path = origin.add(format!("file {number}").as_bytes());
        let response = proxy.get(&path);
        assert_eq!((response.status, response.body), (200, origin.stored(&path)));
        assert_eq!(origin.asked(&path), 1);
    }
    assert_eq!(proxy.status()["peers"][0], serde_json::json!({ "url": url, "up": false }));
}

#[test]
fn a_silent_peer_delays_an_object_by_seconds_only() {
    let origin = Origin::start();
    // A peer that accepts requests and never answers.
    let silent = Origin::start();
    let rule = silent.mirror.fault(|_| true, Fault::NoAnswer);
    let cache = tempfile::tempdir().expect("a folder");
    let socket = socket();
    let own_url = Some(format!("http://{}", socket.local_addr().expect("an address")));
    let options = ProxyOptions { own_url, peers: vec![silent.url()], ..options(cache.path(), &[&origin]) };
    let proxy = Proxy::on(socket, options);
    let began = std::time::Instant::now();
    let mut number = 0;
    while rule.hits() == 0 {
        let path = origin.add(format!("file {number}").as_bytes());
        assert_eq!(proxy.get(&path).body, origin.stored(&path));
        number += 1;
    }
    // Clients wait 5 s.
    assert!(began.elapsed() < Duration::from_secs(5));
    rule.lift();
}

#[test]
fn a_damaged_answer_of_a_peer_is_replaced() {
    let origin = Origin::start();
    let liar = Origin::start();
    let rule = liar.mirror.fault(|_| true, Fault::FlipByte(1));
    let cache = tempfile::tempdir().expect("a folder");
    let socket = socket();
    let own_url = Some(format!("http://{}", socket.local_addr().expect("an address")));
    let options = ProxyOptions { own_url, peers: vec![liar.url()], ..options(cache.path(), &[&origin]) };
    let proxy = Proxy::on(socket, options);
    for number in 0..20 {
        let path = origin.add(format!("file {number}").as_bytes());
        liar.add(format!("file {number}").as_bytes());
        assert_eq!(proxy.get(&path).body, origin.stored(&path));
    }
    rule.assert_hit();
}
