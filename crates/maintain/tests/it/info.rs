//! The description of a repository, in order or damaged.

use std::fs;

use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_maintain::{InfoContext, RepositoryInfo, list_repositories};
use esker_repository::Storage;

use crate::workshop::{NAME, Workshop, now};

fn describe_at(workshop: &Workshop, now: UnixTime) -> RepositoryInfo {
    let context = InfoContext {
        place: "here".to_owned(),
        name: RepositoryName::parse(NAME).ok(),
        keys: workshop.keys().public().ok(),
        own: None,
        now,
    };
    let mut info = RepositoryInfo::read(&**Storage::open(&workshop.root()).unwrap().sink(), &context);
    info.add_publisher(&workshop.root(), Some(&workshop.keys()));
    info
}

fn parts(info: &RepositoryInfo) -> Vec<&str> {
    info.problems.iter().map(|problem| problem.part).collect()
}

#[test]
fn a_sound_repository_is_described() {
    let workshop = Workshop::new();
    fs::write(workshop.source().join("file"), "content").unwrap();
    workshop.publish();
    let info = describe_at(&workshop, now());
    assert_eq!((parts(&info), &info.warnings), (vec![], &Vec::new()));
    assert_eq!(
        (info.revision, info.tags, info.signatures_verified),
        (Some(1), Some(2), Some(true)),
        "{info:?}"
    );
    assert_eq!(
        (info.ttl, info.garbage_collectable, info.master_replica),
        (Some(240), Some(true), Some(true))
    );
    let certificate = info.certificate.unwrap();
    assert_eq!(certificate.listed, Some(true));
    assert!(certificate.expires > now().0);
    assert_eq!(info.whitelist.unwrap().certificates, [certificate.fingerprint]);
    assert!(info.settings.iter().all(|setting| setting.default), "{:?}", info.settings);
    assert_eq!(info.keys.iter().filter(|key| key.present).count(), 4);
}

#[test]
fn an_expired_whitelist_is_a_warning() {
    let workshop = Workshop::new();
    let late = describe_at(&workshop, UnixTime(now().0 + 40 * 86_400));
    assert_eq!((late.signatures_verified, late.whitelist.unwrap().expired), (Some(true), true));
    assert!(late.warnings[0].contains("whitelist expired"), "{:?}", late.warnings);
    let soon = describe_at(&workshop, UnixTime(now().0 + 25 * 86_400));
    assert!(soon.warnings[0].contains("whitelist expires"), "{:?}", soon.warnings);
}

/// Each file is removed, then replaced by nonsense: the report names its part, and still has the revision.
#[test]
fn damaged_parts_are_named_and_the_others_described() {
    let workshop = Workshop::new();
    fs::write(workshop.source().join("file"), "content").unwrap();
    workshop.publish();
    let head =
        esker_format::manifest::Manifest::parse(&fs::read(workshop.root().join(".cvmfspublished")).unwrap());
    let head = head.unwrap();
    let object = |hash: esker_format::hash::ContentHash, suffix: &str| {
        let text = hash.to_string();
        format!("data/{}/{}{suffix}", &text[..2], &text[2..])
    };
    for (path, part) in [
        (".cvmfswhitelist".to_owned(), "whitelist"),
        (object(head.certificate.unwrap(), "X"), "certificate"),
        (object(head.history.unwrap(), "H"), "history"),
        (".cvmfsreflog".to_owned(), "reflog"),
        (".cvmfs_status.json".to_owned(), "status"),
        (".esker/settings.json".to_owned(), "settings"),
    ] {
        let full = workshop.root().join(&path);
        let sound = fs::read(&full).ok();
        for content in [None, Some("nonsense"), Some("")] {
            match content {
                None if sound.is_none() => continue,
                None => fs::remove_file(&full).unwrap(),
                Some(text) => fs::write(&full, text).unwrap(),
            }
            let info = describe_at(&workshop, now());
            assert_eq!(info.revision, Some(1), "{path}");
            let absent_is_fine = content.is_none() && ["reflog", "settings"].contains(&part);
            let named = parts(&info).contains(&part);
            assert_eq!(named, !absent_is_fine, "{path} {content:?}: {:?}", info.problems);
        }
        match sound {
            Some(bytes) => fs::write(&full, bytes).unwrap(),
            None => fs::remove_file(&full).unwrap(),
        }
    }
    fs::remove_file(workshop.root().join(".cvmfspublished")).unwrap();
    let info = describe_at(&workshop, now());
    assert!(info.revision.is_none() && info.whitelist.is_some() && parts(&info) == ["manifest"], "{info:?}");
}

#[test]
fn repositories_of_a_folder_are_listed() {
    let workshop = Workshop::new();
    let storage = workshop.folder.path();
    fs::create_dir(storage.join("empty.test")).unwrap();
    fs::write(storage.join("file.test"), "no folder").unwrap();
    fs::create_dir(storage.join("damaged.test")).unwrap();
    fs::write(storage.join("damaged.test/.cvmfspublished"), "nonsense").unwrap();
    let listed = list_repositories(storage, now()).unwrap();
    let names: Vec<_> = listed.iter().map(|listed| listed.name.as_str()).collect();
    assert_eq!(names, ["damaged.test", NAME]);
    assert!(listed[0].problem.is_some() && listed[0].revision.is_none());
    assert_eq!((listed[1].revision, listed[1].whitelist_expired), (Some(0), Some(false)));
    assert_eq!(list_repositories(&storage.join("nowhere"), now()).unwrap(), []);
}

/// Two hundred repositories are listed from two small files each.
#[test]
fn a_list_reads_no_objects() {
    let workshop = Workshop::new();
    let storage = tempfile::tempdir().unwrap();
    for number in 0..200 {
        let folder = storage.path().join(format!("r{number}.test"));
        fs::create_dir(&folder).unwrap();
        for file in [".cvmfspublished", ".cvmfswhitelist"] {
            fs::copy(workshop.root().join(file), folder.join(file)).unwrap();
        }
    }
    let listed = list_repositories(storage.path(), now()).unwrap();
    assert_eq!(listed.len(), 200);
    assert!(listed.iter().all(|listed| listed.problem.is_none() && listed.revision == Some(0)));
}
