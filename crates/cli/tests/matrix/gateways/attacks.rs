//! What publishers with a key, and others, can't do to a gateway.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::object::{ObjectKind, ObjectName};
use serde_json::Value;

use super::station::{Key, Running, Station, message};
use crate::publishing::NAME;
use crate::test_user::TestUser;

/// Connections that do nothing.
const IDLE: usize = 1000;
/// Growth of the gateway's memory by them, in KiB: a socket and the state of a connection each.
const GROWTH_MAX: usize = 64 << 10;

fn digest(header: &[u8]) -> String {
    ContentHash::of(HashAlgorithm::Sha1, header).hex()
}

fn object(content: &str) -> (ObjectName, Vec<u8>) {
    let bytes = content.as_bytes().to_vec();
    (ObjectName::new(ContentHash::of(HashAlgorithm::Sha1, &bytes), ObjectKind::File), bytes)
}

#[track_caller]
fn is_refused(answer: &Value, reason: &str) {
    assert_eq!(answer["status"], "error", "{answer}");
    let said = answer["reason"].as_str().expect("a reason");
    assert!(said.contains(reason), "{answer}");
}

/// Sends a pack whose header is written by hand.
#[track_caller]
fn send_header(running: &Running, key: &Key, token: &str, header: &str, bytes: &[u8]) -> Value {
    running.pack(key, token, (header.as_bytes(), &digest(header.as_bytes())), bytes)
}

#[test]
fn hostile_publishers_are_refused_by_name_and_store_nothing() {
    let station = Station::new(TestUser::ordinary());
    let key = station.key("one", &[&format!("{NAME}/one"), "--lease-size", "1M"]);
    let other = station.key("two", &[&format!("{NAME}/two")]);
    let running = station.start(&[]);
    let token = running.token(&key, &format!("{NAME}/one"));
    let (root, objects) = station.build("one/file", "hostile\n");
    let before = (station.stored(), station.tree_of_storage());

    // Names: of leases, of objects, of files.
    for (path, reason) in [
        (format!("{NAME}/one/../two"), "`..`"),
        (format!("{NAME}/one/."), "`.`"),
        (format!("../{NAME}/one"), "repository not found"),
        (format!("/{NAME}/one"), "leading slash"),
        (format!("{NAME}/two"), "invalid_path"),
        (format!("{NAME}/onetwo"), "invalid_path"),
        (format!("{NAME}/"), "invalid_path"),
        ("other.test/one".to_owned(), "repository not found"),
    ] {
        is_refused(&running.lease(&key, &path), reason);
    }
    let (name, bytes) = object("planted");
    let len = bytes.len();
    for (header, reason) in [
        (
            format!("V2\nS{len}\nN1\n--\nN {} {len} Li4vLi4vcGxhbnRlZA==\n", name.hash.hex()),
            "named by the sender",
        ),
        (format!("V2\nS{len}\nN1\n--\nC ../../../../planted {len}\n"), "can't be read"),
        (format!("V2\nS{len}\nN100001\n--\n"), "too many objects"),
        (format!("V2\nS{}\nN1\n--\nC {} {}\n", u64::MAX, name.hash.hex(), u64::MAX), "may have"),
        (format!("V2\nS{}\nN1\n--\nC {} {}\n", 2 << 20, name.hash.hex(), 2 << 20), "bytes more"),
        (format!("V2\nS{len}\nN1\n--\nC {} {len}\n", object("else").0.hash.hex()), "another hash"),
    ] {
        is_refused(&send_header(&running, &key, &token, &header, &bytes), reason);
    }
    let good = format!("V2\nS{len}\nN1\n--\nC {} {len}\n", name.hash.hex());
    is_refused(&send_header(&running, &key, &token, &good, &bytes[..len - 1]), "ends in the middle");
    let announced = running.pack(&key, &token, (good.as_bytes(), &digest(b"another")), &bytes);
    is_refused(&announced, "digest");

    // Tokens and keys of others.
    is_refused(&running.send(&other, &token, &objects), "invalid lease");
    is_refused(&running.commit(&other, &token, &root), "invalid lease");
    is_refused(&running.send(&key, "GUESSED", &objects), "invalid lease");
    is_refused(&running.commit(&key, "GUESSED", &root), "invalid lease");
    let path = format!("/api/v1/leases/{token}");
    is_refused(&running.ask("POST", &path, &other.sign(b"another input"), b"{}"), "invalid_hmac");
    is_refused(&running.ask("DELETE", &path, "", b""), "invalid_hmac");
    let below = format!("/api/v1/leases-by-path/{NAME}");
    is_refused(&running.signed(&key, "DELETE", &below, below.as_bytes(), b""), "no_admin_key");
    // A root catalog that was never sent.
    is_refused(&running.commit(&key, &token, &format!("{}C", "0".repeat(40))), "miscellaneous");
    is_refused(&running.commit(&key, &token, "../../etc/passwd"), "no hash");
    assert_eq!(before, (station.stored(), station.tree_of_storage()));
    assert_eq!(station.file("/one/file"), "first\n");
    // The lease is as good as before.
    assert_eq!(running.send(&key, &token, &objects)["status"], "ok");
    assert_eq!(running.commit(&key, &token, &root)["status"], "ok");
    assert_eq!(station.file("/one/file"), "hostile\n");
}

/// A recorded request, sent again, changes nothing.
#[test]
fn replayed_requests_change_nothing() {
    let station = Station::new(TestUser::ordinary());
    let key = station.key("one", &[&format!("{NAME}/one")]);
    let running = station.start(&[]);
    let token = running.token(&key, &format!("{NAME}/one"));
    let (root, objects) = station.build("one/file", "second\n");
    let send = || running.send(&key, &token, &objects);
    assert_eq!(send()["status"], "ok");
    let stored = station.stored();
    assert_eq!(send()["status"], "ok");
    assert_eq!(station.stored(), stored, "the same objects");
    let answer = running.commit(&key, &token, &root);
    assert_eq!(answer["final_revision"], 2, "{answer}");
    let next = running.token(&key, &format!("{NAME}/one"));
    let (third, more) = station.build("one/file", "third\n");
    assert_eq!(running.send(&key, &next, &more)["status"], "ok");
    assert_eq!(running.commit(&key, &next, &third)["final_revision"], 3);
    // The first commit again: its recorded result, and the newest content stays.
    assert_eq!(running.commit(&key, &token, &root), answer);
    is_refused(&running.commit(&key, &token, &third), "invalid lease");
    is_refused(&send(), "invalid lease");
    assert_eq!(station.file("/one/file"), "third\n");
}

/// Bodies that are too long or never come are refused, and take no memory.
#[test]
fn oversized_and_slow_requests_are_bounded() {
    let station = Station::new(TestUser::ordinary());
    let key = station.key("one", &[&format!("{NAME}/one")]);
    let running = station.start(&["--grace", "0s"]);
    let token = running.token(&key, &format!("{NAME}/one"));
    let resident = || running.status("VmRSS").parse::<usize>().expect("a size");
    let before = (station.stored(), resident());
    let large = vec![b'x'; 8 << 20];
    is_refused(&running.signed(&key, "POST", "/api/v1/leases", &large, &large), "too large");
    let fields = format!("{}Message-Size: {}\r\n", key.sign(b"x"), 8 << 20);
    is_refused(&running.ask("POST", "/api/v1/payloads", &fields, &large), "too long");
    let header = message(&token, &digest(b""), 1 << 30);
    let fields = format!("{}Message-Size: {}\r\n", key.sign(header.as_bytes()), header.len());
    let body = [header.as_bytes(), &large].concat();
    is_refused(&running.ask("POST", "/api/v1/payloads", &fields, &body), "header of the pack");
    let fields = format!("X-Long: {}\r\n", "y".repeat(1 << 20));
    is_refused(&running.ask("GET", "/api/v1/leases", &fields, b""), "");
    // Longer than any payload: refused by its length.
    let mut endless = running.connect();
    let head =
        format!("POST /api/v1/payloads HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", u64::MAX / 4);
    endless.write_all(head.as_bytes()).expect("sending");
    let mut said = [0; 9];
    endless.read_exact(&mut said).expect("an answer");
    assert_eq!(&said, b"HTTP/1.1 ");

    // Publishers that stop in the middle of a pack, and connections that say nothing.
    let mut slow: Vec<TcpStream> = (0..IDLE).map(|_| running.connect()).collect();
    let pack = "V2\nS100\nN1\n--\nC 11f6ad8ec52a2984abaafd7c3b516503785c2072 100\n";
    let head = message(&token, &digest(pack.as_bytes()), pack.len());
    for stream in slow.iter_mut().take(8) {
        let fields = format!(
            "{}Message-Size: {}\r\nContent-Length: 100000000\r\n",
            key.sign(head.as_bytes()),
            head.len()
        );
        let text = format!("POST /api/v1/payloads HTTP/1.1\r\nHost: h\r\n{fields}\r\n{head}{pack}x");
        stream.write_all(text.as_bytes()).expect("sending");
    }
    // Others are answered meanwhile.
    let renewed = running.signed(&key, "PATCH", &format!("/api/v1/leases/{token}"), token.as_bytes(), b"");
    assert_eq!(renewed["status"], "ok", "{renewed}");
    let grown = resident().saturating_sub(before.1);
    println!("{IDLE} idle connections, 8 slow payloads: {} KiB before, {grown} KiB more", before.1);
    assert!(grown <= GROWTH_MAX, "{grown} KiB");
    drop(slow);
    assert_eq!(before.0, station.stored());
}
