//! Units of a server that systemd starts at the first request.

use std::path::Path;

use super::Item;
use super::content::{enabled, unit};

/// Name of the units.
const UNIT: &str = "esker-serve";
/// File of the administrator with credentials and other variables.
const VARIABLES: &str = "/etc/esker/serve.env";
/// Default port of the server.
const PORT: u16 = 8000;

/// Returns a socket, which is enabled, and the service behind it. Places in object storage have a cache folder.
pub(crate) fn units(program: &Path, places: &[String]) -> Vec<Item> {
    let socket = socket();
    let is_stored = places.iter().any(|place| place.contains("://"));
    let (cache, directory) = match is_stored {
        true => (" --cache ${CACHE_DIRECTORY}", format!("CacheDirectory={UNIT}\nCacheDirectoryMode=0700\n")),
        false => ("", String::new()),
    };
    let (program, places) = (program.display(), places.join(" "));
    let service = format!(
        "[Unit]\n\
         Description=Repositories over HTTP with Esker\n\
         Documentation=man:esker-serve(1)\n\
         Requires={UNIT}.socket\n\
         Wants=network-online.target\n\
         After=network-online.target {UNIT}.socket\n\
         \n\
         [Service]\n\
         Type=notify\n\
         EnvironmentFile=-{VARIABLES}\n\
         ExecStart={program} serve {places}{cache}\n\
         ExecReload=/bin/kill -HUP $MAINPID\n\
         Restart=on-failure\n\
         RestartSec=5\n\
         LimitNOFILE=65536\n\
         {directory}\
         DynamicUser=yes\n\
         CapabilityBoundingSet=\n\
         NoNewPrivileges=yes\n\
         ProtectSystem=strict\n\
         ProtectHome=read-only\n\
         PrivateTmp=yes\n\
         PrivateDevices=yes\n\
         ProtectClock=yes\n\
         ProtectHostname=yes\n\
         ProtectKernelTunables=yes\n\
         ProtectKernelModules=yes\n\
         ProtectKernelLogs=yes\n\
         ProtectControlGroups=yes\n\
         LockPersonality=yes\n\
         MemoryDenyWriteExecute=yes\n\
         RestrictNamespaces=yes\n\
         RestrictRealtime=yes\n\
         RestrictSUIDSGID=yes\n\
         RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX\n\
         SystemCallArchitectures=native\n\
         SystemCallFilter=@system-service\n\
         SystemCallErrorNumber=EPERM\n"
    );
    let listening = format!(
        "[Unit]\n\
         Description=Address of repositories over HTTP with Esker\n\
         \n\
         [Socket]\n\
         ListenStream={PORT}\n\
         Backlog=4096\n\
         NoDelay=yes\n\
         \n\
         [Install]\n\
         WantedBy=sockets.target\n"
    );
    vec![unit(&format!("{UNIT}.service"), &service), unit(&socket, &listening), enabled("sockets", &socket)]
}

/// Returns the name of the socket.
pub(crate) fn socket() -> String {
    format!("{UNIT}.socket")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(places: &[&str]) -> Vec<(String, String)> {
        let places: Vec<_> = places.iter().map(|place| (*place).to_owned()).collect();
        let text = |item| match item {
            Item::File { path, text, .. } => {
                let name = path.file_name().expect("a name").to_string_lossy().into_owned();
                Some((name, String::from_utf8_lossy(&text).into_owned()))
            }
            _ => None,
        };
        units(Path::new("/bin/true"), &places).into_iter().filter_map(text).collect()
    }

    /// systemd accepts the units of servers.
    #[test]
    fn units_of_servers_are_valid() {
        if std::process::Command::new("systemd-analyze").arg("--version").output().is_err() {
            esker_testkit::skip!("no systemd-analyze");
        }
        for places in [&["/srv/cvmfs"][..], &["/srv/cvmfs", "s3://bucket/cvmfs/sw.example.org"]] {
            let folder = tempfile::tempdir().expect("a folder");
            let mut files = Vec::new();
            for (name, text) in texts(places) {
                let file = folder.path().join(name);
                std::fs::write(&file, text).expect("a unit");
                files.push(file);
            }
            let mut verify = std::process::Command::new("systemd-analyze");
            let output = verify.arg("verify").arg("--man=no").args(&files).output().expect("systemd-analyze");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let ours = said.lines().filter(|line| line.contains(UNIT));
            assert_eq!(ours.collect::<Vec<_>>(), [""; 0], "{said}");
        }
    }

    #[test]
    fn only_object_storage_has_a_cache_folder() {
        let service = |places: &[&str]| {
            let texts = texts(places);
            texts.into_iter().find(|(name, _)| name.ends_with(".service")).expect("a service").1
        };
        let folder = service(&["/srv/cvmfs"]);
        assert!(folder.contains("\nExecStart=/bin/true serve /srv/cvmfs\n"), "{folder}");
        assert!(!folder.contains("CacheDirectory"), "{folder}");
        let stored = service(&["s3://b/sw.example.org"]);
        let line = "\nExecStart=/bin/true serve s3://b/sw.example.org --cache ${CACHE_DIRECTORY}\n";
        assert!(stored.contains(line) && stored.contains("\nCacheDirectory=esker-serve\n"), "{stored}");
    }
}
