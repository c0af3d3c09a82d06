//! Tests of the form in which options outlive a daemon.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use esker_cache_share::BrokerAddress;
use esker_config::{SyslogOptions, TalkOptions, Telemetry, Tuning};
use esker_format::blacklist::Blacklist;
use esker_format::hash::ContentHash;
use esker_format::master_keys::MasterKeys;
use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_store::{
    DatagramTarget, FileVersion, KeptAuthorities, Lower, LowerForm, Proxies, Servers, Validator,
};
use esker_testkit::fixture;
use esker_view::{IdMap, Ownership, Pin, Protected, ViewOptions, Visibility};
use rustix::fs::{SealFlags, fcntl_get_seals};
use serde_json::{Value, json};

use super::*;
use crate::push::Push;
use crate::repository::RepositoryOptions;

fn path(bytes: &[u8]) -> PathBuf {
    OsString::from_vec(bytes.to_vec()).into()
}

/// Options of which none has its default.
pub(crate) fn repository() -> RepositorySpec {
    let key = std::fs::read(fixture::FULL.public_key()).expect("a key");
    let proxies = Proxies::parse("http://me:secret@p:3128;DIRECT", None).expect("proxies");
    let map = IdMap { known: BTreeMap::from([(1, 2), (70_000, 3)]), others: Some(4) };
    RepositorySpec {
        options: RepositoryOptions {
            servers: Servers { proxies, ..Servers::direct("http://s/cvmfs/full.test") },
            name: RepositoryName::parse("full.test").expect("a name"),
            keys: MasterKeys::parse(&key).expect("a key"),
            blacklist: Blacklist::parse(b"<full.test 3\n"),
            cache: path(b"/cache\xff"),
            streaming: true,
            quota: 7,
            lower: vec![Lower { folder: path(b"/lower\xff"), form: LowerForm::Alien, root: 65_534 }],
            broker: Some(BrokerAddress { socket: path(b"/broker\xff"), trusted: vec![0, 5], is_named: true }),
            offline: true,
            forget_history: true,
            valid_at: None,
            deadline: Some(Duration::from_millis(1_500)),
            kept_authorities: serde_json::from_value(json!({ "/ca.pem": "text" })).expect("texts"),
        },
        view: ViewOptions {
            ownership: Ownership::Claim { uid: 5, gid: 6 },
            uids: map.clone(),
            gids: map,
            world_readable: true,
            magic: Visibility::Everywhere,
            variables: BTreeMap::from([("ARCH".to_owned(), "x86_64".to_owned())]),
            raw_targets: true,
            ttl: Some(Duration::from_secs(1)),
            ttl_max: Some(Duration::from_secs(2)),
            pin: Some(Pin::Date(UnixTime(1_700_000_000))),
            prefetch: true,
            attached_max: Some(64),
            ..ViewOptions::default()
        },
        protected: Protected { names: ["user.fqrn".to_owned()].into(), groups: [7].into() },
        enforce_acls: true,
        push: Push::Notifications("http://n".to_owned()),
        tuning: Tuning { oom_score: Some(-5), cpus: vec![0, 3], survives: true },
        syslog: Some(SyslogOptions::default()),
        telemetry: Some(Telemetry {
            to: DatagramTarget { host: "h".to_owned(), port: 8089, every: Duration::from_secs(9) },
            metric: "m".to_owned(),
            tags: "t=1".to_owned(),
            fields: "f=1".to_owned(),
            differences: true,
        }),
        talk: Some(TalkOptions { socket: "/talk".into(), owner: Some(8), longest_ttl: None }),
    }
}

fn spec(content: ContentSpec) -> MountSpec {
    MountSpec {
        options: AccessSpec {
            source: "a".to_owned(),
            allow_other: true,
            noexec: true,
            labels: vec![("context".to_owned(), "u:r:t:s0".to_owned())],
        },
        shown_with: Presentation::Overlay,
        kernel: KernelMask::LINUX_5_14,
        deadline: Some(Duration::from_secs(3)),
        replay: true,
        confined: false,
        is_cache_in_home: true,
        log_levels: Some(String::from("debug")),
        origin: Origin { arguments: vec![OsString::from_vec(vec![0xff])], folder: path(b"/\xff") },
        ..MountSpec::new(path(b"/mnt/\xff"), path(b"/run/\xff"), content)
    }
}

fn value(spec: &MountSpec) -> Value {
    serde_json::to_value(spec).expect("a form")
}

fn read(value: &Value) -> Result<MountSpec, SpecError> {
    MountSpec::parse(&serde_json::to_vec(value).expect("text"))
}

/// Every content that a mount can have.
pub(crate) fn all() -> Vec<MountSpec> {
    let image = |place| {
        ContentSpec::Image(Box::new(ImageSpec {
            place,
            offset: Some(1),
            stripe: Some(2),
            owner: Some((3, 4)),
        }))
    };
    let version = FileVersion { len: 9, version: Some(Validator::Tag("\"x\"".to_owned())) };
    let mut pinned = repository();
    pinned.view.pin = Some(Pin::Root(ContentHash::parse(&"ab".repeat(20)).expect("a hash")));
    vec![
        spec(ContentSpec::Repository(Box::new(repository()))),
        spec(image(ImagePlace::File { path: path(b"/\xff"), cache: PathBuf::new() })),
        spec(image(ImagePlace::Url {
            url: "http://h/a.sqfs".to_owned(),
            servers: Servers::direct("http://h"),
            digest: Some("ab".repeat(32)),
            known: Some(version),
            cache: path(b"/\xff"),
            quota: 5,
            deadline: None,
            kept: KeptAuthorities::default(),
        })),
        spec(image(ImagePlace::Object {
            named: "full.test".to_owned(),
            repository: Box::new(pinned),
            path: "/a".to_owned(),
        })),
    ]
}

#[test]
fn options_survive_a_round_trip_through_a_sealed_file() {
    for spec in all() {
        let file = spec.sealed().expect("a file");
        let seals = fcntl_get_seals(file.as_fd()).expect("seals");
        assert!(seals.contains(SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL));
        let again = MountSpec::read(file.try_clone().expect("a descriptor")).expect("options");
        assert_eq!(value(&again), value(&spec));
        // The supervisor hands the same open file to each daemon.
        assert_eq!(value(&MountSpec::read(file).expect("options")), value(&spec));
    }
}

/// What a program ignored could be an option that protects.
#[test]
fn unknown_fields_and_values_are_refused_by_name() {
    let known = value(&all()[0]);
    let places = ["", "/options", "/origin", "/content/Repository", "/content/Repository/options"];
    let deeper = ["/content/Repository/view", "/content/Repository/protected", "/content/Repository/talk"];
    for place in places.into_iter().chain(deeper) {
        let mut newer = known.clone();
        let part = newer.pointer_mut(place).and_then(Value::as_object_mut).expect(place);
        part.insert("hidden_folders".to_owned(), json!(["/secret"]));
        let error = read(&newer).err().unwrap_or_else(|| panic!("{place} is accepted"));
        assert!(error.to_string().contains("hidden_folders"), "{place}: {error}");
    }
    for (place, other) in [
        ("/shown_with", json!("ext9")),
        ("/content/Repository/options/servers", json!("server http://s\nquic yes\n")),
        ("/content", json!({ "Tape": {} })),
    ] {
        let mut newer = known.clone();
        *newer.pointer_mut(place).expect(place) = other;
        let error = read(&newer).err().unwrap_or_else(|| panic!("{place} is accepted")).to_string();
        assert!(["ext9", "quic", "Tape"].iter().any(|name| error.contains(name)), "{place}: {error}");
    }
}

#[test]
fn another_version_is_named_whatever_else_it_has() {
    let error = read(&json!({ "version": 2, "all": "else" })).err().expect("another version").to_string();
    assert!(error.contains("version 2") && error.contains("version 1"), "{error}");
    let error = MountSpec::parse(b"no JSON").err().expect("no options").to_string();
    assert!(error.contains("doesn't understand"), "{error}");
}

#[test]
fn a_successor_accepts_no_older_head() {
    let mut spec = all().remove(0);
    spec.for_successor();
    let ContentSpec::Repository(repository) = &spec.content else { panic!("a repository") };
    assert!(!repository.options.forget_history);
}
