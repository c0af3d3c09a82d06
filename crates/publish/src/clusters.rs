//! Finds the files of a profile whose reads trigger the prefetch of others.
//!
//! A profile is a list of first reads. It is cut where something starts, and the file whose read starts it becomes
//! the trigger of what follows:
//!
//! * the program: the first file that was read. Many programs share an interpreter, so what it announces ends where
//!   the first package begins;
//! * later programs (files that may be executed): up to whatever starts next;
//! * packages: directories in a place where languages keep them side by side, like `site-packages`. The first file
//!   read of one announces all that was read of it, and what followed up to the next package. The largest package is
//!   taken for the reason of the run, and announces everything after it;
//! * files named in the recording of the profile: everything after them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use esker_format::profile::Profile;

/// A trigger and the reads that follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// The number of the file in the profile.
    pub trigger: usize,
    /// The numbers of the reads, in order.
    pub reads: Vec<usize>,
}

/// Directories whose subdirectories are packages.
const COLLECTIONS: [&str; 5] = ["site-packages", "dist-packages", "node_modules", "site_perl", "vendor_perl"];
/// Minimum number of read files of a package with a separate cluster; smaller ones join their reader's.
const PACKAGE_FILES_MIN: usize = 8;
/// Minimum number of reads of a cluster with a bundle, unless its trigger was named.
const READS_MIN: usize = 2;
/// Maximum number of clusters of a profile with unnamed triggers. Those with the fewest reads are dropped.
const CLUSTERS_MAX: usize = 128;

/// Finds the clusters of a profile, in the order of their triggers, and the number of omitted clusters.
pub fn clusters(profile: &Profile) -> (Vec<Cluster>, usize) {
    let profile_reads = ProfileReads::new(profile);
    let all = profile_reads
        .starts
        .iter()
        .map(|(at, start)| (*start == Start::Named, profile_reads.cluster(*at, *start)));
    let worth = all.filter(|(named, cluster)| cluster.reads.len() >= if *named { 1 } else { READS_MIN });
    let (mut found, mut unnamed): (Vec<_>, Vec<_>) = worth.partition(|(named, _)| *named);
    unnamed.sort_by_key(|(_, cluster)| std::cmp::Reverse(cluster.reads.len()));
    let left_out = unnamed.len().saturating_sub(CLUSTERS_MAX);
    found.extend(unnamed.into_iter().take(CLUSTERS_MAX));
    let mut found: Vec<Cluster> = found.into_iter().map(|(_, cluster)| cluster).collect();
    found.sort_by_key(|cluster| cluster.reads.first().copied());
    (found, left_out)
}

/// Program or package that starts with the first read of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start<'p> {
    Program,
    Package(&'p str),
    Named,
}

struct ProfileReads<'p> {
    profile: &'p Profile,
    /// Package of each file, if the file is part of a package that counts as a unit.
    packages: Vec<Option<&'p str>>,
    main: Option<&'p str>,
    /// Starts of programs and packages, by the index of their first read.
    starts: BTreeMap<usize, Start<'p>>,
}

impl<'p> ProfileReads<'p> {
    fn new(profile: &'p Profile) -> Self {
        let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
        let mut packages: Vec<_> = profile.files.iter().map(|file| package_of(&file.path)).collect();
        packages.iter().flatten().for_each(|package| *sizes.entry(*package).or_default() += 1);
        sizes.retain(|_, files| *files >= PACKAGE_FILES_MIN);
        packages.iter_mut().for_each(|package| *package = package.filter(|name| sizes.contains_key(name)));
        // Of two packages of equal size, the one that starts first.
        let first_file = |name: &str| packages.iter().position(|package| *package == Some(name));
        let main = sizes.iter().max_by_key(|(name, files)| (**files, std::cmp::Reverse(first_file(name))));
        let main = main.map(|(name, _)| *name);
        let mut profile_reads = Self { profile, packages, main, starts: BTreeMap::new() };
        profile_reads.find_starts();
        profile_reads
    }

    fn find_starts(&mut self) {
        let named: BTreeSet<&str> = self.profile.triggers.iter().map(String::as_str).collect();
        let mut begun: BTreeSet<&str> = BTreeSet::new();
        let mut seen = vec![false; self.profile.files.len()];
        for (at, read) in self.profile.reads.iter().enumerate() {
            if std::mem::replace(&mut seen[read.file], true) {
                continue;
            }
            let file = &self.profile.files[read.file];
            let package = self.packages[read.file];
            let start = if named.contains(file.path.as_str()) {
                Some(Start::Named)
            } else if let Some(package) = package {
                begun.insert(package).then_some(Start::Package(package))
            } else {
                (at == 0 || file.program && !is_library(&file.path)).then_some(Start::Program)
            };
            if let Some(start) = start {
                self.starts.insert(at, start);
            }
        }
    }

    fn cluster(&self, at: usize, start: Start<'_>) -> Cluster {
        let reads = &self.profile.reads;
        let after = at + 1..reads.len();
        let trigger = reads[at].file;
        let next = |ends: fn(Start<'_>) -> bool| {
            let later = self.starts.range(after.clone()).find(|(_, start)| ends(**start));
            later.map_or(reads.len(), |(end, _)| *end)
        };
        let reads = match start {
            Start::Named => after.collect(),
            Start::Package(name) if self.main == Some(name) => after.collect(),
            Start::Program if at == 0 => (at + 1..next(|start| start != Start::Program)).collect(),
            Start::Program => (at + 1..next(|_| true)).collect(),
            Start::Package(name) => {
                let end = next(|start| matches!(start, Start::Package(_)));
                let belongs = |read: &usize| match self.packages[reads[*read].file] {
                    Some(package) => package == name,
                    None => *read < end,
                };
                after.filter(belongs).collect()
            }
        };
        Cluster { trigger, reads }
    }
}

/// Returns the package of a file: the path of its directory, including a directory of bundled libraries beside it.
fn package_of(path: &str) -> Option<&str> {
    let mut end = 0;
    let mut in_collection = false;
    for component in path.split_inclusive('/') {
        if in_collection {
            // A single file in a collection is no package.
            let name = component.strip_suffix('/')?;
            let own = name.strip_suffix(".libs").unwrap_or(name);
            return path.get(..end + own.len());
        }
        end += component.len();
        in_collection = component.strip_suffix('/').is_some_and(|name| COLLECTIONS.contains(&name));
    }
    None
}

fn is_library(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.ends_with(".so") || name.contains(".so.")
}

/// Returns the number of distinct files and of bytes read of a cluster, for display.
pub fn extent(profile: &Profile, cluster: &Cluster) -> (usize, u64) {
    let mut bytes: HashMap<usize, u64> = HashMap::new();
    for read in cluster.reads.iter().map(|read| &profile.reads[*read]) {
        let size = profile.files[read.file].size;
        let of_read =
            read.range.as_ref().map_or(size, |range| range.end.min(size).saturating_sub(range.start));
        let known = bytes.entry(read.file).or_default();
        *known = known.saturating_add(of_read).min(size);
    }
    (bytes.len(), bytes.values().fold(0, |sum, bytes| sum.saturating_add(*bytes)))
}

#[cfg(test)]
mod tests {
    use esker_format::name::RepositoryName;
    use esker_format::profile::{ProfileFile, ProfileRead};
    use esker_format::time::UnixTime;

    use super::*;

    const SITE: &str = "/py/lib/python3.11/site-packages";

    /// Builds a profile that reads these files in this order; a `*` marks executables.
    fn profile(paths: &[String], triggers: &[&str]) -> Profile {
        let file = |path: &String| {
            let plain = path.trim_end_matches('*');
            ProfileFile { path: plain.to_owned(), size: 10, program: plain != path }
        };
        Profile {
            repository: RepositoryName::parse("x.test").unwrap(),
            revision: 1,
            command: String::new(),
            recorded: UnixTime(0),
            triggers: triggers.iter().map(|path| (*path).to_owned()).collect(),
            files: paths.iter().map(file).collect(),
            reads: (0..paths.len()).map(|file| ProfileRead { file, ms: 0, range: None }).collect(),
        }
    }

    fn shown(profile: &Profile) -> Vec<(String, usize, usize)> {
        let short = |cluster: &Cluster| {
            let (first, last) = (cluster.reads[0], *cluster.reads.last().unwrap());
            (profile.files[cluster.trigger].path.clone(), first, last)
        };
        clusters(profile).0.iter().map(short).collect()
    }

    fn several(folder: &str, count: usize) -> Vec<String> {
        (0..count).map(|number| format!("{folder}/{number}.py")).collect()
    }

    #[test]
    fn the_first_package_ends_the_cluster_of_the_interpreter() {
        let mut paths = vec!["/py/bin/python*".to_owned(), "/py/lib/libpython.so*".to_owned()];
        paths.extend(several("/py/lib/python3.11/encodings", 5));
        paths.extend(several(&format!("{SITE}/numpy"), 10));
        paths.extend(several(&format!("{SITE}/numpy.libs"), 2));
        paths.extend(several("/py/lib/python3.11/json", 4));
        paths.extend(several(&format!("{SITE}/tensorflow"), 20));
        paths.extend(several(&format!("{SITE}/keras"), 9));
        paths.extend(several(&format!("{SITE}/tiny"), 3));
        paths.push(format!("{SITE}/numpy/late.py"));
        let profile = profile(&paths, &[]);
        let (numpy, tensorflow, keras, last) = (7, 23, 43, 55);
        assert_eq!(
            shown(&profile),
            [
                ("/py/bin/python".to_owned(), 1, numpy - 1),
                (format!("{SITE}/numpy/0.py"), numpy + 1, last),
                (format!("{SITE}/tensorflow/0.py"), tensorflow + 1, last),
                (format!("{SITE}/keras/0.py"), keras + 1, last - 1),
            ]
        );
        let numpy = &clusters(&profile).0[1];
        assert_eq!(numpy.reads.len(), 9 + 2 + 4 + 1, "its own files, those of json, and the late one");
        assert_eq!(extent(&profile, numpy), (16, 160));
    }

    #[test]
    fn programs_and_named_files_begin_clusters() {
        let paths: Vec<String> = [
            "/bin/gcc*",
            "/lib/a.so*",
            "/libexec/cc1*",
            "/include/a.h",
            "/include/b.h",
            "/bin/as*",
            "/x",
            "/y",
        ]
        .map(str::to_owned)
        .to_vec();
        let all = profile(&paths, &[]);
        assert_eq!(
            shown(&all),
            [("/bin/gcc".into(), 1, 7), ("/libexec/cc1".into(), 3, 4), ("/bin/as".into(), 6, 7)]
        );
        let named = profile(&paths, &["/include/a.h", "/nowhere"]);
        assert_eq!(
            shown(&named),
            [("/bin/gcc".into(), 1, 2), ("/include/a.h".into(), 4, 7), ("/bin/as".into(), 6, 7)]
        );
        assert_eq!(clusters(&profile(&[], &[])), (Vec::new(), 0));
        let two = &paths[..2];
        assert_eq!(clusters(&profile(two, &[])), (Vec::new(), 0), "one read is not worth it");
        assert_eq!(
            shown(&profile(two, &["/bin/gcc"])),
            [("/bin/gcc".into(), 1, 1)],
            "unless it was asked for"
        );
        assert_eq!(shown(&profile(two, &["/lib/a.so"])), [], "but nothing is nothing");
    }

    #[test]
    fn only_the_largest_clusters_of_many_programs_remain() {
        let mut paths = Vec::new();
        for number in 0..CLUSTERS_MAX + 20 {
            paths.push(format!("/bin/{number}*"));
            paths.extend(several(&format!("/d{number}"), 2 + number % 2));
        }
        let (found, left_out) = clusters(&profile(&paths, &[]));
        assert_eq!((found.len(), left_out), (CLUSTERS_MAX, 20));
        assert!(found.is_sorted_by_key(|cluster| cluster.reads[0]));
        assert!(found.iter().filter(|cluster| cluster.reads.len() == 3).count() > 60);
        // Named triggers keep their clusters: one smaller than the dropped ones, and one at the end.
        let last = paths.len() - 2;
        let named = [paths[last - 5].trim_end_matches('*'), paths[last].as_str()];
        let profile = profile(&paths, &named);
        let (found, left_out) = clusters(&profile);
        assert_eq!((found.len(), left_out), (CLUSTERS_MAX + 2, 18));
        for name in named {
            assert!(found.iter().any(|cluster| profile.files[cluster.trigger].path == name), "{name}");
        }
    }

    #[test]
    fn packages_are_recognised_by_their_directories() {
        assert_eq!(package_of("/a/site-packages/x/y/z.py"), Some("/a/site-packages/x"));
        assert_eq!(package_of("/a/site-packages/x.libs/l.so"), Some("/a/site-packages/x"));
        assert_eq!(package_of("/a/node_modules/x/node_modules/y/i.js"), Some("/a/node_modules/x"));
        for none in ["/a/site-packages/six.py", "/a/b", "/site-packages", "/my-site-packages/x/y"] {
            assert_eq!(package_of(none), None, "{none}");
        }
        assert!(is_library("/l/a.so.1") && is_library("/l/a.so") && !is_library("/bin/also"));
    }
}
