//! Servers that forge, and clients that try what isn't theirs.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};

use esker_format::manifest::Manifest;
use esker_server::ClientNetworks;
use esker_server::proxy::ProxyOptions;
use esker_testkit::fixture::{FULL, RMD};
use esker_testkit::mirror::Fault;
use esker_testkit::object::{self, Algorithm};
use esker_testkit::signing::WhitelistDraft;
use esker_testkit::waiting::until;

use super::site::{MANIFEST, Origin, Proxy, noise, options, socket, with_keys};
use crate::client::{Client, PATIENCE};

const WHITELIST: &str = "/cvmfs/full.test/.cvmfswhitelist";

fn revision(manifest: &[u8]) -> u64 {
    Manifest::parse(manifest).expect("a manifest").revision
}

/// A manifest whose revision is this much higher, signed with the keys of another repository.
fn forged(origin: &Origin, ahead: u64) -> Vec<u8> {
    let mut forged = origin.repository.manifest();
    let number: u64 = forged.get('S').expect("a revision").parse().expect("a number");
    forged.set('S', number + ahead).sign(&RMD.keys())
}

fn real(origin: &Origin) -> Vec<u8> {
    origin.repository.read(".cvmfspublished")
}

#[test]
fn a_forged_head_without_keys_outlives_neither_the_server_nor_the_proxy() {
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let proxy = Proxy::start(options(cache.path(), &[&origin]));
    assert_eq!(proxy.get(MANIFEST).body, real(&origin));
    let rule = origin.mirror.fault(|path| path == MANIFEST, Fault::Content(forged(&origin, 1 << 20)));
    proxy.get(MANIFEST);
    rule.assert_hit();
    rule.lift();
    assert!(until(PATIENCE, || proxy.get(MANIFEST).body == real(&origin)), "it lasts for seconds");
    let rule = origin.mirror.fault(|path| path == MANIFEST, Fault::Content(forged(&origin, 1 << 20)));
    let is_forged = || revision(&proxy.get(MANIFEST).body) > revision(&real(&origin));
    assert!(until(PATIENCE, is_forged), "no key tells which one is right");
    proxy.stop();
    rule.lift();
    let proxy = Proxy::start(options(cache.path(), &[&origin]));
    assert_eq!(proxy.get(MANIFEST).body, real(&origin), "at once after a restart");
}

#[test]
fn one_of_several_servers_displaces_no_head_without_keys() {
    let (liar, one, other) = (Origin::start(), Origin::start(), Origin::start());
    for ahead in [1, 5000, 1 << 40] {
        let rule = liar.mirror.fault(|path| path == MANIFEST, Fault::Content(forged(&liar, ahead)));
        let cache = tempfile::tempdir().expect("a folder");
        let proxy = Proxy::start(options(cache.path(), &[&liar, &one, &other]));
        for _ in 0..3 {
            assert_eq!(proxy.get(MANIFEST).body, real(&one), "{ahead}");
        }
        rule.assert_hit();
        proxy.stop();
        // One that is ahead of one other may be right, but not by that much.
        if ahead > 1 {
            let cache = tempfile::tempdir().expect("a folder");
            let proxy = Proxy::start(options(cache.path(), &[&liar, &one]));
            assert_eq!(proxy.get(MANIFEST).body, real(&one), "{ahead}");
        }
        rule.lift();
    }
}

#[test]
fn a_head_that_was_saved_without_keys_is_not_handed_on_with_them() {
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let rule = origin.mirror.fault(|path| path == MANIFEST, Fault::Content(forged(&origin, 3)));
    let proxy = Proxy::start(options(cache.path(), &[&origin]));
    assert_eq!(proxy.get(MANIFEST).body, forged(&origin, 3));
    rule.assert_hit();
    proxy.stop();
    origin.mirror.leave();
    let proxy = Proxy::start(with_keys(options(cache.path(), &[&origin])));
    assert!(proxy.get(MANIFEST).status >= 502);
    origin.mirror.come_back();
    assert!(proxy.client().ask("GET", MANIFEST, "Cache-Control: no-cache\r\n").status >= 502);
    rule.lift();
    let fresh = || proxy.client().ask("GET", MANIFEST, "Cache-Control: no-cache\r\n");
    assert!(until(PATIENCE, || fresh().body == real(&origin)));
    // From now on no older one is.
    proxy.stop();
    let rule = origin.mirror.fault(
        |path| path == MANIFEST,
        Fault::Content(origin.repository.head_at(esker_testkit::fixture::TAGS[0])),
    );
    let proxy = Proxy::start(with_keys(options(cache.path(), &[&origin])));
    assert_eq!(proxy.get(MANIFEST).body, real(&origin));
    rule.assert_hit();
}

#[test]
fn the_next_server_is_asked_for_a_head_that_verifies() {
    let (bad, good) = (Origin::start(), Origin::start());
    let other = RMD.unpack();
    // The certificate of the other signer is there, too.
    let certificate = other.manifest().get('X').expect("a certificate");
    let path = object::path(&certificate, "X");
    bad.repository.write(&path, &other.read(&path));
    let mut with_certificate = bad.repository.manifest();
    with_certificate.set('X', &certificate).set('S', 99);
    let mut of_another = bad.repository.manifest();
    of_another.set('N', "rmd.test");
    for content in [
        forged(&bad, 7),
        with_certificate.sign(&RMD.keys()),
        of_another.sign(&FULL.keys()),
        b"<html>log in</html>".to_vec(),
    ] {
        let cache = tempfile::tempdir().expect("a folder");
        let rule = bad.mirror.fault(|path| path == MANIFEST, Fault::Content(content));
        let proxy = Proxy::start(with_keys(options(cache.path(), &[&bad, &good])));
        assert_eq!(proxy.get(MANIFEST).body, real(&good));
        rule.assert_hit();
        proxy.stop();
        let proxy = Proxy::start(with_keys(options(cache.path(), &[&bad])));
        assert_eq!(proxy.get(MANIFEST).body, real(&good), "the verified one was saved");
        proxy.stop();
        let cache = tempfile::tempdir().expect("a folder");
        let proxy = Proxy::start(with_keys(options(cache.path(), &[&bad])));
        assert_eq!(proxy.get(MANIFEST).status, 502, "it is the only one");
        rule.lift();
    }
}

#[test]
fn whitelists_are_handed_on_if_they_are_the_repositorys() {
    let (bad, good) = (Origin::start(), Origin::start());
    let right = good.repository.read(".cvmfswhitelist");
    let draft = |name: &str| WhitelistDraft::listing(&FULL.keys(), name, Algorithm::Sha1);
    let mut changed = right.clone();
    let last = changed.len() - 5;
    changed[last] ^= 1;
    for (content, needs_keys) in [
        (draft("full.test").sign(&RMD.keys()), true),
        (changed, true),
        (draft("other.test").sign(&FULL.keys()), false),
        (b"<html>log in</html>".to_vec(), false),
    ] {
        let cache = tempfile::tempdir().expect("a folder");
        let rule = bad.mirror.fault(|path| path == WHITELIST, Fault::Content(content));
        let options = |origins: &[&Origin]| {
            let options = options(cache.path(), origins);
            if needs_keys { with_keys(options) } else { options }
        };
        let proxy = Proxy::start(options(&[&bad]));
        let refused = proxy.get(WHITELIST);
        assert_eq!(refused.status, 502, "{}", refused.text());
        proxy.stop();
        let proxy = Proxy::start(options(&[&bad, &good]));
        assert_eq!(proxy.get(WHITELIST).body, right);
        rule.assert_hit();
        rule.lift();
    }
}

#[test]
fn failures_tell_clients_no_addresses() {
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let secret = origin.mirror.address().port().to_string();
    let path = origin.add(&noise(1, 5000));
    let faults = [
        Fault::FlipByte(100),
        Fault::CloseAfter(50),
        Fault::Html,
        Fault::Status(500),
        Fault::Status(403),
        Fault::RetryAfter(100),
        Fault::Redirect(origin.url()),
        Fault::Missing,
    ];
    let proxy = Proxy::start(options(cache.path(), &[&origin]));
    let is_silent = |target: &str, what: &str| {
        let answer = proxy.get(target);
        if answer.status == 200 && target.ends_with("reflog") {
            // Nothing tells that it is damaged.
            return;
        }
        assert!(answer.status >= 400, "{what}: {}", answer.status);
        let told = format!("{:?} {}", answer.fields, answer.text());
        assert!(!told.contains(&secret) && !told.contains("127.0.0.1"), "{what}: {told}");
        assert!(!told.contains(cache.path().to_str().expect("text")), "{what}: {told}");
        assert!(answer.text().len() > 10, "{what}: the body gives a reason");
    };
    for fault in faults {
        let rule = origin.mirror.fault(|_| true, fault.clone());
        for target in [&path, MANIFEST, "/cvmfs/full.test/.cvmfsreflog", "/cvmfs/full.test/.esker/revisions"]
        {
            is_silent(target, &format!("{fault:?} {target}"));
        }
        rule.assert_hit();
        rule.lift();
    }
    for target in ["/.esker/proxy", "/metrics", "http://other.test/cvmfs/full.test/.cvmfspublished", "/x"] {
        is_silent(target, target);
    }
    origin.mirror.leave();
    is_silent(&path, "away");
    is_silent(MANIFEST, "away");
}

#[test]
fn state_and_metrics_have_an_address_of_their_own() {
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let proxy = Proxy::start(options(cache.path(), &[&origin]));
    for path in ["/.esker/proxy", "/metrics"] {
        let refused = proxy.get(path);
        assert_eq!(refused.status, 403);
        assert!(refused.text().contains("--metrics"), "{}", refused.text());
        assert_eq!(proxy.ask_monitor(path).status, 200);
    }
    for path in ["/healthz", "/readyz"] {
        assert_eq!((proxy.get(path).status, proxy.ask_monitor(path).status), (200, 200));
    }
    assert_eq!(proxy.ask_monitor(MANIFEST).status, 404);
    assert!(proxy.ask_monitor("/metrics").text().contains("esker_proxy_passed_on_objects_total 0"));
}

fn client_at(address: SocketAddr, from: &str) -> Client {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&socket, &SocketAddr::new(from.parse().expect("an address"), 0)).expect("an address");
    connect(&socket, &address).expect("connecting");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).expect("a deadline");
    Client(std::io::BufReader::new(stream))
}

#[test]
fn clients_of_other_networks_are_refused_before_any_work() {
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let named = ["127.1.0.0/16".parse().expect("a network")];
    let clients = Some(ClientNetworks::new(&named, "proxy"));
    let proxy = Proxy::for_clients(socket(), options(cache.path(), &[&origin]), clients);
    assert_eq!(client_at(proxy.address, "127.1.2.3").ask("GET", "/healthz", "").status, 200);
    for target in [MANIFEST, "/healthz", "/metrics", "http://other.test/x"] {
        let mut client = client_at(proxy.address, "127.2.0.1");
        let refused = client.ask("GET", target, "");
        assert_eq!(refused.status, 403, "{target}");
        assert!(refused.text().contains("--allow 127.2.0.1/32"), "{}", refused.text());
        assert_eq!(client.rest(), b"");
    }
    // More strangers than get a response: all are disconnected, and the other clients are served.
    let mut silent: Vec<_> = (0..200).map(|_| client_at(proxy.address, "127.2.0.1")).collect();
    assert_eq!(client_at(proxy.address, "127.1.2.3").ask("GET", MANIFEST, "").status, 200);
    for client in &mut silent {
        // A reset is an end, too.
        let _ = client.0.read_to_end(&mut Vec::new());
    }
    assert_eq!(origin.mirror.count(|path| path != MANIFEST && !path.contains("/data/")), 0);
    let metrics = proxy.ask_monitor("/metrics").text().to_owned();
    assert!(metrics.contains("client_networks\"} 204"), "{metrics}");
}

const SMALL_CACHE: u64 = 1 << 20;

#[test]
fn objects_larger_than_a_part_of_the_cache_are_passed_on() {
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let options = ProxyOptions { cache_size: SMALL_CACHE, ..options(cache.path(), &[&origin]) };
    let proxy = Proxy::start(options);
    for (number, len) in (0..).zip([300_000, 2 << 20, 5 << 20]) {
        let path = origin.add(&noise(number, len));
        let stored = origin.stored(&path);
        for fields in ["", "Range: bytes=5-9\r\n"] {
            let answer = proxy.client().ask("GET", &path, fields);
            assert_eq!((answer.status, answer.field("x-cache")), (200, Some("MISS")), "{len}");
            assert!(answer.body == stored, "{len}");
        }
        let head = proxy.client().ask("HEAD", &path, "");
        assert_eq!(head.field("content-length"), Some(stored.len().to_string().as_str()));
    }
    let status = proxy.status();
    assert_eq!(status["objects"]["passed_on"], 9);
    assert!(status["cache"]["bytes"].as_u64() <= Some(SMALL_CACHE), "{status}");
    // There is no such object, whatever its size would be.
    assert_eq!(proxy.get("/cvmfs/full.test/data/00/00000000000000000000000000000000000000").status, 404);
}

#[test]
fn an_object_that_is_passed_on_has_its_last_bytes_only_if_all_are_right() {
    let (bad, good) = (Origin::start(), Origin::start());
    let cache = tempfile::tempdir().expect("a folder");
    let content = noise(7, 3 << 20);
    let (path, _) = (good.add(&content), bad.add(&content));
    let options = ProxyOptions { cache_size: SMALL_CACHE, ..options(cache.path(), &[&bad, &good]) };
    let proxy = Proxy::start(options);
    let rule = bad.mirror.fault(|path| path.contains("/data/"), Fault::FlipByte(1_000_000));
    let mut client = proxy.client();
    client.send(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
    let head = client.head();
    let len = head.field("content-length").expect("a length").parse::<usize>().expect("a number");
    assert_eq!((head.status, len), (200, good.stored(&path).len()));
    let mut body = Vec::new();
    // The end of the connection may be a reset.
    let _ = client.0.read_to_end(&mut body);
    assert!(body.len() < len && body.len() > len / 2, "{} of {len} bytes came", body.len());
    rule.assert_hit();
    let again = proxy.client().ask("GET", &path, "Cache-Control: no-cache\r\n");
    assert!(again.status == 200 && again.body == good.stored(&path), "another server is asked");
}

#[test]
fn an_object_that_is_passed_on_continues_from_another_server() {
    let (bad, good) = (Origin::start(), Origin::start());
    let cache = tempfile::tempdir().expect("a folder");
    let content = noise(8, 3 << 20);
    let (path, _) = (good.add(&content), bad.add(&content));
    let options = ProxyOptions { cache_size: SMALL_CACHE, ..options(cache.path(), &[&bad, &good]) };
    let proxy = Proxy::start(options);
    let rule = bad.mirror.fault(|path| path.contains("/data/"), Fault::CloseAfter(1_500_000));
    let answer = proxy.get(&path);
    assert!(answer.status == 200 && answer.body == good.stored(&path));
    rule.assert_hit();
}

/// Clients that hold what they don't read must not make the cache larger than its limit.
#[test]
fn objects_that_are_being_sent_are_not_evicted() {
    const LEN: usize = 6 << 20;
    const HELD: u8 = 6;
    let content = |number: u8| vec![number; LEN];
    let path = |number: u8| {
        format!("/cvmfs/full.test/{}", object::path(&Algorithm::Sha1.hash(&content(number)), ""))
    };
    let paths: Vec<String> = (0..16).map(path).collect();
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let known = paths.clone();
    origin.mirror.make(move |path| {
        known
            .iter()
            .position(|known| known == path)
            .map(|number| vec![u8::try_from(number).unwrap_or(0); LEN])
    });
    let options = ProxyOptions { cache_size: 64 << 20, ..options(cache.path(), &[&origin]) };
    let proxy = Proxy::start(options);
    let mut holders: Vec<_> = (0..HELD)
        .map(|number| {
            let mut holder = client_at(proxy.address, "127.0.0.1");
            holder.send(format!("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", paths[usize::from(number)]).as_bytes());
            assert_eq!(holder.head().status, 200);
            holder
        })
        .collect();
    for number in (HELD..16).chain(HELD..16) {
        let answer = proxy.get(&paths[usize::from(number)]);
        assert!(answer.status == 200 && answer.body == content(number), "{number}");
    }
    assert!(proxy.status()["cache"]["evicted"].as_u64() > Some(0), "{}", proxy.status());
    let open = std::fs::read_dir("/proc/self/fd").expect("descriptors").filter_map(|entry| {
        std::fs::read_link(entry.ok()?.path()).ok().map(|target| target.display().to_string())
    });
    let objects = cache.path().join("objects").display().to_string();
    let removed: Vec<_> =
        open.filter(|target| target.starts_with(&objects) && target.ends_with("(deleted)")).collect();
    assert!(removed.is_empty(), "{removed:?}");
    for (number, holder) in (0..).zip(&mut holders) {
        let mut body = vec![0; LEN];
        holder.0.read_exact(&mut body).expect("the rest");
        assert!(body == content(number), "{number}");
    }
}
