//! Links that owners of repositories made.

use std::fs;
use std::os::unix::fs::symlink;

use esker_server::{Limits, Repositories, Server};
use esker_testkit::fixture::FULL;

use crate::client::Running;

const SHADOW: &str = "/cvmfs/full.test/.cvmfsshadow";

/// A link out of a repository is not served, for any of its files; a link inside is.
#[test]
fn no_link_leads_out_of_a_repository() {
    let repository = FULL.unpack();
    let outside = tempfile::tempdir().expect("a folder");
    let secret = outside.path().join("shadow");
    fs::write(&secret, "root:secret").expect("a secret");
    let manifest = repository.read(".cvmfspublished");
    symlink(&secret, repository.path().join(".cvmfsshadow")).expect("a link");
    let data = repository.path().join("data");
    let object = "/cvmfs/full.test/data/00/00000000000000000000000000000000000000";
    fs::create_dir_all(data.join("00")).expect("a folder");
    symlink(&secret, data.join("00/00000000000000000000000000000000000000")).expect("a link");
    fs::remove_dir_all(data.join("fe")).expect("removing");
    symlink(outside.path(), data.join("fe")).expect("a link");
    fs::write(outside.path().join("00000000000000000000000000000000000000"), "secret").expect("a secret");
    let folders = [repository.path(), repository.document_root().to_owned()];
    for folder in folders {
        let server = Running::of(&[folder]);
        assert_eq!(server.get("/cvmfs/full.test/.cvmfspublished").body, manifest);
        for path in [SHADOW, object, &object.replace("/00/", "/fe/")] {
            let answer = server.get(path);
            assert!(answer.status >= 400, "{path}: {}", answer.text());
            assert!(!answer.text().contains("secret"));
        }
    }
    // The whole repository as a link, and the manifest.
    let root = tempfile::tempdir().expect("a folder");
    symlink(repository.path(), root.path().join("full.test")).expect("a link");
    let server = Running::of(&[root.path().to_owned()]);
    assert!(server.get("/cvmfs/full.test/.cvmfspublished").status >= 400);
    drop(server);
    let top = repository.path().join(".cvmfspublished");
    fs::rename(&top, repository.path().join("data/manifest")).expect("a rename");
    symlink("data/manifest", &top).expect("a link");
    let server = Running::of(&[repository.path()]);
    assert_eq!(server.get("/cvmfs/full.test/.cvmfspublished").body, manifest, "a link that stays in it");
}

/// The usual reason for a link: the data are on another disk, which the administrator names.
#[test]
fn links_lead_into_folders_that_are_named() {
    let repository = FULL.unpack();
    let disk = tempfile::tempdir().expect("a folder");
    let (data, moved) = (repository.path().join("data"), disk.path().join("data"));
    let copied = std::process::Command::new("cp").arg("-r").args([&data, &moved]).status().expect("cp");
    assert!(copied.success());
    fs::remove_dir_all(&data).expect("removing");
    symlink(&moved, &data).expect("a link");
    let folder = fs::read_dir(&moved).expect("folders").find_map(|entry| {
        let path = entry.expect("an entry").path();
        let object = fs::read_dir(&path).ok()?.next()?.ok()?.file_name();
        Some(format!("{}/{}", path.file_name()?.to_str()?, object.to_str()?))
    });
    let object = format!("/cvmfs/full.test/data/{}", folder.expect("an object"));
    let refusing = Repositories::open(&[repository.path()]).expect("a repository");
    assert_eq!(refusing.refused_links(), [(data, moved)]);
    assert_eq!(Running::of(&[repository.path()]).get(&object).status, 403);
    let following = Repositories::following(&[repository.path()], vec![disk.path().to_owned()]);
    let following = following.expect("a repository");
    assert!(following.refused_links().is_empty());
    let server =
        Server::bind("127.0.0.1:0".parse().unwrap(), following, Limits::default()).expect("listening");
    assert_eq!(Running::on(server).get(&object).status, 200);
}
