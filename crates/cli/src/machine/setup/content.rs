//! Content of the files that setup writes.

use std::path::{Path, PathBuf};

use super::Item;
use super::services::Service;

/// Program that mounts repositories.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum With {
    /// autofs: mounts any configured repository at first access
    Autofs,
    /// systemd: mounts each repository at first access
    Systemd,
    /// /etc/fstab: mounts at boot
    Fstab,
}

/// First line of all files that setup writes, after the comment mark.
pub(crate) const OURS: &str = "Written by `esker setup`; `esker setup undo` takes it back.";

/// Path of the automounter's program map.
pub(crate) const MAP: &str = "/etc/auto.esker";

/// Returns the automounter's map and its entry in the master map.
pub(crate) fn autofs(mount_dir: &Path) -> Vec<Item> {
    let map = format!(
        "#!/bin/sh\n\
         # {OURS}\n\
         # The automounter calls it with the name of a folder below {dir} that a program looks up, and gets the\n\
         # options and the source of its mount. What can't be the name of a repository is not there.\n\
         LC_ALL=C\n\
         case $1 in\n    \
         *[!A-Za-z0-9._-]* | [!A-Za-z0-9]* | *.) exit 1 ;;\n    \
         *.*) echo \"-fstype=esker,nodev,nosuid :$1\" ;;\n    \
         *) exit 1 ;;\n\
         esac\n",
        dir = mount_dir.display()
    );
    let master = format!(
        "# {OURS}\n\
         # Idle mounts are unmounted; the timeout is in /etc/autofs.conf.\n\
         {dir} program:{MAP}\n",
        dir = mount_dir.display()
    );
    vec![
        Item::File { path: MAP.into(), text: map.into(), mode: 0o755 },
        Item::File { path: "/etc/auto.master.d/esker.autofs".into(), text: master.into(), mode: 0o644 },
    ]
}

/// Returns a unit of systemd.
pub(super) fn unit(name: &str, text: &str) -> Item {
    Item::File { path: unit_file(name), text: format!("# {OURS}\n{text}").into(), mode: 0o644 }
}

/// Returns the link by which a target wants a unit.
pub(super) fn enabled(target: &str, name: &str) -> Item {
    let path = unit_file(&format!("{target}.target.wants/{name}"));
    Item::Link { path, target: unit_file(name) }
}

fn unit_file(name: &str) -> PathBuf {
    Path::new("/etc/systemd/system").join(name)
}

/// Returns a mount unit and an automount unit, which is enabled.
pub(crate) fn systemd(mount_dir: &Path, name: &str) -> Vec<Item> {
    let place = mount_dir.join(name);
    let name_of_units = unit_name(&place);
    let automount = format!("{name_of_units}.automount");
    let mount_text = format!(
        "[Unit]\n\
         Description={name} with Esker\n\
         Wants=network-online.target\n\
         After=network-online.target\n\
         \n\
         [Mount]\n\
         What={name}\n\
         Where={place}\n\
         Type=esker\n\
         Options=nodev,nosuid,_netdev\n\
         LimitNOFILE=65536\n",
        place = place.display()
    );
    let automount_text = format!(
        "[Unit]\n\
         Description={name} with Esker, mounted at first access\n\
         \n\
         [Automount]\n\
         Where={place}\n\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n",
        place = place.display()
    );
    vec![
        Item::Folder(place.clone()),
        unit(&format!("{name_of_units}.mount"), &mount_text),
        unit(&automount, &automount_text),
        enabled("multi-user", &automount),
    ]
}

/// Returns the socket for metrics, enabled, and the service that answers it from the first request on.
pub(crate) fn metrics(program: &Path) -> Vec<Item> {
    let socket = "[Unit]\n\
         Description=Metrics of Esker's mounts\n\
         \n\
         [Socket]\n\
         ListenStream=127.0.0.1:9868\n\
         \n\
         [Install]\n\
         WantedBy=sockets.target\n";
    vec![
        unit("esker-metrics.service", &metrics_service(program)),
        unit("esker-metrics.socket", socket),
        enabled("sockets", "esker-metrics.socket"),
    ]
}

/// Returns the service of metrics. One process reads control sockets of all users as root, the other one becomes a user of its
/// own. Users without a login have theirs below /tmp.
pub(super) fn metrics_service(program: &Path) -> String {
    let service = Service {
        name: "esker-metrics",
        description: "Metrics of Esker's mounts".to_owned(),
        command: format!("{} metrics --listen", program.display()),
        kind: "notify",
        capabilities: Some("CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_SETGID CAP_SETUID"),
        writes: "",
        network: true,
        further: "ProtectHome=read-only\nProtectProc=invisible\nUMask=0077\nMemoryMax=256M\n".to_owned(),
        unit: "Requires=esker-metrics.socket\n".to_owned(),
        install: "",
    };
    service.text()
}

/// Returns the service that keeps a replica up to date, or all of them, enabled; with a timer it runs each ten minutes.
pub(crate) fn replica(program: &Path, name: Option<&str>, follows: bool) -> Vec<Item> {
    let unit = name.map_or_else(|| "esker-replicate".to_owned(), |name| format!("esker-replicate-{name}"));
    let service = Service::replica(program, &unit, name.unwrap_or("--all"), follows);
    match follows {
        true => service.enabled(),
        false => service.timed("OnBootSec=1min\nOnUnitActiveSec=10min\nRandomizedDelaySec=1min\n"),
    }
}

/// Returns the name of a replica's service, or of its timer.
pub(crate) fn replica_unit(name: Option<&str>, timer: bool) -> String {
    let name = name.map(|name| format!("-{name}")).unwrap_or_default();
    format!("esker-replicate{name}.{}", if timer { "timer" } else { "service" })
}

/// Returns the automount unit of a repository.
pub(crate) fn automount_unit(mount_dir: &Path, name: &str) -> String {
    format!("{}.automount", unit_name(&mount_dir.join(name)))
}

/// Returns a line for fstab, and its mount point.
pub(crate) fn fstab(mount_dir: &Path, name: &str) -> Vec<Item> {
    let place = mount_dir.join(name);
    let text = format!("{name} {} esker nodev,nosuid,_netdev,nofail 0 0", place.display());
    vec![Item::Folder(place), Item::Line { path: "/etc/fstab".into(), text }]
}

/// Returns the unit name for a path, as systemd-escape(1) makes it.
fn unit_name(path: &Path) -> String {
    let text = path.to_string_lossy();
    let mut name = String::new();
    for (at, byte) in text.trim_matches('/').bytes().enumerate() {
        match byte {
            b'/' => name.push('-'),
            b'.' if at == 0 => name.push_str("\\x2e"),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b':' | b'_' | b'.' => name.push(char::from(byte)),
            other => name.push_str(&format!("\\x{other:02x}")),
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_named_as_systemd_names_them() {
        let name = |path: &str| unit_name(Path::new(path));
        assert_eq!(name("/cvmfs/sw.example.org"), "cvmfs-sw.example.org");
        assert_eq!(name("/cvmfs/sw-dev.example.org"), r"cvmfs-sw\x2ddev.example.org");
        assert_eq!(name("/.cvmfs/a b"), r"\x2ecvmfs-a\x20b");
    }
}
