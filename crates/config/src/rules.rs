//! Rules across parameters, which the parameter schema of CernVM-FS 2.14 has too.

use super::{Finding, Parameters, Severity};

impl Parameters {
    /// Returns findings for parameters that contradict each other, or lack one that they need.
    pub(super) fn contradictions(&self) -> Vec<Finding> {
        let is_set = |name: &str| self.get(name).is_some();
        let is_on = |name: &str| matches!(self.switch(name), Ok(Some(true)));
        let number = |name: &str| self.number(name).ok().flatten();
        let less = |small: &str, large: &str| {
            number(small).zip(number(large)).is_some_and(|(small, large)| small > large)
        };
        let pins: Vec<&str> = ["CVMFS_ROOT_HASH", "CVMFS_REPOSITORY_TAG", "CVMFS_REPOSITORY_DATE"]
            .into_iter()
            .filter(|name| is_set(name))
            .collect();
        let alien = is_set("CVMFS_ALIEN_CACHE");
        let mut findings = Vec::new();
        let mut add = |applies: bool, parameter: &str, what: String, mend: &str| {
            if let Some((_, setting)) = self.named(parameter).filter(|_| applies) {
                findings.push(Finding::new(Severity::Warning, what, mend).at(&setting.origin));
            }
        };
        if let [first, .., last] = pins[..] {
            let what = format!("{} are set, and {first} alone has an effect", pins.join(" and "));
            add(true, last, what, "keep one of them");
        }
        let what = "CVMFS_BACKOFF_INIT is longer than CVMFS_BACKOFF_MAX".to_owned();
        add(
            less("CVMFS_BACKOFF_INIT", "CVMFS_BACKOFF_MAX"),
            "CVMFS_BACKOFF_INIT",
            what,
            "set it to the first pause, and CVMFS_BACKOFF_MAX to the longest one",
        );
        let rate = number("CVMFS_TELEMETRY_RATE").is_some_and(|rate| rate < 5);
        let what = "CVMFS_TELEMETRY_RATE is shorter than 5 s; counters are sent every 5 s".to_owned();
        add(rate, "CVMFS_TELEMETRY_RATE", what, "set it to 5 or more");
        let fields = "CVMFS_HTTP_TRACING_HEADERS";
        let what = format!("{fields} has no effect without CVMFS_HTTP_TRACING=yes");
        add(is_set(fields) && !is_on("CVMFS_HTTP_TRACING"), fields, what, "set CVMFS_HTTP_TRACING=yes");
        let template = "CVMFS_INFO_HEADER";
        let what = format!("{template} has no effect without CVMFS_SEND_INFO_HEADER=yes");
        let mend = "set CVMFS_SEND_INFO_HEADER=yes";
        add(is_set(template) && !is_on("CVMFS_SEND_INFO_HEADER"), template, what, mend);
        for (name, conflicts) in [
            ("CVMFS_SHARED_CACHE", is_on("CVMFS_SHARED_CACHE")),
            ("CVMFS_QUOTA_LIMIT", number("CVMFS_QUOTA_LIMIT").is_some_and(|limit| limit > 0)),
        ] {
            let what = format!("clients of CernVM-FS don't mount with both CVMFS_ALIEN_CACHE and {name}");
            let mend = "with CVMFS_ALIEN_CACHE, set CVMFS_SHARED_CACHE=no and CVMFS_QUOTA_LIMIT=-1";
            add(alien && conflicts, name, what, mend);
        }
        findings
    }
}
