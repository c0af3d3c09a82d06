//! Services of systemd, each with as few rights as it needs.

use std::path::Path;

use super::Item;
use super::content::{enabled, unit};

/// Restrictions of all services. `systemd-analyze security` rates what is left.
const RESTRICTIONS: &str = "NoNewPrivileges=yes
ProcSubset=pid
ProtectSystem=strict
PrivateDevices=yes
DevicePolicy=closed
PrivateMounts=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
";
/// Capabilities of a command of root that writes to the repositories of other users.
const OF_OWNERS: &str = "CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER";
/// Capabilities of a command of root that becomes the owner of what it serves or writes.
const TO_BECOME_OWNER: &str =
    "CAP_SETUID CAP_SETGID CAP_SETPCAP CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH";
/// Folders of repositories, and of CernVM-FS's state of them.
const STORAGE: &str = "-/srv/cvmfs -/var/spool/cvmfs";

/// A service.
pub(crate) struct Service<'s> {
    /// Name of the unit, without its kind.
    pub(crate) name: &'s str,
    pub(crate) description: String,
    /// Command line.
    pub(crate) command: String,
    /// How systemd knows that it runs: `notify`, `exec` or `oneshot`.
    pub(crate) kind: &'s str,
    /// Capabilities; none for a user of its own.
    pub(crate) capabilities: Option<&'s str>,
    /// Folders that it may write to.
    pub(crate) writes: &'s str,
    /// True if it speaks to other machines.
    pub(crate) network: bool,
    /// Lines of the service beyond these, and dependencies of the unit.
    pub(crate) further: String,
    pub(crate) unit: String,
    /// Section for enabling it.
    pub(crate) install: &'s str,
}

impl Service<'_> {
    /// Returns the unit.
    pub(crate) fn text(&self) -> String {
        let Self { description, command, kind, unit, further, install, .. } = self;
        let online = match self.network {
            true => "Wants=network-online.target\nAfter=network-online.target\n",
            false => "",
        };
        let families = match self.network {
            true => "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX\n",
            false => "RestrictAddressFamilies=AF_UNIX\nPrivateNetwork=yes\nIPAddressDeny=any\n",
        };
        let user = match self.capabilities {
            Some(capabilities) => format!("CapabilityBoundingSet={capabilities}\n"),
            None => "DynamicUser=yes\nCapabilityBoundingSet=\n".to_owned(),
        };
        let writes = match self.writes {
            "" => String::new(),
            paths => format!("ReadWritePaths={paths}\n"),
        };
        let restart = match *kind {
            "oneshot" => "",
            _ => "Restart=on-failure\nRestartSec=5\nLimitNOFILE=65536\n",
        };
        format!(
            "[Unit]\nDescription={description}\n{unit}{online}\n[Service]\nType={kind}\n\
             EnvironmentFile=-/etc/esker/{variables}.env\nExecStart={command}\n{restart}{further}{user}{writes}{families}\
             {RESTRICTIONS}{install}",
            variables = self.name.trim_start_matches("esker-"),
        )
    }

    /// Returns the items of the service, enabled for the start of the machine.
    pub(crate) fn enabled(&self) -> Vec<Item> {
        let file = format!("{}.service", self.name);
        vec![unit(&file, &self.text()), enabled("multi-user", &file)]
    }

    /// Returns the items of the service, which a timer starts.
    pub(crate) fn timed(&self, when: &str) -> Vec<Item> {
        let (name, description) = (self.name, &self.description);
        let timer = format!(
            "[Unit]\nDescription={description}, from time to time\n\n[Timer]\n{when}\n[Install]\nWantedBy=timers.target\n"
        );
        vec![
            unit(&format!("{name}.service"), &self.text()),
            unit(&format!("{name}.timer"), &timer),
            enabled("timers", &format!("{name}.timer")),
        ]
    }
}

const INSTALL: &str = "\n[Install]\nWantedBy=multi-user.target\n";
const HOME: &str = "ProtectHome=read-only\nPrivateTmp=yes\nProtectProc=invisible\n";

impl<'s> Service<'s> {
    fn new(name: &'s str, description: impl Into<String>, command: String) -> Self {
        Self {
            name,
            description: description.into(),
            command,
            kind: "exec",
            capabilities: None,
            writes: "",
            network: true,
            further: HOME.to_owned(),
            unit: String::new(),
            install: INSTALL,
        }
    }

    /// Returns the service that follows the servers of replicas: of one, or of all, also those that are made later.
    pub(crate) fn replica(program: &Path, unit: &'s str, what: &str, follows: bool) -> Self {
        let (program, options) = (program.display(), if follows { " --follow" } else { "" });
        let all = if what == "--all" { "all repositories".to_owned() } else { what.to_owned() };
        let command = format!("{program} replicate {what}{options} --quiet");
        Self {
            kind: if follows { "exec" } else { "oneshot" },
            capabilities: Some(TO_BECOME_OWNER),
            writes: STORAGE,
            install: if follows { INSTALL } else { "" },
            further: format!("Nice=5\n{HOME}"),
            ..Self::new(unit, format!("Replica of {all}"), command)
        }
    }

    /// Returns the gateway. It becomes the owner of the repositories itself.
    pub(crate) fn gateway(program: &Path, options: &str) -> Self {
        Self {
            kind: "notify",
            capabilities: Some(TO_BECOME_OWNER),
            writes: STORAGE,
            unit: "Documentation=man:esker-gateway(1)\n".to_owned(),
            further: format!(
                "ExecReload=/bin/kill -HUP $MAINPID\nStateDirectory=esker-gateway\nStateDirectoryMode=0700\n{HOME}"
            ),
            ..Self::new(
                "esker-gateway",
                "Gateway of Esker for publishers without keys",
                format!("{} gateway{options}", program.display()),
            )
        }
    }

    /// Returns the proxy of a site.
    pub(crate) fn proxy(program: &Path, options: &str) -> Self {
        Self {
            kind: "notify",
            unit: "Documentation=man:esker-proxy(1)\n".to_owned(),
            further: format!(
                "ExecReload=/bin/kill -HUP $MAINPID\nCacheDirectory=esker-proxy\nCacheDirectoryMode=0700\n{HOME}"
            ),
            ..Self::new(
                "esker-proxy",
                "Cache of repositories for a site",
                format!("{} proxy{options} --cache ${{CACHE_DIRECTORY}}", program.display()),
            )
        }
    }

    /// Returns the broker of a node, which becomes a user of its own once it has its socket.
    pub(crate) fn broker(program: &Path) -> Self {
        Self {
            capabilities: Some("CAP_SETUID CAP_SETGID CAP_SETPCAP CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER"),
            further: format!(
                "RuntimeDirectory=esker-broker\nRuntimeDirectoryMode=0755\nStateDirectory=esker\n{HOME}"
            ),
            ..Self::new(
                "esker-broker",
                "Cache of repositories for all users of this node",
                format!("{} broker", program.display()),
            )
        }
    }

    /// Returns the check of all repositories.
    pub(crate) fn check(program: &Path, rate: &str) -> Self {
        let command = format!("{} check --all --data --scrub {rate} --quiet", program.display());
        Self::of_owner("esker-check", "Check of all repositories", command, false)
    }

    /// Returns the collect of all repositories.
    pub(crate) fn collect(program: &Path) -> Self {
        let command = format!("{} collect --all --quiet", program.display());
        Self::of_owner("esker-collect", "Collect of old revisions of all repositories", command, true)
    }

    /// Returns the signing of all whitelists.
    pub(crate) fn resign(program: &Path) -> Self {
        let command = format!("{} repo resign --all --wait=10m", program.display());
        Self::of_owner("esker-resign", "Signing of the whitelists of all repositories", command, false)
    }

    fn of_owner(name: &'s str, description: &str, command: String, network: bool) -> Self {
        Self {
            kind: "oneshot",
            capabilities: Some(OF_OWNERS),
            writes: STORAGE,
            network,
            further: format!("Nice=10\nIOSchedulingClass=idle\n{HOME}"),
            install: "",
            ..Self::new(name, description, command)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// systemd accepts the services, and rates what they may do at 2.5 or better.
    #[test]
    fn services_are_valid_and_narrow() {
        if std::process::Command::new("systemd-analyze").arg("--version").output().is_err() {
            esker_testkit::skip!("no systemd-analyze");
        }
        let program = Path::new("/bin/true");
        let folder = tempfile::tempdir().expect("a folder");
        for service in [
            Service::replica(program, "esker-replicate", "--all", true),
            Service::replica(program, "esker-replicate-sw.example.org", "sw.example.org", false),
            Service::gateway(program, " --listen 0.0.0.0:4929"),
            Service::proxy(program, " --upstream http://server"),
            Service::broker(program),
            Service::check(program, "50M/s"),
            Service::collect(program),
            Service::resign(program),
        ] {
            rated(&service.text(), service.name, folder.path());
        }
        rated(&super::super::content::metrics_service(program), "esker-metrics", folder.path());
        for places in [&["/srv/cvmfs".to_owned()], &["s3://b/sw.example.org".to_owned()]] {
            rated(&super::super::serving::service(program, places), "esker-serve", folder.path());
        }
    }

    #[track_caller]
    fn rated(text: &str, name: &str, folder: &Path) {
        let write = |kind: &str, text: &str| {
            let file = folder.join(format!("{name}.{kind}"));
            std::fs::write(&file, text).expect("a unit");
            file
        };
        let file = write("service", text);
        let mut units = vec![file.clone()];
        if text.contains("Requires=") {
            units.push(write("socket", "[Socket]\nListenStream=127.0.0.1:9868\n"));
        }
        let analyze = |arguments: &[&str], units: &[std::path::PathBuf]| {
            let mut command = std::process::Command::new("systemd-analyze");
            let output = command.args(arguments).args(units).output().expect("systemd-analyze");
            let said = [output.stdout, output.stderr].concat();
            (output.status.success(), String::from_utf8_lossy(&said).into_owned())
        };
        let (_, said) = analyze(&["verify", "--man=no"], &units);
        let ours = said.lines().filter(|line| line.contains(name));
        assert_eq!(ours.collect::<Vec<_>>(), [""; 0], "{said}");
        let (is_narrow, said) = analyze(&["security", "--offline=yes", "--threshold=25"], &[file]);
        assert!(is_narrow, "{name}: {said}");
    }
}
