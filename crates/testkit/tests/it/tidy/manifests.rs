//! Who depends on whom.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use super::{report, root, rows, text};

/// The layers and edges that were agreed, crates still to come included. A row of the document may leave out a
/// crate that has no content yet, but it may not differ.
const AGREED: &[(&str, &str, &str)] = &[
    ("0", "format", ""),
    ("0", "archive", ""),
    ("0", "vfs", ""),
    ("1", "store", "format"),
    ("1", "squashfs", "archive, vfs"),
    ("1", "erofs", "vfs"),
    ("1", "fuse", "vfs"),
    ("1", "oci", "archive"),
    ("2", "trails", "store, vfs"),
    ("2", "admin", "archive, format, store, vfs"),
    ("2", "run", "vfs, fuse"),
    ("3", "view", "format, store, vfs, trails"),
    ("3", "server", "format, store, admin"),
    ("4", "node", "format, store, vfs, erofs, fuse, trails, view"),
    ("5", "cli", "format, vfs, store, squashfs, fuse, oci, trails, view, admin, run, node, server"),
    ("dev", "testkit", "format, vfs, store, squashfs, fuse, oci, view, admin, run, node, server"),
    ("dev", "bench", "format, vfs, store, squashfs, fuse, oci, view, admin, run, node, server, testkit"),
];

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

struct Documented {
    layer: String,
    sentence: String,
    edges: String,
}

/// Reads the crate table of the architecture document.
fn documented() -> BTreeMap<String, Documented> {
    let document = text("docs/ARCHITECTURE.md".as_ref());
    let crates = document.split("\n## Crates").nth(1).expect("a section Crates");
    let crates = crates.split("\n## ").next().expect("the section");
    rows(crates)
        .into_iter()
        .filter(|cells| cells.len() == 4 && cells[1].starts_with('`'))
        .map(|cells| {
            let edges = if cells[3] == "–" { String::new() } else { cells[3].clone() };
            let documented = Documented { layer: cells[0].clone(), sentence: cells[2].clone(), edges };
            (cells[1].trim_matches('`').to_owned(), documented)
        })
        .collect()
}

#[test]
fn crates_depend_only_downwards_and_as_agreed() {
    let mut complaints = Vec::new();
    let agreed = |name: &str| AGREED.iter().find(|(_, agreed, _)| *agreed == name);
    for package in packages() {
        let name = short(&package.name);
        let Some((layer, _, edges)) = agreed(name) else {
            complaints.push(format!("{name} is no agreed crate"));
            continue;
        };
        for (dependency, for_tests) in &package.dependencies {
            let Some(dependency) = dependency.strip_prefix("esker-") else { continue };
            let is_dev_crate = agreed(dependency).is_some_and(|(layer, ..)| *layer == "dev");
            let allowed = words(edges).contains(dependency) || (*for_tests && is_dev_crate);
            if !allowed {
                complaints.push(format!("{name} (layer {layer}) must not depend on {dependency}"));
            }
        }
    }
    report("edges between crates", &complaints);
}

#[test]
fn the_document_has_the_agreed_table() {
    let documented = documented();
    let built: Vec<String> = packages().iter().map(|package| short(&package.name).to_owned()).collect();
    let mut complaints = Vec::new();
    for name in &built {
        if !documented.contains_key(name) {
            complaints.push(format!("docs/ARCHITECTURE.md does not list {name}"));
        }
    }
    for (name, row) in &documented {
        let Some((layer, _, edges)) = AGREED.iter().find(|(_, agreed, _)| agreed == name) else {
            complaints.push(format!("docs/ARCHITECTURE.md lists {name}, which nobody agreed on"));
            continue;
        };
        let edges: BTreeSet<&str> =
            words(edges).into_iter().filter(|edge| built.iter().any(|name| name == edge)).collect();
        if &row.layer != layer || words(&row.edges) != edges {
            complaints.push(format!("docs/ARCHITECTURE.md gives {name} another layer or other edges"));
        }
        if !built.contains(name) {
            complaints.push(format!("docs/ARCHITECTURE.md lists {name}, which does not exist"));
        }
    }
    report("the table of crates", &complaints);
}

#[test]
fn libraries_open_with_their_documented_sentence() {
    let mut complaints = Vec::new();
    for (name, row) in documented() {
        let main = if name == "cli" { "main" } else { "lib" };
        let file = format!("crates/{name}/src/{main}.rs");
        let source = text(file.as_ref());
        let opening: Vec<&str> = source.lines().map_while(|line| line.strip_prefix("//! ")).collect();
        let opening = opening.join(" ");
        if opening != row.sentence {
            complaints.push(format!("{file} opens with {opening:?}, the document has {:?}", row.sentence));
        }
    }
    report("first lines", &complaints);
}

#[test]
fn outside_dependencies_have_owners() {
    let document = text("docs/ARCHITECTURE.md".as_ref());
    let section = document.split("\n## Who may use which dependency").nth(1).expect("a section on owners");
    let section = section.split("\n## ").next().expect("the section");
    let mut owners: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for cells in rows(section).iter().filter(|cells| cells.len() == 3 && cells[0].starts_with('`')) {
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
        complaints.push(format!("nobody uses {idle} any more"));
    }
    report("owners of dependencies", &complaints);
}
