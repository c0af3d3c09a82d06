//! Buckets of real servers, which `scripts/s3-servers.sh` installs.

use std::sync::Barrier;
use std::thread;

use esker_object_storage::{Environment, StorageSettings};
use esker_store::Swap;
use esker_testkit::s3::{AZURITE_ACCOUNT, S3Program};
use esker_testkit::skip_optional;

use crate::buckets::{HEAD, object, open};

const URL: &str = "s3://bucket/cvmfs/a.test";

fn settings(server: &S3Program) -> StorageSettings {
    let environment: Environment =
        [("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")].into_iter().collect();
    StorageSettings { endpoint: Some(server.endpoint()), environment, ..StorageSettings::default() }
}

/// Stores, lists, reads, replaces and deletes.
fn keeps_its_promises(url: &str, settings: &StorageSettings) {
    let sink = open(url, settings);
    sink.make_folders().unwrap();
    let objects: Vec<_> = (0..200).map(object).collect();
    for (name, bytes) in &objects {
        sink.put(name, bytes).unwrap();
    }
    sink.flush().unwrap();
    let large: Vec<u8> = (0..35_u32 << 18).flat_map(u32::to_le_bytes).collect();
    let hash = esker_format::hash::ContentHash::of(esker_format::hash::HashAlgorithm::Rmd160, &large);
    let large_name = esker_format::object::ObjectName::new(hash, esker_format::object::ObjectKind::File);
    sink.put(&large_name, &large).unwrap();
    sink.flush().unwrap();
    sink.put_alternative(&objects[0].0).unwrap();
    let mut found = Vec::new();
    sink.list(&mut |listed| found.push((listed.name, listed.len))).unwrap();
    found.sort();
    let mut expected: Vec<_> = objects.iter().map(|(name, bytes)| (*name, bytes.len() as u64)).collect();
    expected.push((large_name, large.len() as u64));
    expected.sort();
    assert_eq!(found, expected);
    for (name, bytes) in &objects {
        assert_eq!(sink.len_of(name).unwrap(), Some(bytes.len() as u64));
        assert_eq!(sink.read(&name.path(), 1000).unwrap().as_ref(), Some(bytes));
    }
    let mut copy = Vec::new();
    sink.read_to(&large_name.path(), &mut copy).unwrap();
    assert!(copy == large);
    assert_eq!(sink.read(HEAD, 100).unwrap(), None);
    assert_eq!(sink.replace_root(HEAD, b"first", None).unwrap(), Swap::Replaced);
    assert_eq!(sink.replace_root(HEAD, b"again", None).unwrap(), Swap::Moved);
    assert_eq!(sink.replace_root(HEAD, b"second", Some(b"first")).unwrap(), Swap::Replaced);
    assert_eq!(sink.replace_root(HEAD, b"third", Some(b"first")).unwrap(), Swap::Moved);
    assert_eq!(sink.read(HEAD, 100).unwrap().as_deref(), Some(&b"second"[..]));
    let mut root = sink.list_root().unwrap();
    root.sort();
    assert_eq!(root, [objects[0].0.alternative_path(), HEAD.to_owned()]);
    let names: Vec<_> = objects.iter().map(|(name, _)| *name).collect();
    sink.delete(&names).unwrap();
    sink.delete(&names[..3]).unwrap();
    sink.remove_all().unwrap();
    let mut left = 0;
    sink.list(&mut |_| left += 1).unwrap();
    assert_eq!((left, sink.list_root().unwrap().len()), (0, 0));
}

/// Writers add to one head, and start again if they lose.
fn decides_races(url: &str, settings: &StorageSettings) {
    const WRITERS: u8 = 8;
    const ROUNDS: usize = 10;
    let barrier = Barrier::new(usize::from(WRITERS));
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let barrier = &barrier;
            scope.spawn(move || {
                let sink = open(url, settings);
                sink.prepare().unwrap();
                barrier.wait();
                for _ in 0..ROUNDS {
                    loop {
                        let old = sink.read(HEAD, 1000).unwrap();
                        let new = [old.as_deref().unwrap_or_default(), &[b'a' + writer]].concat();
                        if sink.replace_root(HEAD, &new, old.as_deref()).unwrap() == Swap::Replaced {
                            break;
                        }
                    }
                }
            });
        }
    });
    let head = open(url, settings).read(HEAD, 1000).unwrap().unwrap();
    assert_eq!(head.len(), usize::from(WRITERS) * ROUNDS);
}

#[test]
fn gofakes3_holds_a_repository_and_decides_races() {
    let Some(server) = S3Program::gofakes3() else {
        skip_optional!("gofakes3 is not installed (scripts/s3-servers.sh)");
        return;
    };
    keeps_its_promises(URL, &settings(&server));
    decides_races(URL, &settings(&server));
}

#[test]
fn moto_holds_a_repository() {
    let Some(server) = S3Program::moto() else {
        skip_optional!("moto is not installed (scripts/s3-servers.sh)");
        return;
    };
    let lock = tempfile::tempdir().unwrap();
    keeps_its_promises(URL, &StorageSettings { lock: Some(lock.path().join("lock")), ..settings(&server) });
}

#[test]
fn versitygw_keeps_each_published_round_when_it_is_killed() {
    const ROUNDS: u32 = 60;
    const KILLS: u32 = 6;
    const PER_ROUND: u32 = 5;
    let Some(mut server) = S3Program::versitygw() else {
        skip_optional!("versitygw is not installed (scripts/s3-servers.sh versitygw)");
        return;
    };
    // Now and then it tells a new version of the old content, which the probe finds: its conditional puts are no help.
    let lock = tempfile::tempdir().unwrap();
    let settings = StorageSettings { lock: Some(lock.path().join("lock")), ..settings(&server) };
    keeps_its_promises(URL, &settings);
    open(URL, &settings).remove_root(HEAD).unwrap();
    let objects = |round: u32| (round * PER_ROUND..(round + 1) * PER_ROUND).map(object);
    let (published, rounds) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let published = published;
            let sink = open(URL, &settings);
            let mut old: Option<Vec<u8>> = None;
            for round in 0..ROUNDS {
                for (name, bytes) in objects(round) {
                    sink.put(&name, &bytes).unwrap();
                }
                sink.flush().unwrap();
                let new = round.to_string().into_bytes();
                assert_eq!(sink.replace_root(HEAD, &new, old.as_deref()).unwrap(), Swap::Replaced);
                old = Some(new);
                published.send(round).unwrap();
            }
        });
        // It ends with the publisher.
        for round in rounds {
            if round % (ROUNDS / KILLS) == 1 {
                server.kill();
                server.restart();
            }
        }
    });
    let sink = open(URL, &settings);
    assert_eq!(sink.read(HEAD, 10).unwrap(), Some((ROUNDS - 1).to_string().into_bytes()));
    for (name, bytes) in (0..ROUNDS).flat_map(objects) {
        assert_eq!(sink.read(&name.path(), 1000).unwrap(), Some(bytes), "{name}");
    }
}

/// Settings of Azure's protocol.
fn azure(server: &S3Program) -> StorageSettings {
    let (account, key) = AZURITE_ACCOUNT;
    let variables = [("AZURE_STORAGE_ACCOUNT_NAME", account), ("AZURE_STORAGE_ACCOUNT_KEY", key)];
    StorageSettings {
        endpoint: Some(format!("{}/{account}", server.endpoint())),
        environment: variables.into_iter().collect(),
        ..StorageSettings::default()
    }
}

#[test]
fn azurite_holds_a_repository_and_decides_races() {
    let Some(server) = S3Program::azurite() else {
        skip_optional!("Azurite is not installed (scripts/s3-servers.sh azurite)");
        return;
    };
    let url = "az://bucket/cvmfs/a.test";
    keeps_its_promises(url, &azure(&server));
    decides_races(url, &azure(&server));
}
