//! Dependencies between crates, and owners of dependencies from outside.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use super::{report, root, rows, text};

/// The crates in the order of their layers: the module to begin with, and the crates that each may depend on.
const AGREED: &[(&str, &str, &str)] = &[
    ("format", "trust.rs", ""),
    ("archive", "reader.rs", ""),
    ("confine", "role.rs", ""),
    ("threads", "pool.rs", ""),
    ("journal", "lib.rs", ""),
    ("vfs", "tree.rs", "threads"),
    ("store", "objects.rs", "format, threads"),
    ("kernel-mount", "lib.rs", "threads"),
    ("oci", "image.rs", "archive"),
    ("squashfs", "reader.rs", "archive, threads, vfs"),
    ("erofs", "tree.rs", "journal, vfs"),
    ("fuse", "session.rs", "journal, kernel-mount, threads, vfs"),
    ("prefetch", "planner.rs", "format, store, threads, vfs"),
    ("object-storage", "providers/sink.rs", "format, store, threads"),
    ("run", "container.rs", "format, fuse, kernel-mount, oci, vfs"),
    ("cache-share", "shared_cache.rs", "format, kernel-mount, object-storage, store, threads"),
    ("repository", "repository.rs", "format, object-storage, store"),
    ("view", "view.rs", "format, journal, prefetch, store, vfs"),
    ("server", "site.rs", "format, object-storage, repository, store, threads"),
    ("publish", "publish.rs", "archive, format, repository, store"),
    ("config", "load.rs", "cache-share, format, store, threads, view"),
    ("gateway", "lease.rs", "format, object-storage, publish, repository, server, store, threads"),
    ("maintain", "collect.rs", "format, object-storage, publish, repository, store"),
    (
        "node",
        "mounted.rs",
        "cache-share, config, confine, erofs, format, fuse, journal, kernel-mount, object-storage, prefetch, store, threads, vfs, view",
    ),
    (
        "cli",
        "main.rs",
        "cache-share, config, confine, format, fuse, gateway, journal, kernel-mount, maintain, node, object-storage, oci, prefetch, publish, repository, run, server, squashfs, store, threads, vfs, view",
    ),
    ("testkit", "lib.rs", "format, store, vfs"),
    ("bench", "lib.rs", "format, fuse, kernel-mount, server, store, testkit, vfs, view"),
];

/// Crates that no part of the product depends on.
const FOR_DEVELOPERS: [&str; 2] = ["testkit", "bench"];

/// Returns the layer of an agreed crate: one above the highest of those that it may depend on.
fn layer(name: &str) -> usize {
    let (.., edges) = AGREED.iter().find(|(agreed, ..)| *agreed == name).expect("an agreed crate");
    words(edges).into_iter().map(|edge| layer(edge) + 1).max().unwrap_or(0)
}

struct Package {
    name: String,
    /// Name of the dependency, and whether only tests use it.
    dependencies: Vec<(String, bool)>,
}

fn packages() -> Vec<Package> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("running cargo metadata");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    packages
        .iter()
        .map(|package| Package {
            name: string(&package["name"]),
            dependencies: package["dependencies"]
                .as_array()
                .expect("dependencies")
                .iter()
                .map(|dependency| (string(&dependency["name"]), dependency["kind"] == "dev"))
                .collect(),
        })
        .collect()
}

fn string(value: &Value) -> String {
    value.as_str().expect("a string").to_owned()
}

fn short(package: &str) -> &str {
    package.strip_prefix("esker-").unwrap_or_else(|| panic!("{package} is not called esker-…"))
}

fn words(cell: &str) -> BTreeSet<&str> {
    cell.split(',').map(|word| word.trim().trim_matches('`')).filter(|word| !word.is_empty()).collect()
}

/// Set to rewrite the table of crates in place of comparing it.
const WRITE: &str = "ESKER_WRITE_DOCS";

const ARCHITECTURE: &str = "docs/ARCHITECTURE.md";

/// Returns the first sentence of a crate's documentation.
fn first_sentence(name: &str) -> String {
    let main = if name == "cli" { "main" } else { "lib" };
    let source = text(format!("crates/{name}/src/{main}.rs").as_ref());
    let lines: Vec<&str> = source.lines().map_while(|line| line.strip_prefix("//! ")).collect();
    lines.join(" ")
}

/// Returns the table of crates as the manifests and the crates themselves give it.
fn crate_table() -> String {
    let packages = packages();
    let mut table =
        String::from("| Layer | Crate | What it does | Begin with | Depends on |\n|---|---|---|---|---|\n");
    for (name, module, _) in AGREED {
        let Some(package) = packages.iter().find(|package| short(&package.name) == *name) else { continue };
        let ours = package.dependencies.iter().filter(|(_, for_tests)| !for_tests);
        let mut edges: Vec<&str> = ours.filter_map(|(name, _)| name.strip_prefix("esker-")).collect();
        edges.sort_unstable();
        edges.dedup();
        let edges = if edges.is_empty() { "–".to_owned() } else { edges.join(", ") };
        let layer = if FOR_DEVELOPERS.contains(name) { "dev".to_owned() } else { layer(name).to_string() };
        let sentence = first_sentence(name);
        table.push_str(&format!("| {layer} | `{name}` | {sentence} | `{name}/{module}` | {edges} |\n"));
    }
    table
}

#[test]
fn crates_depend_only_downwards_and_as_agreed() {
    let mut complaints = Vec::new();
    let agreed = |name: &str| AGREED.iter().find(|(agreed, ..)| *agreed == name);
    for package in packages() {
        let name = short(&package.name);
        let Some((.., edges)) = agreed(name) else {
            complaints.push(format!("{name} is no agreed crate"));
            continue;
        };
        for (dependency, for_tests) in &package.dependencies {
            let Some(dependency) = dependency.strip_prefix("esker-") else { continue };
            let is_for_developers = FOR_DEVELOPERS.contains(&dependency);
            let allowed = words(edges).contains(dependency) || (*for_tests && is_for_developers);
            if !allowed {
                complaints.push(format!("{name} must not depend on {dependency}"));
            }
        }
    }
    let layers =
        AGREED.iter().filter(|(name, ..)| !FOR_DEVELOPERS.contains(name)).map(|(name, ..)| layer(name));
    assert!(layers.is_sorted(), "the crates are listed in the order of their layers");
    report("edges between crates", &complaints);
}

/// The table stands in the section "Crates", made from the manifests and the first lines of the crates.
#[test]
fn the_architecture_document_has_the_table_of_crates() {
    let document = text(ARCHITECTURE.as_ref());
    let start = document.find("| Layer | Crate |").expect("a table of crates");
    let length = document[start..].find("\n\n").map_or(document.len() - start, |end| end + 1);
    let table = crate_table();
    if document[start..start + length] == table {
        return;
    }
    if std::env::var_os(WRITE).is_some() {
        let document = format!("{}{table}{}", &document[..start], &document[start + length..]);
        std::fs::write(root().join(ARCHITECTURE), document).expect("writing the document");
        return;
    }
    panic!(
        "the table of crates in {ARCHITECTURE} differs from the manifests and crates; write it anew with \
         `{WRITE}=1 cargo test -p esker-testkit tidy`. It should be:\n{table}"
    );
}

#[test]
fn outside_dependencies_have_owners() {
    let document = text("docs/dependencies.md".as_ref());
    let mut owners: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for cells in rows(&document).iter().filter(|cells| cells.len() == 3 && cells[0].starts_with('`')) {
        for dependency in words(&cells[0]) {
            let names = words(&cells[1]).into_iter().map(str::to_owned).collect();
            owners.insert(dependency.to_owned(), names);
        }
    }
    let mut complaints = Vec::new();
    let mut used = BTreeSet::new();
    for package in packages() {
        let name = short(&package.name).to_owned();
        for (dependency, for_tests) in package.dependencies {
            if dependency.starts_with("esker-") {
                continue;
            }
            used.insert(dependency.clone());
            match owners.get(&dependency) {
                None => complaints.push(format!("{dependency}, used by {name}, has no owner in the table")),
                Some(owners) if owners.contains(&name) || (for_tests && owners.contains("tests")) => {}
                Some(owners) => {
                    complaints.push(format!("{name} uses {dependency}, which belongs to {owners:?}"))
                }
            }
        }
    }
    for idle in owners.keys().filter(|dependency| !used.contains(*dependency)) {
        complaints.push(format!("no crate uses {idle}"));
    }
    report("owners of dependencies", &complaints);
}
