//! Identifies a shared mount by image, user and job.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};

use rustix::process::{getegid, geteuid};

use crate::namespaces::Identity;

/// Version of the protocol, which is part of the key: programs of different versions don't share mounts.
const DIALECT: u32 = 2;

/// Key of a shared mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key(String);

impl Key {
    /// Makes the key of `image` in the job of this process. The text must distinguish images, also from an earlier one
    /// at the same path.
    pub fn new(image: &str, identity: Identity) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        // Only processes with the same view of the host and of processes can share.
        let spaces = ["user", "mnt", "pid"].map(|kind| {
            let link = fs::read_link(format!("/proc/self/ns/{kind}"));
            link.map(|link| link.display().to_string()).unwrap_or_default()
        });
        let who = format!("{}:{} {identity:?}", geteuid().as_raw(), getegid().as_raw());
        let job = job(&read("/proc/self/cgroup"));
        Self(format!("{DIALECT}\n{image}\n{who}\n{}\n{job}", spaces.join(" ")))
    }

    /// Parses a key that another process wrote.
    pub fn from_text(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Returns the text for another process.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Returns a short name for files. Different keys may have the same; the reply contains the full key.
    pub(super) fn short(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }
}

/// Returns the job of a process by its control groups. Slurm ends a step as a whole, but has a group for each task in
/// it, and a task may end sooner than the step.
fn job(cgroups: &str) -> String {
    let cut = |line: &str| {
        let step = line.find("/step_").map(|at| at + 1)?;
        let end = line.get(step..)?.find('/').map_or(line.len(), |end| step + end);
        line.get(..end).map(str::to_owned)
    };
    let lines: BTreeSet<String> =
        cgroups.lines().map(|line| cut(line).unwrap_or_else(|| line.to_owned())).collect();
    lines.into_iter().collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_of_a_step_have_one_key_and_other_steps_and_jobs_their_own() {
        let at = |rest: &str| job(&format!("9:pids:/\n4:memory:/slurm/uid_1/{rest}\n"));
        assert_eq!(at("job_7/step_0/task_0"), at("job_7/step_0/task_1"));
        assert_ne!(at("job_7/step_0/task_0"), at("job_7/step_1/task_0"));
        assert_ne!(at("job_7/step_0/task_0"), at("job_8/step_0/task_0"));
        assert_ne!(at("job_7/step_1"), at("job_7/step_10"));
        let unified = |rest: &str| job(&format!("0::/system.slice/slurmstepd.scope/job_7/{rest}\n"));
        assert_eq!(unified("step_0/user/task_0"), unified("step_0/user/task_3"));
        assert_ne!(unified("step_batch/user/task_0"), unified("step_0/user/task_0"));
        assert_ne!(job("0::/user.slice/a\n"), job("0::/user.slice/b\n"));
    }

    #[test]
    fn keys_differ_by_image_and_user() {
        let key = |image, identity| Key::new(image, identity);
        assert_eq!(key("a", Identity::Same), key("a", Identity::Same));
        assert_ne!(key("a", Identity::Same), key("b", Identity::Same));
        assert_ne!(key("a", Identity::Same).short(), key("a", Identity::Root).short());
        let one = key("a", Identity::Same);
        assert_eq!(Key::from_text(one.text()), one);
    }
}
