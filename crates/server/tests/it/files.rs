use esker_testkit::fixture::{ALL, FULL};

use crate::client::Running;

/// Every object and every file at the top of every fixture, on one connection.
#[test]
fn all_files_of_a_repository_are_served_unchanged() {
    for fixture in ALL {
        let repository = fixture.unpack();
        let server = Running::of(&[repository.document_root().to_owned()]);
        let mut client = server.client();
        let mut count = 0;
        for folder in std::fs::read_dir(repository.path().join("data")).unwrap() {
            let folder = folder.unwrap().path();
            for object in std::fs::read_dir(&folder).unwrap() {
                let object = object.unwrap().path();
                let path = object.strip_prefix(repository.path()).unwrap().to_str().unwrap().to_owned();
                if path.starts_with("data/txn") {
                    continue;
                }
                let response = client.ask("GET", &format!("/cvmfs/{}/{path}", fixture.name()), "");
                assert_eq!(response.status, 200, "{path}");
                assert!(response.body == std::fs::read(&object).unwrap(), "{path}");
                assert_eq!(response.field("Content-Type"), Some("application/octet-stream"));
                assert_eq!(response.field("Cache-Control"), Some("max-age=259200"));
                let tag = format!("\"{}\"", path.trim_start_matches("data/").replace('/', ""));
                assert_eq!(response.field("ETag"), Some(tag.as_str()));
                count += 1;
            }
        }
        assert!(count > 20, "{} has objects", fixture.name());
        for name in [".cvmfspublished", ".cvmfswhitelist", ".cvmfsreflog"] {
            let response = client.ask("GET", &format!("/cvmfs/{}/{name}", fixture.name()), "");
            assert_eq!((response.status, &response.body), (200, &repository.read(name)));
            assert_eq!(response.field("Content-Type"), Some("application/x-cvmfs"));
            assert_eq!(response.field("Cache-Control"), Some("max-age=61"));
            assert_eq!((response.field("ETag"), response.field("Last-Modified")), (None, None));
        }
        drop(client);
        let served = server.stop();
        assert_eq!((served.connections, served.requests, served.failures), (1, count + 3, 0));
    }
}

#[test]
fn a_head_request_gets_the_length_and_no_body() {
    let repository = FULL.unpack();
    let server = Running::of(&[repository.document_root().to_owned()]);
    let mut client = server.client();
    let manifest = repository.read(".cvmfspublished");
    for _ in 0..2 {
        let head = client.ask("HEAD", "/cvmfs/full.test/.cvmfspublished", "Range: bytes=0-3\r\n");
        assert_eq!(
            (head.status, head.field("Content-Length")),
            (200, Some(manifest.len().to_string().as_str()))
        );
        assert!(head.field("Date").expect("a date").ends_with(" GMT"));
    }
    assert_eq!(client.ask("HEAD", "/cvmfs/full.test/.absent", "").status, 404);
    assert_eq!(client.ask("GET", "/cvmfs/full.test/.cvmfspublished", "").body, manifest);
}

#[test]
fn private_and_absent_files_are_not_found() {
    let repository = FULL.unpack();
    repository.write("data/txn/upload", b"half of an object");
    repository.write("full.test.key", b"private");
    repository.write(".esker/settings.json", b"{}");
    repository.write("stats/index.html", b"<p>public");
    let server = Running::of(&[repository.document_root().to_owned()]);
    let mut client = server.client();
    for path in [
        "",
        "/",
        "/data",
        "/data/",
        "/data/00/",
        "/data/txn/upload",
        "/full.test.key",
        "/.esker",
        "/.esker/settings.json",
        "/.esker%2fsettings.json",
        "/.cvmfs/../.esker/settings.json",
        "/../full.test/full.test.key",
        "/%2e%2e/full.test/full.test.key",
        "/.cvmfspublished/",
        "/.cvmfspublished/x",
        "/.cvmfsabsent",
        "/data/00/00000000000000000000000000000000000000",
        &format!("/.cvmfs{}", "x".repeat(300)),
    ] {
        let response = client.ask("GET", &format!("/cvmfs/full.test{path}"), "");
        let slash_too_many = path == "/.cvmfspublished/";
        assert_eq!(response.status, if slash_too_many { 200 } else { 404 }, "{path}");
        if !slash_too_many {
            assert_eq!(response.field("Cache-Control"), Some("max-age=5"), "{path}");
        }
    }
    assert_eq!(client.ask("GET", "/cvmfs/other.test/.cvmfspublished", "").status, 404);
    let statistics = client.ask("GET", "/cvmfs/full.test/stats/index.html", "");
    assert_eq!((statistics.text(), statistics.field("Content-Type")), ("<p>public", Some("text/html")));
}

/// A folder, a fifo: neither is a file, and neither holds the server up.
#[test]
fn only_regular_files_are_sent() {
    let repository = FULL.unpack();
    std::fs::create_dir(repository.path().join(".cvmfsfolder")).unwrap();
    let fifo = repository.path().join(".cvmfsfifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .expect("a fifo");
    std::os::unix::fs::symlink(".cvmfspublished", repository.path().join(".cvmfsalt-link")).unwrap();
    let server = Running::of(&[repository.document_root().to_owned()]);
    assert_eq!(server.get("/cvmfs/full.test/.cvmfsfolder").status, 404);
    assert_eq!(server.get("/cvmfs/full.test/.cvmfsfifo").status, 404);
    let linked = server.get("/cvmfs/full.test/.cvmfsalt-link");
    assert_eq!(linked.body, repository.read(".cvmfspublished"));
}

#[test]
fn a_known_object_is_sent_again_only_on_no_cache() {
    let repository = FULL.unpack();
    let server = Running::of(&[repository.document_root().to_owned()]);
    let mut client = server.client();
    let root = repository.manifest().get('C').expect("a root catalog");
    let path = format!("/cvmfs/full.test/data/{}/{}C", &root[..2], &root[2..]);
    let tag = client.ask("GET", &path, "").field("ETag").expect("a tag").to_owned();
    for known in [tag.clone(), format!("W/{tag}"), format!("\"other\", {tag}"), "*".to_owned()] {
        let response = client.ask("GET", &path, &format!("If-None-Match: {known}\r\n"));
        assert_eq!((response.status, response.field("ETag")), (304, Some(tag.as_str())), "{known}");
        assert_eq!(response.field("Content-Length"), None);
    }
    for doubt in ["Cache-Control: no-cache", "Pragma: no-cache", "Cache-Control: max-age=0"] {
        let response = client.ask("GET", &path, &format!("If-None-Match: {tag}\r\n{doubt}\r\n"));
        assert_eq!(response.status, 200, "{doubt}");
    }
    let other = client.ask("GET", &path, "If-None-Match: \"other\"\r\n");
    assert_eq!(other.status, 200);
    let dated = "If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT\r\nIf-None-Match: *\r\n";
    assert_eq!(client.ask("GET", "/cvmfs/full.test/.cvmfspublished", dated).status, 200);
}

#[test]
fn a_new_head_is_served_at_once() {
    let repository = FULL.unpack();
    repository.publish(&repository.head_at("v1"));
    let server = Running::of(&[repository.document_root().to_owned()]);
    let mut client = server.client();
    for tag in ["v1", "v2", "v3"] {
        let head = repository.head_at(tag);
        repository.publish(&head);
        assert_eq!(client.ask("GET", "/cvmfs/full.test/.cvmfspublished", "").body, head);
    }
}
