//! A stand-in for EESSI: its layout, published by Esker, behind a proxy, the only client of the server.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use esker_testkit::fixture;

use crate::faults::process::Process;
use crate::publishing::Workshop;
use crate::test_env::{PATIENCE, TestEnv, hide_configuration, words};
use crate::test_user::TestUser;

const NAME: &str = "software.eessi.test";
/// Address of the proxy. The server admits no other; tests use 127.0.0.1.
const PROXY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Script that users source: detects this machine, and the host's additions.
const INIT: &str = r#"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export EESSI_VERSION=${here##*/} EESSI_CPU_FAMILY=$(uname -m)
export EESSI_COMPAT=$here/compat/linux/$EESSI_CPU_FAMILY
export EESSI_SOFTWARE=$here/software/linux/$EESSI_CPU_FAMILY/generic
export PATH=$EESSI_SOFTWARE/software/Tool/1.0/bin:$EESSI_COMPAT/usr/bin:$PATH
"#;

/// Returns two architectures, and that of this machine if it is another.
fn architectures() -> Vec<&'static str> {
    let mut all = vec!["x86_64", "aarch64", std::env::consts::ARCH];
    all.sort_unstable();
    all.dedup();
    all
}

fn make_tree(top: &Path) {
    let version = top.join("versions/2023.06");
    let write = |path: &Path, text: &str| {
        fs::create_dir_all(path.parent().expect("a folder")).expect("mkdir");
        fs::write(path, text).expect("writing");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a mode");
    };
    for architecture in architectures() {
        let software = version.join("software/linux").join(architecture).join("generic/software/Tool/1.0");
        write(&software.join("bin/tool"), &format!("#!/bin/sh\necho tool for {architecture} with $(base)\n"));
        let compat = version.join("compat/linux").join(architecture);
        write(&compat.join("usr/bin/base"), "#!/bin/sh\necho its base\n");
    }
    write(&version.join("init/bash"), INIT);
    symlink("$(EESSI_HOST_INJECTIONS:-/opt/eessi)", top.join("host_injections")).expect("a link");
}

/// A user, a publisher, and the server and proxy in between. Neither runs as root.
struct Site {
    world: TestEnv,
    server: Process,
    proxy: Process,
}

impl Site {
    fn new(person: TestUser, workshop: &Workshop) -> Site {
        let host = workshop.world.person;
        let storage = workshop.home("storage");
        let place = |name: &str| workshop.home(&format!("{name}-of-{}", person.uid)).into();
        let server = Process::nginx_for(host, place("server"), Path::new(&storage), PROXY);
        let proxy = Process::squid_from(host, place("proxy"), PROXY);
        hide_configuration();
        let site = Site { world: TestEnv::new(person, fixture::RMD), server, proxy };
        let url = site.server.url();
        let domain = format!("CVMFS_SERVER_URL={url}/@fqrn@\nCVMFS_KEYS_DIR=/etc/cvmfs/keys/eessi.test\n");
        site.write("config/domain.d/eessi.test.conf", &domain);
        let key = fs::read_to_string(workshop.home(&format!("keys/{NAME}.pub"))).expect("the key");
        site.write("config/keys/eessi.test/eessi.test.pub", &key);
        site
    }

    fn home(&self, name: &str) -> String {
        self.world.path("home").join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.world.path("home").join(name);
        self.world.person.does(|| {
            fs::create_dir_all(path.parent().expect("a folder")).expect("mkdir");
            fs::write(&path, text).expect("writing");
        });
    }

    /// Writes the user's own settings, besides imported ones.
    fn configure(&self, text: &str) {
        let own = if self.is_root() { "root/etc/esker/esker.toml" } else { ".config/esker/esker.toml" };
        self.write(own, text);
    }

    fn is_root(&self) -> bool {
        self.world.person.is_root()
    }

    fn esker(&self, arguments: &[&str]) -> Command {
        let mut command = self.world.esker(arguments);
        if self.is_root() {
            command.env("ESKER_CONFIG_ROOT", self.home("root"));
        } else {
            // A user's own settings count beside those of this machine, which are hidden.
            command.env_remove("ESKER_CONFIG_ROOT");
        }
        command
    }

    fn import(&self) {
        let (source, root) = (self.home("config"), self.home("root"));
        let mut arguments = vec!["setup", "import", &source, "--yes"];
        if self.is_root() {
            arguments.extend(["--root", &root]);
        }
        let output = self.esker(&arguments).output().expect("running esker");
        assert!(output.status.success(), "{}", words(&output));
    }

    /// Runs a script as users of EESSI do.
    fn run(&self, script: &str, environment: &[(&str, &str)]) -> Output {
        let mut command = self.esker(&["run", NAME, "--", "bash", "-euc", script]);
        command.envs(environment.iter().copied()).output().expect("running esker")
    }

    #[track_caller]
    fn says(&self, script: &str, environment: &[(&str, &str)], expected: &str) {
        let output = self.run(script, environment);
        assert!(output.status.success(), "{}", words(&output));
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{}", words(&output));
    }
}

/// Without the proxy there is no route.
fn asked_directly(server: &Process) -> String {
    let mut stream = TcpStream::connect(server.address).expect("connecting");
    stream.set_read_timeout(Some(PATIENCE)).expect("a deadline");
    write!(stream, "GET /{NAME}/.cvmfspublished HTTP/1.0\r\n\r\n").expect("asking");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// An environment like EESSI's works from an import alone, for root and for a user, with only a proxy as route.
#[test]
fn a_stand_in_for_eessi_works_behind_a_proxy() {
    let workshop = Workshop::with(TestUser::ordinary(), make_tree);
    let output = workshop.esker(&["repo", "create", NAME]);
    assert!(output.status.success(), "{}", words(&output));
    workshop.json(&["publish", NAME, &workshop.tree()]);
    for person in TestUser::all() {
        let site = Site::new(person, &workshop);
        assert!(asked_directly(&site.server).contains(" 403 "), "the server refuses no client");
        let output = site.run("true", &[]);
        let said = words(&output);
        assert!(!output.status.success() && said.contains("setup import"), "{said}");
        site.import();
        site.configure("http_proxy = \"DIRECT\"\n");
        let output = site.run("true", &[]);
        assert!(!output.status.success() && words(&output).contains("403"), "{}", words(&output));

        let proxy = format!("http_proxy = \"{}\"\n", site.proxy.url());
        site.configure(&proxy);
        let version = format!("/cvmfs/{NAME}/versions/2023.06");
        let tool = format!("source {version}/init/bash; tool; echo $EESSI_VERSION");
        let expected = format!("tool for {} with its base\n2023.06\n", std::env::consts::ARCH);
        site.says(&tool, &[], &expected);
        assert!(site.proxy.answered() > 0, "no request went to the proxy");
        let all: String = architectures().iter().map(|architecture| format!("{architecture}\n")).collect();
        for part in ["software", "compat"] {
            site.says(&format!("ls {version}/{part}/linux"), &[], &all);
        }

        // The host's own additions: where it says nothing, where the environment and where the configuration says it.
        let link = format!("readlink /cvmfs/{NAME}/host_injections");
        site.says(&link, &[], "/opt/eessi\n");
        let added = site.home("added");
        site.write("added/driver", "the host's driver\n");
        site.says(&link, &[("EESSI_HOST_INJECTIONS", &added)], &format!("{added}\n"));
        site.configure(&format!("{proxy}EESSI_HOST_INJECTIONS = \"{added}\"\n"));
        site.says(&format!("cat /cvmfs/{NAME}/host_injections/driver"), &[], "the host's driver\n");
    }
}
