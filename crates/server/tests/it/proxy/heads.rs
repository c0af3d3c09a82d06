use std::time::Duration;

use esker_format::manifest::Manifest;
use esker_server::proxy::ProxyOptions;
use esker_testkit::mirror::Fault;
use esker_testkit::object;
use esker_testkit::revision_builder::RevisionBuilder;

use super::site::{MANIFEST, Origin, Proxy, options, with_keys};
use crate::monitoring::{assert_dashboard_is_served, metrics_of_alerts};

const DAY: Duration = Duration::from_secs(86_400);

fn publish(origin: &Origin, directory: &str) {
    let builder = RevisionBuilder::of(&origin.repository);
    builder.add_directory(directory);
    builder.publish(&origin.repository);
}

fn revision(manifest: &[u8]) -> u64 {
    Manifest::parse(manifest).expect("a manifest").revision
}

fn root_path(origin: &Origin) -> String {
    let root = origin.repository.manifest().get('C').expect("a root catalog");
    format!("/cvmfs/full.test/{}", object::path(&root, "C"))
}

#[test]
fn a_manifest_is_served_from_memory_for_its_age() {
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let proxy = Proxy::start(ProxyOptions { head_age: DAY, ..options(cache.path(), &[&origin]) });
    let first = proxy.get(&format!("{}{MANIFEST}", origin.url()));
    assert_eq!((first.status, first.field("x-cache")), (200, Some("MISS")));
    publish(&origin, "new");
    let second = proxy.get(MANIFEST);
    assert_eq!((second.field("x-cache"), &second.body), (Some("HIT"), &first.body));
    assert_eq!(origin.asked(MANIFEST), 1);
    let third = proxy.client().ask("GET", MANIFEST, "Cache-Control: no-cache\r\n");
    assert_eq!(revision(&third.body), 1 + revision(&first.body));
}

#[test]
fn stale_manifests_are_served_while_upstream_is_away() {
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let proxy = Proxy::start(options(cache.path(), &[&origin]));
    let first = proxy.get(MANIFEST);
    origin.mirror.leave();
    let stale = proxy.get(MANIFEST);
    assert_eq!((stale.status, stale.field("x-cache")), (200, Some("STALE")));
    assert!(stale.field("warning").is_some() && stale.body == first.body);
    assert_eq!(proxy.status()["repositories"][0]["upstream_away"], true);
    let ready = proxy.get("/readyz");
    assert_eq!((ready.status, ready.text()), (200, "ok, but the servers of 1 repositories don't answer\n"));
    let metrics = proxy.ask_monitor("/metrics").text().to_owned();
    assert!(metrics.contains("esker_proxy_upstream_up{repository=\"full.test\"} 0\n"), "{metrics}");
    assert_dashboard_is_served(&metrics, |name| name.contains("_proxy_"));
    for name in metrics_of_alerts().iter().filter(|name| name.contains("_proxy_")) {
        assert!(metrics.contains(&format!("{name}{{repository=\"full.test\"}} ")), "{name}: {metrics}");
    }
    proxy.stop();
    // The manifest is saved.
    let proxy = Proxy::start(options(cache.path(), &[&origin]));
    assert_eq!(proxy.get(MANIFEST).body, first.body);
    proxy.stop();
    let proxy = Proxy::start(ProxyOptions { stale_age: Duration::ZERO, ..options(cache.path(), &[&origin]) });
    assert!(proxy.get(MANIFEST).status >= 502, "it is too old");
    assert_eq!(proxy.get("/readyz").status, 503);
    proxy.stop();
    origin.mirror.come_back();
    publish(&origin, "new");
    let proxy = Proxy::start(options(cache.path(), &[&origin]));
    assert_eq!(revision(&proxy.get(MANIFEST).body), 1 + revision(&first.body));
}

#[test]
fn a_silent_server_delays_a_stale_manifest_by_seconds_only() {
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let proxy = Proxy::start(options(cache.path(), &[&origin]));
    let first = proxy.get(MANIFEST);
    let rule = origin.mirror.fault(|_| true, Fault::NoAnswer);
    let began = std::time::Instant::now();
    let stale = proxy.get(MANIFEST);
    assert_eq!((stale.field("x-cache"), &stale.body), (Some("STALE"), &first.body));
    // Clients wait 5 s.
    assert!(began.elapsed() < Duration::from_secs(5));
    rule.assert_hit();
    rule.lift();
}

#[test]
fn an_older_manifest_is_refused() {
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let old = origin.repository.read(".cvmfspublished");
    publish(&origin, "new");
    let proxy = Proxy::start(with_keys(options(cache.path(), &[&origin])));
    let new = proxy.get(MANIFEST);
    assert_eq!(revision(&new.body), 1 + revision(&old));
    let rule = origin.mirror.fault(|path| path == MANIFEST, Fault::Content(old.clone()));
    assert_eq!(proxy.get(MANIFEST).body, new.body);
    rule.assert_hit();
    proxy.stop();
    let proxy = Proxy::start(with_keys(options(cache.path(), &[&origin])));
    assert_eq!(proxy.get(MANIFEST).body, new.body, "after a restart, too");
    assert!(proxy.status()["files"]["refused"].as_u64() > Some(0));
}

#[test]
fn a_lagging_server_does_not_take_the_site_back() {
    let (ahead, behind) = (Origin::start(), Origin::start());
    let cache = tempfile::tempdir().expect("a folder");
    publish(&ahead, "new");
    let proxy = Proxy::start(options(cache.path(), &[&ahead, &behind]));
    let new = proxy.get(&format!("{}{MANIFEST}", behind.url()));
    assert_eq!(revision(&new.body), revision(&ahead.repository.read(".cvmfspublished")));
    ahead.mirror.leave();
    assert_eq!(proxy.get(MANIFEST).body, new.body);
}

/// Keys decide, so that no server can take clients back while the others answer.
#[test]
fn clients_get_a_revision_that_the_living_servers_have_whole() {
    let (ahead, behind) = (Origin::start(), Origin::start());
    let (cache, added) = (tempfile::tempdir().expect("a folder"), ahead.add(b"new"));
    let old = behind.repository.read(".cvmfspublished");
    publish(&ahead, "new");
    let proxy = Proxy::start(with_keys(options(cache.path(), &[&ahead, &behind])));
    let new = proxy.get(MANIFEST);
    assert_eq!(revision(&new.body), 1 + revision(&old));
    ahead.mirror.leave();
    // One failure changes nothing.
    assert_eq!(proxy.get(MANIFEST).body, new.body);
    let ask = || proxy.client().ask("GET", MANIFEST, "Cache-Control: no-cache\r\n");
    for _ in 0..3 {
        let given = ask();
        assert_eq!((given.field("x-cache"), revision(&given.body)), (Some("STALE"), revision(&old)));
    }
    // What it lists is there, and what only the newest one has is not.
    assert_eq!(proxy.get(&root_path(&behind)).status, 200);
    assert!(proxy.get(&added).status >= 400);
    let metrics = proxy.ask_monitor("/metrics").text().to_owned();
    for (origin, is_up) in [(&ahead, 0), (&behind, 1)] {
        let url = format!("{}/cvmfs/full.test", origin.url());
        let line = format!("esker_proxy_server_up{{repository=\"full.test\",server=\"{url}\"}} {is_up}\n");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
    let page = proxy.ask_monitor("/").text().to_owned();
    for part in
        ["1 of 1 repositories have problems", "an older revision, which can be read whole", ">out<", ">up<"]
    {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert_eq!(proxy.ask_monitor("/dashboard/style.css").status, 200);
    // The newest stays the oldest that is accepted, also after a restart.
    proxy.stop();
    let proxy = Proxy::start(with_keys(options(cache.path(), &[&ahead, &behind])));
    assert_eq!(proxy.get(MANIFEST).body, new.body);
    ahead.mirror.come_back();
    let back = proxy.client().ask("GET", MANIFEST, "Cache-Control: no-cache\r\n");
    assert_eq!(back.body, new.body);
    // Servers that all answer with an older one are not believed.
    let rule = ahead.mirror.fault(|path| path == MANIFEST, Fault::Content(old));
    for _ in 0..3 {
        assert_eq!(proxy.client().ask("GET", MANIFEST, "Cache-Control: no-cache\r\n").body, new.body);
    }
    rule.assert_hit();
}

#[test]
fn damaged_and_unsigned_manifests_are_refused() {
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let proxy = Proxy::start(with_keys(options(cache.path(), &[&origin])));
    let mut forged = origin.repository.manifest();
    let number: u64 = forged.get('S').expect("a revision").parse().expect("a number");
    forged.set('S', number + 5);
    let mut draft = forged.sign(&origin.repository.fixture().keys());
    let signature = draft.len() - 10;
    draft[signature] ^= 1;
    for content in [b"<html>log in</html>".to_vec(), draft, vec![0; 300]] {
        let rule = origin.mirror.fault(|path| path == MANIFEST, Fault::Content(content));
        let refused = proxy.get(MANIFEST);
        assert_eq!(refused.status, 502, "{}", refused.text());
        rule.assert_hit();
        rule.lift();
    }
    let good = proxy.get(MANIFEST);
    assert_eq!((good.status, good.body), (200, origin.repository.read(".cvmfspublished")));
}

#[test]
fn a_head_waits_for_its_root_catalog() {
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let proxy = Proxy::start(with_keys(options(cache.path(), &[&origin])));
    let first = proxy.get(MANIFEST);
    publish(&origin, "new");
    let root = root_path(&origin);
    let missing = root.clone();
    let rule = origin.mirror.fault(move |path| path == missing, Fault::Missing);
    assert_eq!(proxy.get(MANIFEST).body, first.body, "the head is there before its catalog");
    rule.assert_hit();
    rule.lift();
    // The pause after the failure and the memory of missing objects end for a client that insists; the object is asked for
    // again by a client that needs it.
    assert_eq!(proxy.client().ask("GET", &root, "Pragma: no-cache\r\n").status, 200);
    let second = proxy.client().ask("GET", MANIFEST, "Pragma: no-cache\r\n");
    assert_eq!(revision(&second.body), 1 + revision(&first.body));
    let asked = origin.asked(&root);
    assert_eq!(proxy.get(&root).field("x-cache"), Some("HIT"));
    assert_eq!(origin.asked(&root), asked);
}

#[test]
fn catalogs_that_clients_asked_for_are_fetched_ahead() {
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let tags = esker_testkit::fixture::TAGS;
    let proxy = Proxy::start(options(cache.path(), &[&origin]));
    let old = origin.repository.tag(tags[1]);
    // The second revision is the head at first.
    let last = origin.repository.read(".cvmfspublished");
    let mut draft = origin.repository.manifest();
    draft.set('C', &old.root).set('S', old.revision).set('T', 1_000_000_000);
    origin.repository.publish(&draft.sign(&origin.repository.fixture().keys()));
    assert_eq!(proxy.get(MANIFEST).status, 200);
    let nested = |root: &str| {
        let stored = origin.repository.read(&object::path(root, "C"));
        let plain = object::inflate(&stored);
        let catalog = esker_format::catalog::Catalog::open(plain).expect("a catalog");
        let nested = catalog.nested().expect("nested catalogs");
        nested
            .into_iter()
            .filter_map(|nested| Some((nested.path, nested.hash?.to_string())))
            .collect::<Vec<_>>()
    };
    let path = |hash: &str| format!("/cvmfs/full.test/{}", object::path(hash, "C"));
    assert_eq!(proxy.get(&path(&old.root)).status, 200);
    for (_, hash) in nested(&old.root) {
        assert_eq!(proxy.get(&path(&hash)).status, 200);
    }
    origin.repository.write(".cvmfspublished", &last);
    let new = origin.repository.manifest().get('C').expect("a root catalog");
    let before = nested(&old.root);
    let changed: Vec<_> = nested(&new)
        .into_iter()
        .filter(|(place, hash)| before.iter().any(|(other, old)| other == place && old != hash))
        .collect();
    assert!(!changed.is_empty(), "the fixture changes nested catalogs");
    assert_eq!(proxy.get(MANIFEST).body, last);
    for (_, hash) in changed {
        let wanted = path(&hash);
        origin.mirror.wait_for(1, |path| path == wanted);
    }
}

#[test]
fn one_stream_upstream_tells_all_clients_of_revisions() {
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let proxy = Proxy::start(options(cache.path(), &[&origin]));
    let mut listeners: Vec<_> = (0..5).map(|_| proxy.client()).collect();
    let line = |listener: &mut crate::client::Client| loop {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut listener.0, &mut line).expect("an event");
        if let Some(data) = line.strip_prefix("data: ") {
            let data: serde_json::Value = serde_json::from_str(data).expect("JSON");
            break data["revision"].as_u64().expect("a number");
        }
    };
    let mut told = Vec::new();
    for listener in &mut listeners {
        listener.send(b"GET /cvmfs/full.test/.esker/revisions HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(listener.head().status, 200);
        told.push(line(listener));
    }
    publish(&origin, "new");
    for (listener, before) in listeners.iter_mut().zip(told) {
        assert_eq!(line(listener), before + 1);
    }
    assert_eq!(origin.asked("/cvmfs/full.test/.esker/revisions"), 1);
    assert_eq!(proxy.get("/cvmfs/none.test/.esker/revisions").status, 404);
}

#[test]
fn other_files_pass_and_missing_ones_stay_missing() {
    let (origin, cache) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let proxy = Proxy::start(ProxyOptions { head_age: DAY, ..options(cache.path(), &[&origin]) });
    let whitelist = proxy.get("/cvmfs/full.test/.cvmfswhitelist");
    assert_eq!(whitelist.body, origin.repository.read(".cvmfswhitelist"));
    let missing = "/cvmfs/full.test/.cvmfs_last_snapshot";
    assert_eq!(proxy.get(missing).status, 404);
    let asked = origin.asked(missing);
    assert_eq!(proxy.get(missing).status, 404);
    assert_eq!(origin.asked(missing), asked);
    origin.mirror.put("/cvmfs/info/v1/repositories.json", "{}");
    assert_eq!(proxy.get("/cvmfs/info/v1/repositories.json").text(), "{}");
    origin.mirror.put("/cvmfs/full.test/api/v1.0/geo/x/a.test,b.test", "2,1\n");
    assert_eq!(proxy.get("/cvmfs/full.test/api/v1.0/geo/x/a.test,b.test").text(), "2,1\n");
}
