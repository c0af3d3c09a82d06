use std::fs;
use std::time::Duration;

use esker_server::proxy::ProxyOptions;
use esker_testkit::mirror::Fault;
use esker_testkit::waiting::until;

use super::site::{MANIFEST, Origin, Proxy, noise, options};
use crate::client::PATIENCE;

/// Waits until an object is in the cache, where it is stored after the answer is sent.
fn wait_until_stored(proxy: &Proxy, path: &str) {
    let is_stored = || proxy.get(path).field("x-cache") == Some("HIT");
    assert!(until(PATIENCE, is_stored), "{path} is not stored");
}

#[test]
fn fifty_clients_at_once_cause_one_request_upstream() {
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let path = origin.add(&vec![7; 300_000]);
    let proxy = Proxy::start(options(cache.path(), &[&origin]));
    let rule = origin.mirror.fault(|path| path.contains("/data/"), Fault::Delay(Duration::from_secs(600)));
    let mut clients: Vec<_> = (0..50).map(|_| proxy.client()).collect();
    for client in &mut clients {
        client.send(format!("GET {}{path} HTTP/1.1\r\nHost: x\r\n\r\n", origin.url()).as_bytes());
    }
    rule.wait_for_hits(1);
    // All have asked when the proxy has counted them.
    while proxy.status()["objects"]["misses"] != 50 {
        std::thread::yield_now();
    }
    rule.lift();
    let stored = origin.stored(&path);
    for client in &mut clients {
        let response = client.response(false);
        assert_eq!((response.status, &response.body), (200, &stored));
    }
    assert_eq!(origin.asked(&path), 1);
    let again = proxy.get(&path);
    assert_eq!((again.field("x-cache"), &again.body), (Some("HIT"), &stored));
    assert_eq!(origin.asked(&path), 1);
}

#[test]
fn damaged_bytes_reach_no_client_and_no_cache() {
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let proxy = Proxy::start(options(cache.path(), &[&origin]));
    let faults = [Fault::FlipByte(100), Fault::CloseAfter(50), Fault::Truncate(50), Fault::Html];
    for (number, fault) in (0..).zip(faults) {
        let path = origin.add(&noise(number, 5000));
        let rule = origin.mirror.fault(|path| path.contains("/data/"), fault.clone());
        let refused = proxy.get(&path);
        assert_eq!(refused.status, 502, "{fault:?}: {}", refused.text());
        rule.assert_hit();
        rule.lift();
        let good = proxy.get(&path);
        assert_eq!((good.status, good.body), (200, origin.stored(&path)), "{fault:?}");
    }
    assert_eq!(proxy.status()["objects"]["fetched"], 4);
}

#[test]
fn damage_that_passes_is_not_seen_by_clients() {
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let proxy = Proxy::start(options(cache.path(), &[&origin]));
    let path = origin.add(b"a file");
    let rule = origin.mirror.fault_times(1, |path| path.contains("/data/"), Fault::FlipByte(3));
    assert_eq!(proxy.get(&path).body, origin.stored(&path));
    rule.assert_hit();
}

#[test]
fn the_next_server_delivers_what_the_first_one_damages() {
    let (bad, good) = (Origin::start(), Origin::start());
    let cache = tempfile::tempdir().expect("a folder");
    let (path, _) = (good.add(b"a file"), bad.add(b"a file"));
    let rule = bad.mirror.fault(|path| path.contains("/data/"), Fault::FlipByte(3));
    let proxy = Proxy::start(options(cache.path(), &[&bad, &good]));
    let response = proxy.get(&format!("{}{path}", bad.url()));
    assert_eq!((response.status, response.body), (200, good.stored(&path)));
    rule.assert_hit();
}

#[test]
fn missing_objects_are_asked_for_once_until_a_client_insists() {
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let proxy = Proxy::start(options(cache.path(), &[&origin]));
    let path = "/cvmfs/full.test/data/00/00000000000000000000000000000000000000";
    assert_eq!(proxy.get(path).status, 404);
    let asked = origin.asked(path);
    assert_eq!(proxy.get(path).status, 404);
    assert_eq!(origin.asked(path), asked);
    assert_eq!(proxy.client().ask("GET", path, "Cache-Control: no-cache\r\n").status, 404);
    assert!(origin.asked(path) > asked);
}

#[test]
fn objects_survive_a_restart_and_a_kill() {
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let path = origin.add(&vec![3; 5000]);
    let proxy = Proxy::start(options(cache.path(), &[&origin]));
    assert_eq!(proxy.get(&path).status, 200);
    wait_until_stored(&proxy, &path);
    proxy.stop();
    origin.mirror.leave();
    let proxy = Proxy::start(options(cache.path(), &[&origin]));
    let kept = proxy.get(&path);
    assert_eq!((kept.field("x-cache"), &kept.body), (Some("HIT"), &origin.stored(&path)));
    assert_eq!(proxy.status()["cache"]["unclean_start"], false);
    proxy.stop();
    // As after a kill: there is no record of a clean stop. The disk damaged the object.
    fs::remove_file(cache.path().join("clean")).expect("the record");
    let name = path.rsplit("/data/").next().expect("a name");
    let file = cache.path().join("objects").join(name);
    let mut bytes = fs::read(&file).expect("the object");
    bytes[0] ^= 1;
    fs::write(&file, bytes).expect("damage");
    origin.mirror.come_back();
    let proxy = Proxy::start(options(cache.path(), &[&origin]));
    assert_eq!(proxy.status()["cache"]["unclean_start"], true);
    assert_eq!(proxy.get(&path).body, origin.stored(&path));
    assert_eq!(origin.asked(&path), 2, "the damaged copy was fetched again");
}

#[test]
fn a_client_that_refuses_cached_answers_gets_a_damaged_copy_repaired() {
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let path = origin.add(&vec![3; 5000]);
    let proxy = Proxy::start(options(cache.path(), &[&origin]));
    let stored = proxy.get(&path).body;
    wait_until_stored(&proxy, &path);
    let name = path.rsplit("/data/").next().expect("a name");
    fs::write(cache.path().join("objects").join(name), vec![0; 20]).expect("damage");
    let repaired = proxy.client().ask("GET", &path, "Pragma: no-cache\r\n");
    assert_eq!((repaired.status, repaired.body), (200, stored));
    assert_eq!(origin.asked(&path), 2);
}

#[test]
fn the_cache_stays_below_its_limit() {
    const LIMIT: u64 = 400_000;
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let paths: Vec<String> = (0..40).map(|number| origin.add(&noise(number, 20_000))).collect();
    let proxy = Proxy::start(ProxyOptions { cache_size: LIMIT, ..options(cache.path(), &[&origin]) });
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (proxy, paths, origin) = (&proxy, &paths, &origin);
            scope.spawn(move || {
                for at in 0..60 {
                    let path = &paths[(at * 7 + worker * 13) % paths.len()];
                    let response = proxy.get(path);
                    assert_eq!((response.status, &response.body), (200, &origin.stored(path)));
                }
            });
        }
    });
    let status = proxy.stop();
    assert!(status["cache"]["bytes"].as_u64().expect("a number") <= LIMIT, "{status}");
    assert!(status["cache"]["evicted"].as_u64().expect("a number") > 0, "{status}");
}

#[test]
fn ranges_and_tags_of_objects_are_understood() {
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let path = origin.add(b"some content");
    let proxy = Proxy::start(options(cache.path(), &[&origin]));
    let stored = origin.stored(&path);
    let mut client = proxy.client();
    let part = client.ask("GET", &path, "Range: bytes=2-5\r\n");
    assert_eq!((part.status, part.body.as_slice()), (206, &stored[2..6]));
    let tag = part.field("etag").expect("a tag").to_owned();
    assert_eq!(client.ask("GET", &path, &format!("If-None-Match: {tag}\r\n")).status, 304);
    assert_eq!(client.ask("GET", &path, "Range: bytes=9999-\r\n").status, 416);
    let head = client.ask("HEAD", &path, "");
    assert_eq!((head.status, head.field("content-length")), (200, Some(stored.len().to_string().as_str())));
    assert_eq!(client.ask("GET", &path, "").body, stored, "on the same connection");
}

#[test]
fn a_batch_is_made_of_cached_and_fetched_objects() {
    use esker_format::batch;
    use esker_format::object::ObjectName;
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let proxy = Proxy::start(options(cache.path(), &[&origin]));
    let paths: Vec<String> = (0..30).map(|number| origin.add(format!("file {number}").as_bytes())).collect();
    assert_eq!(proxy.get(&paths[0]).status, 200);
    let mut names: Vec<ObjectName> = paths
        .iter()
        .map(|path| ObjectName::parse(&path.rsplit("/data/").next().expect("a name").replace('/', "")))
        .map(|name| name.expect("a name"))
        .collect();
    names.push(ObjectName::parse(&"0".repeat(40)).expect("a name"));
    let response = proxy.get(&format!("/cvmfs/full.test/{}", batch::path(&names)));
    assert_eq!(response.status, 200);
    let parts = batch::split(&response.body, names.len()).expect("a batch");
    for (part, path) in parts.iter().zip(&paths) {
        assert_eq!(part.expect("the object"), origin.stored(path));
        assert_eq!(origin.asked(path), 1);
    }
    assert_eq!(parts[30], None);
    assert_eq!(proxy.get(MANIFEST).field("esker-batch"), Some("64"));
}
