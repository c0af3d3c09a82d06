//! Mounts the configuration repository before a repository that it configures.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use esker_config::{Parameters, ProblemKind, Root};
use esker_node::mounts;
use esker_threads::watchdog;
use rustix::process::{Pid, Signal, kill_process};

use crate::error::warn;
use crate::machine::doctor::probe::{ProbeTarget, touch};
use crate::settings::Settings;
use crate::settings::configuration;

/// Timeout for an automounter.
const AUTOMOUNT: Duration = Duration::from_secs(20);
/// Timeout for mounting the configuration repository.
const MOUNT: Duration = Duration::from_secs(30);

/// Mounts the configuration repository if it is configured and not mounted, by a lookup where an automounter is
/// in use, otherwise directly if root calls. A failure is reported when the repository itself is looked up, and
/// nothing takes longer than the two limits.
pub(crate) fn mount_first(name: &str, settings: &Settings) {
    let Ok(name) = configuration::full_name(settings, name) else { return };
    let is_missing = || {
        let parameters = configuration::load(settings, Some(name.as_str()));
        missing(&parameters).then_some(parameters)
    };
    let Some(parameters) = is_missing() else { return };
    let get = |parameter| parameters.get(parameter).map(|setting| setting.value.as_str());
    let Some(repository) = get("CVMFS_CONFIG_REPOSITORY") else { return };
    let folder = Path::new(get("CVMFS_MOUNT_DIR").unwrap_or("/cvmfs")).join(repository);
    let folder = Root::new(&settings.config_root).place(&folder);
    // A mounted one without the files does not answer, or lacks them: mounting doesn't help.
    if mounts::at(&folder).is_ok_and(|line| line.is_some_and(|line| line.kind != "autofs")) {
        return;
    }
    // Whatever the answer is: it may be mounted now.
    let _ = touch(ProbeTarget::Mount, &folder, AUTOMOUNT);
    if is_missing().is_none() || !settings.root {
        return;
    }
    // An existing folder may be an automounter's.
    let made = std::fs::create_dir(&folder);
    if let Err(why) = mount(repository, &folder) {
        if made.is_ok() {
            let _ = std::fs::remove_dir(&folder);
        }
        warn(Some(&format!(
            "the configuration repository {repository} can't be mounted at {}: {why}",
            folder.display()
        )));
    }
}

fn missing(parameters: &Parameters) -> bool {
    let problem = |kind: &ProblemKind| matches!(kind, ProblemKind::ConfigRepository { .. });
    parameters.problems().iter().any(|it| problem(&it.kind))
}

/// Mounts the configuration repository in a child process with a time limit.
fn mount(repository: &str, folder: &Path) -> Result<(), String> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("esker").arg("mount").arg("--").arg(repository).arg(folder).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|error| error.to_string())?;
    let pid = Pid::from_child(&child);
    let wait = move || child.wait_with_output();
    let ended = watchdog::begin("mount", wait).map_err(|error| error.to_string())?;
    match ended.recv_timeout(MOUNT) {
        Ok(Ok(output)) if output.status.success() => Ok(()),
        Ok(Ok(output)) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(said.lines().next().unwrap_or("it does not say why").trim_start_matches("esker: ").to_owned())
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => {
            // Its daemon ends when its starter is gone.
            let _ = kill_process(pid, Signal::KILL);
            Err(format!("it took longer than {} s", MOUNT.as_secs()))
        }
    }
}
