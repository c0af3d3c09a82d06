//! Files with external data.

use std::fs;
use std::path::Path;

use esker_testkit::catalog::halves;
use esker_testkit::object::{Algorithm, unhex};
use esker_testkit::revision_builder::{FLAG_FILE, NewEntry, RevisionBuilder};
use esker_testkit::web::Web;

use super::Site;
use crate::test_env::words;
use crate::test_user::TestUser;

/// Flags of catalogs: external content, chunks, and content that is not compressed.
const EXTERNAL: u32 = 0x80;
const CHUNKED: u32 = 0x40;
const PLAIN: u32 = 0x800;

const WHOLE: &str = "whole ü%.bin";
const CHUNK: usize = 40_000;

fn content(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 ^ seed).collect()
}

fn digest(bytes: &[u8]) -> [u8; 20] {
    unhex(&Algorithm::Sha1.hash(bytes)).try_into().expect("twenty bytes")
}

/// Publishes a revision with two external files, and puts their content on a server of its own.
fn publish(site: &Site, outside: &Path) {
    let repository = &site.world.repository;
    let craft = RevisionBuilder::of(repository);
    craft.add_directory("outside");
    let (whole, chunked) = (content(10_000, 1), content(2 * CHUNK + 7, 2));
    let entry = |name, bytes: &[u8], more: u32, digest| {
        let (mode, flags) = (libc::S_IFREG | 0o644, FLAG_FILE | EXTERNAL | PLAIN | more);
        craft.add(&NewEntry { parent: "/outside", name, mode, flags, size: bytes.len() as u64, digest });
    };
    entry(WHOLE, &whole, 0, Some(digest(&whole)));
    entry("chunked", &chunked, CHUNKED, Some(digest(&chunked)));
    let key = halves("/outside/chunked");
    for (number, chunk) in chunked.chunks(CHUNK).enumerate() {
        let values = format!(
            "INSERT INTO chunks (md5path_1, md5path_2, offset, size, hash) VALUES ({}, {}, {}, {}, x'{}')",
            key[0],
            key[1],
            number * CHUNK,
            chunk.len(),
            Algorithm::Sha1.hash(chunk)
        );
        craft.catalog().execute_batch(&values).expect("a chunk");
    }
    craft.publish(repository);
    fs::create_dir_all(outside.join("outside")).expect("a folder");
    fs::write(outside.join("outside").join(WHOLE), whole).expect("a file");
    fs::write(outside.join("outside/chunked"), chunked).expect("a file");
}

/// External data is fetched by path from its own servers, in chunks where the catalog has them, and verified like all
/// other data.
#[test]
fn external_data_is_fetched_from_the_configured_servers() {
    let site = Site::new(TestUser::ordinary());
    let folder = site.world.path("external");
    publish(&site, &folder);
    let web = Web::nginx(1, |_, ports| {
        format!(
            "server {{ listen 127.0.0.1:{}; location /ext/ {{ alias {}/; }} }}",
            ports[0],
            folder.display()
        )
    });
    let local = "/etc/cvmfs/config.d/full.test.local";
    let cat = |name: &str, cache: &str, options: &[&str]| {
        let cache = site.world.path(&format!("home/{cache}")).display().to_string();
        let place = format!("full:/outside/{name}");
        site.call(&[&["cat", &place, "--cache", &cache][..], options].concat())
    };
    let output = cat(WHOLE, "none", &[]);
    assert!(!output.status.success() && words(&output).contains("CVMFS_EXTERNAL_URL"), "{}", words(&output));

    let url = format!("http://127.0.0.1:{}/ext", web.ports()[0]);
    site.write(local, &format!("CVMFS_EXTERNAL_URL='http://127.0.0.1:1/nobody;{url}'\n"));
    for (name, bytes) in [(WHOLE, content(10_000, 1)), ("chunked", content(2 * CHUNK + 7, 2))] {
        let output = cat(name, "some", &[]);
        assert!(output.status.success() && output.stdout == bytes, "{name}: {}", words(&output));
    }
    let log = web.log();
    assert_eq!((log.matches(" 200 ").count(), log.matches(" 206 ").count()), (1, 3), "{log}");
    assert!(
        !log.contains(".cvmfspublished") && !log.contains("/data/"),
        "the repository is elsewhere: {log}"
    );
    // Cached content is not fetched again; the proxies of the repository are never used.
    assert!(cat("chunked", "some", &[]).status.success());
    assert_eq!(web.log().lines().count(), 4);
    for proxy in &site.proxies {
        assert_eq!(proxy.count(|path| path.contains("outside")), 0);
    }
    // Through proxies of its own, and from where the command line says.
    let proxy = format!("http://127.0.0.1:{}", site.proxies[2].port());
    site.proxies[2].put("/ext/outside/chunked", "not this");
    site.write(
        local,
        &format!("CVMFS_EXTERNAL_URL=http://origin.invalid/ext\nCVMFS_EXTERNAL_HTTP_PROXY={proxy}\n"),
    );
    let output = cat("chunked", "proxied", &[]);
    assert!(!output.status.success(), "{}", words(&output));
    assert!(site.proxies[2].count(|path| path == "/ext/outside/chunked") > 0);
    site.write(local, "CVMFS_HTTP_PROXY=DIRECT\nCVMFS_FALLBACK_PROXY=\n");
    let output = cat("chunked", "said", &["--external", &url]);
    assert!(output.status.success() && output.stdout == content(2 * CHUNK + 7, 2), "{}", words(&output));
    // Wrong bytes are refused from any server.
    fs::write(folder.join("outside").join(WHOLE), content(10_000, 9)).expect("a file");
    let output = cat(WHOLE, "damaged", &["--external", &url]);
    assert!(!output.status.success() && output.stdout.is_empty(), "{}", words(&output));
    assert!(words(&output).contains("damaged"), "{}", words(&output));
}
