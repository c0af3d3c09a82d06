//! Reads parameters about ownership of files, and about the process that serves a mount.

use esker_view::IdMap;
use serde::{Deserialize, Serialize};

use super::client::Read;
use super::files::FILE_MAX;
use super::{Files, Parameters};

/// Range of scores that Linux accepts.
const OOM_SCORES: std::ops::RangeInclusive<i64> = -1000..=1000;
/// Maximum number of processors, as in Linux.
const CPUS_MAX: usize = 8192;

/// Settings of a mount's process for the kernel and for systemd.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    /// OOM score: a higher one makes the kernel end the process sooner when memory is short.
    pub oom_score: Option<i32>,
    /// Processors that the process may run on; empty for all.
    pub cpus: Vec<usize>,
    /// True to ask systemd to leave the process alone at shutdown.
    pub survives: bool,
}

impl Parameters {
    /// Returns the maps of owners and groups.
    pub fn id_maps(&self, files: &dyn Files) -> Read<(IdMap, IdMap)> {
        Ok((self.id_map("CVMFS_UID_MAP", files)?, self.id_map("CVMFS_GID_MAP", files)?))
    }

    fn id_map(&self, name: &str, files: &dyn Files) -> Read<IdMap> {
        let Some(path) = self.checked(name)? else { return Ok(IdMap::default()) };
        let text = files.read(path.as_ref(), FILE_MAX).map_err(|error| self.bad(name, error.to_string()))?;
        id_map(&String::from_utf8_lossy(&text)).map_err(|line| {
            self.bad(name, format!("its line {line} is neither `FROM TO` nor `* TO` with two numbers"))
        })
    }

    /// Returns the settings of a mount's process.
    pub fn tuning(&self) -> Read<Tuning> {
        const SCORE: &str = "CVMFS_OOM_SCORE_ADJ";
        const CPUS: &str = "CVMFS_CPU_AFFINITY";
        let score = self.number(SCORE)?;
        let score = score.map(|score| match (OOM_SCORES.contains(&score), i32::try_from(score)) {
            (true, Ok(score)) => Ok(score),
            _ => Err(self.bad(SCORE, "it is not from -1000 to 1000")),
        });
        let cpu = |text: &str| text.trim().parse().ok().filter(|cpu| *cpu < CPUS_MAX);
        let cpus = self.checked(CPUS)?.map(|text| text.split(',').map(cpu).collect::<Option<Vec<usize>>>());
        let cpus = match cpus {
            Some(None) => return Err(self.bad(CPUS, "it is not a list of processors like 0,1,2")),
            Some(Some(cpus)) => cpus,
            None => Vec::new(),
        };
        let survives = self.switch("CVMFS_SYSTEMD_NOKILL")?.unwrap_or(false);
        Ok(Tuning { oom_score: score.transpose()?, cpus, survives })
    }
}

/// Parses lines `FROM TO` and `* TO`; the error is the number of an invalid line.
fn id_map(text: &str) -> Result<IdMap, usize> {
    let mut map = IdMap::default();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut words = line.split_whitespace();
        let (Some(from), Some(to), None) = (words.next(), words.next(), words.next()) else {
            return Err(at + 1);
        };
        let number = |text: &str| text.parse::<u32>().map_err(|_| at + 1);
        let to = number(to)?;
        match from {
            "*" => map.others = Some(to),
            from => _ = map.known.insert(number(from)?, to),
        }
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_of_owners_are_parsed() {
        let map = id_map("# owners\n\n 1000  5 \n* 99\n0\t7\n").expect("a map");
        assert_eq!([1000, 0, 12].map(|id| map.shown(id)), [5, 7, 99]);
        assert_eq!(id_map("").expect("a map").shown(12), 12);
        for (wrong, line) in
            [("1 2\n3\n", 2), ("1 2 3", 1), ("a 1", 1), ("1 *", 1), ("-1 1", 1), ("1 4294967296", 1)]
        {
            assert_eq!(id_map(wrong), Err(line), "{wrong}");
        }
    }
}
