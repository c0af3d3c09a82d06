//! What administrators of replicas meet: mistyped names, repositories that were made anew, limits.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_format::name::RepositoryName;
use esker_maintain::{Pace, Replicate, ReplicateError};
use esker_repository::{NewRepository, RepositoryError};

use super::{Scene, engine, head, options, source};
use crate::workshop::{NAME, now};

#[test]
fn a_repository_that_no_server_has_leaves_nothing_behind() {
    let scene = Scene::new();
    let name = RepositoryName::parse("wrokshop.test").unwrap();
    let source = source(&engine(), &[scene.mirror.url(name.as_str())]);
    let replicate = Replicate { name: name.clone(), ..options(&scene.workshop, source) };
    let error = replicate.run(&scene.folder.path().join(name.as_str()), now()).unwrap_err();
    assert!(
        matches!(&error, ReplicateError::NoRepository { name, .. } if name == "wrokshop.test"),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(
        text.contains(&scene.mirror.url("wrokshop.test"))
            && text.ends_with("has no repository wrokshop.test")
    );
    assert_eq!(fs::read_dir(scene.folder.path()).unwrap().count(), 0);
}

#[test]
fn the_space_that_stays_free_is_remembered() {
    let scene = Scene::new();
    let with = |reserve| scene.with(|replicate| replicate.reserve = reserve);
    let is_full = |outcome: Result<_, _>| matches!(outcome, Err(ReplicateError::Full { .. }));
    assert!(is_full(with(Some(u64::MAX / 2))));
    assert!(is_full(with(None)), "what the first run was told counts");
    with(Some(0)).unwrap();
    fs::write(scene.workshop.source().join("b/f1"), "changed").unwrap();
    scene.workshop.publish();
    with(None).unwrap();
    scene.assert_equal();
}

#[test]
fn a_repository_that_was_made_anew_is_copied_once_its_history_is_forgotten() {
    let scene = Scene::new();
    fs::write(scene.workshop.source().join("b/f1"), "changed").unwrap();
    scene.workshop.publish();
    scene.replicate();
    assert_eq!(head(&scene.root()).revision, 2);
    fs::remove_dir_all(scene.workshop.root()).unwrap();
    let anew = NewRepository::new(RepositoryName::parse(NAME).unwrap());
    anew.create(&scene.workshop.root(), &scene.workshop.keys(), now()).unwrap();
    scene.workshop.publish();
    let error = scene.with(|_| ()).unwrap_err();
    assert!(
        matches!(
            error,
            ReplicateError::Repository(RepositoryError::Storage(_) | RepositoryError::Untrusted { .. })
        ),
        "{error:?}"
    );
    assert_eq!(head(&scene.root()).revision, 2);
    scene.with(|replicate| replicate.forget_history = true).unwrap();
    assert_eq!(head(&scene.root()).revision, 1);
    scene.assert_equal();
    scene.replicate();
}

#[test]
fn what_is_fetched_stays_below_a_rate() {
    const RATE: u64 = 4000;
    let scene = Scene::new();
    let begun = Instant::now();
    let pace = Arc::new(Pace::new(Some(RATE), Arc::default()));
    let done = scene.with(|replicate| replicate.pace = Some(pace)).unwrap();
    let least = Duration::from_secs_f64(done.bytes as f64 / RATE as f64);
    assert!(done.bytes > RATE && begun.elapsed() >= least, "{} bytes in {:?}", done.bytes, begun.elapsed());
    scene.assert_equal();
}
