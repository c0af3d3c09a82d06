use super::*;
use crate::neighbours::tests::Paths;

const LIB: &str = "/sw/lib";
const SITE: &str = "/sw/lib/site";

/// A standard library and packages: `os`; `pkg` with the modules `a`, `inner.b` and `inner.c` and the library `fast`;
/// `os` again, in `pkg`.
fn tree() -> Paths {
    let mut paths = Paths::default();
    let mut add = |path: String| paths.files.insert(path, 1000);
    for (folder, names) in [
        (LIB.to_owned(), &["os", "re"][..]),
        (format!("{SITE}/pkg"), &["__init__", "a", "os"]),
        (format!("{SITE}/pkg/inner"), &["__init__", "b", "c"]),
    ] {
        for name in names {
            add(format!("{folder}/{name}.py"));
            add(format!("{folder}/__pycache__/{name}.cpython-311.pyc"));
            add(format!("{folder}/__pycache__/{name}.cpython-312.pyc"));
        }
    }
    add(format!("{SITE}/pkg/fast.cpython-311-x86_64-linux-gnu.so"));
    add(format!("{SITE}/pkg/fast.txt"));
    paths.files.insert(format!("{SITE}/pkg/large.so.1"), 5 << 20);
    paths
}

fn import<'a>(level: Option<u32>, module: &'a str, names: &[&'a str]) -> Import<'a> {
    let names: Vec<_> = names.iter().map(|name| name.as_bytes()).collect();
    Import { level, module: module.as_bytes(), names: names.into() }
}

fn module(path: &str, missed: bool) -> PythonModule {
    let wanted = Leaf::find(&paths_of(path), path.rsplit('/').next().unwrap().as_bytes()).unwrap().wanted();
    PythonModule { path: path.as_bytes().into(), wanted, missed, tries: 0 }
}

/// Returns a folder with one file.
fn paths_of(path: &str) -> std::sync::Arc<crate::folders::Folder> {
    let mut paths = Paths::default();
    paths.files.insert(path.to_owned(), 1000);
    paths.list(path.rsplit_once('/').unwrap().0.as_bytes())
}

fn compiled(folder: &str, name: &str) -> String {
    format!("{folder}/__pycache__/{name}.cpython-311.pyc")
}

/// Returns the files that a module imports, without the part of the path that all have in common.
fn imported(modules: &mut PythonModules, importer: &str, imports: &[Import<'_>]) -> Vec<String> {
    let found = modules.imported(&mut tree(), &module(importer, true), imports);
    let short = |leaf: Leaf| leaf.wanted().what.replace("/__pycache__", "").replace(".cpython-311.pyc", "");
    found.leaves.into_iter().map(short).collect()
}

/// Returns a state in which one module of each root was read.
fn read() -> PythonModules {
    let mut modules = PythonModules::default();
    for importer in [compiled(LIB, "re"), compiled(&format!("{SITE}/pkg"), "a")] {
        assert!(imported(&mut modules, &importer, &[]).is_empty());
    }
    modules
}

/// Large libraries are not candidates like others, and small ones tell which libraries they need.
#[test]
fn imported_libraries_of_any_size_are_found() {
    let mut modules = read();
    let imports = [import(Some(0), "pkg", &["fast", "large", "a"]), import(Some(0), "pkg.large.x", &[])];
    let importer = module(&compiled(LIB, "os"), true);
    let Imported { leaves, libraries } = modules.imported(&mut tree(), &importer, &imports);
    let libraries: Vec<_> = libraries.iter().map(|path| str::from_utf8(path).unwrap()).collect();
    let large = "/sw/lib/site/pkg/large.so.1";
    let fast = "/sw/lib/site/pkg/fast.cpython-311-x86_64-linux-gnu.so";
    assert_eq!(libraries, [fast, large, large]);
    assert!(leaves.iter().all(|leaf| leaf.path() != large.as_bytes()));
}

#[test]
fn dotted_imports_include_the_packages_on_the_way() {
    let imports = [
        import(Some(0), "pkg.inner.b", &[]),
        import(Some(0), "pkg.inner", &["c", "nothing"]),
        import(Some(0), "pkg", &["fast"]),
    ];
    let expected = [
        "/sw/lib/site/pkg/__init__",
        "/sw/lib/site/pkg/inner/__init__",
        "/sw/lib/site/pkg/inner/b",
        "/sw/lib/site/pkg/__init__",
        "/sw/lib/site/pkg/inner/__init__",
        "/sw/lib/site/pkg/inner/c",
        "/sw/lib/site/pkg/__init__",
        "/sw/lib/site/pkg/fast.cpython-311-x86_64-linux-gnu.so",
    ];
    assert_eq!(imported(&mut read(), &compiled(LIB, "re"), &imports), expected);
}

#[test]
fn relative_imports_resolve_in_the_package_of_their_level() {
    let importer = compiled(&format!("{SITE}/pkg/inner"), "b");
    let told =
        |level, module, names: &[&str]| imported(&mut read(), &importer, &[import(level, module, names)]);
    assert_eq!(told(Some(1), "", &["c"]), ["/sw/lib/site/pkg/inner/c"]);
    assert_eq!(told(Some(2), "a", &[]), ["/sw/lib/site/pkg/a"]);
    assert_eq!(told(Some(0), "os", &[]), ["/sw/lib/os"], "not that of the package");
    assert_eq!(told(None, "os", &[]), ["/sw/lib/site/pkg/os", "/sw/lib/os"], "either may be meant");
    for level in [3, u32::MAX] {
        assert!(told(Some(level), "a", &[]).is_empty(), "{level}");
    }
    assert!(told(Some(1), "a.b.c", &["d"]).is_empty());
}

#[test]
fn modules_are_searched_in_the_nearest_root_then_in_that_of_the_last_miss() {
    let mut modules = PythonModules::default();
    for root in ["/v1/lib", "/v2/lib", "/v1/lib/site"] {
        modules.root(root.as_bytes());
    }
    let roots = |modules: &PythonModules, path: &str| -> Vec<String> {
        let roots = modules.roots_for(path.as_bytes());
        roots.into_iter().map(|root| String::from_utf8(root.into()).unwrap()).collect()
    };
    assert_eq!(roots(&modules, "/v1/lib/site"), ["/v1/lib/site", "/v1/lib", "/v2/lib"]);
    assert_eq!(roots(&modules, "/other")[0], "/v1/lib/site");
    modules.root(b"/v2/lib");
    assert_eq!(roots(&modules, "/other"), ["/v2/lib", "/v1/lib/site", "/v1/lib"]);
    assert!(modules.are_around(b"/v1/lib/x/y.so") && !modules.are_around(b"/v1/library/x"));
    for number in 0..2 * ROOTS_MAX {
        modules.root(format!("/r{number}").as_bytes());
    }
    assert_eq!(modules.roots.len(), ROOTS_MAX);
}

#[test]
fn the_names_searched_for_one_module_are_bounded() {
    let names: Vec<String> = (0..3 * LOOKUPS_MAX).map(|number| format!("m{number}")).collect();
    let mut imports: Vec<_> = names.iter().map(|name| import(Some(0), name, &[])).collect();
    imports.push(import(Some(0), "os", &[]));
    let mut paths = tree();
    let mut modules = read();
    let importer = module(&compiled(LIB, "re"), false);
    assert!(modules.imported(&mut paths, &importer, &imports).leaves.is_empty());
    assert!(paths.listed <= 4 * LOOKUPS_MAX, "{}", paths.listed);
}

#[test]
fn each_module_is_evaluated_once_and_other_files_never() {
    let mut modules = PythonModules::default();
    let path = compiled(LIB, "os");
    let leaf = |path: &str| Leaf::find(&paths_of(path), path.rsplit('/').next().unwrap().as_bytes()).unwrap();
    assert!(modules.expect(&leaf(&path)));
    assert_eq!(modules.expected.len(), 1);
    modules.expected.clear();
    assert!(!modules.expect(&leaf(&path)) && modules.expected.is_empty(), "it has told");
    Predictor::<()>::clear(&mut modules);
    assert!(modules.expect(&leaf("/sw/lib/os.so")) && modules.expected.is_empty());
    assert!(!modules.is_missed_again(path.as_bytes()));
    assert!(modules.is_missed_again(compiled(LIB, "re").as_bytes()), "another one in the folder");
    assert!(!modules.is_missed_again(compiled(SITE, "re").as_bytes()));
}

#[test]
fn compiled_modules_are_recognised_by_path() {
    for (path, is) in [
        ("/lib/__pycache__/os.cpython-311.pyc", true),
        ("/lib/__pycache__/os.cpython-311.opt-1.pyc", true),
        ("/lib/os.pyc", false),
        ("/lib/__pycache__/os.py", false),
        ("os.pyc", false),
    ] {
        assert_eq!(is_module(path.as_bytes()), is, "{path}");
    }
}
