//! A gateway whose repository is in a bucket, and whose server fails at any request.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use esker_format::hash::ContentHash;
use esker_format::object::ObjectName;
use esker_gateway::{
    BeforeHead, Candidate, Database, Gateway, GatewayError, KeyLimits, LeasePath, OpenTarget, PublishFailure,
    Published, PublishedRepository, Request, Signer, Submission, Submissions, Target, Token,
};
use esker_object_storage::{StorageSettings, StorageUrl, open_storage};
use esker_repository::{KeyFolder, Repository, Storage};
use esker_testkit::check::{Findings, check};
use esker_testkit::listing::{Entry, of_folder};
use esker_testkit::s3::{BUCKET, S3Fault, S3Request, S3Rule, S3Server};
use tempfile::TempDir;

use crate::publisher::{Time, acquire, keys, options, pack, sign};
use crate::repository::{NAME, Workshop, name, now, write};

/// Prefix of the repository's keys in the bucket.
const PREFIX: &str = "cvmfs/r.test/";
/// Most requests of one publish through the gateway.
const REQUESTS_MAX: u64 = 200;

/// A revision in a bucket, and what a publisher has built on it.
struct Prepared {
    workshop: Workshop,
    root: ContentHash,
    objects: Vec<(ObjectName, Vec<u8>)>,
    old: Vec<Entry>,
    new: Vec<Entry>,
    /// What another publisher has built for the directory `b`, and the trees without and with the changes of the first one.
    other: (ContentHash, Vec<(ObjectName, Vec<u8>)>),
    with_other: [Vec<Entry>; 2],
}

impl Prepared {
    fn new() -> Self {
        let workshop = Workshop::new();
        let source = tempfile::tempdir().unwrap();
        let at = |path: &str| source.path().join(path);
        write(at("a/one"), "1");
        write(at("b/two"), "2");
        workshop.publish(source.path(), "/");
        let old = of_folder(source.path());
        write(at("a/one"), "changed");
        write(at("a/nested/.cvmfscatalog"), "");
        write(at("a/nested/three"), "3");
        let (root, objects) = workshop.build(&at("a"), "/a");
        let new = of_folder(source.path());
        write(at("b/four"), "4");
        let other = workshop.build(&at("b"), "/b");
        let both = of_folder(source.path());
        let is_of_other = |entry: &&Entry| entry.path.starts_with(b"/b");
        let mut only_other: Vec<Entry> = both.iter().filter(is_of_other).cloned().collect();
        only_other.extend(old.iter().filter(|entry| !is_of_other(entry)).cloned());
        only_other.sort_by(|one, next| one.path.cmp(&next.path));
        Self { root, objects, old, new, other, with_other: [only_other, both], workshop }
    }
}

/// A gateway of the prepared revision on a server of its own.
struct Site<'p> {
    prepared: &'p Prepared,
    server: S3Server,
    folder: TempDir,
    gateway: Gateway,
}

impl<'p> Site<'p> {
    fn new(prepared: &'p Prepared, retries: u32) -> Self {
        let server = S3Server::start();
        upload(&prepared.workshop.root(), "", &server);
        let folder = tempfile::tempdir().unwrap();
        // The probe before the first publish is not what fails here.
        let place = format!("{BUCKET}/{}", PREFIX.trim_end_matches('/'));
        let known = format!("1 atomic s3://{place} {}/{place}\n", server.endpoint());
        write(folder.path().join("state/.esker/conditional-puts"), &known);
        let gateway = open_gateway(prepared, &server, folder.path(), retries);
        Self { prepared, server, folder, gateway }
    }

    /// Ends the gateway and starts another one, whose requests are repeated.
    fn restart(self) -> Self {
        let Self { prepared, server, folder, gateway } = self;
        drop(gateway);
        let gateway = open_gateway(prepared, &server, folder.path(), 3);
        Self { prepared, server, folder, gateway }
    }

    /// Leases the directory, sends the objects and commits. Returns the lease, if there is one, and the revision.
    fn publish(&self) -> (Option<Token>, Result<u64, GatewayError>) {
        let leased = self.signer().and_then(|signer| {
            self.gateway.acquire(&signer, &acquire(&format!("{NAME}/a"))).map(|(token, _)| token)
        });
        match leased {
            Ok(token) => (Some(token.clone()), self.send_and_commit(&token)),
            Err(error) => (None, Err(error)),
        }
    }

    fn signer(&self) -> Result<Signer, GatewayError> {
        self.gateway.signer(Some(&sign("one", b"x")), b"x")
    }

    fn send_and_commit(&self, token: &Token) -> Result<u64, GatewayError> {
        let signer = self.signer()?;
        let (payload, body) = pack(&self.prepared.objects);
        self.gateway.submit(&signer, token, &payload, &mut &*body)?;
        self.commit(token)
    }

    fn commit(&self, token: &Token) -> Result<u64, GatewayError> {
        let signer = self.signer()?;
        let request = Request { new_root: format!("{}C", self.prepared.root), ..Request::default() };
        self.gateway.commit(&signer, token, &request).map(|published| published.revision)
    }

    fn findings(&self) -> Findings {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join(NAME);
        for (key, object) in self.server.objects(BUCKET) {
            let Some(path) = key.strip_prefix(PREFIX).map(|path| root.join(path)) else { continue };
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, object.bytes).unwrap();
        }
        check(&root, NAME, &self.prepared.workshop.public_key())
    }

    /// Asserts that clients see the old or the new revision; returns true for the new one.
    fn is_published(&self, when: &str) -> bool {
        let findings = self.findings();
        // A gateway that failed after it replaced the head leaves the reflog to the next commit.
        let problems: Vec<_> =
            findings.problems.iter().filter(|problem| !problem.contains("reflog")).collect();
        assert!(problems.is_empty(), "{when}: {problems:?}");
        let is_new = findings.revision > 1;
        let expected = if is_new { &self.prepared.new } else { &self.prepared.old };
        assert_eq!(&findings.listing(), expected, "{when}");
        is_new
    }
}

fn upload(folder: &Path, below: &str, server: &S3Server) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{below}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            upload(&entry.path(), &format!("{path}/"), server);
        } else {
            server.put(BUCKET, &format!("{PREFIX}{path}"), fs::read(entry.path()).unwrap());
        }
    }
}

fn open_gateway(prepared: &Prepared, server: &S3Server, folder: &Path, retries: u32) -> Gateway {
    let open = opens(prepared, server, folder, retries);
    let database = Database::open(&folder.join("db")).unwrap();
    Gateway::new(database, keys(KeyLimits::default()), open, options(folder, &Time::default())).unwrap()
}

/// Returns a function that opens the repository in the bucket.
fn opens(prepared: &Prepared, server: &S3Server, folder: &Path, retries: u32) -> OpenTarget {
    let credentials = [("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")];
    let settings = StorageSettings {
        endpoint: Some(server.endpoint()),
        state: Some(folder.join("state/.esker")),
        environment: credentials.into_iter().collect(),
        retries: Some(retries),
        ..StorageSettings::default()
    };
    let (state, keys_folder) = (folder.join("state"), prepared.workshop.keys_folder());
    Box::new(move |_| {
        let url = StorageUrl::parse(&format!("s3://{BUCKET}/{}", PREFIX.trim_end_matches('/'))).unwrap();
        let opened = open_storage(&url, &settings, Arc::new(esker_store::RealDisk::SERVED));
        let sink = opened.map_err(|error| PublishFailure::Failed(Box::new(error)))?;
        let (state, keys) = (state.clone(), KeyFolder::new(keys_folder.clone(), &name()));
        let open = move || Repository::open(Storage::new(&state, sink.clone()), &name(), keys.clone(), now());
        match PublishedRepository::new(Box::new(open), 1) {
            Ok(opened) => Ok(Arc::new(opened) as Arc<dyn Target>),
            Err(error) => Err(PublishFailure::Failed(Box::new(error))),
        }
    })
}

/// A fault, and the switch that ends it.
struct Failing {
    rule: S3Rule,
    is_over: Arc<AtomicBool>,
}

/// Runs with a fault at every request of the server in turn; the last run is through before it.
fn at_every_request(faults: [S3Fault; 3], lasting: u64, run: impl Fn(Site<'_>, &Failing, &str)) {
    let prepared = Prepared::new();
    for (number, fault) in (0..REQUESTS_MAX).zip(faults.into_iter().cycle()) {
        let site = Site::new(&prepared, if lasting == 1 { 3 } else { 0 });
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let picks = move |_: &S3Request| !over.load(Ordering::SeqCst);
        let rule = site.server.fault_at(number..number.saturating_add(lasting), picks, fault);
        let failing = Failing { rule, is_over };
        let when = format!("{fault:?} at request {number}");
        run(site, &failing, &when);
        if failing.rule.hits() == 0 {
            assert!(number > 30, "{when}: only so many requests");
            return;
        }
    }
    panic!("a publish has more than {REQUESTS_MAX} requests");
}

/// The publisher doesn't notice a request of the gateway that fails once.
#[test]
fn one_failed_request_of_the_bucket_harms_no_commit() {
    at_every_request([S3Fault::Drop, S3Fault::LoseAnswer, S3Fault::Status(500)], 1, |site, _, when| {
        let revision = site.publish().1.unwrap_or_else(|error| panic!("{when}: {error}"));
        assert_eq!(revision, 2, "{when}");
        assert!(site.is_published(when), "{when}");
        site.findings().assert_clean();
    });
}

/// A commit that the gateway accepted is public. After a refusal the publisher repeats its requests with the lease that it has,
/// and a restarted gateway publishes them once.
#[test]
fn a_bucket_that_fails_for_good_loses_no_accepted_commit() {
    let faults = [S3Fault::Drop, S3Fault::LoseAnswer, S3Fault::Status(403)];
    at_every_request(faults, u64::MAX, |site, failing, when| {
        let (token, outcome) = site.publish();
        let is_new = site.is_published(when);
        assert!(outcome.is_err() || is_new, "{when}: {outcome:?}, and nothing is public");
        assert!(outcome.is_ok() || failing.rule.hits() > 0, "{when}: {outcome:?}");
        failing.is_over.store(true, Ordering::SeqCst);
        let site = site.restart();
        let again = match token {
            // The answer that was lost, or a refusal because objects are missing.
            Some(token) => site.commit(&token).or_else(|_| site.send_and_commit(&token)),
            None => site.publish().1,
        };
        assert_eq!(again.unwrap_or_else(|error| panic!("{when}: again: {error}")), 2, "{when}");
        assert!(site.is_published(when), "{when}");
    });
}

/// Publishes what both publishers have built at the same time.
fn publish_joint(
    target: &dyn Target,
    prepared: &Prepared,
    before_head: &BeforeHead<'_>,
) -> Vec<Result<Published, PublishFailure>> {
    let paths = ["a", "b"].map(|directory| LeasePath::parse(&format!("{NAME}/{directory}")).unwrap());
    let request = Request::default();
    let all = [prepared.root, prepared.other.0].into_iter().zip(&paths).map(|(root, path)| Submission {
        root,
        path,
        request: &request,
        has_uploaded: Box::new(|_| false),
    });
    target.publish(&Submissions { all: all.collect(), before_head })
}

/// Each submission of a joint commit that was accepted is public, and of the others the note before the head's replacement tells it.
#[test]
fn a_bucket_that_fails_for_good_leaves_no_joint_commit_in_doubt() {
    let faults = [S3Fault::Drop, S3Fault::LoseAnswer, S3Fault::Status(403)];
    at_every_request(faults, u64::MAX, |site, failing, when| {
        let Site { prepared, server, folder, .. } = &site;
        let target = opens(prepared, server, folder.path(), 0)(&name());
        let stored = target.as_ref().is_ok_and(|target| {
            let mut objects = prepared.objects.iter().chain(&prepared.other.1);
            // As payloads are stored: uploads run in the background until then.
            objects.all(|(name, bytes)| target.sink().put(name, bytes).is_ok())
                && target.sink().flush().is_ok()
        });
        let noted = Mutex::new(BTreeMap::new());
        let note = |places: &[usize], candidate: Option<Candidate>| {
            let Some(candidate) = candidate else { return Ok(()) };
            noted.lock().unwrap().extend(places.iter().map(|place| (*place, candidate.clone())));
            Ok(())
        };
        let results = match (stored, target) {
            (true, Ok(target)) => publish_joint(&*target, prepared, &note),
            _ => Vec::new(),
        };
        assert!(failing.rule.hits() > 0 || results.iter().all(Result::is_ok), "{when}: {results:?}");
        failing.is_over.store(true, Ordering::SeqCst);
        let target = opens(prepared, server, folder.path(), 3)(&name()).unwrap();
        let noted = noted.into_inner().unwrap();
        let is_published = |place: usize| match results.get(place) {
            Some(Ok(_)) => true,
            _ => noted.get(&place).is_some_and(|candidate| target.has_published(candidate).unwrap()),
        };
        let expected = match (is_published(0), is_published(1)) {
            (false, false) => &prepared.old,
            (true, false) => &prepared.new,
            (of_both, true) => &prepared.with_other[usize::from(of_both)],
        };
        assert_eq!(&site.findings().listing(), expected, "{when}: {results:?}");
    });
}

/// A publisher with keys replaces the head in between, so a path of one submission conflicts after they were joined.
#[test]
fn a_conflict_that_comes_late_fails_one_of_the_joint_submissions() {
    let prepared = Prepared::new();
    let site = Site::new(&prepared, 0);
    let target = opens(&prepared, &site.server, site.folder.path(), 0)(&name()).unwrap();
    for (name, bytes) in prepared.objects.iter().chain(&prepared.other.1) {
        target.sink().put(name, bytes).unwrap();
    }
    let asked = Mutex::new(Vec::new());
    let overtake = |places: &[usize], _: Option<Candidate>| {
        let mut asked = asked.lock().unwrap();
        if asked.is_empty() {
            let theirs = tempfile::tempdir().unwrap();
            write(theirs.path().join("one"), "theirs");
            prepared.workshop.publish(theirs.path(), "/a");
            upload(&prepared.workshop.root(), "", &site.server);
        }
        asked.push(places.to_vec());
        Ok(())
    };
    let results = publish_joint(&*target, &prepared, &overtake);
    match &results[0] {
        Err(PublishFailure::Conflict { paths }) => assert_eq!(paths, &["/a/one"]),
        other => panic!("{other:?}"),
    }
    assert_eq!(results[1].as_ref().unwrap().revision, 3);
    assert_eq!(*asked.lock().unwrap(), [vec![0, 1], vec![1]]);
    assert!(site.findings().tree.contains_key(b"/b/four".as_slice()));
}
