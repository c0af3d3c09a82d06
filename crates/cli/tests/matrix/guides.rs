//! Runs the commands of guides and `--help`.
//!
//! A box that begins with three backticks and `sh` is run by a shell. `sh server` is run until it serves, and then
//! stopped. `sh elsewhere: REASON` is not run; few may be like that.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use esker_testkit::container::{ContainerImage, Packing};
use esker_testkit::doc_snippets::{Fenced, fenced};
use esker_testkit::fixture;
use rustix::process::{Pid, Signal, kill_process};

use crate::test_env::{TestEnv, words};
use crate::test_user::TestUser;
use crate::usage::{commands, help};

const GUIDES: [&str; 13] = [
    "README.md",
    "docs/guides/users.md",
    "docs/guides/publishers.md",
    "docs/guides/keys.md",
    "docs/guides/gateway.md",
    "docs/guides/administrators.md",
    "docs/guides/configuration.md",
    "docs/guides/caching.md",
    "docs/guides/stratum1.md",
    "docs/guides/serving.md",
    "docs/guides/troubleshooting.md",
    "docs/guides/monitoring.md",
    "docs/guides/site-proxy.md",
];

/// Their commands need an idle machine; that they are understood is tested in `crates/bench`.
const BENCHMARKS: [&str; 2] = ["docs/benchmarks.md", "docs/performance.md"];

/// The repository that all guides speak of.
const NAME: &str = "sw.example.org";

fn source_tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A user with the guide's files and access to the guide's server.
struct Reader {
    world: TestEnv,
    server: Child,
    url: String,
}

impl Reader {
    fn new() -> Self {
        let person = TestUser::ordinary();
        let world = TestEnv::new(person, fixture::RMD);
        let home = world.path("home");
        person.does(|| make_files(&home));
        let publisher = |arguments: &[&str]| {
            let output = world.esker(arguments).env("HOME", home.join("publisher")).output();
            let output = output.expect("running esker");
            assert!(output.status.success(), "{}", words(&output));
        };
        publisher(&["repo", "create", NAME]);
        let published = home.join("published").display().to_string();
        publisher(&["publish", NAME, &published]);
        let key = home.join(format!("publisher/.config/esker/keys/{NAME}.pub"));
        let copy = home.join(format!("work/{NAME}.pub"));
        person.does(|| fs::copy(key, copy)).expect("copying the key");
        let repositories = home.join("publisher/.local/share/esker/repositories");
        let mut serve = world.esker(&["serve", "--listen", "127.0.0.1:0"]);
        let (server, url) = started(serve.arg(repositories));
        Self { world, server, url }
    }

    fn home(&self, name: &str) -> String {
        self.world.path("home").join(name).display().to_string()
    }

    /// Returns a shell that runs a guide's commands, with paths and addresses of this machine in place of the guide's.
    fn shell(&self, text: &str) -> Command {
        let places = [
            ("http://server", self.url.clone()),
            ("0.0.0.0:8000", "127.0.0.1:0".to_owned()),
            ("0.0.0.0:3128", "127.0.0.1:0".to_owned()),
            ("0.0.0.0:4929", "127.0.0.1:0".to_owned()),
            ("/build/", self.home("build/")),
            ("/mnt/", self.home("mnt/")),
            ("/srv/cvmfs", self.home(".local/share/esker/repositories")),
            ("/var/tmp/", self.home("tmp/")),
            ("/var/cache/", self.home("tmp/")),
        ];
        let text = places.iter().fold(text.to_owned(), |text, (there, here)| text.replace(there, here));
        let mut path = self.world.program().parent().expect("a folder").as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut shell = self.world.person.command("/bin/sh");
        shell
            .args(["-euc", &text])
            .env_clear()
            .env("PATH", path)
            .env("HOME", self.world.path("home"))
            .env("XDG_RUNTIME_DIR", self.world.path("run"))
            .env("ESKER_CACHE", self.world.path("home/.cache/esker"))
            .env("ESKER_CONFIG_ROOT", self.world.config_root())
            .current_dir(self.home("work"))
            .stdin(Stdio::null());
        shell
    }

    #[track_caller]
    fn follow(&self, what: &str, text: &str) -> Output {
        let output = self.shell(text).output().expect("a shell");
        assert!(output.status.success(), "{what}:\n{text}{}", words(&output));
        output
    }

    /// Starts a server or a proxy, requests its page or a manifest and stops it.
    #[track_caller]
    fn serve(&self, what: &str, text: &str) {
        let (mut server, url) = started(&mut self.shell(&format!("exec {text}")));
        let address = url.strip_prefix("http://").expect("an address");
        let mut stream = TcpStream::connect(address).expect("connecting");
        let (path, said) = match text.split_whitespace().nth(1) {
            Some("proxy") => (format!("/cvmfs/{NAME}/.cvmfspublished"), NAME),
            Some("gateway") => ("/api/v1".to_owned(), "welcome"),
            _ => ("/".to_owned(), NAME),
        };
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")
            .expect("asking");
        let mut page = Vec::new();
        stream.read_to_end(&mut page).expect("an answer");
        let page = String::from_utf8_lossy(&page);
        assert!(page.starts_with("HTTP/1.1 200 ") && page.contains(said), "{what}: {page}");
        stop(&mut server);
        assert!(server.wait().expect("its end").success(), "{what}");
    }

    /// Runs the doctor. Other tests break mounts of theirs at the same time, which it reports, too.
    #[track_caller]
    fn examine(&self, text: &str) {
        let output = self.shell(text).output().expect("a shell");
        let said = words(&output);
        assert!(matches!(output.status.code(), Some(0 | 1)), "{said}");
        let mut broken = said.lines().filter(|line| line.starts_with("BROKEN"));
        assert!(!broken.any(|line| !line.contains("mount ") || line.contains(&self.home(""))), "{said}");
    }

    /// Checks that a guide leaves nothing mounted. Mounts of other tests of the same user or of root are reported,
    /// too.
    #[track_caller]
    fn finish(&self, what: &str) {
        let output = self.follow(what, "esker status --json");
        let all: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let mut mounts = all["mounts"].as_array().expect("mounts").iter();
        let is_theirs = |state: &serde_json::Value| state == "unregistered" || state == "shared";
        assert!(mounts.all(|mount| is_theirs(&mount["state"])), "{what}: {all:#}");
        assert!(!words(&output).contains(&self.home("")), "{what}: {all:#}");
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        stop(&mut self.server);
        let _ = self.server.wait();
    }
}

fn stop(server: &mut Child) {
    let pid = Pid::from_raw(server.id().cast_signed()).expect("a process");
    // One that ended already fails its test elsewhere.
    let _ = kill_process(pid, Signal::TERM);
}

/// Starts `esker serve`; returns it with its address.
fn started(command: &mut Command) -> (Child, String) {
    let mut server = command.stdout(Stdio::piped()).spawn().expect("starting a server");
    let mut line = String::new();
    let mut output = BufReader::new(server.stdout.take().expect("its output"));
    output.read_line(&mut line).expect("a line");
    // It writes more; the pipe must not break.
    server.stdout = Some(output.into_inner());
    let url = line.trim().strip_prefix("serving at ").or_else(|| {
        // It names its state, too.
        line.strip_prefix("proxy at ")?.split_once(',').map(|(url, _)| url)
    });
    let url = url.or_else(|| line.trim().strip_prefix("gateway at ")?.strip_suffix("/api/v1"));
    let url = url.unwrap_or_else(|| panic!("it said {line:?}"));
    (server, url.trim_end_matches('/').to_owned())
}

/// Makes the guides' source files, and the repository's content for them.
fn make_files(home: &Path) {
    let write = |name: &str, text: &str, mode: u32| {
        let path = home.join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
    };
    let gcc = "#!/bin/sh\necho gcc 14.2\n";
    for (name, text, mode) in [
        ("published/README", "Software for all.\n", 0o644),
        ("published/bin/tool", gcc, 0o755),
        ("published/lib/libtool.so.1", "a library\n", 0o644),
        ("published/gcc/14.2/bin/gcc", gcc, 0o755),
        ("build/software/bin/tool", gcc, 0o755),
        ("build/gcc-14.2/bin/gcc", gcc, 0o755),
        ("build/gcc-14.2/share/old", "old\n", 0o644),
    ] {
        write(name, text, mode);
    }
    // So many that a publish of this folder alone never removes more than half of the repository.
    for number in 0..40 {
        write(&format!("build/software/share/page{number}"), "a page\n", 0o644);
    }
    for folder in ["work", "mnt/sw", "tmp"] {
        fs::create_dir_all(home.join(folder)).expect("folders");
    }
    let app = ContainerImage::new(serde_json::json!({"Cmd": ["tool"]}));
    let app = app.layer(Packing::Gzip, |layer| _ = layer.file("bin/tool", 0o755, gcc));
    app.write_layout(&home.join("work/layout"), "v1");
    let mut tar = Command::new("tar");
    let archive =
        tar.arg("-czf").arg(home.join("work/gcc.tar.gz")).arg("-C").arg(home.join("build/gcc-14.2"));
    assert!(archive.arg(".").status().expect("running tar").success(), "no archive");
}

#[test]
fn the_commands_of_the_guides_work() {
    let (mut all_done, mut all_left_out) = (0, 0);
    for guide in GUIDES {
        let reader = Reader::new();
        reader.follow("an image that is there", "esker image build stack.sqfs /build/software");
        let text = fs::read_to_string(source_tree().join(guide)).expect("a guide");
        let (mut done, mut left_out) = (0, 0);
        for Fenced { info, line, text } in fenced(&text) {
            let what = format!("{guide}:{line}");
            match info.split_once(' ').unwrap_or((&info, "")) {
                ("sh", "") => _ = reader.follow(&what, &text),
                ("sh", "server") => reader.serve(&what, &text),
                ("sh", words) => {
                    let reason = words.strip_prefix("elsewhere: ").unwrap_or_default();
                    assert!(!reason.is_empty(), "{what}: {info:?} is nothing that is known here");
                    left_out += 1;
                    continue;
                }
                (_, _) => {
                    let command = text.lines().find(|line| line.starts_with("esker "));
                    assert_eq!(command, None, "{what}: a command in a box that isn't run");
                    continue;
                }
            }
            done += 1;
        }
        assert!(done >= 1, "{guide}: no box is run");
        all_done += done;
        all_left_out += left_out;
        reader.finish(guide);
    }
    assert!(all_left_out * 3 <= all_done, "{all_done} boxes are run, {all_left_out} are not");
}

/// Every document with commands in boxes is tested as a guide, and no command is outside of a box.
#[test]
fn every_command_in_a_document_is_tested() {
    let names = ["docs", "docs/guides"].into_iter().flat_map(|folder| {
        let entries = fs::read_dir(source_tree().join(folder)).expect("the documents");
        entries
            .map(move |entry| format!("{folder}/{}", entry.expect("an entry").file_name().to_string_lossy()))
    });
    for name in names.chain(["README.md".to_owned()]).filter(|name| name.ends_with(".md")) {
        let text = fs::read_to_string(source_tree().join(&name)).expect("a document");
        let tested = GUIDES.contains(&name.as_str()) || BENCHMARKS.contains(&name.as_str());
        assert!(tested || !text.contains("\n```sh"), "{name} has boxes with commands");
        let indented = text.lines().find(|line| line.starts_with("    esker"));
        assert_eq!(indented, None, "{name}: a command outside of boxes");
    }
}

/// Returns the commands that make what the example of a command names.
fn preparation(command: &str) -> Option<&'static str> {
    let script = match command {
        "image learn" => "mkdir seen; esker mount stack.sqfs seen; seen/bin/tool; esker umount seen",
        "tag add" => {
            "for number in 1 2 3 4 5 6 7 8 9 10 11 12; do echo $number >/build/software/number; \
             esker publish sw.example.org /build/software --quiet --allow-shrink; done"
        }
        "tag" => "esker tag remove sw.example.org v1.2",
        "tag move" => "esker tag add sw.example.org production",
        "tag remove" => {
            "esker tag add sw.example.org v1.0 --revision 3; esker tag add sw.example.org v1.1 --revision 4"
        }
        "rollback" => "esker tag add sw.example.org v1.1 --revision 5",
        "transaction" => {
            "mkdir /build/gcc; \
             printf 'install:\\n\\tmkdir -p /cvmfs/sw.example.org/gcc && touch /cvmfs/sw.example.org/gcc/new\\n' \
             >/build/gcc/Makefile"
        }
        "transaction show" | "transaction publish" | "transaction abort" => {
            "esker transaction sw.example.org --keep -- mktemp -p ."
        }
        "transaction enter" => {
            "esker transaction abort sw.example.org; esker transaction sw.example.org --open"
        }
        "transaction resume" => {
            "esker transaction abort sw.example.org; \
             esker transaction sw.example.org --keep -- sh -c 'printf \"check:\\n\\ttest -e bin\\n\" >Makefile'"
        }
        _ => return None,
    };
    Some(script)
}

/// The example in each command's help works, in the order in which users would try them.
#[test]
fn the_examples_of_help_work() {
    let reader = Reader::new();
    let order = [
        "repo create",
        "repo reindex",
        "repo resign",
        "repo list",
        "repo info",
        "repo set",
        "repo export-config",
        "repo import",
        "repo remove",
        "key list",
        "key export",
        "key import",
        "key encrypt",
        "key signer",
        "key request",
        "key sign",
        "key apply",
        "key rotate",
        "key revoke",
        "key",
        "publish",
        "ingest",
        "repo copy",
        "remove",
        "repo catalogs",
        "graft",
        "log",
        "diff",
        "tag list",
        "tag show",
        "tag add",
        "tag move",
        "tag remove",
        "tag",
        "undo",
        "rollback",
        "transaction",
        "transaction list",
        "transaction show",
        "transaction enter",
        "transaction resume",
        "transaction publish",
        "transaction abort",
        "check",
        "collect",
        "image build",
        "image inspect",
        "image ls",
        "image cat",
        "image diff",
        "image verify",
        "image learn",
        "image digest",
        "image extract",
        "image",
        "profile record",
        "profile show",
        "profile add",
        "profile list",
        "profile remove",
        "profile",
        "replicate",
        "serve",
        "proxy",
        "gateway key list",
        "gateway key add",
        "gateway key rotate",
        "gateway key remove",
        "gateway key",
        "gateway lease list",
        "gateway lease end",
        "gateway lease log",
        "gateway lease",
        "gateway",
        "ls",
        "cat",
        "stat",
        "find",
        "run",
        "setup mount",
        "setup replicate",
        "setup serve",
        "setup gateway",
        "setup proxy",
        "setup broker",
        "setup check",
        "setup collect",
        "setup resign",
        "setup metrics",
        "setup import",
        "setup undo",
        "setup",
        "mount",
        "status",
        "trace",
        "top",
        "upgrade",
        "reload",
        "metrics",
        "logs",
        "revision",
        "doctor",
        "compare",
        "umount",
        "broker",
        "cache preload",
        "cache pin",
        "cache status",
        "cache list",
        "cache unpin",
        "cache evict",
        "cache check",
        "cache wipe",
        "cache",
        "config show",
        "config",
        "config check",
        "repo",
        "completions",
        "manual",
        "",
    ];
    for command in commands(&reader.world) {
        assert!(order.contains(&command.as_str()), "{command} is not tried");
    }
    for command in order {
        let help = help(&reader.world, command);
        let (_, example) = help.split_once("Example: ").unwrap_or_else(|| panic!("{command}: {help}"));
        let (example, _) = example.split_once("\n\n").expect("a paragraph");
        let example = example.replace('\n', " ");
        match command {
            "serve" | "proxy" | "gateway" => reader.serve(command, &example),
            // Listens where only root may; `broker.rs` starts it elsewhere.
            "broker" => {}
            // The same example as that of one of its commands, whose repository is there by now.
            "repo" => assert_eq!(example, format!("esker repo create {NAME}")),
            // They need an operator's gateway at its usual port; `gateways.rs` has one elsewhere.
            "gateway lease" | "gateway lease list" | "gateway lease end" | "gateway lease log" => {
                assert!(example.ends_with("--key boss.gw"), "{example}");
            }
            // They need a token, a terminal, or another publisher; `crates/maintain/tests/it/keys.rs` has those.
            "key signer" | "key encrypt" | "key revoke" => assert!(example.contains(NAME), "{example}"),
            // It needs a source with servers and keys; `importing.rs` has those.
            "setup import" => assert!(example.starts_with("esker setup import /cvmfs/config."), "{example}"),
            // It needs a machine that is configured, as those of `configuring.rs` are.
            "config check" => assert_eq!(example, format!("esker config check {NAME}")),
            "doctor" => reader.examine(&example),
            _ => {
                if let Some(before) = preparation(command) {
                    reader.follow(&format!("before {command}"), before);
                }
                reader.follow(command, &example);
            }
        }
    }
    reader.finish("the examples");
}
