//! Makes a tree like those of Pynamic, the usual benchmark of dynamic linking: many shared libraries with many
//! functions each, and a driver that loads all of them and calls every function.
//!
//! Some of the libraries are utilities. All others, the modules, are linked with all utilities, and each of their
//! functions calls one function of a utility. Unlike the original it has no Python and no MPI in it: it measures the
//! loader, and needs only a C compiler.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use serde::Serialize;

use crate::measure;
use crate::tree_size::size;
use esker_testkit::soak::Random;

/// Number of functions that call one another before the entry function calls the next one.
const CALL_DEPTH: usize = 10;

const MODULE: &str = "module";
const UTILITY: &str = "utility";

/// Length of the functions' names, which is typical of C++ and makes symbol tables large.
const NAME_TAIL: usize = 100;

/// Options of the tree.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Shared libraries, the utilities among them.
    pub libraries: usize,
    /// Number of utility libraries.
    pub utilities: usize,
    /// Functions of a library, on average: half of that to one and a half.
    pub functions: usize,
    /// Output folder of the tree, with `bin/driver` and `lib`.
    pub out: PathBuf,
    /// Command of the C compiler.
    pub compiler: String,
    /// Number of compilers that run at the same time.
    pub jobs: usize,
    /// Folder for temporary sources.
    pub scratch: PathBuf,
}

/// Facts of the tree.
#[derive(Clone, Debug, Serialize)]
pub struct Made {
    /// Functions of all libraries.
    pub functions: usize,
    /// Functions of the modules, which the driver visits.
    pub visited: usize,
    /// Bytes of the tree.
    pub bytes: u64,
}

/// A library to generate.
#[derive(Clone, Debug)]
struct Library {
    kind: &'static str,
    number: usize,
    functions: usize,
}

impl Library {
    fn name(&self) -> String {
        format!("{}{}", self.kind, self.number)
    }

    fn file(&self) -> String {
        format!("lib{}.so", self.name())
    }

    fn function(&self, at: usize) -> String {
        format!("{}{}_function{at}_{}", self.kind, self.number, "x".repeat(NAME_TAIL))
    }

    fn depth(&self) -> usize {
        if self.kind == UTILITY { 1 } else { CALL_DEPTH }
    }

    /// Returns the source of a library; its functions call those of `utilities`.
    fn source(&self, utilities: &[Library]) -> String {
        let mut random = Random(self.number as u64);
        let mut text = String::new();
        // Writing to a string succeeds, here and below.
        for at in (0..self.functions).rev() {
            let step = utilities.get(random.below(utilities.len())).map_or_else(
                || "sum + 1".to_owned(),
                |utility| {
                    let callee = utility.function(random.below(utility.functions));
                    let _ = writeln!(text, "extern long {callee}(long);");
                    format!("{callee}(own[0])")
                },
            );
            // From the last one back, so that the next one is known already.
            let last = at + 1 == self.functions || at % self.depth() == self.depth() - 1;
            let result = if last { "sum".to_owned() } else { format!("{}(sum)", self.function(at + 1)) };
            let _ = writeln!(
                text,
                "long {}(long sum)\n{{\n    long own[8];\n    for (int at = 0; at < 8; at++)\n        \
                 own[at] = sum + at;\n    sum = {step};\n    return {result};\n}}",
                self.function(at)
            );
        }
        let _ = writeln!(text, "long {}_entry(void)\n{{\n    long sum = 0;", self.name());
        for at in (0..self.functions).step_by(self.depth()) {
            let _ = writeln!(text, "    sum = {}(sum);", self.function(at));
        }
        text + "    return sum;\n}\n"
    }
}

/// Creates the tree.
pub fn run(plan: &Plan, mut say: impl FnMut(&str)) -> Result<Made> {
    ensure!(plan.utilities < plan.libraries, "of {} libraries none is a module", plan.libraries);
    ensure!(plan.functions > 0, "libraries without functions");
    let lib = plan.out.join("lib");
    for folder in [&lib, &plan.out.join("bin")] {
        fs::create_dir_all(folder).with_context(|| format!("can't make {}", folder.display()))?;
    }
    let sources = tempfile::Builder::new().prefix("esker-bench-").tempdir_in(&plan.scratch)?;
    let mut random = Random(plan.functions as u64);
    let mut draw = |kind, count| -> Vec<Library> {
        let functions = plan.functions.div_ceil(2);
        let mut library =
            |number| Library { kind, number, functions: functions + random.below(plan.functions) };
        (0..count).map(&mut library).collect()
    };
    let utilities = draw(UTILITY, plan.utilities);
    let modules = draw(MODULE, plan.libraries - plan.utilities);
    let needed: Vec<String> = utilities.iter().map(|library| format!("-l{}", library.name())).collect();
    for (libraries, called, needed) in
        [(&utilities, &[][..], &[][..]), (&modules, &utilities[..], &needed[..])]
    {
        say(&format!("compiling {} libraries", libraries.len()));
        in_parallel(libraries, plan.jobs, |library| {
            let source = sources.path().join(library.name()).with_extension("c");
            fs::write(&source, library.source(called))?;
            let mut compiler = Command::new(&plan.compiler);
            compiler.args(["-O0", "-fPIC", "-shared", "-o"]).arg(lib.join(library.file())).arg(&source);
            compiler.arg(format!("-Wl,-soname,{}", library.file()));
            compiler.args(["-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN", "-L"]).arg(&lib).args(needed);
            measure::run(compiler)?;
            Ok(fs::remove_file(&source)?)
        })?;
    }
    compile_driver(plan, &modules, sources.path())?;
    let functions = |libraries: &[Library]| libraries.iter().map(|library| library.functions).sum::<usize>();
    let visited = functions(&modules);
    Ok(Made { functions: visited + functions(&utilities), visited, bytes: size(&plan.out)?.1 })
}

/// Compiles the driver, which loads all modules as Python does and then calls them.
fn compile_driver(plan: &Plan, modules: &[Library], sources: &Path) -> Result<()> {
    let mut table = String::new();
    for module in modules {
        let (file, name) = (module.file(), module.name());
        let _ = writeln!(table, "    {{\"{file}\", \"{name}_entry\", {}}},", module.functions);
    }
    let source = sources.join("driver.c");
    fs::write(&source, include_str!("pynamic/driver.c").replace("MODULES\n", &table))?;
    let mut compiler = Command::new(&plan.compiler);
    compiler.arg("-o").arg(plan.out.join("bin/driver")).arg(&source);
    // Before glibc 2.34 `dlopen` is in a library of its own.
    compiler.args(["-Wl,-rpath,$ORIGIN/../lib", "-ldl"]);
    measure::run(compiler).map(drop)
}

/// Runs a function for each library with so many threads, until the first failure.
fn in_parallel(
    libraries: &[Library],
    jobs: usize,
    each: impl Fn(&Library) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(library) = libraries.get(next.fetch_add(1, Relaxed)) {
            if let Err(error) = each(library) {
                next.store(libraries.len(), Relaxed);
                return Err(error).with_context(|| library.file());
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| {
            worker.join().unwrap_or_else(|_| Err(anyhow!("a compiler's thread panicked")))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(libraries: usize, utilities: usize, functions: usize, folder: &Path) -> Plan {
        Plan {
            libraries,
            utilities,
            functions,
            out: folder.join("tree"),
            compiler: "cc".into(),
            jobs: 2,
            scratch: folder.to_owned(),
        }
    }

    #[test]
    fn the_driver_calls_every_function_and_reports_a_missing_library() {
        let folder = tempfile::tempdir().expect("a folder");
        let plan = plan(5, 2, 25, folder.path());
        let made = run(&plan, |_| {}).expect("a tree");
        assert!((38..=113).contains(&made.visited) && made.functions > made.visited, "{made:?}");
        let drive = || Command::new(plan.out.join("bin/driver")).output().expect("the driver");
        let output = drive();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            format!("{} functions of 3 modules\n", made.visited)
        );
        fs::remove_file(plan.out.join("lib/libutility1.so")).expect("removed");
        let output = drive();
        assert!(!output.status.success());
        assert!(String::from_utf8_lossy(&output.stderr).contains("libutility1.so"), "{output:?}");
    }

    #[test]
    fn a_compiler_failure_names_the_library() {
        let folder = tempfile::tempdir().expect("a folder");
        let plan = Plan { compiler: "false".into(), ..plan(2, 0, 1, folder.path()) };
        let error = run(&plan, |_| {}).expect_err("false fails");
        assert!(format!("{error:#}").contains("libmodule"), "{error:#}");
    }
}
