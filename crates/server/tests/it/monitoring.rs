use esker_server::{GeoDatabase, Limits, Options, Repositories, Server};
use esker_testkit::fixture::FULL;
use esker_testkit::geo_database::database;
use serde_json::Value;

use crate::client::Running;

/// Names of the metrics that the alerts of services use.
pub(crate) fn metrics_of_alerts() -> Vec<String> {
    let rules = include_str!("../../../../deploy/prometheus/esker-services.rules.yml");
    let lines = rules.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    let words =
        lines.flat_map(|line| line.split(|letter: char| !letter.is_ascii_lowercase() && letter != '_'));
    words.filter(|word| word.starts_with("esker_")).map(str::to_owned).collect()
}

/// Panics unless metrics have each of those that the dashboard of services names and the predicate picks.
#[track_caller]
pub(crate) fn assert_dashboard_is_served(metrics: &str, picks: impl Fn(&str) -> bool) {
    let dashboard: Value =
        serde_json::from_str(include_str!("../../../../deploy/grafana/esker-services.json")).expect("JSON");
    let mut named = Vec::new();
    strings_of(&dashboard, &mut named);
    let words = named.iter().flat_map(|text| {
        text.split(|letter: char| !letter.is_ascii_lowercase() && letter != '_')
            .filter(|word| word.starts_with("esker_"))
    });
    let mut seen = 0;
    for name in words.filter(|name| picks(name)) {
        let is_there = ["", "_total", "_sum", "_count"].iter().any(|end| {
            name.strip_suffix(end).is_some_and(|family| metrics.contains(&format!("# TYPE {family} ")))
        });
        assert!(is_there, "{name}: {metrics}");
        seen += 1;
    }
    assert!(seen > 0);
}

/// Collects all texts of a JSON value.
fn strings_of<'v>(value: &'v Value, to: &mut Vec<&'v str>) {
    match value {
        Value::String(text) => to.push(text),
        Value::Array(all) => all.iter().for_each(|one| strings_of(one, to)),
        Value::Object(all) => all.values().for_each(|one| strings_of(one, to)),
        _ => {}
    }
}

fn serving() -> (esker_testkit::fixture::Repository, Running) {
    let repository = FULL.unpack();
    let server = Running::of(&[repository.document_root().to_owned()]);
    (repository, server)
}

#[test]
fn metrics_count_responses_and_describe_repositories() {
    let (repository, server) = serving();
    let mut client = server.client();
    let manifest = repository.read(".cvmfspublished");
    for _ in 0..3 {
        assert_eq!(client.ask("GET", "/cvmfs/full.test/.cvmfspublished", "").status, 200);
    }
    assert_eq!(client.ask("GET", "/cvmfs/full.test/.absent", "").status, 404);
    let metrics = client.ask("GET", "/metrics", "");
    assert_eq!(metrics.field("Cache-Control"), Some("no-store"));
    let kind = metrics.field("Content-Type").expect("a type");
    assert!(kind.starts_with("application/openmetrics-text"), "{kind}");
    let revision = repository.manifest().get('S').expect("a revision");
    let text = metrics.text();
    for line in [
        "esker_http_requests_total{kind=\"metadata\",status=\"200\"} 3".to_owned(),
        format!("esker_http_response_bytes_total{{kind=\"metadata\"}} {}", 3 * manifest.len()),
        "esker_http_request_duration_seconds_count{kind=\"metadata\"} 3".to_owned(),
        "esker_http_connections_total 1".to_owned(),
        "esker_http_connections_open 1".to_owned(),
        "esker_http_limits_hit_total{limit=\"client_rate\"} 0".to_owned(),
        format!("esker_repository_revision{{repository=\"full.test\"}} {revision}"),
        format!("esker_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION")),
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
    }
    assert!(text.contains("esker_repository_whitelist_expiry_timestamp_seconds{repository=\"full.test\"} "));
    assert!(text.ends_with("# EOF\n"), "{text}");
    // Those of object storage and of proxies are in their tests.
    for name in
        metrics_of_alerts().iter().filter(|name| !name.contains("_upstream_") && !name.contains("_proxy_"))
    {
        assert!(text.contains(&format!("# TYPE {name} gauge\n")), "{name}: {text}");
    }
    assert_dashboard_is_served(text, |name| !name.contains("_upstream_") && !name.contains("_proxy_"));
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let value = line.rsplit(' ').next().expect("a value");
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
}

#[test]
fn metrics_can_have_a_socket_of_their_own() {
    let repository = FULL.unpack();
    let listen = || Server::listen("127.0.0.1:0".parse().expect("an address")).expect("listening");
    let metrics = listen();
    let address = metrics.local_addr().expect("an address");
    let repositories = Repositories::open(&[repository.document_root().to_owned()]).expect("folders");
    let options = Options { metrics: Some(metrics), ..Options::default() };
    let mut server = Running::on(Server::new(vec![listen()], repositories, options).expect("a server"));
    assert_eq!(server.get("/metrics").status, 404);
    assert_eq!(server.get("/cvmfs/full.test/.cvmfspublished").status, 200);
    let main = std::mem::replace(&mut server.address, address);
    assert!(server.get("/metrics").text().contains("esker_http_connections_total 2\n"));
    assert_eq!(server.get("/healthz").status, 200);
    assert_eq!(server.get("/cvmfs/full.test/.cvmfspublished").status, 404);
    server.address = main;
    let served = server.stop();
    assert_eq!(served.requests, 2, "questions of monitoring are not counted");
}

#[test]
fn readiness_depends_on_the_served_folders_and_health_does_not() {
    let (repository, server) = serving();
    assert_eq!((server.get("/healthz").text(), server.get("/readyz").text()), ("ok\n", "ready\n"));
    let (root, moved) = (repository.document_root(), repository.document_root().with_extension("moved"));
    std::fs::rename(root, &moved).expect("a folder");
    let unready = server.get("/readyz");
    std::fs::rename(&moved, root).expect("a folder");
    assert_eq!((unready.status, unready.text()), (503, "503 a served folder can't be read\n"));
    assert_eq!((server.get("/healthz").status, server.get("/readyz").status), (200, 200));
}

/// An unmounted file system leaves the empty folder below it.
#[test]
fn a_server_whose_storage_is_gone_says_so_and_misses_no_file() {
    let (repository, server) = serving();
    let (root, moved) = (repository.document_root(), repository.document_root().with_extension("moved"));
    let file = "/cvmfs/full.test/.cvmfspublished";
    assert_eq!(server.get("/cvmfs/absent.test/.cvmfspublished").status, 404);
    std::fs::rename(root, &moved).expect("a folder");
    let missing = server.get(file);
    assert_eq!((missing.status, missing.text()), (503, "503 the storage is gone\n"));
    assert_eq!(missing.field("Cache-Control"), Some("no-store"));
    std::fs::create_dir(root).expect("a folder");
    assert_eq!((server.get(file).status, server.get("/readyz").status), (503, 503));
    assert!(server.get("/metrics").text().contains("esker_serve_folders_gone 1\n"));
    std::fs::remove_dir(root).expect("a folder");
    std::fs::rename(&moved, root).expect("a folder");
    assert_eq!((server.get(file).status, server.get("/readyz").status), (200, 200));
    assert!(server.get("/metrics").text().contains("esker_serve_folders_gone 0\n"));
    // Another folder with repositories is one that was switched, as a link may be.
    std::fs::rename(root, &moved).expect("a folder");
    std::fs::create_dir(root).expect("a folder");
    std::fs::rename(moved.join("full.test"), root.join("full.test")).expect("a repository");
    assert_eq!((server.get(file).status, server.get("/readyz").status), (200, 200));
}

#[test]
fn the_interface_of_servermon_tells_late_replicas() {
    let (repository, server) = serving();
    let ask = |query: &str| server.get(&format!("/cvmfsmon/api/v1.0/{query}"));
    assert_eq!(ask("all&format=status").text(), "OK\n");
    repository.write(".cvmfs_status.json", br#"{"last_snapshot": "Fri Oct 18 08:01:07 UTC 2024"}"#);
    assert_eq!(ask("all").text(), "CRITICAL:full.test\n");
    assert_eq!(ask("updated&format=status&server=here").text(), "CRITICAL\n");
    assert_eq!(ask("updated?format=status").text(), "CRITICAL\n");
    let details = ask("updated&format=details");
    let read: Value = serde_json::from_slice(&details.body).expect("JSON");
    assert_eq!((&read["status"], &read["results"][0]["test"]), (&"CRITICAL".into(), &"updated".into()));
    assert_eq!((ask("gc").text(), ask("ok").text()), ("OK:full.test\n", "OK:full.test\n"));
    assert_eq!((ask("other").status, ask("ok&format=xml").status), (400, 400));
}

#[test]
fn without_a_database_servers_keep_their_order() {
    let (_repository, server) = serving();
    let ask = |path: &str| server.get(&format!("/cvmfs/full.test/api/{path}"));
    let answer = ask("v1.0/geo/x/b.test,a.test,c.test");
    assert_eq!((answer.status, answer.text()), (200, "1,2,3\n"));
    assert_eq!(answer.field("Esker-Geo"), Some("no database, order as given"));
    let malformed = ask("v1.0/geo/x/a.test,(b)");
    assert_eq!((malformed.status, malformed.field("Cache-Control")), (400, Some("max-age=300")));
    assert!(malformed.text().starts_with("Bad Request: "));
    assert_eq!((ask("v1.0/other/x/a").status, ask("1.0/geo/x/a").status), (404, 404));
}

#[test]
fn servers_are_sorted_by_their_distance_from_the_client() {
    let repository = FULL.unpack();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("places.mmdb");
    // Geneva, Chicago, Melbourne.
    std::fs::write(&file, database(&[(10, 46.2, 6.1), (11, 41.9, -87.6), (12, -37.8, 145.0)]))
        .expect("a file");
    let geo = Some(std::sync::Arc::new(GeoDatabase::open(&file).expect("a database")));
    let options = Options { geo, limits: Limits::default(), ..Options::default() };
    let server = Running::with(&[repository.document_root().to_owned()], options);
    let ask = |named: &str, servers: &str, fields: &str| {
        let path = format!("/cvmfs/full.test/api/v1.0/geo/{named}/{servers}");
        server.client().ask("GET", &path, fields)
    };
    let servers = "12.0.0.1,11.0.0.1,10.0.0.1";
    let near_geneva = ask("10.0.0.9", servers, "");
    assert_eq!((near_geneva.status, near_geneva.text()), (200, "3,2,1\n"));
    assert_eq!(near_geneva.field("Cache-Control"), Some("max-age=3600"));
    // The cache's identity is no name, and the peer is this machine.
    let forwarded = |list: &str| ask("_", servers, &format!("X-Forwarded-For: {list}\r\n"));
    assert_eq!(forwarded("10.0.0.1, 12.0.0.7").text(), "1,2,3\n");
    assert_eq!(forwarded("11.0.0.1").text(), "2,3,1\n");
    let cloudflare = "CF-Connecting-IP: 11.0.0.1\r\nX-Forwarded-For: 10.0.0.1\r\n";
    assert_eq!(ask("_", servers, cloudflare).text(), "2,3,1\n");
    let with_proxies = "10.0.0.1,12.0.0.1,+PXYSEP+,11.0.0.1,12.0.0.2";
    assert_eq!(ask("12.0.0.9", with_proxies, "").text(), "2,1,5,4,3\n");
    let unknown = ask("_", servers, "");
    assert_eq!((unknown.status, unknown.field("Cache-Control")), (400, Some("max-age=300")));
    assert!(unknown.text().contains("requester"), "{}", unknown.text());
    assert_eq!(ask("10.0.0.9", "20.0.0.1,21.0.0.1", "").status, 400);
    std::fs::write(&file, b"no database").expect("a file");
    assert!(GeoDatabase::open(&file).is_err());
}
