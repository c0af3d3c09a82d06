//! Storage that belongs to others is left as it is.

use esker_maintain::ReplicateError;
use std::collections::BTreeMap;

use esker_repository::{KeyFolder, ReplicaState};
use esker_store::Sink as _;

use super::*;

const OTHER: &str = "other.test";

/// Returns all files below a folder with their bytes.
fn content(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => waiting.push(entry.path()),
                false => drop(files.insert(entry.path(), fs::read(entry.path()).unwrap())),
            }
        }
    }
    files
}

/// Another repository with its keys.
fn other(folder: &Path) -> PathBuf {
    let new = NewRepository::new(RepositoryName::parse(OTHER).unwrap());
    let root = folder.join(OTHER);
    new.create(&root, &KeyFolder::new(folder.join("keys"), &new.name), now()).unwrap();
    root
}

#[test]
fn a_replica_is_not_written_over_another_one() {
    let scene = Scene::new();
    let folder = tempfile::tempdir().unwrap();
    // A replica of another repository, as its manifest says.
    let root = other(folder.path());
    fs::remove_file(root.join(".cvmfs_master_replica")).unwrap();
    let before = content(&root);
    let error = options(&scene.workshop, scene.source()).run(&root, now()).unwrap_err();
    assert!(
        matches!(&error, ReplicateError::Repository(RepositoryError::OtherRepository { name, .. }) if name == OTHER),
        "{error:?}"
    );
    assert_eq!(content(&root), before);
    // The same before the first head arrived, when the state alone knows.
    let root = scene.root();
    let rule = scene.mirror.fault(|path| path.ends_with('C'), Fault::Missing);
    assert!(scene.with(|_| ()).is_err());
    rule.assert_hit();
    let before = content(&root);
    let mut replicate = options(&scene.workshop, scene.source());
    replicate.name = RepositoryName::parse(OTHER).unwrap();
    let error = replicate.run(&root, now()).unwrap_err();
    assert!(
        matches!(&error, ReplicateError::Repository(RepositoryError::OtherRepository { name, .. }) if name == NAME),
        "{error:?}"
    );
    assert_eq!(content(&root), before);
}

#[test]
fn a_bucket_with_another_repository_is_left_as_it_is() {
    let scene = Scene::new();
    let (folder, bucket) = (tempfile::tempdir().unwrap(), Arc::<MemoryBucket>::default());
    let head = fs::read(other(folder.path()).join(".cvmfspublished")).unwrap();
    let sink = MemorySink::new(&bucket);
    sink.put_root(".cvmfspublished", &head).unwrap();
    let place = folder.path().join("place");
    let storage = || Storage::new(&place, MemorySink::new(&bucket));
    let error = options(&scene.workshop, scene.source()).run(storage(), now()).unwrap_err();
    assert!(
        matches!(&error, ReplicateError::Repository(RepositoryError::OtherRepository { name, .. }) if name == OTHER),
        "{error:?}"
    );
    assert_eq!(sink.list_root().unwrap(), [".cvmfspublished"]);
    sink.remove_root(".cvmfspublished").unwrap();
    sink.put_root("thesis.tex", b"mine").unwrap();
    let error = options(&scene.workshop, scene.source()).run(storage(), now()).unwrap_err();
    assert!(
        matches!(&error, ReplicateError::Repository(RepositoryError::Foreign { found, .. }) if found == "thesis.tex"),
        "{error:?}"
    );
    let new = NewRepository::new(RepositoryName::parse(NAME).unwrap());
    let error = new.create(storage(), &scene.workshop.keys(), now()).unwrap_err();
    assert!(matches!(error, RepositoryError::Foreign { .. }), "{error:?}");
    assert_eq!(sink.list_root().unwrap(), ["thesis.tex"]);
}

/// > U13: A storage that has another repository, or files and no repository, is left as it is, and a run that is refused changes nothing that is remembered of a replica.
#[test]
fn a_folder_of_other_files_is_left_as_it_is() {
    let scene = Scene::new();
    let new = NewRepository::new(RepositoryName::parse(NAME).unwrap());
    for file in ["thesis.tex", "data/measured", "objects/pack/x"] {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join(NAME);
        fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
        fs::write(root.join(file), "mine").unwrap();
        let before = content(folder.path());
        let error = options(&scene.workshop, scene.source()).run(&root, now()).unwrap_err();
        assert!(
            matches!(error, ReplicateError::Repository(RepositoryError::Foreign { .. })),
            "{file}: {error:?}"
        );
        let error = new.create(&root, &scene.workshop.keys(), now()).unwrap_err();
        assert!(matches!(error, RepositoryError::Foreign { .. }), "{file}: {error:?}");
        assert_eq!(content(folder.path()), before, "{file}");
    }
    // An empty folder is fine, that of a new file system too, and what an interrupted first run left.
    for folder in ["", "lost+found", "data/txn", "data/0f"] {
        let root = scene.folder.path().join("fresh").join(folder.replace('/', "-")).join(NAME);
        fs::create_dir_all(root.join(folder)).unwrap();
        options(&scene.workshop, scene.source()).run(&root, now()).unwrap();
    }
}

/// > U13: A storage that has another repository, or files and no repository, is left as it is, and a run that is refused changes nothing that is remembered of a replica.
#[test]
fn a_refused_run_changes_nothing_that_is_remembered() {
    let scene = Scene::new();
    scene.replicate();
    let known = |scene: &Scene| ReplicaState::read(&scene.root()).unwrap().unwrap();
    let before = known(&scene);
    let head = scene.mirror.fault(|path| path.ends_with(".cvmfspublished"), Fault::Html);
    let refused = scene.with(|replicate| {
        replicate.servers = "http://elsewhere.test/cvmfs/workshop.test".to_owned();
        replicate.paths = vec![b"/b".to_vec()];
        replicate.revisions = RevisionLimit::Newest(1);
    });
    assert!(refused.is_err());
    head.assert_hit();
    head.lift();
    let after = known(&scene);
    assert!(after.failure.is_some());
    let asked = |state: &ReplicaState| {
        (
            state.servers.clone(),
            state.keys.clone(),
            state.paths.clone(),
            state.revisions,
            state.complete.clone(),
        )
    };
    assert_eq!(asked(&after), asked(&before));
    // A run whose first objects fail changes no selection either.
    let rule = scene.mirror.fault(|path| path.contains("/data/"), Fault::Status(500));
    fs::write(scene.workshop.source().join("b/f1"), "changed").unwrap();
    scene.workshop.publish();
    assert!(scene.with(|replicate| replicate.paths = vec![b"/b".to_vec()]).is_err());
    rule.assert_hit();
    rule.lift();
    assert_eq!(known(&scene).paths, before.paths);
    scene.replicate();
    scene.assert_equal();
}

#[test]
fn a_first_run_that_is_refused_is_not_remembered() {
    let scene = Scene::new();
    let rule = scene.mirror.fault(|path| path.ends_with(".cvmfswhitelist"), Fault::Html);
    assert!(scene.with(|_| ()).is_err());
    rule.assert_hit();
    assert_eq!(ReplicaState::read(&scene.root()).unwrap(), None);
    rule.lift();
    scene.replicate();
}

#[test]
fn what_is_remembered_of_a_replica_in_a_bucket_lies_in_the_bucket() {
    let scene = Scene::new();
    let (folder, bucket) = (tempfile::tempdir().unwrap(), Arc::<MemoryBucket>::default());
    let run = |machine: &str, bucket: &Arc<MemoryBucket>| {
        let storage = Storage::new(&folder.path().join(machine), MemorySink::new(bucket));
        options(&scene.workshop, scene.source()).run(storage, now()).unwrap()
    };
    assert!(run("first", &bucket).changed);
    // Another machine goes on, without looking for each object.
    let done = run("second", &bucket);
    assert!(!done.changed && done.catalogs == 0, "{done:?}");
    // Another bucket is not taken for the first one, whatever the machine remembers.
    let empty = Arc::<MemoryBucket>::default();
    let done = run("first", &empty);
    assert!(done.changed && done.objects > 0, "{done:?}");
    let copy = tempfile::tempdir().unwrap();
    empty.export(&copy.path().join(NAME));
    findings(&scene.workshop, &copy.path().join(NAME)).assert_whole("in the second bucket");
    // What an older version remembered beside the bucket is read, and moved.
    let sink = MemorySink::new(&bucket);
    sink.remove_root(".esker_replica.json").unwrap();
    let state = folder.path().join("second/.esker/replica/state.json");
    assert!(state.exists());
    let done = run("second", &bucket);
    assert!(!done.changed && done.catalogs == 0, "{done:?}");
    assert!(sink.list_root().unwrap().iter().any(|name| name == ".esker_replica.json"));
}

#[test]
fn the_reflog_checksum_of_cvmfs_server_follows_a_replication_and_a_collect() {
    let scene = Scene::new();
    let spool = scene.folder.path().join("spool");
    fs::create_dir(&spool).unwrap();
    let assert_same = |when: &str| {
        let reflog = fs::read(scene.root().join(".cvmfsreflog")).unwrap();
        let known = fs::read_to_string(spool.join("reflog.chksum")).unwrap();
        assert_eq!(esker_testkit::object::Algorithm::of_text(&known).hash(&reflog), known, "{when}");
    };
    let replicate = || scene.with(|replicate| replicate.spool = Some(spool.clone())).unwrap();
    replicate();
    assert_same("a first run");
    fs::write(scene.workshop.source().join("b/f1"), "changed").unwrap();
    scene.workshop.publish();
    replicate();
    assert_same("a second run");
    // As a run that was killed leaves it.
    fs::write(spool.join("reflog.chksum"), "0".repeat(40)).unwrap();
    assert!(!replicate().changed);
    assert_same("a run without a change");
    let name = RepositoryName::parse(NAME).unwrap();
    let mut replica = esker_repository::Repository::open_replica(&scene.root(), &name, now()).unwrap();
    replica.tell_spool(&spool);
    let collect = crate::collecting::at_once(esker_maintain::Keep::Tags);
    esker_maintain::Collect { orphans: Some(-86_400), ..collect }.run(&replica, now()).unwrap();
    assert_same("a collect");
}
