//! Units of systemd that sign whitelists again in time.

use std::path::Path;

use crate::error::Failure;
use crate::output::Output;

/// Prints the units as a script that writes them.
pub(super) fn print(program: &Path, days: u32, user: bool) -> Result<(), Failure> {
    let folder = if user { "$HOME/.config/systemd/user" } else { "/etc/systemd/system" };
    let mut out = Output::new();
    for (name, text) in
        [("esker-resign@.service", service(program, days, user)), ("esker-resign@.timer", timer())]
    {
        out.line(format!("cat > \"{folder}/{name}\" <<'EOF'\n{text}EOF"))?;
    }
    out.finish()
}

pub(super) fn service(program: &Path, days: u32, user: bool) -> String {
    let program = program.display();
    // An ordinary user's manager has no network target and no rights to sandbox with.
    let sandbox = if user {
        String::new()
    } else {
        "NoNewPrivileges=yes\nPrivateNetwork=yes\nPrivateTmp=yes\nProtectHome=yes\n".to_owned()
    };
    format!(
        "[Unit]\n\
         Description=Sign the whitelist of %i again\n\
         \n\
         [Service]\n\
         Type=oneshot\n\
         ExecStart={program} repo resign %i --whitelist-days {days} --wait=10m\n\
         # For a master key with a passphrase:\n\
         # LoadCredentialEncrypted=esker-key-passphrase:/etc/credstore.encrypted/esker-key-passphrase\n\
         {sandbox}"
    )
}

pub(super) fn timer() -> String {
    "[Unit]\n\
     Description=Sign the whitelist of %i again each week\n\
     \n\
     [Timer]\n\
     OnCalendar=weekly\n\
     RandomizedDelaySec=6h\n\
     Persistent=true\n\
     \n\
     [Install]\n\
     WantedBy=timers.target\n"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// systemd accepts the units.
    #[test]
    fn units_are_valid() {
        if std::process::Command::new("systemd-analyze").arg("--version").output().is_err() {
            esker_testkit::skip!("no systemd-analyze");
        }
        for user in [false, true] {
            let folder = tempfile::tempdir().expect("a folder");
            let service = folder.path().join("esker-resign@a.test.service");
            std::fs::write(&service, service_text(user)).expect("a unit");
            let timer_file = folder.path().join("esker-resign@a.test.timer");
            std::fs::write(&timer_file, timer()).expect("a unit");
            let mut verify = std::process::Command::new("systemd-analyze");
            let output = verify.arg("verify").arg("--man=no").args([&service, &timer_file]).output();
            let output = output.expect("systemd-analyze");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let ours = said.lines().filter(|line| line.contains("esker-resign"));
            assert_eq!(ours.collect::<Vec<_>>(), [""; 0], "{said}");
        }
    }

    fn service_text(user: bool) -> String {
        service(Path::new("/bin/true"), 30, user)
    }
}
