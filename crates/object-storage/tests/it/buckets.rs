//! Repositories in buckets: layout, fields, settings and errors.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::object::{ObjectKind, ObjectName};
use esker_object_storage::{Environment, StorageSettings, StorageUrl, open_storage};
use esker_store::{Cause, Locking, Put, RealDisk, Sink, StorageProblem, StoreError, Swap};
use esker_testkit::s3::{BUCKET, Conditions, S3Fault, S3Rule, S3Server};
use esker_testkit::waiting::Pace;
use esker_testkit::web::{Authority, Web};

pub(crate) const HEAD: &str = ".cvmfspublished";

/// Returns the settings of a server.
pub(crate) fn settings(server: &S3Server) -> StorageSettings {
    let environment: Environment =
        [("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")].into_iter().collect();
    StorageSettings { endpoint: Some(server.endpoint()), environment, ..StorageSettings::default() }
}

pub(crate) fn open(url: &str, settings: &StorageSettings) -> Arc<dyn Sink> {
    let url = StorageUrl::parse(url).unwrap();
    open_storage(&url, settings, Arc::new(RealDisk::SERVED)).unwrap()
}

/// Opens a repository in the bucket of a server.
pub(crate) fn sink(server: &S3Server) -> Arc<dyn Sink> {
    open("s3://bucket/cvmfs/a.test", &settings(server))
}

pub(crate) fn object(number: u32) -> (ObjectName, Vec<u8>) {
    let bytes = format!("object {number}").repeat(number as usize % 7 + 1).into_bytes();
    (ObjectName::new(ContentHash::of(HashAlgorithm::Rmd160, &bytes), ObjectKind::File), bytes)
}

pub(crate) fn key(name: &ObjectName) -> String {
    format!("cvmfs/a.test/{}", name.path())
}

fn problem(error: &StoreError) -> &StorageProblem {
    match error.cause() {
        Cause::Bucket { problem, .. } => problem,
        other => panic!("{other:?}"),
    }
}

#[test]
fn missing_objects_are_found_by_requests_at_once() {
    let server = S3Server::start();
    let sink = sink(&server);
    let objects: Vec<_> = (0..60).map(object).collect();
    for (name, bytes) in objects.iter().step_by(2) {
        sink.put(name, bytes).unwrap();
    }
    sink.flush().unwrap();
    let names: Vec<_> = objects.iter().map(|(name, _)| *name).collect();
    let absent: Vec<_> = names.iter().skip(1).step_by(2).copied().collect();
    assert_eq!(sink.missing(&names).unwrap(), absent);
    // The first question waits for the last one.
    let (first, last) = (key(&names[0]), key(&names[StorageSettings::CONNECTIONS - 1]));
    let held =
        server.fault(move |request| request.method == "HEAD" && request.key == first, S3Fault::NoAnswer);
    let waiting = std::thread::spawn(move || sink.missing(&names).is_err());
    let is_asked = || {
        server.requests().iter().filter(|request| request.method == "HEAD" && request.key == last).count() > 1
    };
    assert!(Pace::LOOK.until(std::time::Duration::from_secs(60), is_asked), "one after the other");
    assert!(held.hits() > 0);
    drop(server);
    assert!(waiting.join().unwrap());
}

#[test]
fn a_bucket_has_the_layout_of_a_folder() {
    let server = S3Server::start();
    let sink = sink(&server);
    sink.make_folders().unwrap();
    sink.prepare().unwrap();
    let objects: Vec<_> = (0..50).map(object).collect();
    for (name, bytes) in &objects {
        assert!(!sink.has(name, bytes.len() as u64).unwrap());
        assert_eq!(sink.put(name, bytes).unwrap(), Put::Stored);
        assert_eq!(sink.put(name, bytes).unwrap(), Put::Present);
        assert!(sink.has(name, bytes.len() as u64).unwrap());
    }
    sink.flush().unwrap();
    sink.put_root(HEAD, b"the head").unwrap();
    sink.put_root(".cvmfs_status.json", b"{}").unwrap();
    sink.put_alternative(&objects[0].0).unwrap();

    let mut expected: BTreeMap<String, Vec<u8>> =
        objects.iter().map(|(name, bytes)| (key(name), bytes.clone())).collect();
    expected.insert(format!("cvmfs/a.test/{HEAD}"), b"the head".to_vec());
    expected.insert("cvmfs/a.test/.cvmfs_status.json".into(), b"{}".to_vec());
    expected.insert(format!("cvmfs/a.test/{}", objects[0].0.alternative_path()), objects[0].1.clone());
    let stored = server.objects(BUCKET);
    let bytes: BTreeMap<String, Vec<u8>> =
        stored.iter().map(|(key, object)| (key.clone(), object.bytes.clone())).collect();
    assert_eq!(bytes, expected, "nothing else is left, not of the probe either");
    let fields = |key: &str| {
        (stored[key].fields["content-type"].as_str(), stored[key].fields["cache-control"].as_str())
    };
    let forever = "public, max-age=31536000, immutable";
    assert_eq!(fields(&key(&objects[1].0)), ("application/octet-stream", forever));
    assert_eq!(fields(&format!("cvmfs/a.test/{HEAD}")), ("application/x-cvmfs", "max-age=61"));
    assert_eq!(fields("cvmfs/a.test/.cvmfs_status.json"), ("application/json", "max-age=61"));

    let mut root = sink.list_root().unwrap();
    root.sort();
    assert_eq!(root, [".cvmfs_status.json", &objects[0].0.alternative_path(), HEAD]);
    assert_eq!(sink.read(HEAD, 8).unwrap().as_deref(), Some(&b"the head"[..]));
    assert!(matches!(sink.read(HEAD, 7).unwrap_err().cause(), Cause::TooLarge { limit: 7 }));
    assert_eq!(sink.read("missing", 10).unwrap(), None);
    let mut copy = Vec::new();
    assert_eq!(sink.read_to(&objects[3].0.path(), &mut copy).unwrap(), Some(objects[3].1.len() as u64));
    assert_eq!(copy, objects[3].1);
    assert_eq!(sink.read_to("missing", &mut copy).unwrap(), None);
    assert_eq!(sink.len_of(&objects[3].0).unwrap(), Some(objects[3].1.len() as u64));
    assert_eq!(sink.folder(), None);
    sink.remove_root(".cvmfs_status.json").unwrap();
    sink.remove_root(".cvmfs_status.json").unwrap();
    assert!(!sink.list_root().unwrap().contains(&".cvmfs_status.json".to_owned()));
}

#[test]
fn a_listing_of_several_pages_has_each_object_once() {
    let server = S3Server::start();
    server.set_page(3);
    let sink = sink(&server);
    let objects: Vec<_> = (0..300).map(object).collect();
    for (name, bytes) in &objects {
        sink.put(name, bytes).unwrap();
    }
    sink.flush().unwrap();
    server.put(BUCKET, "cvmfs/a.test/data/00/no-object", "x");
    server.put(BUCKET, "cvmfs/a.testing/data/00/0000", "x");
    // Some listings break off, and go on after the last key.
    let cut =
        [5, 20, 60].map(|at| server.fault_at(at..at + 1, |request| request.key.is_empty(), S3Fault::Cut));
    let mut found: Vec<(ObjectName, u64)> = Vec::new();
    sink.list(&mut |listed| found.push((listed.name, listed.len))).unwrap();
    cut.iter().for_each(S3Rule::assert_hit);
    let mut expected: Vec<_> = objects.iter().map(|(name, bytes)| (*name, bytes.len() as u64)).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn objects_are_deleted_in_batches_or_one_by_one() {
    for has_batches in [true, false] {
        let server = S3Server::start();
        if !has_batches {
            server.refuse_batches();
        }
        let sink = sink(&server);
        let objects: Vec<_> = (0..20).map(object).collect();
        for (name, bytes) in &objects {
            sink.put(name, bytes).unwrap();
        }
        sink.flush().unwrap();
        let (doomed, kept) = objects.split_at(10);
        let names: Vec<ObjectName> = doomed.iter().map(|(name, _)| *name).collect();
        server.forget();
        sink.delete(&names).unwrap();
        let requests = server.requests();
        let deletes = requests.iter().filter(|request| request.method == "DELETE").count();
        assert_eq!((deletes, requests.len()), if has_batches { (0, 1) } else { (10, 11) });
        // Missing ones are no error.
        sink.delete(&names).unwrap();
        assert_eq!(server.objects(BUCKET).keys().cloned().collect::<Vec<_>>(), {
            let mut keys: Vec<_> = kept.iter().map(|(name, _)| key(name)).collect();
            keys.sort();
            keys
        });
        // An object that was deleted is stored again.
        assert_eq!(sink.put(&names[0], &doomed[0].1).unwrap(), Put::Stored);
        sink.flush().unwrap();
        assert!(server.object(BUCKET, &key(&names[0])).is_some());
        server.put(BUCKET, "other", "x");
        sink.put_root(HEAD, b"head").unwrap();
        sink.remove_all().unwrap();
        assert_eq!(server.objects(BUCKET).into_keys().collect::<Vec<_>>(), ["other"]);
    }
}

#[test]
fn a_large_object_is_sent_in_parts() {
    let server = S3Server::start();
    let sink = sink(&server);
    let bytes: Vec<u8> = (0..40_u32 << 18).flat_map(u32::to_le_bytes).collect();
    let name = ObjectName::new(ContentHash::of(HashAlgorithm::Rmd160, &bytes), ObjectKind::File);
    sink.put(&name, &bytes).unwrap();
    sink.flush().unwrap();
    assert!(server.object(BUCKET, &key(&name)).unwrap().bytes == bytes);
    assert_eq!(
        server.object(BUCKET, &key(&name)).unwrap().fields["content-type"],
        "application/octet-stream"
    );
    let parts = server.requests().iter().filter(|request| request.asks("partNumber")).count();
    assert_eq!((parts, server.uploads()), (3, 0));
    // The server is asked before so much is sent again.
    assert_eq!(sink.put(&name, &bytes).unwrap(), Put::Present);
    let mut copy = Vec::new();
    sink.read_to(&name.path(), &mut copy).unwrap();
    assert!(copy == bytes);
}

#[test]
fn a_storage_class_is_for_objects_alone() {
    let server = S3Server::start();
    let settings = StorageSettings { storage_class: Some("STANDARD_IA".into()), ..settings(&server) };
    let sink = open("s3://bucket", &settings);
    let (name, bytes) = object(1);
    sink.put(&name, &bytes).unwrap();
    sink.flush().unwrap();
    sink.put_root(HEAD, b"head").unwrap();
    let class = |key: &str| server.object(BUCKET, key).unwrap().fields.get("x-amz-storage-class").cloned();
    assert_eq!(class(&name.path()).as_deref(), Some("STANDARD_IA"));
    assert_eq!(class(HEAD), None);
}

#[test]
fn errors_name_the_bucket_the_file_and_the_next_step() {
    let server = S3Server::start();
    let few = StorageSettings { retries: Some(0), ..settings(&server) };
    let missing = open("s3://missing/p", &few).make_folders().unwrap_err();
    assert!(matches!(problem(&missing), StorageProblem::NoBucket(_)), "{missing}");
    assert!(missing.to_string().contains("s3://missing/p"), "{missing}");
    assert!(problem(&missing).mend().contains("make the bucket first"));

    let unsigned = StorageSettings { anonymous: true, ..few.clone() };
    let denied = open("s3://bucket/p", &unsigned).put_root(HEAD, b"x").unwrap_err();
    let text = denied.to_string();
    assert!(matches!(problem(&denied), StorageProblem::Denied(_)), "{text}");
    assert!(
        text.contains("writing `.cvmfspublished` in s3://bucket/p") && text.contains("AccessDenied"),
        "{text}"
    );

    let (name, bytes) = object(1);
    let busy = server.fault(|request| request.method == "PUT", S3Fault::SlowDown);
    let sink = open("s3://bucket/p", &few);
    sink.put(&name, &bytes).unwrap();
    let slow = sink.flush().unwrap_err();
    busy.assert_hit();
    assert!(matches!(problem(&slow), StorageProblem::Overloaded(_)), "{slow}");
    assert!(slow.to_string().contains(&name.path()) && slow.may_pass(), "{slow}");
    // The head must not be replaced any more, whatever is put now.
    assert!(sink.put(&object(2).0, &object(2).1).is_err() && sink.flush().is_err());

    let endpoint = server.endpoint();
    drop(server);
    let gone = StorageSettings { endpoint: Some(endpoint), ..few };
    let gone = open("s3://bucket/p", &gone).read(HEAD, 10).unwrap_err();
    assert!(matches!(problem(&gone), StorageProblem::Unavailable(_)), "{gone}");
    assert!(gone.to_string().contains("refused"), "{gone}");
}

#[test]
fn a_server_without_safe_conditions_is_refused_unless_publishers_share_a_lock() {
    for (conditions, reason) in [
        (Conditions::Racy, "of 12 writers won that wrote at once"),
        (Conditions::Torn, "one version (ETag) of two contents"),
        (Conditions::Ignored, "ignores the conditions"),
        (Conditions::Refused, "doesn't know conditional puts"),
    ] {
        let server = S3Server::start();
        server.set_conditions(conditions);
        let plain = sink(&server);
        let first = plain.prepare().unwrap_err().to_string();
        assert!(first.contains(reason), "{first}");
        for refused in [plain.lock_root().unwrap_err(), plain.replace_root(HEAD, b"x", None).unwrap_err()] {
            assert!(matches!(problem(&refused), StorageProblem::NotAtomic(_)), "{refused}");
            assert!(problem(&refused).mend().contains("lock file"));
        }
        assert_eq!(server.objects(BUCKET), BTreeMap::new(), "the probe removes its files");
        if conditions == Conditions::Torn {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let lock: PathBuf = folder.path().join("lock");
        let locked = open("s3://bucket", &StorageSettings { lock: Some(lock), ..settings(&server) });
        locked.prepare().unwrap();
        let held = locked.lock_root().unwrap();
        assert!(matches!(held, Some(Locking::Taken(_))));
        assert!(matches!(locked.lock_root().unwrap(), Some(Locking::Held(_))));
        assert_eq!(locked.replace_root(HEAD, b"x", None).unwrap(), Swap::Replaced);
        assert_eq!(locked.replace_root(HEAD, b"y", None).unwrap(), Swap::Moved);
        assert_eq!(locked.replace_root(HEAD, b"y", Some(b"x")).unwrap(), Swap::Replaced);
    }
}

#[test]
fn a_probe_is_remembered_for_its_server() {
    let folder = tempfile::tempdir().unwrap();
    let state = Some(folder.path().join("state/of/a"));
    let server = S3Server::start();
    let probes = |settings: &StorageSettings| {
        server.forget();
        assert!(open("s3://bucket/p", settings).lock_root().unwrap().is_none());
        server.requests().iter().filter(|request| request.is_conditional_put()).count()
    };
    let remembering = StorageSettings { state: state.clone(), ..settings(&server) };
    assert!(probes(&remembering) > 100, "writers race");
    assert_eq!(probes(&remembering), 0);
    assert!(probes(&settings(&server)) > 100, "without a state");
    let other = S3Server::start();
    other.set_conditions(Conditions::Ignored);
    let elsewhere = open("s3://bucket/p", &StorageSettings { state, ..settings(&other) });
    assert!(elsewhere.lock_root().is_err());
}

#[test]
fn a_bucket_is_reached_over_https_with_an_own_authority() {
    let server = S3Server::start();
    let authority = Authority::new();
    let (certificate, key) = authority.sign("IP:127.0.0.1", 1);
    let web = Web::nginx(1, |_, ports| {
        format!(
            "client_max_body_size 0; server {{ listen 127.0.0.1:{} ssl; ssl_certificate {}; ssl_certificate_key {}; \
             location / {{ proxy_pass {}; proxy_set_header Host $http_host; }} }}",
            ports[0],
            certificate.display(),
            key.display(),
            server.endpoint()
        )
    });
    let endpoint = Some(format!("https://127.0.0.1:{}", web.ports()[0]));
    let secure = StorageSettings { endpoint, ca: Some(authority.certificate()), ..settings(&server) };
    let sink = open("s3://bucket", &secure);
    sink.put_root(HEAD, b"head").unwrap();
    assert_eq!(server.object(BUCKET, HEAD).unwrap().bytes, b"head");
    let unknown = open("s3://bucket", &StorageSettings { ca: None, ..secure });
    let refused = unknown.put_root(HEAD, b"other").unwrap_err();
    assert!(matches!(problem(&refused), StorageProblem::Refused(_)), "{refused}");
    assert!(refused.to_string().contains("signed by no authority"), "{refused}");
}
