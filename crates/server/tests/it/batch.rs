use std::path::PathBuf;

use esker_format::batch::{BYTES_MAX, HEADER, NAMES_MAX, path, split};
use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::object::{ObjectKind, ObjectName};
use esker_testkit::fixture::FULL;

use crate::client::Running;

fn objects(repository: &std::path::Path) -> Vec<(ObjectName, Vec<u8>)> {
    let files = |folder: PathBuf| {
        std::fs::read_dir(folder).expect("a fixture").map(|entry| entry.expect("a fixture").path())
    };
    let mut all = Vec::new();
    for folder in
        files(repository.join("data")).filter(|folder| folder.file_name().expect("a fixture").len() == 2)
    {
        for file in files(folder.clone()) {
            let text = [&folder, &file]
                .map(|path| path.file_name().expect("a fixture").to_str().expect("a fixture").to_owned())
                .concat();
            all.push((ObjectName::parse(&text).expect("a fixture"), std::fs::read(file).expect("a fixture")));
        }
    }
    all.sort_by_key(|(name, _)| name.to_string());
    all
}

#[test]
fn many_objects_are_sent_in_one_response() {
    let repository = FULL.unpack();
    let server = Running::of(&[repository.document_root().to_owned()]);
    let all = objects(&repository.path());
    assert!(all.len() > 20);
    let some: Vec<_> = all.iter().filter(|(_, stored)| stored.len() < 10_000).take(NAMES_MAX).collect();
    let names: Vec<_> = some.iter().map(|(name, _)| *name).collect();
    let mut client = server.client();
    let response = client.ask("GET", &format!("/cvmfs/full.test/{}", path(&names)), "");
    assert_eq!((response.status, response.field("Cache-Control")), (200, Some("max-age=259200")));
    let parts = split(&response.body, names.len()).unwrap();
    assert!(some.iter().zip(parts).all(|((_, stored), part)| part == Some(stored.as_slice())));
    let length = response.body.len().to_string();
    let head = client.ask("HEAD", &format!("/cvmfs/full.test/{}", path(&names)), "");
    assert_eq!((head.status, head.field("Content-Length")), (200, Some(length.as_str())));
    // Said with what every client fetches anyway.
    let manifest = client.ask("GET", "/cvmfs/full.test/.cvmfspublished", "");
    assert_eq!(manifest.field(HEADER), Some(NAMES_MAX.to_string().as_str()));
}

/// Such a response may differ next time, so it is not cacheable.
#[test]
fn missing_and_too_large_objects_are_omitted() {
    let repository = FULL.unpack();
    let large = vec![7; BYTES_MAX];
    let hash = ContentHash::of(HashAlgorithm::Sha1, &large);
    let large_name = ObjectName::new(hash, ObjectKind::File);
    let file = repository.path().join(large_name.path());
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, &large).unwrap();
    let server = Running::of(&[repository.document_root().to_owned()]);
    let (there, stored) =
        objects(&repository.path()).into_iter().find(|(name, _)| *name != large_name).unwrap();
    let missing = ObjectName::new(ContentHash::of(HashAlgorithm::Sha1, b"nowhere"), ObjectKind::File);
    let names = [missing, large_name, there];
    let response = server.get(&format!("/cvmfs/full.test/{}", path(&names)));
    assert_eq!((response.status, response.field("Cache-Control")), (200, Some("no-store")));
    assert_eq!(split(&response.body, 3).unwrap(), [None, None, Some(stored.as_slice())]);
    assert_eq!(server.get("/cvmfs/full.test/.esker/batch/nonsense").status, 404);
    let nowhere = server.get(&format!("/cvmfs/other.test/{}", path(&names)));
    assert_eq!(split(&nowhere.body, 3).unwrap(), [None; 3]);
}
