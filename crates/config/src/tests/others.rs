//! Files of others: those of a configuration repository.

use super::*;

/// What the client writes to, listens at or keeps back is not for the publisher of a configuration repository to say.
#[test]
fn only_files_of_this_machine_set_what_acts_on_it() {
    // Those are read, or hold keys, which the publisher names anyway.
    let read = ["CVMFS_KEYS_DIR", "X509_CERT_DIR", "X509_CERT_BUNDLE"];
    for row in table::all().filter(|row| row.kind == table::Kind::Path) {
        let acts = matches!(row.state, State::Honoured(_)) && !read.contains(&row.name);
        assert_eq!(acts, row.setter == table::Setter::Local, "{}", row.name);
    }
    let local: Vec<_> = table::all().filter(|row| row.setter == table::Setter::Local).collect();
    let lines: String =
        local.iter().map(|row| format!("{}=/a/../b\n", row.name.replace("<name>", "hpc"))).collect();
    let sources =
        "f() { export CVMFS_USYSLOG=/b; }; f; read CVMFS_TALK_SOCKET < names; unset CVMFS_BLACKLIST\n";
    let site = Site::new(&[
        ("/etc/cvmfs/default.d/1.conf", "CVMFS_CONFIG_REPOSITORY=config.test\n"),
        ("/etc/cvmfs/default.conf", "CVMFS_BLACKLIST=/mine\nCVMFS_CACHE_hpc_BASE=/a\n"),
        ("/cvmfs/config.test/etc/cvmfs/names", "/planted\n"),
        ("/cvmfs/config.test/etc/cvmfs/default.conf", &format!("{lines}CVMFS_TIMEOUT=3\n")),
        ("/cvmfs/config.test/etc/cvmfs/domain.d/test.conf", sources),
        ("/cvmfs/config.test/etc/cvmfs/config.d/sw.test.conf", "CVMFS_CACHE_BASE=/var/lib/cvmfs/data\n"),
        ("/etc/cvmfs/default.local", "CVMFS_UID_MAP=$CVMFS_BLACKLIST.map\n"),
    ]);
    let parameters = site.load(Some("sw.test"));
    let told = told(&parameters).join("\n");
    for row in &local {
        let name = row.name.replace("<name>", "hpc");
        let wanted = match row.name {
            "CVMFS_BLACKLIST" => "/mine # /etc/cvmfs/default.conf:1",
            "CVMFS_CACHE_<name>_BASE" => "/a # /etc/cvmfs/default.conf:2",
            "CVMFS_UID_MAP" => "/mine.map # /etc/cvmfs/default.local:1",
            "CVMFS_CACHE_BASE" => {
                "/var/lib/cvmfs/data # /cvmfs/config.test/etc/cvmfs/config.d/sw.test.conf:1"
            }
            _ => "-",
        };
        assert_eq!(shown(&parameters, &name), wanted, "{name}");
        assert!(
            told.contains(&format!("{name} is for files of this machine only")),
            "{name} is not in {told}"
        );
    }
    assert_eq!(told.matches("CVMFS_BLACKLIST is for").count(), 2, "set, then unset: {told}");
    assert!(shown(&parameters, "CVMFS_TIMEOUT").starts_with("3 # /cvmfs/config.test/"));
}

/// Parameters can send what a file says to a server.
#[test]
fn files_of_others_read_only_what_every_user_may_read() {
    use std::os::unix::fs::PermissionsExt as _;
    let reads = "CVMFS_PROXY_TEMPLATE=$(cat /etc/secret)\nread CVMFS_HTTP_TRACING_HEADERS < /closed/file\nCVMFS_SERVER_URL=$(cat /etc/open)\n\
         . /etc/secret\nCVMFS_DNS_SERVER=$(cat /etc/link)\n";
    let site = Site::new(&[
        ("/etc/cvmfs/default.d/1.conf", "CVMFS_CONFIG_REPOSITORY=config.test\n"),
        ("/cvmfs/config.test/etc/cvmfs/default.conf", reads),
        ("/etc/secret", "hidden\n"),
        ("/etc/open", "http://open\n"),
        ("/closed/file", "hidden\n"),
        ("/etc/cvmfs/default.local", "CVMFS_CACHE_PRIMARY=$(cat /etc/secret)\n"),
    ]);
    let mode = |path: &str, mode| {
        fs::set_permissions(site.path(path), fs::Permissions::from_mode(mode)).expect("a mode")
    };
    std::os::unix::fs::symlink("secret", site.path("/etc/link")).expect("a link");
    mode("/etc/secret", 0o640);
    mode("/closed", 0o700);
    let parameters = site.load(Some("sw.test"));
    for name in ["CVMFS_PROXY_TEMPLATE", "CVMFS_HTTP_TRACING_HEADERS", "CVMFS_DNS_SERVER"] {
        assert!(!shown(&parameters, name).contains("hidden"), "{name}");
    }
    assert!(shown(&parameters, "CVMFS_SERVER_URL").starts_with("http://open # "));
    assert!(shown(&parameters, "CVMFS_CACHE_PRIMARY").starts_with("hidden # "), "a file of this machine may");
    let told = told(&parameters).join("\n");
    assert!(told.contains("can't source /etc/secret: not every user may read it"), "{told}");
}
