//! Which head is believed: the newest that verifies, also after restarts and without a network.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use esker_format::blacklist::Blacklist;
use esker_format::master_keys::MasterKeys;
use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_format::trust::TrustError;
use esker_store::{
    Cache, Callback, Cause, Disk, HeadKeeper, HeadOptions, Objects, RealDisk, Refreshed, Started, StoreError,
};
use esker_testkit::disk::{FaultDisk, Loss, Plan};
use esker_testkit::fixture::{self, Fixture, Repository};
use esker_testkit::mirror::{Fault, Mirror};
use esker_testkit::object::Algorithm;
use esker_testkit::signing::WhitelistDraft;

use crate::rig::{engine, roomy};

const FULL: Fixture = fixture::FULL;
const DAY: i64 = 86_400;

/// A repository on a mirror, and a user's cache folder.
struct Site {
    repository: Repository,
    mirror: Mirror,
    folder: tempfile::TempDir,
    clock: Arc<AtomicI64>,
}

/// A head keeper, with the cache it takes certificates from.
struct Seat {
    keeper: HeadKeeper,
    _cache: Cache,
}

impl Site {
    fn new() -> Self {
        let repository = FULL.unpack();
        let mirror = Mirror::serve(repository.document_root());
        let published = repository.tag("v3").timestamp;
        let clock = Arc::new(AtomicI64::new(i64::try_from(published).unwrap() + DAY));
        Self { repository, mirror, folder: tempfile::tempdir().unwrap(), clock }
    }

    fn options(&self) -> HeadOptions {
        let key = std::fs::read(FULL.public_key()).unwrap();
        let name = RepositoryName::parse(FULL.name()).unwrap();
        let clock = self.clock.clone();
        HeadOptions {
            now: Arc::new(move || UnixTime(clock.load(Ordering::Relaxed))),
            ..HeadOptions::new(name, MasterKeys::parse(&key).unwrap())
        }
    }

    fn seat(&self) -> Seat {
        self.seat_with(self.options())
    }

    fn seat_with(&self, options: HeadOptions) -> Seat {
        self.seat_on(Arc::new(RealDisk::PRIVATE), self.folder.path(), options)
    }

    /// A head keeper as a new process would create it.
    fn seat_on(&self, disk: Arc<dyn Disk>, heads: &Path, options: HeadOptions) -> Seat {
        let engine = engine();
        let cache_folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(&engine, cache_folder.path(), roomy()).unwrap();
        let source = esker_store::connect(&engine, &self.mirror.url(FULL.name())).unwrap();
        let store = Arc::new(Objects::new(&cache, source.clone()));
        let keeper = HeadKeeper::new(&engine, source, store, heads, HeadOptions { disk, ..options });
        Seat { keeper, _cache: cache }
    }

    fn publish(&self, tag: &str) {
        self.repository.publish(&self.repository.head_at(tag));
    }

    fn fault(&self, file: &'static str, fault: Fault) -> esker_testkit::mirror::Rule {
        self.mirror.fault(move |path| path.ends_with(file), fault)
    }

    fn offline(&self) -> esker_testkit::mirror::Rule {
        self.mirror.fault(|_| true, Fault::Status(503))
    }

    fn saved(&self) -> PathBuf {
        let names = std::fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let heads: Vec<_> = names.filter(|name| name.extension().is_some_and(|end| end == "head")).collect();
        assert_eq!(heads.len(), 1);
        heads[0].clone()
    }
}

impl Seat {
    fn start(&self) -> Result<Started, StoreError> {
        Callback::wait(|done| self.keeper.start(done))
    }

    fn refresh(&self) -> Refreshed {
        Callback::wait(|done| self.keeper.refresh(done)).unwrap()
    }

    fn revision(&self) -> u64 {
        self.keeper.current().unwrap().revision()
    }
}

fn reason(refreshed: Refreshed) -> StoreError {
    match refreshed {
        Refreshed::Offline(offline) => offline.reason,
        other => panic!("{other:?}"),
    }
}

fn trust_error(error: &StoreError) -> &TrustError {
    match error.cause() {
        Cause::Untrusted(error) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_head_of_every_fixture_is_accepted() {
    for fixture in fixture::ALL {
        let repository = fixture.unpack();
        let mirror = Mirror::serve(repository.document_root());
        for url in [mirror.url(fixture.name()), repository.file_url()] {
            let (engine, folder) = (engine(), tempfile::tempdir().unwrap());
            let cache = Cache::open(&engine, folder.path(), roomy()).unwrap();
            let source = esker_store::connect(&engine, &url).unwrap();
            let store = Arc::new(Objects::new(&cache, source.clone()));
            let keys = MasterKeys::parse(&std::fs::read(fixture.public_key()).unwrap()).unwrap();
            let options = HeadOptions::new(RepositoryName::parse(fixture.name()).unwrap(), keys);
            let keeper = HeadKeeper::new(&engine, source, store, &cache.heads(), options);
            let started = Callback::wait(|done| keeper.start(done)).unwrap();
            assert!(started.offline.is_none());
            assert_eq!(started.head.root_catalog().hash.to_string(), repository.tag("v3").root);
        }
    }
}

#[test]
fn new_heads_are_followed_and_the_same_costs_one_request() {
    let site = Site::new();
    site.publish("v1");
    let seat = site.seat();
    assert_eq!(seat.start().unwrap().head.revision(), site.repository.tag("v1").revision);
    for tag in ["v2", "v3"] {
        let before = site.mirror.requests().len();
        assert!(matches!(seat.refresh(), Refreshed::Unchanged));
        assert_eq!(site.mirror.requests().len(), before + 1);
        site.publish(tag);
        match seat.refresh() {
            Refreshed::New(head) => assert_eq!(head.revision(), site.repository.tag(tag).revision),
            other => panic!("{other:?}"),
        }
    }
    assert!(seat.keeper.status().offline.is_none());
}

/// A running mount and a restarted one refuse an older head, also from proxies.
#[test]
fn an_older_head_is_never_applied() {
    let site = Site::new();
    let newest = site.repository.tag("v3").revision;
    let seat = site.seat();
    seat.start().unwrap();
    site.publish("v2");
    let error = reason(seat.refresh());
    let older = |error: &StoreError| {
        matches!(trust_error(error), TrustError::OlderTimestamp { .. } | TrustError::OlderRevision { .. })
    };
    assert!(older(&error), "{error}");
    assert!(error.may_pass(), "another server may have the newest");
    assert_eq!(seat.revision(), newest);
    let restarted = site.seat();
    let started = restarted.start().unwrap();
    assert_eq!(started.head.revision(), newest);
    assert!(older(&started.offline.unwrap().reason));
    // The server itself was asked, past the caches on the way, before it was called outdated.
    let fresh = |request: &esker_testkit::mirror::Request| request.header("cache-control").is_some();
    assert_eq!(site.mirror.requests().iter().filter(|request| fresh(request)).count(), 2);
}

/// The same revision number with an earlier date, or a lower number with a later one: both are older.
#[test]
fn a_head_older_by_revision_or_date_is_refused() {
    let site = Site::new();
    let seat = site.seat();
    seat.start().unwrap();
    let tag = site.repository.tag("v3");
    let keys = FULL.keys();
    let mut draft = site.repository.draft_at("v2");
    site.repository.publish(&draft.set('S', tag.revision + 5).sign(&keys));
    let error = reason(seat.refresh());
    assert!(matches!(trust_error(&error), TrustError::OlderTimestamp { .. }), "{error}");
    let mut draft = site.repository.draft_at("v2");
    site.repository.publish(&draft.set('T', tag.timestamp + 5).sign(&keys));
    let error = reason(seat.refresh());
    assert!(matches!(trust_error(&error), TrustError::OlderRevision { .. }), "{error}");
}

/// A whitelist that was replaced, to take a publisher off, is not believed again by a running mount, nor after a restart.
///
/// > V9: A whitelist older than the last accepted one is never believed again, and another root catalog for an accepted revision is refused as an attack.
#[test]
fn an_older_whitelist_is_refused() {
    let site = Site::new();
    let keys = FULL.keys();
    let whitelist = |created: &str| {
        let mut draft = WhitelistDraft::listing(&keys, FULL.name(), Algorithm::Sha1);
        draft.created = created.to_owned();
        site.repository.write(".cvmfswhitelist", &draft.sign(&keys));
    };
    site.publish("v2");
    whitelist("20260301000000");
    let seat = site.seat();
    seat.start().unwrap();
    whitelist("20260201000000");
    site.publish("v3");
    let older = |error: &StoreError| matches!(trust_error(error), TrustError::OlderWhitelist { .. });
    let error = reason(seat.refresh());
    assert!(older(&error), "{error}");
    assert_eq!(seat.revision(), site.repository.tag("v2").revision);
    let restarted = site.seat();
    let started = restarted.start().unwrap();
    assert_eq!(started.head.revision(), site.repository.tag("v2").revision);
    assert!(older(&started.offline.unwrap().reason));
    whitelist("20260302000000");
    assert!(matches!(seat.refresh(), Refreshed::New(_)));
    assert_eq!(seat.revision(), site.repository.tag("v3").revision);
}

/// Two contents under one number, and a number that sticks: both are refused, and told apart from an old head.
///
/// > V9: A whitelist older than the last accepted one is never believed again, and another root catalog for an accepted revision is refused as an attack.
#[test]
fn a_fork_and_an_absurd_revision_are_refused() {
    let site = Site::new();
    let seat = site.seat();
    seat.start().unwrap();
    let tag = site.repository.tag("v3");
    let keys = FULL.keys();
    let offer = |revision: u64| {
        let mut draft = site.repository.draft_at("v2");
        site.repository.publish(&draft.set('S', revision).set('T', tag.timestamp + 5).sign(&keys));
    };
    offer(tag.revision);
    let error = reason(seat.refresh());
    assert!(matches!(trust_error(&error), TrustError::TwoRoots { .. }), "{error}");
    offer(u64::MAX);
    let error = reason(seat.refresh());
    assert!(matches!(trust_error(&error), TrustError::RevisionJump { .. }), "{error}");
    assert_eq!(seat.revision(), tag.revision);
    // On the user's word.
    offer(tag.revision);
    let restarted = site.seat();
    restarted.keeper.forget_history().unwrap();
    assert_eq!(restarted.start().unwrap().head.revision(), tag.revision);
}

#[test]
fn a_recreated_repository_needs_the_users_consent() {
    let site = Site::new();
    let seat = site.seat();
    seat.start().unwrap();
    site.publish("v1");
    let first = site.repository.tag("v1").revision;
    reason(seat.refresh());
    seat.keeper.forget_history().unwrap();
    assert!(matches!(seat.refresh(), Refreshed::New(head) if head.revision() == first));
    // And the restarted mount agrees.
    assert_eq!(site.seat().start().unwrap().head.revision(), first);
}

#[test]
fn a_start_without_a_server_uses_the_saved_head_up_to_a_maximum_age() {
    let site = Site::new();
    let rule = site.offline();
    let error = site.seat().start().unwrap_err();
    assert!(matches!(error.cause(), Cause::Status(503)), "nothing was saved yet: {error}");
    rule.lift();
    let seat = site.seat();
    seat.start().unwrap();
    let accepted = site.clock.load(Ordering::Relaxed);
    let rule = site.offline();
    let error = reason(seat.refresh());
    assert!(matches!(error.cause(), Cause::Status(503)), "{error}");
    assert!(seat.keeper.status().offline.is_some());

    site.clock.store(accepted + 30 * DAY, Ordering::Relaxed);
    let restarted = site.seat();
    let started = restarted.start().unwrap();
    let offline = started.offline.unwrap();
    assert_eq!(offline.since, UnixTime(accepted), "it says since when");
    assert_eq!(restarted.keeper.status().confirmed, UnixTime(accepted));

    site.clock.store(accepted + 30 * DAY + 1, Ordering::Relaxed);
    let error = site.seat().start().unwrap_err();
    assert!(matches!(error.cause(), Cause::SavedHeadTooOld { .. }), "{error}");
    assert!(
        error.full_text().contains("30 days") && error.full_text().contains("503"),
        "{}",
        error.full_text()
    );
    let patient = HeadOptions { offline_max_age: Duration::from_secs(100 * 86_400), ..site.options() };
    assert!(site.seat_with(patient).start().unwrap().offline.is_some());
    // The mount that started offline follows the server once it is back.
    rule.lift();
    assert!(matches!(restarted.refresh(), Refreshed::Unchanged));
    assert!(restarted.keeper.status().offline.is_none());
}

/// A server that confirms the head makes it young again, for starts without a network later.
#[test]
fn a_confirmed_head_has_a_new_age() {
    let site = Site::new();
    let seat = site.seat();
    seat.start().unwrap();
    let later = site.clock.load(Ordering::Relaxed) + 20 * DAY;
    site.clock.store(later, Ordering::Relaxed);
    assert!(matches!(seat.refresh(), Refreshed::Unchanged));
    let _rule = site.offline();
    site.clock.store(later + 29 * DAY, Ordering::Relaxed);
    let started = site.seat().start().unwrap();
    assert_eq!(started.offline.unwrap().since, UnixTime(later));
}

/// Expiry counts when a head is accepted. A running mount goes on; a start with the server in reach fails.
#[test]
fn an_expired_whitelist_is_refused() {
    let site = Site::new();
    let seat = site.seat();
    seat.start().unwrap();
    let keys = FULL.keys();
    let mut whitelist = WhitelistDraft::listing(&keys, FULL.name(), Algorithm::Sha1);
    whitelist.expires = UnixTime(site.clock.load(Ordering::Relaxed) - DAY).to_compact();
    site.repository.write(".cvmfswhitelist", &whitelist.sign(&keys));
    assert!(matches!(seat.refresh(), Refreshed::Unchanged), "the same head needs no new acceptance");
    let tag = site.repository.tag("v3");
    let mut draft = site.repository.draft_at("v3");
    site.repository.publish(&draft.set('S', tag.revision + 1).sign(&keys));
    let error = reason(seat.refresh());
    assert!(matches!(trust_error(&error), TrustError::WhitelistExpired { .. }), "{error}");
    assert_eq!(seat.revision(), tag.revision);
    let error = site.seat().start().unwrap_err();
    assert!(matches!(trust_error(&error), TrustError::WhitelistExpired { .. }), "{error}");
    assert!(error.to_string().contains("the head of full.test"), "{error}");
}

/// The saved head is verified again with the whitelist's validity of then, and the blacklist of today.
#[test]
fn a_blacklisted_certificate_stops_the_saved_head_too() {
    let site = Site::new();
    site.seat().start().unwrap();
    let rule = site.offline();
    site.clock.fetch_add(DAY, Ordering::Relaxed);
    assert!(site.seat().start().is_ok());
    let listed = FULL.keys().fingerprint(Algorithm::Sha1);
    let strict = HeadOptions { blacklist: Blacklist::parse(listed.as_bytes()), ..site.options() };
    let error = site.seat_with(strict.clone()).start().unwrap_err();
    assert!(matches!(error.cause(), Cause::Status(503)), "no saved head counts: {error}");
    rule.lift();
    let error = site.seat_with(strict).start().unwrap_err();
    assert!(matches!(trust_error(&error), TrustError::CertificateBlacklisted { .. }), "{error}");
}

#[test]
fn a_saved_head_is_not_used_under_another_key() {
    let site = Site::new();
    site.seat().start().unwrap();
    let key = std::fs::read(fixture::RMD.public_key()).unwrap();
    let options = HeadOptions { keys: MasterKeys::parse(&key).unwrap(), ..site.options() };
    let error = site.seat_with(options.clone()).start().unwrap_err();
    assert!(matches!(trust_error(&error), TrustError::WhitelistSignature { .. }), "{error}");
    let _rule = site.offline();
    let error = site.seat_with(options).start().unwrap_err();
    assert!(matches!(error.cause(), Cause::Status(503)), "{error}");
}

/// The page of a captive portal is no network; a well-formed head that fails verification is an attack.
#[test]
fn a_captive_portal_counts_as_an_unreachable_server() {
    let site = Site::new();
    site.seat().start().unwrap();
    let rule = site.fault(".cvmfspublished", Fault::Html);
    let started = site.seat().start().unwrap();
    assert!(matches!(trust_error(&started.offline.unwrap().reason), TrustError::Manifest(_)));
    rule.assert_hit();
}

#[test]
fn damaged_files_of_a_head_are_refused_each_in_its_own_words() {
    let site = Site::new();
    let certificate = site.repository.manifest().get('X').unwrap();
    let certificate: &'static str = Box::leak(certificate[2..].to_owned().into_boxed_str());
    let certificate: &'static str = Box::leak(format!("{certificate}X").into_boxed_str());
    let mut texts = std::collections::BTreeSet::new();
    for (file, fault) in [
        (".cvmfspublished", Fault::FlipByte(u64::MAX)),
        (".cvmfspublished", Fault::FlipByte(45)),
        (".cvmfspublished", Fault::Truncate(100)),
        (".cvmfspublished", Fault::Missing),
        (".cvmfspublished", Fault::Content(vec![b'x'; 100_000])),
        (".cvmfswhitelist", Fault::FlipByte(u64::MAX)),
        (".cvmfswhitelist", Fault::Truncate(20)),
        (".cvmfswhitelist", Fault::Missing),
        (".cvmfswhitelist", Fault::Swap(format!("/{}/.cvmfspublished", FULL.name()))),
        (certificate, Fault::FlipByte(300)),
        (certificate, Fault::Truncate(300)),
        (certificate, Fault::Missing),
    ] {
        let rule = site.fault(file, fault.clone());
        let error = site.seat().start().unwrap_err();
        rule.assert_hit();
        assert!(error.to_string().contains("full.test"), "{error}");
        assert!(texts.insert(error.full_text()), "{fault:?} on {file} is told like another: {error}");
        rule.lift();
    }
}

#[test]
fn a_manifest_damaged_once_in_transit_is_fetched_again() {
    let site = Site::new();
    let rule = site.mirror.fault_times(1, |path| path.ends_with("published"), Fault::FlipByte(u64::MAX));
    assert!(site.seat().start().unwrap().offline.is_none());
    rule.assert_hit();
}

#[test]
fn a_damaged_saved_head_is_not_used() {
    let site = Site::new();
    site.seat().start().unwrap();
    let saved = site.saved();
    let whole = std::fs::read(&saved).unwrap();
    let _rule = site.offline();
    for damaged in [whole[..whole.len() / 2].to_vec(), vec![], vec![0; whole.len()]] {
        std::fs::write(&saved, damaged).unwrap();
        site.seat().start().unwrap_err();
    }
    std::fs::write(&saved, whole).unwrap();
    site.seat().start().unwrap();
}

/// Two mounts share a cache folder; the one that lags behind does not put the older head back.
#[test]
fn two_mounts_save_the_newest_head() {
    let site = Site::new();
    site.publish("v2");
    let (first, second) = (site.seat(), site.seat());
    first.start().unwrap();
    second.start().unwrap();
    site.publish("v3");
    assert!(matches!(first.refresh(), Refreshed::New(_)));
    // A server that lags offers the second mount a head which is new to it, but not to the user.
    let between = {
        let mut draft = site.repository.draft_at("v2");
        draft.set('T', site.repository.tag("v2").timestamp + 1);
        draft.sign(&FULL.keys())
    };
    site.repository.publish(&between);
    let error = reason(second.refresh());
    assert!(matches!(trust_error(&error), TrustError::OlderTimestamp { .. }), "{error}");
    site.offline();
    let started = site.seat().start().unwrap();
    assert_eq!(started.head.revision(), site.repository.tag("v3").revision);
}

/// A head that can't be saved is used all the same, and the status says what that means.
#[test]
fn a_head_that_can_not_be_saved_is_used_and_reported() {
    let site = Site::new();
    let disk = FaultDisk::new(site.folder.path(), Plan::Fail { at: 1, ever: true, errno: 28 });
    let seat = site.seat_on(Arc::new(disk), site.folder.path(), site.options());
    assert!(seat.start().unwrap().offline.is_none());
    assert!(seat.keeper.status().unsaved.unwrap().contains("full.test"));
}

/// Loses the power at every change while a new head is saved: after it there is the old one or the new one.
#[test]
fn a_saved_head_survives_power_loss_at_every_change() {
    let site = Site::new();
    let old = site.repository.tag("v2").revision;
    let new = site.repository.tag("v3").revision;
    site.publish("v2");
    site.seat().start().unwrap();
    site.publish("v3");
    let mut found = std::collections::BTreeSet::new();
    for at in 1..100 {
        for seed in 0..10 {
            let folder = tempfile::tempdir().unwrap();
            let saved = site.saved();
            std::fs::copy(&saved, folder.path().join(saved.file_name().unwrap())).unwrap();
            let disk = FaultDisk::new(folder.path(), Plan::Crash { at, seed });
            let seat = site.seat_on(Arc::new(disk.clone()), folder.path(), site.options());
            assert_eq!(seat.start().unwrap().head.revision(), new);
            let Some(after) = disk.after_crash() else {
                assert!(at > 4, "saving takes some changes");
                assert_eq!(found, [old, new].into(), "both were seen");
                // Once it was accepted it stays.
                for seed in 0..10 {
                    let after = disk.crash_now(Loss::Some(seed));
                    let _rule = site.offline();
                    let revived = site.seat_on(Arc::new(RealDisk::PRIVATE), after.path(), site.options());
                    assert_eq!(revived.start().unwrap().head.revision(), new);
                }
                return;
            };
            let rule = site.offline();
            let revived = site.seat_on(Arc::new(RealDisk::PRIVATE), after.path(), site.options());
            let revision = revived.start().unwrap().head.revision();
            rule.lift();
            assert!([old, new].contains(&revision));
            found.insert(revision);
        }
    }
    panic!("saving a head takes no hundred changes");
}
