//! Describes the machine of a measurement and the programs that were measured.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use esker_format::time::UnixTime;
use serde::Serialize;

/// Machine and software properties that affect results.
#[derive(Clone, Debug, Serialize)]
pub struct Conditions {
    /// Start of the measurement.
    pub date: String,
    /// Kernel release and machine.
    pub kernel: String,
    /// The processor's name, as the kernel has it.
    pub processor: String,
    /// Number of processors that this process may use.
    pub cores: usize,
    /// Memory in bytes.
    pub memory: u64,
    /// Runnable processes during the last minute, on average. More than a small part of the cores means that the
    /// machine was not idle.
    pub load: f64,
    /// Number of blocks that the kernel's squashfs decompresses in parallel in one mount, if its configuration is
    /// known.
    pub squashfs: Option<String>,
    /// Version of each measured program, as it reports it.
    pub versions: Vec<String>,
    /// The commit of the source tree that the benchmark was started in.
    pub commit: Option<String>,
}

impl Conditions {
    /// Reads the state of the machine, and runs `programs` for their versions.
    pub fn now(programs: &[&str]) -> Self {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let uname = rustix::system::uname();
        Self {
            date: UnixTime(i64::try_from(seconds).unwrap_or(i64::MAX)).to_string(),
            kernel: format!("{} {}", uname.release().to_string_lossy(), uname.machine().to_string_lossy()),
            processor: field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory: field("/proc/meminfo", "MemTotal")
                .and_then(|text| text.split(' ').next()?.parse::<u64>().ok())
                .map_or(0, |kib| kib * 1024),
            load: std::fs::read_to_string("/proc/loadavg")
                .ok()
                .and_then(|text| text.split(' ').next()?.parse().ok())
                .unwrap_or(f64::NAN),
            squashfs: kernel_configuration(&uname.release().to_string_lossy())
                .and_then(|configuration| squashfs_decompressors(&configuration))
                .map(str::to_owned),
            versions: programs.iter().filter_map(|program| output(program, &["--version"])).collect(),
            commit: output("git", &["describe", "--always", "--dirty", "--abbrev=12"]),
        }
    }

    /// Returns a summary in one line.
    pub fn line(&self) -> String {
        format!(
            "{}; Linux {}{}; {}, {} cores; load {:.2}; {}commit {}",
            self.date,
            self.kernel,
            self.squashfs.as_ref().map_or_else(String::new, |text| format!(" (squashfs: {text})")),
            self.processor,
            self.cores,
            self.load,
            self.versions.iter().map(|version| format!("{version}; ")).collect::<String>(),
            self.commit.as_deref().unwrap_or("unknown")
        )
    }
}

/// Returns the build configuration of the running kernel, if it or its package has it.
fn kernel_configuration(release: &str) -> Option<String> {
    let told = Command::new("gzip").args(["-dc", "/proc/config.gz"]).output().ok();
    match told.filter(|output| output.status.success()) {
        Some(output) => Some(String::from_utf8_lossy(&output.stdout).into_owned()),
        None => std::fs::read_to_string(format!("/boot/config-{release}")).ok(),
    }
}

/// Returns the squashfs decompressor setting of a kernel configuration; `None` if it has none.
fn squashfs_decompressors(configuration: &str) -> Option<&'static str> {
    let has = |name: &str| {
        let line = format!("CONFIG_SQUASHFS{name}=");
        configuration.lines().any(|text| matches!(text.strip_prefix(&line), Some("y" | "m")))
    };
    match () {
        () if !has("") => None,
        () if has("_CHOICE_DECOMP_BY_MOUNT") => {
            Some("as many decompressors as the mount's option threads= says")
        }
        () if has("_DECOMP_MULTI_PERCPU") => Some("a decompressor for each processor"),
        () if has("_DECOMP_MULTI") => Some("several decompressors"),
        () if has("_DECOMP_SINGLE") => Some("a single decompressor"),
        () => None,
    }
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output =
        Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).lines().next()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squashfs_settings_are_read_from_the_kernel_configuration() {
        let single =
            "CONFIG_SQUASHFS=y\nCONFIG_SQUASHFS_DECOMP_SINGLE=y\n# CONFIG_SQUASHFS_DECOMP_MULTI is not set\n";
        assert_eq!(squashfs_decompressors(single), Some("a single decompressor"));
        let chosen =
            "CONFIG_SQUASHFS=m\nCONFIG_SQUASHFS_CHOICE_DECOMP_BY_MOUNT=y\nCONFIG_SQUASHFS_DECOMP_SINGLE=y\n";
        assert!(squashfs_decompressors(chosen).is_some_and(|text| text.contains("threads=")));
        assert_eq!(squashfs_decompressors("# CONFIG_SQUASHFS is not set\n"), None);
        assert_eq!(squashfs_decompressors("CONFIG_SQUASHFS=y\n"), None, "before there was a choice");
    }
}
