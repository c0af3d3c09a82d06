use std::net::{Ipv4Addr, SocketAddr};

use esker_server::{Limits, Repositories, Server};

use super::*;

/// Makes a repository for fetching only: objects with the requested names and sizes.
fn repository(folder: &Path) -> PathBuf {
    let repository = folder.join("bench.example.org");
    for (at, prefix) in ["0a", "ff", "txn"].iter().enumerate() {
        fs::create_dir_all(repository.join("data").join(prefix)).expect("a folder");
        for number in 0..20usize {
            let name = format!("{at:02}{number:036}");
            fs::write(repository.join("data").join(prefix).join(name), vec![7; 1000 * number]).expect("it");
        }
    }
    let (hash, path) = ("0a".repeat(20), "d41d8cd98f00b204e9800998ecf8427e");
    let manifest = format!("C{hash}\nB4096\nR{path}\nD240\nS1\nNbench.example.org\nX{hash}\nT1\n--\n");
    fs::write(repository.join(".cvmfspublished"), manifest).expect("a manifest");
    repository
}

#[test]
fn objects_are_chosen_the_same_each_time() {
    let folder = tempfile::tempdir().expect("a folder");
    repository(folder.path());
    let chosen = choose(folder.path(), 100_000).expect("objects");
    assert_eq!(chosen, choose(&folder.path().join("bench.example.org"), 100_000).expect("objects"));
    let sum: u64 = chosen.iter().map(|object| object.bytes).sum();
    assert!((100_000..120_000).contains(&sum), "{sum} bytes");
    assert_eq!(choose(folder.path(), u64::MAX).expect("objects").len(), 40, "all, but nothing unfinished");
    assert!(choose(&folder.path().join("absent"), 1).is_err());
}

#[test]
fn emulated_and_plain_clients_fetch_all_objects() {
    let folder = tempfile::tempdir().expect("a folder");
    let repository = repository(folder.path());
    let objects = choose(&repository, u64::MAX).expect("objects");
    let repositories = Repositories::open(&[repository]).expect("a repository");
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server = Server::bind(loopback, repositories, Limits::default()).expect("a server");
    let (address, stopper) = (server.address(), server.stopper());
    let serving = std::thread::spawn(move || server.run().expect("served"));
    let url = format!("http://{address}/cvmfs/bench.example.org");
    emulate(&url, &objects, 3, None).expect("three clients");
    plain::fetch(address, &url, &objects, 2, 4).expect("two times");
    let absent = [Object { path: "data/00/absent".into(), bytes: 1 }];
    assert!(plain::fetch(address, &url, &absent, 1, 1).is_err());
    assert!(emulate(&url, &absent, 1, Some(1)).is_err());
    stopper.stop();
    let served = serving.join().expect("a server");
    let total = 5 * objects.iter().map(|object| object.bytes).sum::<u64>();
    // The same holds for replies about missing objects.
    assert!((total..total + 1000).contains(&served.bytes), "{} of {total}", served.bytes);
}
