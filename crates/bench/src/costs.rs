//! Measures operations of a mount and commands about mounts with a small and a large cache, catalog and number of mounts.
//!
//! One of the three is large at a time. An operation whose cost grows with any of them shows a ratio above one. The sizes
//! take turns, after a first turn that isn't counted: the first mounts of a machine at rest are faster or slower than later ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use esker_testkit::cache_index;
use serde::Serialize;

use crate::conditions::Conditions;
use crate::serve::Served;
use crate::statistics::median;
use crate::table;

/// Files in each directory of the repositories.
const FOLDER: usize = 1_000;
/// Smallest number of entries of a catalog: each operation has a directory of its own.
pub const FEWEST_ENTRIES: usize = OPERATIONS.len() * FOLDER;

/// Options of the measurement: small and large sizes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The esker binary.
    pub esker: String,
    /// Cached objects.
    pub objects: [u64; 2],
    /// Entries of the catalog.
    pub entries: [usize; 2],
    /// Mounts of the user.
    pub mounts: [usize; 2],
    /// Turns of all sizes; each has mounts of its own.
    pub rounds: usize,
}

/// Median times of an operation or a command.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the operation.
    pub operation: &'static str,
    /// Microseconds with a small cache, a small catalog and one mount.
    pub small_us: f64,
    /// Microseconds with the large cache, with the large catalog, and with many mounts.
    pub large_us: [f64; 3],
}

/// Results of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Machine and programs.
    pub conditions: Conditions,
    /// Cached objects, entries and mounts, small and large.
    pub sizes: [[u64; 2]; 3],
    /// One row for each operation.
    pub rows: Vec<Row>,
}

/// An operation with its name; it returns how often it was done in a directory.
type Operation = (&'static str, fn(&Path) -> Result<usize>);

/// Operations in one directory, each for all of its files.
const OPERATIONS: [Operation; 6] = [
    ("look up", |folder| {
        (0..FOLDER).try_for_each(|file| fs::symlink_metadata(folder.join(name_of(file))).map(drop))?;
        Ok(FOLDER)
    }),
    ("look up nothing", |folder| {
        let found = (0..FOLDER).filter(|file| fs::symlink_metadata(folder.join(format!("no{file}"))).is_ok());
        ensure!(found.count() == 0, "a name that isn't there");
        Ok(FOLDER)
    }),
    ("list", |folder| Ok(fs::read_dir(folder)?.count())),
    ("absent attribute", |folder| {
        for file in 0..FOLDER {
            let absent = rustix::fs::lgetxattr(folder.join(name_of(file)), "user.absent", &mut [0; 64][..]);
            ensure!(absent.is_err(), "an attribute that isn't there");
        }
        Ok(FOLDER)
    }),
    ("attribute of the mount", |folder| {
        (0..FOLDER).try_for_each(|_| rustix::fs::lgetxattr(folder, "user.rx", &mut [0; 64][..]).map(drop))?;
        Ok(FOLDER)
    }),
    ("open, read, close", |folder| {
        (0..FOLDER).try_for_each(|file| fs::read(folder.join(name_of(file))).map(drop))?;
        Ok(FOLDER)
    }),
];

/// Commands, with the mount as their last argument where it is one.
const COMMANDS: [(&str, &[&str], bool); 5] = [
    ("esker status MOUNT", &["status", "--json"], true),
    ("esker status, a mount", &["status", "--json"], false),
    ("esker metrics, a mount", &["metrics"], false),
    ("esker top, a mount", &["top", "--plain", "--count", "1"], false),
    ("esker cache status", &["cache", "status", "--json"], false),
];

fn name_of(file: usize) -> String {
    format!("file{file}")
}

/// A user of its own, with repositories and mounts, which end with it.
struct Bench<'p> {
    plan: &'p Plan,
    folder: tempfile::TempDir,
    mounted: Vec<PathBuf>,
}

impl Bench<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.plan.esker);
        command.args(arguments).env("HOME", self.path("home")).env("XDG_RUNTIME_DIR", self.path("run"));
        command.env("ESKER_CACHE", self.path("cache")).env("ESKER_CONFIG_ROOT", self.path("root"));
        command.env("ESKER_STORAGE", self.path("storage"));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str], place: Option<&Path>) -> Result<()> {
        let mut command = self.command(arguments);
        let status = command.args(place).status().context("can't start esker")?;
        ensure!(status.success(), "esker {} failed: {status}", arguments.join(" "));
        Ok(())
    }

    /// Publishes a repository of so many files, all with one content, and returns its folder.
    fn publish(&self, name: &str, entries: usize) -> Result<PathBuf> {
        let source = self.path(&format!("source-{name}"));
        for folder in 0..entries.max(FEWEST_ENTRIES) / FOLDER {
            let folder = source.join(format!("d{folder}"));
            fs::create_dir_all(&folder)?;
            fs::write(folder.join(name_of(0)), "content")?;
            (1..FOLDER).try_for_each(|file| fs::write(folder.join(name_of(file)), "content"))?;
        }
        let keys = self.path("keys");
        let keys = keys.to_str().context("a temporary folder with a name that is text")?;
        self.run(&["repo", "create", name, "--keys", keys], None)?;
        self.run(&["publish", name, "--quiet", "--keys", keys], Some(&source))?;
        fs::remove_dir_all(&source)?;
        Ok(self.path("storage").join(name))
    }

    fn mount(&mut self, url: &str, name: &str) -> Result<PathBuf> {
        let place = self.path(&format!("mnt{}", self.mounted.len()));
        fs::create_dir_all(&place)?;
        let key = self.path("keys").join(format!("{name}.pub"));
        let mut command = self.command(&["mount", url]);
        let status = command.arg(&place).arg("--public-key").arg(key).status()?;
        ensure!(status.success(), "esker mount {url} failed: {status}");
        self.mounted.push(place.clone());
        Ok(place)
    }

    fn unmount(&mut self) -> Result<()> {
        while let Some(place) = self.mounted.pop() {
            self.run(&["umount"], Some(&place))?;
        }
        Ok(())
    }

    /// Returns the times of all operations and commands with these sizes, in microseconds.
    fn measure(&mut self, url: &str, name: &str, objects: u64, mounts: usize) -> Result<Vec<f64>> {
        // The cache gets its folders from a mount, then an index of objects that have no files.
        self.mount(url, name)?;
        self.unmount()?;
        fs::write(self.path("cache").join("index"), cache_index::of_absent(objects))?;
        let place = self.mount(url, name)?;
        (1..mounts).try_for_each(|_| self.mount(url, name).map(drop))?;
        let mut times = Vec::new();
        for (number, (_, run)) in OPERATIONS.iter().enumerate() {
            let folder = place.join(format!("d{number}"));
            fs::symlink_metadata(&folder)?;
            let began = Instant::now();
            let done = run(&folder)?;
            times.push(began.elapsed().as_secs_f64() * 1e6 / done as f64);
        }
        for (_, arguments, of_one) in COMMANDS {
            let began = Instant::now();
            self.run(arguments, of_one.then_some(place.as_path()))?;
            let each = if arguments[0] == "cache" || of_one { 1 } else { mounts };
            times.push(began.elapsed().as_secs_f64() * 1e6 / each as f64);
        }
        self.unmount()?;
        fs::remove_dir_all(self.path("cache"))?;
        Ok(times)
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        let _ = self.unmount();
    }
}

/// Runs the measurement.
pub fn run(plan: &Plan, mut say: impl FnMut(&str)) -> Result<Report> {
    let conditions = Conditions::now(&[&plan.esker]);
    let mut bench = Bench {
        plan,
        folder: tempfile::Builder::new().prefix("esker-bench-").tempdir()?,
        mounted: Vec::new(),
    };
    for name in ["home", "run"] {
        fs::create_dir(bench.path(name))?;
    }
    let names = ["small.costs.test", "large.costs.test"];
    let mut served = Vec::new();
    for (name, entries) in names.into_iter().zip(plan.entries) {
        say(&format!("publishing {entries} files"));
        served.push(Served::start(&plan.esker, &bench.publish(name, entries)?)?);
    }
    let ([few, many], [one, crowd]) = (plan.objects, plan.mounts);
    let sizes = [(0, few, one), (0, many, one), (1, few, one), (0, few, crowd)];
    let mut measured = sizes.map(|_| Vec::new());
    for round in 0..=plan.rounds {
        say(&format!("measuring, turn {round} of {}", plan.rounds));
        for ((at, objects, mounts), measured) in sizes.into_iter().zip(&mut measured) {
            let times = bench.measure(&served[at].url, names[at], objects, mounts)?;
            if round > 0 {
                measured.push(times);
            }
        }
    }
    let middle =
        |size: usize, at: usize| median(&measured[size].iter().map(|times| times[at]).collect::<Vec<_>>());
    let names = OPERATIONS.iter().map(|(name, _)| *name).chain(COMMANDS.iter().map(|(name, ..)| *name));
    let rows = names.enumerate().map(|(at, operation)| Row {
        operation,
        small_us: middle(0, at),
        large_us: [1, 2, 3].map(|size| middle(size, at)),
    });
    let sizes = [plan.objects, plan.entries.map(|it| it as u64), plan.mounts.map(|it| it as u64)];
    Ok(Report { conditions, sizes, rows: rows.collect() })
}

impl Report {
    /// Returns the results as a table for terminals.
    pub fn table(&self) -> String {
        let header = ["operation", "", "small µs", "large cache", "large catalog", "many mounts"];
        let row = |row: &Row| {
            let mut cells = vec![row.operation.to_owned(), String::new(), format!("{:.1}", row.small_us)];
            cells.extend(row.large_us.iter().map(|large| format!("{:.2} ×", large / row.small_us)));
            cells
        };
        let [[few, many], [short, long], [one, crowd]] = self.sizes;
        format!(
            "{}\nobjects {few} and {many}, entries {short} and {long}, mounts {one} and {crowd}\n\n{}",
            self.conditions.line(),
            table::layout(&header, &self.rows.iter().map(row).collect::<Vec<_>>())
        )
    }
}
