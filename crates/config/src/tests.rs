mod newer;
mod others;
mod reference;

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
            machine: Machine {
                architecture: "aarch64".into(),
                release: "6.1".into(),
                host: "wn1".into(),
                ..Machine::default()
            },
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

/// Later files override earlier ones, in the order of the reference; each value knows its line.
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
        // Each file sees the values of the files before it.
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
    // The settings for all repositories include no file of a single one.
    let files: Vec<PathBuf> = site.load(None).files().to_vec();
    let general = [order[0], order[1], order[2], order[4]];
    assert_eq!(files, general.map(PathBuf::from));
}

/// Typical configurations in shell syntax have the values that the reference finds.
#[test]
fn files_of_a_site_have_the_values_of_the_reference() {
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
fn files_of_esker_are_read_last() {
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
fn newer_names_of_parameters_take_precedence() {
    let site = Site::new(&[("/etc/cvmfs/default.conf", "CVMFS_CACHE_QUOTA_LIMIT=1\nCVMFS_QUOTA_LIMIT=2\n")]);
    let parameters = site.load(None);
    assert_eq!(parameters.get("CVMFS_QUOTA_LIMIT").map(|it| it.value.as_str()), Some("1"));
    assert_eq!(parameters.named("CVMFS_QUOTA_LIMIT").map(|(name, _)| name), Some("CVMFS_CACHE_QUOTA_LIMIT"));
}

/// Unreadable files are reported; the others count.
#[test]
fn unreadable_configuration_files_are_reported() {
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

/// A hanging configuration repository costs no more than its timeout.
#[test]
fn a_hanging_configuration_repository_is_skipped() {
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
        fn is_public(&self, path: &Path) -> std::io::Result<bool> {
            self.0.is_public(path)
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

/// Parameters become servers, proxies, patience, keys, a cache and a revision.
#[test]
fn parameters_have_types() {
    let site = Site::new(&[(
        "/etc/cvmfs/default.local",
        "CVMFS_SERVER_URL='http://a/cvmfs/@fqrn@/;http://b/@fqrn@;http://c'\nCVMFS_MAX_SERVERS=2\n\
         CVMFS_HTTP_PROXY='http://p1:3128|http://p2:3128;auto'\nCVMFS_FALLBACK_PROXY=f:1\nCVMFS_PROXY_SHARD=yes\n\
         CVMFS_FOLLOW_REDIRECTS=on\nCVMFS_TIMEOUT=3\nCVMFS_TIMEOUT_DIRECT=4\nCVMFS_LOW_SPEED_LIMIT=500\n\
         CVMFS_MAX_RETRIES=2\nCVMFS_BACKOFF_INIT=1\nCVMFS_BACKOFF_MAX=6\nCVMFS_PROXY_RESET_AFTER=0\n\
         CVMFS_HOST_RESET_AFTER=60\nCVMFS_DNS_TIMEOUT=2\nCVMFS_DNS_RETRIES=3\nCVMFS_DNS_MIN_TTL=10\n\
         CVMFS_DNS_MAX_TTL=20\nCVMFS_DNS_SERVER=10.0.0.1\nCVMFS_IPFAMILY_PREFER=6\nCVMFS_MAX_IPADDR_PER_PROXY=2\n\
         CVMFS_PUBLIC_KEY=/k/a.pub:/k/b.pub\nCVMFS_BLACKLIST=/b\nCVMFS_CACHE_BASE=/c\nCVMFS_QUOTA_LIMIT=100\n\
         CVMFS_REPOSITORY_TAG=v1\nCVMFS_MAX_TTL=3\nCVMFS_DEFAULT_DOMAIN=test\nCVMFS_REPOSITORIES=sw,other.org\n",
    )]);
    let parameters = site.load(Some("sw.test"));
    assert_eq!(parameters.findings(), []);
    let servers = parameters.servers(Some("http://auto:8")).expect("servers");
    let seconds = Duration::from_secs;
    assert_eq!(servers.urls, ["http://a/cvmfs/sw.test", "http://b/sw.test", "http://c"]);
    assert_eq!(servers.most, 2);
    assert_eq!(servers.proxies.to_string(), "http://p1:3128|http://p2:3128;http://auto:8");
    assert_eq!(servers.fallback.to_string(), "http://f:1");
    assert!(servers.sharding && servers.redirects);
    let esker_store::Timings { proxy, direct, low_speed, retries, .. } = servers.timings;
    assert_eq!((proxy, direct, low_speed, retries), (seconds(3), Some(seconds(4)), Some(500), 2));
    let esker_store::Timings { first_pause, longest_pause, proxy_reset, server_reset, .. } = servers.timings;
    assert_eq!((first_pause, longest_pause), (Some(seconds(1)), Some(seconds(6))));
    assert_eq!((proxy_reset, server_reset), (None, Some(seconds(60))));
    let dns = esker_store::Dns {
        timeout: seconds(2),
        retries: 3,
        least_ttl: seconds(10),
        longest_ttl: seconds(20),
        server: Some(([10, 0, 0, 1], 53).into()),
        family: esker_store::Family::PreferV6,
        addresses_max: 2,
    };
    assert_eq!(servers.dns, dns);
    assert_eq!(parameters.keys().expect("keys").paths, [Path::new("/k/a.pub"), Path::new("/k/b.pub")]);
    assert_eq!(parameters.blacklist().expect("a list"), Path::new("/b"));
    let cache = parameters.cache().expect("a cache").expect("one");
    assert_eq!((cache.path.as_path(), cache.quota), (Path::new("/c/esker-sw.test"), Some(100 << 20)));
    assert_eq!(parameters.pin(), Ok(Some(esker_view::Pin::Tag("v1".into()))));
    assert_eq!(parameters.longest_ttl(), Ok(Some(seconds(180))));
    assert_eq!(parameters.repositories().expect("names"), ["sw.test", "other.org"]);
    site.write(
        "/etc/cvmfs/config.d/sw.test.local",
        "CVMFS_SHARED_CACHE=yes\nCVMFS_REPOSITORY_TAG=\nCVMFS_AUTO_UPDATE=no\nCVMFS_IPV4_ONLY=1\nCVMFS_QUOTA_LIMIT=-1\n\
         CVMFS_PUBLIC_KEY=\nCVMFS_USE_GEOAPI=yes\nCVMFS_MAX_TTL=0\nCVMFS_SEND_INFO_HEADER=yes\n\
         CVMFS_HTTP_TRACING=yes\nCVMFS_HTTP_TRACING_HEADERS='site:here|job:1:2'\nCVMFS_FAILOVER_INDEFINITELY=yes\n\
         CVMFS_PROXY_TEMPLATE=here\nCVMFS_NOTIFICATION_SERVER=http://n/api/v1\n",
    );
    let parameters = site.load(Some("sw.test"));
    let cache = parameters.cache().expect("a cache").expect("one");
    assert_eq!((cache.path.as_path(), cache.quota), (Path::new("/c/esker"), Some(u64::MAX)));
    assert_eq!(parameters.pin(), Ok(Some(esker_view::Pin::Head)));
    let servers = parameters.servers(Some("auto")).expect("servers");
    assert_eq!((servers.dns.family, servers.order), (esker_store::Family::OnlyV4, esker_store::Order::Geo));
    let fields: Vec<_> =
        servers.info_headers.fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert!(
        servers.info_headers.what && fields[0].starts_with("UID=") && fields[1].starts_with("GID="),
        "{fields:?}"
    );
    assert_eq!(fields[2..], ["site=here", "job=1:2"]);
    assert_eq!((servers.timings.indefinitely, servers.geo_name.as_deref()), (true, Some("here")));
    assert_eq!(parameters.notification_server(), Ok(Some("http://n/api/v1".into())));
    assert_eq!(parameters.keys().expect("keys").paths, [Path::new("/etc/cvmfs/keys")]);
    assert_eq!(parameters.longest_ttl(), Ok(None));
    site.write("/etc/cvmfs/config.d/sw.test.local", "ESKER_SERVER_ORDER=round-trip\nCVMFS_USE_GEOAPI=yes\n");
    let parameters = site.load(Some("sw.test"));
    let round_trip = esker_store::Order::RoundTrip;
    assert_eq!(parameters.servers(Some("http://p:1")).expect("servers").order, round_trip);
    let auto = parameters.unknown_auto(None).expect("a warning");
    assert!(auto.what.contains("CVMFS_PAC_URLS") && auto.mend.contains("name the proxies"), "{auto}");
    assert_eq!(parameters.unknown_auto(Some("http://p:1")), None);
    site.write("/etc/cvmfs/config.d/sw.test.local", "CVMFS_EXTERNAL_URL='http://e/@fqrn@/;http://f'\nCVMFS_EXTERNAL_MAX_SERVERS=1\n\
         CVMFS_EXTERNAL_HTTP_PROXY=p:1\nCVMFS_EXTERNAL_FALLBACK_PROXY=q:1\nCVMFS_EXTERNAL_TIMEOUT=7\nCVMFS_EXTERNAL_TIMEOUT_DIRECT=8\n");
    let parameters = site.load(Some("sw.test"));
    let mut servers = parameters.servers(None).expect("servers");
    parameters.add_external(&mut servers, None).expect("servers");
    let external = servers.external.expect("others");
    assert_eq!((external.urls[0].as_str(), external.urls.len(), external.most), ("http://e/sw.test", 2, 1));
    assert_eq!(
        (external.proxies.to_string(), external.fallback.to_string()),
        ("http://p:1".into(), "http://q:1".into())
    );
    assert_eq!((external.timings.proxy, external.timings.direct), (seconds(7), Some(seconds(8))));
}

/// A missing or invalid parameter is reported with its line and advice.
#[test]
fn missing_and_invalid_parameters_are_reported_with_advice() {
    let site = Site::new(&[]);
    let failed = |site: &Site| {
        let parameters = site.load(Some("sw.test"));
        let error = parameters.allowed().and_then(|()| parameters.servers(None)).expect_err("wrong");
        format!("{error}\n{}", error.mend())
    };
    assert!(
        failed(&site)
            .starts_with("CVMFS_SERVER_URL is not set for sw.test\nset it in /etc/cvmfs/domain.d/test.local")
    );
    site.write("/etc/cvmfs/default.local", "CVMFS_SERVER_URL=http://a\n");
    assert!(
        failed(&site)
            .starts_with("CVMFS_HTTP_PROXY is not set for sw.test\nset it in /etc/cvmfs/default.local")
    );
    for (line, told) in [
        ("CVMFS_HTTP_PROXY=auto", "CVMFS_HTTP_PROXY=auto (/etc/cvmfs/default.d/1.conf:1): `auto` stands for"),
        (
            "CVMFS_HTTP_PROXY=p:x",
            "CVMFS_HTTP_PROXY=p:x (/etc/cvmfs/default.d/1.conf:1): p:x: its port is not a number",
        ),
        ("CVMFS_TIMEOUT=5s", "CVMFS_TIMEOUT=5s (/etc/cvmfs/default.d/1.conf:1): it takes seconds"),
        (
            "CVMFS_MAX_RETRIES=99999999999",
            "CVMFS_MAX_RETRIES=99999999999 (/etc/cvmfs/default.d/1.conf:1): it is too large",
        ),
        ("CVMFS_DNS_SERVER=dns", "it is not an address"),
        ("CVMFS_STRICT_MOUNT=yes", "sw.test is not in CVMFS_REPOSITORIES\nadd sw.test to CVMFS_REPOSITORIES"),
    ] {
        let proxy = if line.contains("HTTP") { "" } else { "CVMFS_HTTP_PROXY=DIRECT" };
        site.write("/etc/cvmfs/default.d/1.conf", &format!("{line}\n{proxy}\n"));
        assert!(failed(&site).contains(told), "{line}: {}", failed(&site));
    }
}

/// The page in `docs/` equals the table.
#[test]
fn the_page_of_parameters_equals_the_table() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/parameters.md");
    let written = fs::read_to_string(page).expect("docs/parameters.md");
    assert!(
        written == table::page(),
        "docs/parameters.md is not what the table says: make it anew as its second line says"
    );
}

/// Each honoured parameter names a test, which exists.
#[test]
fn honoured_parameters_name_an_existing_test() {
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

/// Tiers as HPC sites have them: a cache of the node over a folder of the cluster.
#[test]
fn named_and_tiered_caches_are_parsed() {
    let tiers = |parameters: &Parameters| {
        let tiers = parameters.tiers().expect("tiers").into_iter();
        tiers.map(|tier| (tier.folder.display().to_string(), tier.alien)).collect::<Vec<_>>()
    };
    let own = |parameters: &Parameters| {
        parameters.cache().expect("a cache").map(|cache| (cache.path.display().to_string(), cache.quota))
    };
    let site =
        Site::new(&[("/etc/cvmfs/default.local", "CVMFS_ALIEN_CACHE=/gpfs/alien\nCVMFS_SHARED_CACHE=no\n")]);
    let parameters = site.load(Some("sw.test"));
    assert_eq!((own(&parameters), tiers(&parameters)), (None, vec![("/gpfs/alien".into(), true)]));
    assert_eq!(parameters.findings(), [], "nothing is without effect");

    site.write(
        "/etc/cvmfs/default.local",
        "CVMFS_CACHE_PRIMARY=hpc\nCVMFS_CACHE_hpc_TYPE=tiered\nCVMFS_CACHE_hpc_UPPER=node\n\
         CVMFS_CACHE_hpc_LOWER=cluster\nCVMFS_CACHE_hpc_LOWER_READONLY=yes\nCVMFS_CACHE_node_TYPE=posix\n\
         CVMFS_CACHE_node_BASE=/local\nCVMFS_CACHE_node_SHARED=yes\nCVMFS_CACHE_node_QUOTA_LIMIT=50\n\
         CVMFS_CACHE_cluster_TYPE=posix\nCVMFS_CACHE_cluster_ALIEN=/gpfs/preloaded\n\
         CVMFS_CACHE_cluster_QUOTA_LIMIT=-1\nCVMFS_CACHE_BASE=/unused\n",
    );
    let parameters = site.load(Some("sw.test"));
    assert_eq!(own(&parameters), Some(("/local/esker".into(), Some(50 << 20))));
    assert_eq!(tiers(&parameters), [("/gpfs/preloaded".into(), false)]);
    assert_eq!(parameters.unknown_cache(), Ok(None));

    // Written as well, and another client's cache in its place.
    site.write("/etc/cvmfs/config.d/sw.test.local", "CVMFS_CACHE_hpc_LOWER_READONLY=no\n");
    assert_eq!(tiers(&site.load(Some("sw.test"))), [("/gpfs/preloaded".into(), true)]);
    for (set, folder) in [
        (
            "CVMFS_CACHE_cluster_BASE=/var/lib/cvmfs\nCVMFS_CACHE_cluster_SHARED=yes\n",
            "/var/lib/cvmfs/shared",
        ),
        ("CVMFS_CACHE_cluster_BASE=/var/lib/cvmfs\n", "/var/lib/cvmfs/sw.test"),
        ("CVMFS_CACHE_cluster_DIR=/there\n", "/there"),
    ] {
        site.write("/etc/cvmfs/config.d/sw.test.local", &format!("CVMFS_CACHE_cluster_ALIEN=\n{set}"));
        assert_eq!(tiers(&site.load(Some("sw.test"))), [(folder.into(), false)]);
    }
    // An unknown kind is reported, and an impossible one is an error.
    site.write("/etc/cvmfs/config.d/sw.test.local", "CVMFS_CACHE_node_TYPE=external\n");
    let unknown = site.load(Some("sw.test")).unknown_cache().expect("a cache").expect("a plugin");
    assert_eq!(unknown.0, "CVMFS_CACHE_node_TYPE");
    for (size, bytes) in [("", None), ("100", Some(100 << 20)), ("25%", Some(250 << 10))] {
        let memory = format!("CVMFS_CACHE_node_TYPE=ram\nCVMFS_CACHE_node_SIZE={size}\n");
        site.write("/etc/cvmfs/config.d/sw.test.local", &memory);
        let parameters = site.load(Some("sw.test"));
        assert_eq!(parameters.unknown_cache(), Ok(None));
        let memory = parameters.memory(1000 << 10).expect("a cache").expect("one in memory");
        assert_eq!((memory.bytes, memory.from.0.as_str()), (bytes, "CVMFS_CACHE_node_TYPE"));
    }
    site.write(
        "/etc/cvmfs/config.d/sw.test.local",
        "CVMFS_CACHE_node_TYPE=ram\nCVMFS_CACHE_node_SIZE=much\n",
    );
    assert!(site.load(Some("sw.test")).memory(1 << 30).is_err());
    for bad in ["CVMFS_CACHE_hpc_UPPER=hpc\n", "CVMFS_CACHE_hpc_UPPER=\n"] {
        site.write("/etc/cvmfs/config.d/sw.test.local", bad);
        let parameters = site.load(Some("sw.test"));
        assert!(parameters.tiers().is_err() && parameters.cache().is_err(), "{bad}");
    }
    site.write("/etc/cvmfs/config.d/sw.test.local", "CVMFS_CACHE_hpc_LOWER=nothing\n");
    assert!(site.load(Some("sw.test")).tiers().is_err());
}
