//! Mounts whose settings, files and environment are gone or others whenever a daemon starts.

use std::fs;
use std::path::{Path, PathBuf};

use esker_testkit::mirror::Mirror;
use rustix::process::Signal;
use serde_json::Value;

use super::{Crowd, Random, Size, fill, soak, supervisor_of, wait_for_moment};
use crate::configuring::write_files;
use crate::daemons::{serving_daemon, signal, wait_until_gone};
use crate::image_mounts::image_with;
use crate::publishing::{NAME, Workshop};
use crate::reloads::talk;
use crate::test_env::{Mounted, TestEnv, words};
use crate::upgrades::{STAGE, other_build, spec_of, upgrade_from, upgrade_to};

/// What becomes of the settings of a mount while it is mounted. Each state makes a new mount fail.
const SPOILS: [&str; 6] = [
    "the key is removed",
    "the key is another file",
    "the file of the repository is removed",
    "the proxies are missing",
    "all values are others",
    "all of the configuration is removed",
];

/// Ways in which one daemon follows another. A wrapper starts the new daemon with the variables in [`OTHERS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Kill,
    OtherBuild,
    Wrapper,
    FirstBuild,
}

/// The ways in turns. The daemon that follows a killed one is started like the one before.
const WAYS: [Way; 6] = [Way::Kill, Way::OtherBuild, Way::Kill, Way::Wrapper, Way::Kill, Way::FirstBuild];

/// Variables that have other values when a daemon is replaced. `esker upgrade` has the first ones, too; it finds mounts
/// in the runtime folder, and refuses levels that it can't read.
const OTHERS: [(&str, &str); 21] = [
    ("HOME", "/nowhere"),
    ("PATH", "/nowhere"),
    ("TMPDIR", "/nowhere"),
    ("XDG_CACHE_HOME", "/nowhere"),
    ("XDG_CONFIG_HOME", "/nowhere"),
    ("XDG_DATA_HOME", "/nowhere"),
    ("XDG_STATE_HOME", "/nowhere"),
    ("ESKER_CACHE", "/nowhere/cache"),
    ("ESKER_CONFIG_ROOT", "/nowhere"),
    ("ESKER_STORAGE", "/nowhere"),
    ("CVMFS_CACHE_BASE", "/nowhere"),
    ("CVMFS_HTTP_PROXY", "http://127.0.0.1:1"),
    ("CVMFS_PUBLIC_KEY", "/nowhere"),
    ("CVMFS_QUOTA_LIMIT", "1001"),
    ("CVMFS_SERVER_URL", "http://127.0.0.1:1/cvmfs/@fqrn@"),
    ("http_proxy", "http://127.0.0.1:1"),
    ("ESKER_TEST_PART", "d4"),
    ("ESKER_TEST_UNSET", "d4"),
    ("XDG_RUNTIME_DIR", "/nowhere"),
    ("ESKER_LOG", "no=level=at,all"),
    ("ESKER_LOG_FORMAT", "none"),
];
/// Number of the variables in [`OTHERS`] that `esker upgrade` has, too.
const OF_UPGRADE: usize = 18;

/// Questions of `cvmfs_talk` whose answers are settings of the mount.
const QUESTIONS: [&str; 4] = ["timeout info", "cache limit get", "host info", "proxy info"];

/// Writes the configuration of a mount by name, as it is (`None`) or spoilt.
fn configure(world: &TestEnv, url: &str, spoil: Option<&str>) {
    let etc = world.config_root().join("etc");
    let _ = fs::remove_dir_all(&etc);
    if spoil == Some(SPOILS[5]) {
        return;
    }
    let (server, values) = match spoil {
        Some(spoil) if spoil == SPOILS[3] => (url, "CVMFS_HTTP_PROXY='\nif then fi\n".to_owned()),
        Some(spoil) if spoil == SPOILS[4] => (
            "http://127.0.0.1:1/cvmfs/@fqrn@",
            "CVMFS_HTTP_PROXY=http://127.0.0.1:1\nCVMFS_QUOTA_LIMIT=1002\nCVMFS_MAX_RETRIES=7\nCVMFS_TIMEOUT=9\n\
             CVMFS_TIMEOUT_DIRECT=9\nCVMFS_CACHE_BASE=/nowhere\nCVMFS_TALK_SOCKET=/nowhere/talk\nCVMFS_MAX_TTL=1\n"
                .to_owned(),
        ),
        _ => {
            let socket = socket(world);
            let talk =
                format!("CVMFS_TALK_SOCKET={}\nCVMFS_TALK_OWNER={}\n", socket.display(), world.person.uid);
            let values = "CVMFS_HTTP_PROXY=DIRECT\nCVMFS_MAX_RETRIES=0\nCVMFS_TIMEOUT=1\nCVMFS_TIMEOUT_DIRECT=2\n";
            (url, format!("{values}{talk}"))
        }
    };
    let local = format!("{values}CVMFS_PUBLIC_KEY=/etc/keys/it.pub\n");
    let mut files = vec![("/etc/cvmfs/default.local".to_owned(), local)];
    if spoil != Some(SPOILS[2]) {
        files.push((format!("/etc/cvmfs/config.d/{NAME}.conf"), format!("CVMFS_SERVER_URL={server}\n")));
    }
    if spoil != Some(SPOILS[0]) {
        let key = fs::read_to_string(world.path("key.pub")).expect("the key");
        files.push((
            "/etc/keys/it.pub".to_owned(),
            if spoil == Some(SPOILS[1]) { "none".into() } else { key },
        ));
    }
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    write_files(world, &files);
}

/// Returns the socket for `cvmfs_talk`.
fn socket(world: &TestEnv) -> PathBuf {
    world.path("home/talk")
}

/// Returns the script of a wrapper, which starts a build with the variables in [`OTHERS`].
fn wrapper(build: &Path) -> String {
    let exports = OTHERS.map(|(name, value)| format!("export {name}='{value}'\n"));
    format!("{}exec '{}' mount \"$@\"\n", exports.concat(), build.display())
}

/// True if a daemon has the variables in [`OTHERS`].
fn has_others(world: &TestEnv, daemon: u32) -> bool {
    let environ = world.person.does(|| fs::read(format!("/proc/{daemon}/environ"))).expect("a process");
    let has = |(name, value): (&str, &str)| {
        environ.split(|byte| *byte == 0).any(|line| line == format!("{name}={value}").as_bytes())
    };
    OTHERS.into_iter().all(has)
}

/// Settings of a mount, as its supervisor, its status and its socket tell them.
#[derive(Debug, PartialEq)]
struct Told {
    options: Value,
    status: Vec<Value>,
    talk: Vec<Option<String>>,
}

impl Told {
    fn by(mounted: &Mounted<'_>, world: &TestEnv, is_repository: bool) -> Told {
        let options = serde_json::from_slice(&spec_of(mounted)).expect("JSON");
        let status = mounted.status();
        let facts =
            ["/mountpoint", "/url", "/fixed", "/shown_with", "/confined", "/cache/directory", "/cache/quota"];
        let status = facts.iter().map(|fact| status.pointer(fact).cloned().unwrap_or_default()).collect();
        let questions = if is_repository { &QUESTIONS[..] } else { &[] };
        let talk = questions.iter().map(|question| talk(world.person, &socket(world), question)).collect();
        Told { options, status, talk }
    }
}

/// A mount of a repository by its name, and one of an image, whose settings, files and variables are gone or others whenever
/// a daemon starts.
///
/// > L1: A mount whose daemon is killed or replaced by another version goes on, and no call fails, whatever has become of the key files, the configuration, the variables and the folders that it was mounted with: the next daemon has the settings of the one before, and reads no file for them.
#[test]
fn soak_restarts_without_settings() {
    soak("soak_restarts_without_settings", |kind, (workshop, mirror), size, random| {
        restart(workshop, mirror, kind == 0, size, random)
    });
}

/// Mounts, and replaces the daemon again and again; returns how many rounds the programs made.
fn restart(
    workshop: &Workshop,
    mirror: &Mirror,
    is_repository: bool,
    size: Size,
    random: &mut Random,
) -> u64 {
    let world = &workshop.world;
    let url = mirror.url(NAME);
    configure(world, &url, None);
    let image = (!is_repository).then(|| PathBuf::from(image_with(world, 0, fill)));
    let source = image.as_ref().map_or(NAME.to_owned(), |image| image.display().to_string());
    let (stage, elsewhere) = (world.path(STAGE), world.path("home/elsewhere"));
    world.person.does(|| [&stage, &elsewhere].map(fs::create_dir_all).map(|made| made.expect("a folder")));
    let mount = |place: &Path, cache: &Path, variables: &[(&str, &str)]| {
        let mut command = world.esker(&["mount", &source, "--no-broker", "--cache"]);
        command.arg(cache).arg(place).current_dir(&stage).env("ESKER_TEST_PART", "d1");
        command.envs(variables.iter().copied()).output().expect("esker")
    };
    let output = mount(&world.mountpoint(), &world.cache(), &[]);
    assert!(output.status.success(), "{}", words(&output));
    let mounted = world.mounted();
    if is_repository && !world.person.is_root() {
        let target = mounted.does(|| fs::read_link(mounted.path("part"))).expect("a target");
        assert_eq!(target, Path::new("d1/2"), "the variable has the value that it had for the mount");
    }
    let supervisor = supervisor_of(&mounted);
    let told = Told::by(&mounted, world, is_repository);
    assert!(told.talk.iter().all(Option::is_some), "{told:?}");
    let other = other_build(world);
    let aside = image.as_ref().map(|image| image.with_extension("aside"));
    let crowd = Crowd::gather(world, size);
    let mut is_wrapped = false;
    for round in 0..size.restarts {
        wait_for_moment(random);
        // Each way meets each state in turn.
        let round = usize::try_from(round).expect("a number");
        let (way, spoil) = (WAYS[round % WAYS.len()], SPOILS[(round + round / WAYS.len()) % SPOILS.len()]);
        configure(world, &url, Some(spoil));
        if let (Some(image), Some(aside)) = (&image, &aside) {
            if !aside.exists() {
                fs::rename(image, aside).expect("moving it away");
            }
            fs::write(image, spoil).expect("another file");
        }
        // The settings that the next daemon would read are no settings of this mount any more, and a new mount without
        // what the cache of this one has fails.
        let refused = mount(&elsewhere, &world.path("home/empty-cache"), &[]);
        assert!(!refused.status.success(), "{spoil}: a new mount doesn't fail");
        let before = serving_daemon(&mounted);
        let upgrade = |program: &Path| {
            let (outcome, reason) = upgrade_from(world, program, &OTHERS[..OF_UPGRADE]);
            assert_eq!(outcome, "upgraded", "{spoil}: {reason}\n{}", world.logs());
        };
        match way {
            Way::Kill => {
                signal(before, Signal::KILL);
                wait_until_gone(before);
            }
            Way::OtherBuild => upgrade(&other),
            Way::FirstBuild => upgrade(world.program()),
            Way::Wrapper => {
                let build = if round % 4 == 3 { &other } else { world.program() };
                let upgraded = upgrade_to(world, &wrapper(build));
                upgraded.unwrap_or_else(|error| panic!("{spoil}: {error}\n{}", world.logs()));
            }
        }
        is_wrapped = way == Way::Wrapper || way == Way::Kill && is_wrapped;
        let daemon = serving_daemon(&mounted);
        assert_ne!(daemon, before);
        assert_eq!(has_others(world, daemon), is_wrapped, "{way:?}");
        assert_eq!(Told::by(&mounted, world, is_repository), told, "{way:?}, {spoil}");
    }
    let used = crowd.disperse();
    drop(mounted);
    wait_until_gone(supervisor);
    if let (Some(image), Some(aside)) = (image, aside) {
        fs::rename(aside, image).expect("moving it back");
    }
    used
}
