//! Units of a server that systemd starts at the first request.

use std::path::Path;

use super::Item;
use super::content::{enabled, unit};
use super::services::Service;

/// Name of the units.
const UNIT: &str = "esker-serve";
/// Default port of the server.
const PORT: u16 = 8000;

/// Returns a socket, which is enabled, and the service behind it.
pub(crate) fn units(program: &Path, places: &[String]) -> Vec<Item> {
    let socket = socket();
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
    let service = service(program, places);
    vec![unit(&format!("{UNIT}.service"), &service), unit(&socket, &listening), enabled("sockets", &socket)]
}

/// Returns the service. Places in object storage have a cache folder.
pub(super) fn service(program: &Path, places: &[String]) -> String {
    let is_stored = places.iter().any(|place| place.contains("://"));
    let (cache, directory) = match is_stored {
        true => (" --cache ${CACHE_DIRECTORY}", format!("CacheDirectory={UNIT}\nCacheDirectoryMode=0700\n")),
        false => ("", String::new()),
    };
    let service = Service {
        name: UNIT,
        description: "Repositories over HTTP with Esker".to_owned(),
        command: format!("{} serve {}{cache}", program.display(), places.join(" ")),
        kind: "notify",
        capabilities: None,
        writes: "",
        network: true,
        further: format!(
            "ExecReload=/bin/kill -HUP $MAINPID\n{directory}ProtectHome=read-only\nPrivateTmp=yes\nProtectProc=invisible\n"
        ),
        unit: format!("Documentation=man:esker-serve(1)\nRequires={UNIT}.socket\nAfter={UNIT}.socket\n"),
        install: "",
    };
    service.text()
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
