use esker_testkit::fixture::FULL;

use crate::client::Running;

const PATH: &str = "/cvmfs/full.test/data/00/00000000000000000000000000000000000001";

fn content() -> Vec<u8> {
    (0..1000u32).flat_map(u32::to_be_bytes).collect()
}

fn serving() -> (esker_testkit::fixture::Repository, Running) {
    let repository = FULL.unpack();
    repository.write(PATH.trim_start_matches("/cvmfs/full.test/"), &content());
    let server = Running::of(&[repository.document_root().to_owned()]);
    (repository, server)
}

#[test]
fn a_single_range_is_sent_as_a_part() {
    let (_repository, server) = serving();
    let (mut client, content) = (server.client(), content());
    for (range, from, to) in [("0-0", 0, 1), ("10-99", 10, 100), ("3990-", 3990, 4000), ("-5", 3995, 4000)] {
        let response = client.ask("GET", PATH, &format!("Range: bytes={range}\r\n"));
        assert_eq!(response.status, 206, "{range}");
        assert!(response.body == content[from..to], "{range}");
        let told = format!("bytes {from}-{}/4000", to - 1);
        assert_eq!(response.field("Content-Range"), Some(told.as_str()));
    }
    let outside = client.ask("GET", PATH, "Range: bytes=4000-\r\n");
    assert_eq!((outside.status, outside.field("Content-Range")), (416, Some("bytes */4000")));
    // The object may have been cut and be whole again tomorrow.
    assert_eq!(outside.field("Cache-Control"), Some("no-store"));
    for ignored in ["bytes=9-8", "bytes=a-b", "blocks=0-1", "bytes=0-,1-"] {
        let response = client.ask("GET", PATH, &format!("Range: {ignored}\r\n"));
        assert!(response.status == 200 && response.body == content, "{ignored}");
        assert_eq!(response.field("Accept-Ranges"), Some("bytes"));
    }
    let twice = client.ask("GET", PATH, "Range: bytes=0-1\r\nRange: bytes=2-3\r\n");
    assert_eq!(twice.status, 400);
}

#[test]
fn several_ranges_are_sent_as_a_multipart_response() {
    let (_repository, server) = serving();
    let (mut client, content) = (server.client(), content());
    let response = client.ask("GET", PATH, "Range: bytes=0-9, 100-199, 5000-6000, -1\r\n");
    assert_eq!(response.status, 206);
    let kind = response.field("Content-Type").expect("a type");
    let boundary = kind.strip_prefix("multipart/byteranges; boundary=").expect("a boundary");
    let mut expected = Vec::new();
    for range in [0..10, 100..200, 3999..4000] {
        let (from, last) = (range.start, range.end - 1);
        expected.extend_from_slice(
            format!("\r\n--{boundary}\r\nContent-Type: application/octet-stream\r\nContent-Range: bytes {from}-{last}/4000\r\n\r\n")
                .as_bytes(),
        );
        expected.extend_from_slice(&content[range]);
    }
    expected.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    assert!(response.body == expected);
}

/// What continues a download must be of the same object, and only an object has a name for its content.
#[test]
fn a_range_can_depend_on_the_tag() {
    let (_repository, server) = serving();
    let mut client = server.client();
    let tag = client.ask("HEAD", PATH, "").field("ETag").expect("a tag").to_owned();
    let asked = |known: &str| format!("Range: bytes=0-9\r\nIf-Range: {known}\r\n");
    assert_eq!(client.ask("GET", PATH, &asked(&tag)).status, 206);
    assert_eq!(client.ask("GET", PATH, &asked("\"other\"")).status, 200);
    assert_eq!(client.ask("GET", PATH, &asked(&format!("W/{tag}"))).status, 200);
    assert_eq!(client.ask("GET", PATH, &asked("Fri, 01 Jan 2100 00:00:00 GMT")).status, 200);
    let top = "/cvmfs/full.test/.cvmfspublished";
    assert_eq!(client.ask("GET", top, "Range: bytes=0-9\r\n").status, 206);
    assert_eq!(client.ask("GET", top, &asked("\"any\"")).status, 200);
}
