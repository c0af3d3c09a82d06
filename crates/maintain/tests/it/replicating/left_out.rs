//! The head is switched only when all that it names is here, and what a run left out is fetched by the next one.

use super::*;
use esker_maintain::ReplicateError;

/// Returns the end of the paths of an object.
fn path_of(hash: &str, suffix: &str) -> String {
    format!("/{}/{}{suffix}", &hash[..2], &hash[2..])
}

/// > U11: The head of a replica is replaced only when everything that the new one names is there; what a run left out is reported, remembered and looked for by the next run, also when the head is up to date.
#[test]
fn a_head_is_not_taken_before_all_that_it_names_is_here() {
    let scene = Scene::new();
    scene.replicate();
    fs::write(scene.workshop.source().join("b/f1"), "changed").unwrap();
    scene.workshop.publish();
    let offered = head(&scene.workshop.root());
    let (history, metainfo) = (offered.history.unwrap(), offered.metainfo.unwrap());
    // Certificate and metainfo are those of the first revision; a replica may have lost them.
    let named = [
        path_of(&offered.root_catalog.to_string(), "C"),
        path_of(&history.to_string(), "H"),
        path_of(&metainfo.to_string(), "M"),
        path_of(&offered.certificate.unwrap().to_string(), "X"),
    ];
    for path in named {
        let _ = fs::remove_file(scene.root().join("data").join(&path[1..]));
        let wanted = path.clone();
        let rule = scene.mirror.fault(move |path| path.ends_with(&wanted), Fault::Missing);
        let error = scene.with(|_| ()).unwrap_err();
        rule.assert_hit();
        assert!(
            matches!(&error, ReplicateError::Repository(RepositoryError::Missing { object, .. }) if path.contains(&object[2..40])),
            "{error:?}"
        );
        assert_eq!(head(&scene.root()).revision, 1, "{path}");
        rule.lift();
    }
    scene.replicate();
    scene.assert_equal();
    scene.check("after all arrived");
}

#[test]
fn what_the_head_names_and_is_not_here_is_fetched_although_the_head_is_the_same() {
    let scene = Scene::new();
    scene.replicate();
    let offered = head(&scene.workshop.root());
    let history = path_of(&offered.history.unwrap().to_string(), "H");
    let metainfo = path_of(&offered.metainfo.unwrap().to_string(), "M");
    for path in [history, metainfo] {
        let file = scene.root().join("data").join(&path[1..]);
        fs::remove_file(&file).unwrap();
        scene.replicate();
        assert!(file.exists(), "{path}");
    }
    scene.check("after both came back");
}

#[test]
fn a_state_that_does_not_say_what_was_left_out_is_not_trusted() {
    let scene = Scene::new();
    fs::write(scene.workshop.source().join("b/f0"), "the second").unwrap();
    scene.workshop.publish();
    fs::write(scene.workshop.source().join("b/f0"), "the third").unwrap();
    scene.workshop.publish();
    let object = scene.workshop.object_of(b"the second");
    let name = object.file_name().unwrap().to_str().unwrap().to_owned();
    let rule = scene.mirror.fault(move |path| path.ends_with(&name), Fault::Missing);
    assert_eq!(scene.replicate().skipped.len(), 1);
    rule.lift();
    // As an older version leaves it.
    let path = scene.root().join(".esker/replica/state.json");
    let mut state: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let known = state.as_object_mut().unwrap().remove("left_out").unwrap();
    assert_eq!(known.as_array().unwrap().len(), 1, "the state says what was left out: {known}");
    fs::write(&path, state.to_string()).unwrap();
    let done = scene.replicate();
    assert_eq!((done.objects, done.skipped.len()), (1, 0), "{done:?}");
    scene.assert_equal();
}
