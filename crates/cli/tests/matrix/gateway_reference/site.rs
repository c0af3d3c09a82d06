//! A repository of Esker, a gateway that publishes to it, and a release manager's machine with the reference's programs.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use esker_testkit::mirror::{Fault, Mirror, Rule};
use esker_testkit::waiting::Pace;
use esker_testkit::{programs, skip_optional};
use serde_json::Value;

use super::machine::Machine;
use super::reference_gateway::ReferenceGateway;
use crate::publishing::{NAME, Workshop};
use crate::reference::{VARIABLE, folder_with};
use crate::test_env::{PATIENCE, words};
use crate::test_user::TestUser;

/// Programs of a release manager, and of a gateway.
const PROGRAMS: [&str; 7] = [
    "cvmfs2",
    "cvmfs_server",
    "cvmfs_swissknife",
    "cvmfs_publish",
    "cvmfs_suid_helper",
    "cvmfs_gateway",
    "cvmfs_receiver",
];
/// Secret of the publishers' key.
pub(super) const SECRET: &str = "secret1";
/// Access of publishers, in the form of the reference.
const ACCESS: &str = r#"{"version":2,"repos":[{"domain":"made.test","keys":[{"id":"key1","path":"/"}]}],
"keys":[{"type":"plain_text","id":"key1","secret":"secret1","admin":true}]}"#;

/// File with the head.
const HEAD: &str = ".cvmfspublished";

fn is_head(path: &str) -> bool {
    path.ends_with(HEAD)
}

/// The repository.
pub(super) struct Site {
    workshop: Workshop,
    mirror: Mirror,
    programs: PathBuf,
}

impl Site {
    /// Makes the repository with a first revision; none, with a report, where the reference isn't there.
    pub(super) fn new() -> Option<Self> {
        let (Some(programs), Some(root)) = (folder_with(&PROGRAMS), TestUser::root()) else {
            skip_optional!(
                "{VARIABLE} names no folder with the reference's publisher, or root does not run this"
            );
            return None;
        };
        let workshop = Workshop::with(root, |tree| {
            fs::create_dir_all(tree.join("one/deep")).expect("folders");
            fs::create_dir_all(tree.join("two")).expect("a folder");
            fs::write(tree.join("one/file"), "first\n").expect("a file");
            fs::write(tree.join("one/deep/file"), "first\n").expect("a file");
            fs::write(tree.join("two/file"), "first\n").expect("a file");
        });
        workshop.create();
        workshop.json(&["publish", NAME, &workshop.tree()]);
        let access = workshop.world.path("access.json");
        fs::write(&access, ACCESS).expect("a file");
        fs::set_permissions(access, fs::Permissions::from_mode(0o600)).expect("a mode");
        let mirror = Mirror::serve(workshop.home("storage"));
        Some(Self { workshop, mirror, programs })
    }

    /// Returns a file of the head; none if it isn't there.
    pub(super) fn file(&self, path: &str) -> Option<String> {
        let output = self.on_server(&["cat"], path);
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn on_server(&self, command: &[&str], path: &str) -> Output {
        let key = self.workshop.home(&format!("keys/{NAME}.pub"));
        let cache = self.workshop.home("reader");
        let url = self.mirror.url(NAME);
        let mut command = self.workshop.world.esker(command);
        command.args([&url, path, "--public-key", &key, "--cache", &cache]).output().expect("running esker")
    }

    pub(super) fn revision(&self) -> u64 {
        let head = fs::read(self.workshop.home(&format!("storage/{NAME}/{HEAD}"))).expect("the head");
        let head = String::from_utf8_lossy(&head);
        let line = head.lines().find_map(|line| line.strip_prefix('S')).expect("a number");
        line.parse().expect("a number")
    }

    pub(super) fn tags(&self) -> Vec<String> {
        let output = self.workshop.esker(&["tag", "list", NAME, "--json"]);
        let tags: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let tags = tags.as_array().expect("a list");
        tags.iter().filter_map(|tag| Some(tag["name"].as_str()?.to_owned())).collect()
    }

    /// Checks the repository with all of its data.
    #[track_caller]
    pub(super) fn check(&self) {
        let output = self.workshop.esker(&["check", NAME, "--data"]);
        assert!(output.status.success(), "{}", words(&output));
    }

    /// Starts a gateway of Esker at a free port.
    pub(super) fn gateway(&self, lease_time: &str) -> Gateway {
        let places = ["storage", "keys", "gateway"].map(|name| self.workshop.home(name));
        let [storage, keys, state] = &places;
        let access = self.workshop.world.path("access.json").display().to_string();
        let mut command = self.workshop.world.esker(&["gateway", "--storage", storage, "--keys", keys]);
        command.args(["--state", state, "--access-config", &access, "--lease-time", lease_time]);
        command.args(["--user", "root", "--json"]).stdout(Stdio::piped());
        Gateway::start(command)
    }

    /// Starts a gateway of the reference.
    pub(super) fn reference_gateway(&self, lease_seconds: u32) -> ReferenceGateway {
        let home = self.workshop.world.path("home");
        ReferenceGateway::start(self.machine("gateway"), &home, &self.mirror.url(NAME), ACCESS, lease_seconds)
    }

    /// Returns the URL of the repository on its web server.
    pub(super) fn server(&self) -> String {
        self.mirror.url(NAME)
    }

    /// Starts another web server, which shows the present head until its rule is lifted.
    pub(super) fn stale_server(&self) -> (Mirror, Rule) {
        let server = Mirror::serve(self.workshop.home("storage"));
        let head = self.workshop.home(&format!("storage/{NAME}/{HEAD}"));
        let rule = server.fault(is_head, Fault::Content(fs::read(head).expect("the head")));
        (server, rule)
    }

    /// Lifts a rule once the gateway reads the head, as it does when it begins a commit.
    pub(super) fn lift_at_commit(&self, rule: &Rule) {
        let rule = rule.clone();
        let sees = move |path: &str| {
            if is_head(path) {
                rule.lift();
            }
            false
        };
        self.mirror.fault(sees, Fault::NoAnswer);
    }

    /// Returns a command of Esker's publisher, which has no keys of the repository.
    pub(super) fn esker(&self, gateway: &str, secret: &str, arguments: &[&str]) -> Command {
        self.esker_of(&self.server(), gateway, secret, arguments)
    }

    /// Returns a command of Esker's publisher, which reads from a web server.
    pub(super) fn esker_of(&self, server: &str, gateway: &str, secret: &str, arguments: &[&str]) -> Command {
        let key = self.workshop.world.path("publisher.gw");
        fs::write(&key, format!("plain_text key1 {secret}\n")).expect("a file");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("a mode");
        let (state, public) = (self.workshop.home("state"), self.workshop.home(&format!("keys/{NAME}.pub")));
        let key = key.display().to_string();
        let named = ["--gateway", gateway, "--key", &key, "--server", server, "--public-key", &public];
        // What stands behind `--` is for the command of a transaction.
        let at = arguments.iter().position(|word| *word == "--").unwrap_or(arguments.len());
        let (before, behind) = arguments.split_at(at);
        self.workshop.world.esker(&[before, &["--storage", &state], &named, behind].concat())
    }

    /// Returns the folder that was published first.
    pub(super) fn tree(&self) -> PathBuf {
        self.workshop.tree().into()
    }

    /// Makes a pipe.
    pub(super) fn pipe(&self, name: &str) -> PathBuf {
        let path = self.workshop.world.path("home").join(name);
        if !path.exists() {
            let kind = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, &path, kind, 0o600.into(), 0).expect("a pipe");
        }
        path
    }

    /// Starts a machine with the programs of the reference.
    fn machine(&self, name: &str) -> Machine {
        Machine::start(&self.workshop.world.path("home"), name, &self.programs)
    }

    /// Starts a gateway of Esker on a release manager's machine, where the storage is in the usual folder.
    pub(super) fn gateway_beside(&self, manager: &ReleaseManager, port: u16) {
        let home = self.workshop.world.path("home");
        programs::copy(self.workshop.world.program(), &home.join("esker"));
        let access = home.join("access.json");
        fs::copy(self.workshop.world.path("access.json"), &access).expect("copying a file");
        manager.does(&format!(
            "set -e
            mkdir -p /srv/cvmfs && mount --bind {home}/storage /srv/cvmfs
            cp -n {home}/keys/* /etc/cvmfs/keys
            {home}/esker gateway --state {home}/gateway --access-config {home}/access.json --listen 127.0.0.1:{port} \\
                --user root --json >{home}/ready 2>{home}/log &",
            home = home.display()
        ));
        let is_ready = || fs::read_to_string(home.join("ready")).is_ok_and(|text| text.ends_with('\n'));
        assert!(Pace::PROCESS.until(PATIENCE, is_ready), "{:?}", fs::read_to_string(home.join("log")));
    }

    /// Makes a release manager's machine.
    pub(super) fn release_manager(&self, name: &str, gateway: &str, secret: &str) -> ReleaseManager {
        let machine = self.machine(name);
        machine.does(&format!(
            "cp {keys}/{NAME}.crt {keys}/{NAME}.pub /etc/cvmfs/keys
            echo plain_text key1 {secret} >/etc/cvmfs/keys/{NAME}.gw
            chmod 600 /etc/cvmfs/keys/{NAME}.gw
            cvmfs_server mkfs -w {web} -u gw,/srv/cvmfs/{NAME}/data/txn,{gateway} -k /etc/cvmfs/keys -o root {NAME}",
            keys = self.workshop.home("keys"),
            web = self.mirror.url(NAME),
        ));
        ReleaseManager { machine }
    }
}

/// A gateway of Esker.
pub(super) struct Gateway {
    command: Command,
    child: Child,
    url: String,
}

impl Gateway {
    fn start(mut command: Command) -> Self {
        let (child, url) = started(&mut command, "127.0.0.1:0");
        Self { command, child, url }
    }

    /// Returns the URL for publishers.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Kills the gateway and starts it again at the same address.
    pub(super) fn is_killed_and_restarted(&mut self) {
        self.child.kill().expect("a signal");
        self.child.wait().expect("its end");
        let address =
            self.url.trim_start_matches("http://").split('/').next().expect("an address").to_owned();
        let url;
        (self.child, url) = started(&mut self.command, &address);
        assert_eq!(url, self.url);
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn started(command: &mut Command, address: &str) -> (Child, String) {
    // The last of an option that is given twice would be refused.
    let mut again = Command::new(command.get_program());
    again.args(command.get_args()).env_clear();
    for (name, value) in command.get_envs() {
        again.env(name, value.unwrap_or_default());
    }
    again.args(["--listen", address]).current_dir("/").stdout(Stdio::piped());
    let mut child = again.spawn().expect("esker gateway");
    let mut line = String::new();
    let output = child.stdout.as_mut().expect("its output");
    BufReader::new(output).read_line(&mut line).expect("a line");
    let ready: Value = serde_json::from_str(&line).expect("JSON");
    let url = ready["url"].as_str().expect("a URL").to_owned();
    (child, url)
}

/// A release manager, which publishes with `cvmfs_server`.
pub(super) struct ReleaseManager {
    machine: Machine,
}

impl ReleaseManager {
    /// Opens a transaction of a directory.
    pub(super) fn open(&self, directory: &str) -> Output {
        self.machine.call(&format!("cvmfs_server transaction {NAME}/{directory}"))
    }

    /// Changes the repository in the open transaction.
    #[track_caller]
    pub(super) fn change(&self, script: &str) {
        self.machine.does(&format!("set -e; cd /cvmfs/{NAME}; {script}"));
    }

    /// Publishes the open transaction.
    pub(super) fn publish(&self, options: &str) -> Output {
        self.machine.call(&format!("cvmfs_server publish {options} {NAME}"))
    }

    /// Gives up the open transaction.
    pub(super) fn abort(&self) -> Output {
        self.machine.call(&format!("cvmfs_server abort -f {NAME}"))
    }

    /// Publishes changes of a directory.
    #[track_caller]
    pub(super) fn publishes(&self, directory: &str, script: &str, options: &str) {
        succeeds(&self.open(directory));
        self.change(script);
        succeeds(&self.publish(options));
    }

    /// Returns what a script on the machine prints.
    #[track_caller]
    pub(super) fn does(&self, script: &str) -> String {
        self.machine.does(script)
    }
}

#[track_caller]
pub(super) fn succeeds(output: &Output) {
    assert!(output.status.success(), "{}", words(output));
}

/// Returns what a command says that must fail.
#[track_caller]
pub(super) fn fails(output: &Output) -> String {
    assert!(!output.status.success(), "{}", words(output));
    words(output)
}
