//! The database on disks that fail, and of processes that are killed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use esker_gateway::{
    Candidate, Change, Database, Gateway, GatewayError, KeyLimits, Lease, LeasePath, Leases, Millis, State,
    Token,
};
use esker_testkit::soak::Soak;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::disk::Disk;
use crate::publisher::{Time, acquire, keys, options, request, root, sign};
use crate::target::{TestTarget, opens};

/// Folder of the database of a process that is killed.
const FOLDER: &str = "ESKER_TEST_GATEWAY_FOLDER";
/// Changes of one run.
const CHANGES: usize = 12;

fn lease(number: usize) -> (Token, Change) {
    let token = Token::named(&format!("token{number}"));
    let lease = Lease {
        key: "k".into(),
        path: LeasePath::parse(&format!("r.test/{number}")).unwrap(),
        hostname: String::new(),
        protocol: 3,
        expires: Millis(1),
        state: State::Open,
    };
    (token.clone(), Change::Put(token, Box::new(lease)))
}

/// Writes leases until a write fails; returns how many were written.
fn write(database: &Database) -> usize {
    (0..CHANGES)
        .take_while(|number| {
            let (token, change) = lease(*number);
            let catalogs = database
                .write(&[change], &[])
                .and_then(|()| database.note_catalogs(&token, &[root(u8::try_from(*number).unwrap())]));
            catalogs.is_ok()
        })
        .count()
}

/// Checks that the acknowledged leases are there with their catalogs, and at most one more.
fn check(database: &Database, leases: &Leases, acknowledged: usize) {
    for number in 0..acknowledged {
        let (token, _) = lease(number);
        assert!(leases.get(&token).is_some(), "lease {number} of {acknowledged} is lost");
        assert!(database.has_catalog(&token, &root(u8::try_from(number).unwrap())).unwrap());
    }
    assert!((acknowledged + 1..CHANGES).all(|number| leases.get(&lease(number).0).is_none()));
}

#[test]
fn a_disk_that_fails_at_any_operation_loses_no_acknowledged_change() {
    let mut random = StdRng::seed_from_u64(52);
    let mut faults = 0;
    for operations in 0.. {
        let disk = Disk::new();
        drop(Database::with(disk.file()).unwrap());
        disk.fail_after(operations);
        let database = Database::with(disk.file());
        let acknowledged = database.as_ref().map_or(0, write);
        if disk.failures() == 0 {
            assert_eq!(acknowledged, CHANGES);
            break;
        }
        faults += 1;
        disk.mend();
        // The disk was full, and has room again.
        if let Ok(database) = &database {
            let leases = database.reopen().unwrap();
            check(database, &leases, acknowledged);
        }
        drop(database);
        disk.lose_power(&mut random);
        let database = Database::with(disk.file()).unwrap();
        check(&database, &database.leases().unwrap(), acknowledged);
        assert_eq!(write(&database), CHANGES);
    }
    assert!(faults > 50, "{faults}");
}

#[test]
fn a_power_failure_loses_no_acknowledged_change() {
    let mut random = StdRng::seed_from_u64(52);
    for _ in 0..50 {
        let disk = Disk::new();
        let database = Database::with(disk.file()).unwrap();
        assert_eq!(write(&database), CHANGES);
        disk.fail_after(0);
        drop(database);
        disk.mend();
        disk.lose_power(&mut random);
        let database = Database::with(disk.file()).unwrap();
        check(&database, &database.leases().unwrap(), CHANGES);
    }
}

/// A gateway whose disk is full for a while refuses, and goes on without a restart.
#[test]
fn a_gateway_refuses_while_its_disk_is_full_and_loses_nothing() {
    let mut faults = 0;
    for operations in 0.. {
        let (disk, folder, target) = (Disk::new(), tempfile::tempdir().unwrap(), TestTarget::new());
        let open = || -> Gateway {
            let database = Database::with(disk.file()).unwrap();
            let targets = opens(&[("r.test", target.clone())]);
            Gateway::new(
                database,
                keys(KeyLimits::default()),
                targets,
                options(folder.path(), &Time::default()),
            )
            .unwrap()
        };
        let gateway = open();
        let one = gateway.signer(Some(&sign("one", b"x")), b"x").unwrap();
        let (token, _) = gateway.acquire(&one, &acquire("r.test/a")).unwrap();
        disk.fail_after(operations);
        let second = gateway.acquire(&one, &acquire("r.test/b"));
        let committed = gateway.commit(&one, &token, &request(1));
        let has_failed = disk.failures() > 0;
        disk.mend();
        for refused in [second.as_ref().err(), committed.as_ref().err()].into_iter().flatten() {
            let is_of_disk = matches!(refused, GatewayError::Database(_) | GatewayError::Publish(_));
            assert!(is_of_disk, "{refused}");
        }
        // An accepted commit is public, and a refused one is not, or is accepted now.
        assert!(committed.is_err() || target.head().len() == 1);
        let check = |gateway: Gateway| {
            if let Ok((token, _)) = &second {
                gateway.lease(token).unwrap();
            }
            assert_eq!(gateway.commit(&one, &token, &request(1)).unwrap().revision, 2);
            assert_eq!(target.head(), [Candidate { root: root(1).to_string(), revision: 2 }]);
        };
        check(gateway);
        check(open());
        if !has_failed {
            break;
        }
        faults += 1;
    }
    assert!(faults > 20, "{faults}");
}

/// The process that is killed: acquires leases and commits them, and says so.
#[test]
fn soak_gateway_kill_nine() {
    match std::env::var_os(FOLDER) {
        Some(folder) => acquire_until_killed(Path::new(&folder)),
        None => kill_often(),
    }
}

fn acquire_until_killed(folder: &Path) {
    let target = TestTarget::new();
    let database = Database::open(&folder.join("db")).unwrap();
    let targets = opens(&[("r.test", target)]);
    let gateway =
        Gateway::new(database, keys(KeyLimits::default()), targets, options(folder, &Time::default()))
            .unwrap();
    let one = gateway.signer(Some(&sign("one", b"x")), b"x").unwrap();
    let mut output = std::io::stderr();
    for number in 0.. {
        let (token, _) = gateway.acquire(&one, &acquire(&format!("r.test/{number}"))).unwrap();
        // In one write, so that no line is cut.
        output.write_all(format!("lease {}\n", token.secret()).as_bytes()).unwrap();
        if number % 2 == 0 {
            let revision = gateway.commit(&one, &token, &request(1)).unwrap().revision;
            output.write_all(format!("commit {} {revision}\n", token.secret()).as_bytes()).unwrap();
        }
    }
}

fn kill_often() {
    let mut soak = Soak::begin("gateway_kill_nine");
    let mut random = StdRng::seed_from_u64(soak.seed());
    let mut said = 0;
    while soak.goes_on() {
        let folder = tempfile::tempdir().unwrap();
        said += kill_once(folder.path(), random.random_range(1..60));
    }
    soak.finish(&[("acknowledged changes", &said)]);
}

/// Kills the process after some lines, and looks for what it said; returns the number of lines.
fn kill_once(folder: &Path, lines: usize) -> usize {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "database::soak_gateway_kill_nine", "--nocapture"])
        .env(FOLDER, folder)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stderr.take().unwrap());
    let mut said = Vec::new();
    for line in output.lines().map(Result::unwrap) {
        said.push(line);
        if said.len() == lines {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    assert!(said.len() >= lines, "{said:?}");
    let database = Database::open(&folder.join("db")).unwrap();
    let leases = database.leases().unwrap();
    for line in &said {
        let words: Vec<&str> = line.split(' ').collect();
        let lease = words.get(1).and_then(|token| leases.get(&Token::named(token)));
        let is_there = match (&*words, lease.map(|lease| &lease.state)) {
            (["lease", _], Some(_)) => true,
            (["commit", _, number], Some(State::Ended { revision, .. })) => revision.to_string() == *number,
            _ => false,
        };
        assert!(is_there, "{line}: {lease:?}");
    }
    said.len()
}
