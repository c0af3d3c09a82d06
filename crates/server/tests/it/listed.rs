use esker_testkit::fixture::{ALL, FULL, RMD};
use rustix::fs::inotify;
use serde_json::{Value, json};

use crate::client::Running;

#[test]
fn the_info_api_lists_published_and_replicated_repositories() {
    let (full, rmd) = (FULL.unpack(), RMD.unpack());
    rmd.write(".cvmfs_last_snapshot", b"Fri Oct 18 08:01:07 UTC 2024\n");
    std::fs::rename(full.path(), full.document_root().join("alias.test")).unwrap();
    let server = Running::of(&[full.document_root().to_owned(), rmd.path()]);
    let response = server.get("/cvmfs/info/v1/repositories.json");
    assert_eq!(response.field("Content-Type"), Some("application/json"));
    assert_eq!(response.field("Cache-Control"), Some("max-age=61"));
    let told: Value = serde_json::from_slice(&response.body).expect("JSON");
    let expected = json!({
        "schema": 1,
        "repositories": [{ "name": "full.test", "alias": "alias.test", "url": "/cvmfs/alias.test" }],
        "replicas": [{ "name": "rmd.test", "url": "/cvmfs/rmd.test" }],
    });
    assert_eq!(told, expected);
    let status = server.get("/cvmfs/alias.test/.cvmfs_status.json");
    assert_eq!(status.status, 404);
}

/// Catalogs of real repositories take seconds to read, and a client that asks for names may cause a hundred reads.
#[test]
fn names_are_listed_without_opening_a_catalog() {
    let full = FULL.unpack();
    let root = full.manifest().get('C').expect("a root");
    let catalog = full.path().join(format!("data/{}/{}C", &root[..2], &root[2..]));
    let opened = inotify::init(inotify::CreateFlags::NONBLOCK).expect("an inotify descriptor");
    inotify::add_watch(&opened, catalog, inotify::WatchFlags::OPEN).expect("a watch");
    let is_opened = || {
        let mut events = [std::mem::MaybeUninit::uninit(); 4096];
        inotify::Reader::new(&opened, &mut events).next().is_ok()
    };
    let server = Running::of(&[full.document_root().to_owned()]);
    assert!(server.get("/cvmfs/info/v1/repositories.json").text().contains("full.test"));
    assert!(!is_opened());
    assert!(server.get("/").text().contains("full.test"));
    assert!(is_opened());
}

#[test]
fn the_description_is_the_file_of_the_administrator() {
    let full = FULL.unpack();
    let server = Running::of(&[full.document_root().to_owned()]);
    let ask = || serde_json::from_slice::<Value>(&server.get("/cvmfs/info/v1/meta.json").body).expect("JSON");
    assert_eq!(ask(), json!({ "administrator": "", "email": "", "organisation": "", "custom": {} }));
    let folder = full.document_root().join("info/v1");
    std::fs::create_dir_all(&folder).unwrap();
    let written = json!({ "administrator": "Ada", "email": "", "organisation": "", "custom": { "a": 1 } });
    std::fs::write(folder.join("meta.json"), written.to_string()).unwrap();
    assert_eq!(ask(), written);
}

#[test]
fn the_page_shows_each_repository_and_loads_nothing_from_elsewhere() {
    for fixture in ALL {
        let repository = fixture.unpack();
        let server = Running::of(&[repository.document_root().to_owned()]);
        let response = server.get("/");
        assert_eq!(response.field("Content-Type"), Some("text/html; charset=utf-8"));
        let policy = response.field("Content-Security-Policy").expect("a policy");
        assert!(policy.starts_with("default-src 'none'; ") && !policy.contains("unsafe"), "{policy}");
        let page = response.text();
        let revision = repository.manifest().get('S').expect("a revision");
        let files: u64 = fixture.listing("v3").len() as u64;
        let name = fixture.name();
        assert!(page.contains(&format!("<a href=\"/dashboard/repo/{name}\">{name}</a>")), "{page}");
        assert!(page.contains(&format!("data-live=\"{name} revision\">{revision}</td>")), "{page}");
        let shown = page.replace('\u{202f}', "");
        assert!(shown.contains(&format!("<small>{files} entries</small>")), "{files} entries: {page}");
        assert!(!page.contains("://") && !page.contains("style="), "{page}");
    }
}

/// What a repository's manifest says is shown, not obeyed.
#[test]
fn a_broken_repository_is_shown_as_broken() {
    let full = FULL.unpack();
    let root = full.manifest().get('C').expect("a root");
    let object = format!("data/{}/{}C", &root[..2], &root[2..]);
    full.write(&object, b"damaged");
    let server = Running::of(&[full.document_root().to_owned()]);
    let page = server.get("/");
    assert!(page.text().contains("unreadable") && page.text().contains(&root), "{}", page.text());
    full.write(".cvmfspublished", b"nonsense<script>");
    let other = Running::of(&[full.document_root().to_owned()]);
    let page = other.get("/");
    assert!(page.text().contains("unreadable") && !page.text().contains("<script>"), "{}", page.text());
}
