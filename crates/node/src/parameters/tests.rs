use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::table::State;
use super::*;

/// A site's files below a folder that stands for the root.
pub(super) struct Site(tempfile::TempDir);

impl Site {
    pub(super) fn new(files: &[(&str, &str)]) -> Self {
        let site = Self(tempfile::tempdir().expect("a folder"));
        files.iter().for_each(|(path, text)| site.write(path, text));
        site
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path.trim_start_matches('/'))
    }

    pub(super) fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("mkdir");
        fs::write(path, text).expect("writing");
    }

    fn load(&self, name: Option<&str>) -> Parameters {
        Request {
            files: Arc::new(Root::new(self.0.path())),
            machine: Machine { architecture: "aarch64".into(), release: "6.1".into(), host: "wn1".into() },
            environment: [("SITE".to_owned(), "north".to_owned())].into(),
            folder: "/etc/cvmfs".into(),
            own: vec!["/etc/esker".into(), "/users/u/.config/esker".into()],
            name: name.map(str::to_owned),
            patience: Duration::from_secs(60),
        }
        .load()
    }
}

fn shown(parameters: &Parameters, name: &str) -> String {
    parameters.get(name).map_or("-".into(), |setting| format!("{} # {}", setting.value, setting.origin))
}

fn told(parameters: &Parameters) -> Vec<String> {
    parameters.problems().iter().map(ToString::to_string).collect()
}

/// Later files win, in the order of the reference; each value knows its line.
#[test]
fn later_files_win_in_the_order_of_the_reference() {
    let order = [
        "/etc/cvmfs/default.conf",
        "/etc/cvmfs/default.d/10-a.conf",
        "/etc/cvmfs/default.d/20-b.conf",
        "/cvmfs/config.test/etc/cvmfs/default.conf",
        "/etc/cvmfs/default.local",
        "/cvmfs/config.test/etc/cvmfs/domain.d/example.org.conf",
        "/etc/cvmfs/domain.d/example.org.conf",
        "/etc/cvmfs/domain.d/example.org.local",
        "/cvmfs/config.test/etc/cvmfs/config.d/sw.example.org.conf",
        "/etc/cvmfs/config.d/sw.example.org.conf",
        "/etc/cvmfs/config.d/sw.example.org.local",
    ];
    let site = Site::new(&[]);
    for (at, path) in order.iter().enumerate() {
        // Each sees what the files before it have set.
        let text =
            format!("CVMFS_CONFIG_REPOSITORY=config.test\n\nSEEN=${{SEEN}}{at}.\nP{at}=x\nLAST={at}\n");
        site.write(path, &text);
    }
    site.write("/etc/cvmfs/default.d/15-not-read.local", "LAST=no");
    site.write("/etc/cvmfs/domain.d/other.org.conf", "LAST=no");
    let parameters = site.load(Some("sw.example.org"));
    assert_eq!(told(&parameters), Vec::<String>::new());
    let files: Vec<&Path> = parameters.files().iter().map(PathBuf::as_path).collect();
    assert_eq!(files, order.map(Path::new));
    assert_eq!(shown(&parameters, "SEEN"), format!("0.1.2.3.4.5.6.7.8.9.10. # {}:3", order[10]));
    assert_eq!(shown(&parameters, "P3"), format!("x # {}:4", order[3]));
    // What holds for all repositories has no part that is for one.
    let files: Vec<PathBuf> = site.load(None).files().to_vec();
    let general = [order[0], order[1], order[2], order[4]];
    assert_eq!(files, general.map(PathBuf::from));
}

/// What sites write, in the syntax of a shell, has the values that the reference finds.
#[test]
fn files_of_a_site_mean_what_they_mean_to_the_reference() {
    let site = Site::new(&[
        (
            "/etc/cvmfs/default.conf",
            "CVMFS_CLIENT_PROFILE=\nCVMFS_QUOTA_LIMIT=4000 # MB\n\
             if [ \"x$CVMFS_BASE_ENV\" = \"x\" ]; then\n  readonly CVMFS_MOUNT_DIR=/cvmfs\n  readonly CVMFS_BASE_ENV=1\nfi\n",
        ),
        (
            "/etc/cvmfs/default.d/50.conf",
            "CVMFS_CONFIG_REPOSITORY=config.example.org\nCVMFS_DEFAULT_DOMAIN=example.org\n",
        ),
        (
            "/etc/cvmfs/default.local",
            "CVMFS_HTTP_PROXY='http://p1:3128|http://p2:3128'\nCVMFS_USE_CDN=yes\n\
             CVMFS_CACHE_BASE=\"/scratch/${SITE}/  cvmfs\"\nEMPTY=\n",
        ),
        (
            "/etc/cvmfs/domain.d/example.org.conf",
            "if [ \"$CVMFS_USE_CDN\" = \"yes\" ]; then\n\
             CVMFS_SERVER_URL=\"http://cdn/cvmfs/@fqrn@;http://s1/@org@/@other@\"\nelse CVMFS_SERVER_URL=http://s1\nfi\n\
             VARIANT=$CVMFS_ARCH/$CVMFS_FQRN\n",
        ),
        (
            "/etc/cvmfs/config.d/sw.example.org.local",
            "CVMFS_HTTP_PROXY=\"${CVMFS_HTTP_PROXY};DIRECT\"\nCVMFS_MOUNT_DIR=/elsewhere\nCVMFS_CONFIG_REPOSITORY=late\n",
        ),
        (
            "/cvmfs/config.example.org/etc/cvmfs/domain.d/example.org.conf",
            "OF_REPOSITORY=$CVMFS_CLIENT_PROFILE.\n",
        ),
    ]);
    let parameters = site.load(Some("sw.example.org"));
    let value = |name: &str| parameters.get(name).map(|setting| setting.value.as_str());
    assert_eq!(value("CVMFS_HTTP_PROXY"), Some("http://p1:3128|http://p2:3128;DIRECT"));
    assert_eq!(
        shown(&parameters, "CVMFS_SERVER_URL"),
        "http://cdn/cvmfs/sw.example.org;http://s1/sw/@other@ # /etc/cvmfs/domain.d/example.org.conf:2"
    );
    assert_eq!(value("CVMFS_CACHE_BASE"), Some("/scratch/north/ cvmfs"));
    assert_eq!(value("VARIANT"), Some("aarch64/sw.example.org"));
    assert_eq!(value("OF_REPOSITORY"), Some("."));
    // Read-only holds in the file that says so.
    assert_eq!(value("CVMFS_MOUNT_DIR"), Some("/elsewhere"));
    assert_eq!(value("CVMFS_CONFIG_REPOSITORY"), Some("config.example.org"));
    assert_eq!(value("EMPTY"), None);
    assert_eq!(
        told(&parameters),
        [
            "/etc/cvmfs/config.d/sw.example.org.local:3: CVMFS_CONFIG_REPOSITORY=late comes too late and is ignored"
        ]
    );
}

/// Esker's own files come last, those of the user after those of the machine.
#[test]
fn own_files_come_last() {
    let site = Site::new(&[
        ("/etc/cvmfs/default.local", "CVMFS_QUOTA_LIMIT=1\nCVMFS_USE_GEOAPI=no\nCVMFS_TIMEOUT=7\n"),
        (
            "/etc/esker/esker.toml",
            "# ours\nquota_limit = 20000\nserver_url = [\"http://a/@fqrn@\", \"http://b\"]\nSITE_VARIANT = \"x\"\n",
        ),
        ("/etc/esker/config.d/sw.example.org.toml", "use_geoapi = true\n"),
        ("/users/u/.config/esker/esker.toml", "repositories = [\"a.test\", \"b.test\"]\nquota_limit = 5\n"),
    ]);
    let parameters = site.load(Some("sw.example.org"));
    assert_eq!(told(&parameters), Vec::<String>::new());
    assert_eq!(shown(&parameters, "CVMFS_QUOTA_LIMIT"), "5 # /users/u/.config/esker/esker.toml:2");
    assert_eq!(
        shown(&parameters, "CVMFS_SERVER_URL"),
        "http://a/sw.example.org;http://b # /etc/esker/esker.toml:3"
    );
    assert_eq!(shown(&parameters, "CVMFS_USE_GEOAPI"), "yes # /etc/esker/config.d/sw.example.org.toml:1");
    assert_eq!(parameters.get("CVMFS_REPOSITORIES").map(|it| it.value.as_str()), Some("a.test,b.test"));
    assert_eq!(shown(&parameters, "CVMFS_TIMEOUT"), "7 # /etc/cvmfs/default.local:3");
    assert_eq!(parameters.get("SITE_VARIANT").map(|it| it.value.as_str()), Some("x"));
    for (text, named) in [("a = ", ":1: "), ("\nx = {}", ":2: x is neither"), ("[t]\na = 1", "neither")] {
        site.write("/etc/esker/esker.toml", text);
        let parameters = site.load(None);
        assert!(told(&parameters)[0].contains(named), "{:?}", told(&parameters));
        assert_eq!(shown(&parameters, "CVMFS_QUOTA_LIMIT"), "5 # /users/u/.config/esker/esker.toml:2");
    }
}

#[test]
fn newer_names_go_before_older_ones() {
    let site = Site::new(&[("/etc/cvmfs/default.conf", "CVMFS_CACHE_QUOTA_LIMIT=1\nCVMFS_QUOTA_LIMIT=2\n")]);
    let parameters = site.load(None);
    assert_eq!(parameters.get("CVMFS_QUOTA_LIMIT").map(|it| it.value.as_str()), Some("1"));
    assert_eq!(parameters.named("CVMFS_QUOTA_LIMIT").map(|(name, _)| name), Some("CVMFS_CACHE_QUOTA_LIMIT"));
}

/// Files that can't be read are told of; the others count.
#[test]
fn what_can_not_be_read_is_told() {
    let site = Site::new(&[
        ("/etc/cvmfs/default.conf/a-folder", ""),
        ("/etc/cvmfs/default.local", "CVMFS_CONFIG_REPO_REQUIRED=yes\n"),
        ("/etc/cvmfs/default.d/1.conf", "CVMFS_CONFIG_REPOSITORY=config.test\n"),
        ("/etc/cvmfs/domain.d/test.conf", &"# too long\n".repeat(30_000)),
    ]);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        site.path("/etc/cvmfs/config.d"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .expect("a pipe");
    let parameters = site.load(Some("sw.test"));
    let told = told(&parameters).join("\n");
    for words in [
        "can't read /etc/cvmfs/default.conf: it is not a file",
        "can't read the configuration repository at /cvmfs/config.test: No such file",
        "can't read /etc/cvmfs/domain.d/test.conf: it has more than",
        "can't read /etc/cvmfs/config.d/sw.test.conf: Not a directory",
    ] {
        assert!(told.contains(words), "{words} is not in {told}");
    }
    assert!(parameters.get("CVMFS_CONFIG_REPO_REQUIRED").is_some());
}

/// A stuck configuration repository costs no more than the patience there is for it.
#[test]
fn a_configuration_repository_that_hangs_is_left_out() {
    struct Stuck(Root, std::sync::Mutex<std::sync::mpsc::Receiver<()>>);
    impl Files for Stuck {
        fn read(&self, path: &Path, limit: u64) -> std::io::Result<Vec<u8>> {
            self.0.read(path, limit)
        }
        fn names(&self, folder: &Path) -> std::io::Result<Vec<String>> {
            if folder.starts_with("/cvmfs") {
                // Until the end of the test.
                let _ = self.1.lock().expect("one waits").recv();
            }
            self.0.names(folder)
        }
        fn probe(&self, path: &Path, probe: Probe) -> bool {
            self.0.probe(path, probe)
        }
    }
    let site = Site::new(&[
        ("/etc/cvmfs/default.d/1.conf", "CVMFS_CONFIG_REPOSITORY=config.test\n"),
        ("/etc/cvmfs/config.d/sw.test.local", "CVMFS_HTTP_PROXY=DIRECT\n"),
    ]);
    let (_ends, waits) = std::sync::mpsc::channel();
    let request = Request {
        files: Arc::new(Stuck(Root::new(site.0.path()), waits.into())),
        machine: Machine::default(),
        environment: BTreeMap::new(),
        folder: "/etc/cvmfs".into(),
        own: Vec::new(),
        name: Some("sw.test".into()),
        patience: Duration::from_millis(50),
    };
    let parameters = request.load();
    assert_eq!(parameters.get("CVMFS_HTTP_PROXY").map(|it| it.value.as_str()), Some("DIRECT"));
    let told = told(&parameters);
    assert!(told[0].contains("/cvmfs/config.test: it did not answer"), "{told:?}");
}

/// The page in `docs/` is the table.
#[test]
fn the_page_is_the_table() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/parameters.md");
    let written = fs::read_to_string(page).expect("docs/parameters.md");
    assert!(
        written == table::page(),
        "docs/parameters.md is not what the table says: make it anew as its second line says"
    );
}

/// What is called honoured has a test, which is there.
#[test]
fn honoured_parameters_name_a_test_that_is_there() {
    let mut sources = String::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("..")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources.push_str(&fs::read_to_string(path).expect("a source"));
            }
        }
    }
    for row in table::all() {
        if let State::Honoured(test) = row.state {
            let begins = format!("fn {test}(");
            let at = sources.find(&begins).unwrap_or_else(|| panic!("{}: there is no {test}", row.name));
            let before = sources[..at].trim_end();
            assert!(before.ends_with("#[test]"), "{}: {test} is no test", row.name);
        }
    }
}
