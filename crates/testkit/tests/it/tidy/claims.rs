//! Documents claim only what exists.

use std::path::{Path, PathBuf};

use super::{files, report, root, text};

/// A capability that documents may claim only while the module that has it exists.
struct Capability {
    /// Whole words in lower case that claim it.
    words: &'static [&'static str],
    module: &'static str,
    /// True if the module exists.
    built: bool,
}

const fn built(words: &'static [&'static str], module: &'static str) -> Capability {
    Capability { words, module, built: true }
}

const fn planned(words: &'static [&'static str], module: &'static str) -> Capability {
    Capability { words, module, built: false }
}

const CAPABILITIES: &[Capability] = &[
    built(&["tags", "tag"], "crates/format/src/history.rs"),
    built(&["squashfs"], "crates/squashfs/src/lib.rs"),
    built(&["erofs"], "crates/erofs/src/lib.rs"),
    built(&["broker"], "crates/cache-share/src/broker.rs"),
    built(&["container", "containers"], "crates/run/src/container.rs"),
    built(&["bundle", "bundles"], "crates/format/src/bundle.rs"),
    built(&["rollback", "roll back"], "crates/publish/src/rollback.rs"),
    built(&["transaction", "transactions"], "crates/cli/src/transaction.rs"),
    built(&["garbage", "collect", "collects"], "crates/maintain/src/collect.rs"),
    built(&["graft", "grafts"], "crates/publish/src/graft.rs"),
    built(&["size limits"], "crates/publish/src/limits.rs"),
    built(&["copies by catalog rows"], "crates/publish/src/copy_tree.rs"),
    built(&["replicate", "replicates", "replication"], "crates/maintain/src/replicate.rs"),
    built(&["check a repository", "checks repositories", "repairs"], "crates/maintain/src/check.rs"),
    built(&["s3", "object storage"], "crates/object-storage/src/providers/sink.rs"),
    built(&["site proxy"], "crates/server/src/proxy.rs"),
    built(&["gateway"], "crates/gateway/src/lib.rs"),
    built(&["esker gateway", "publish through", "publishes through"], "crates/cli/src/commands/gateway.rs"),
    built(&["metrics", "prometheus"], "crates/server/src/metrics.rs"),
    built(&["dashboard"], "crates/server/src/dashboard.rs"),
    planned(&["kubernetes", "csi"], "crates/csi/src/lib.rs"),
    built(&["supervisor"], "crates/node/src/supervisor.rs"),
];

/// Documents that state capabilities; first lines of crates count too.
const DOCUMENTS: &[&str] = &["README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/ARCHITECTURE.md"];

/// A section whose heading has one of these texts lists what does not exist, or what other programs have.
const EXEMPT_HEADINGS: &[&str] = &["not yet", "does not", "doesn't", "why not"];

/// A line with this mark is about another program, or says that the capability is missing.
const EXEMPT_MARK: &str = "<!-- not claimed -->";

/// Returns the texts that claim, with the place of each.
fn texts() -> Vec<(PathBuf, String)> {
    let mut texts: Vec<(PathBuf, String)> =
        DOCUMENTS.iter().map(|path| (PathBuf::from(path), text(Path::new(path)))).collect();
    for file in files() {
        let is_face = file.ends_with("src/lib.rs") || file.ends_with("cli/src/main.rs");
        if is_face && file.starts_with("crates") {
            let source = text(&file);
            let header: Vec<&str> = source.lines().map_while(|line| line.strip_prefix("//!")).collect();
            texts.push((file, header.join("\n")));
        }
    }
    texts
}

/// Returns the lines outside of exempt sections, with their numbers.
fn claiming_lines(text: &str) -> Vec<(usize, String)> {
    let mut exempt = false;
    let mut lines = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let lower = line.to_lowercase();
        if line.starts_with('#') {
            exempt = EXEMPT_HEADINGS.iter().any(|heading| lower.contains(heading));
        }
        if !exempt && !line.contains(EXEMPT_MARK) {
            lines.push((at + 1, lower));
        }
    }
    lines
}

/// Returns whether a line in lower case has the words, not as a part of longer ones.
fn has_words(line: &str, words: &str) -> bool {
    line.match_indices(words).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + words.len()..].chars().next();
        let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '/');
        !is_part(before) && !is_part(after)
    })
}

/// Returns one complaint for each capability that a text claims and whose module does not exist.
fn unfounded(place: &Path, text: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let lines = claiming_lines(text);
    let mut complaints = Vec::new();
    for Capability { words, module, .. } in CAPABILITIES.iter().filter(|c| !exists(c.module)) {
        for word in *words {
            let claims = lines.iter().filter(|(_, line)| has_words(line, word));
            complaints.extend(
                claims.map(|(at, _)| format!("{}:{at} claims {word:?} without {module}", place.display())),
            );
        }
    }
    complaints
}

#[test]
fn documents_claim_only_what_exists() {
    let exists = |module: &str| root().join(module).exists();
    let complaints: Vec<String> =
        texts().iter().flat_map(|(place, text)| unfounded(place, text, exists)).collect();
    report("capabilities that documents claim", &complaints);
}

#[test]
fn a_claim_without_its_module_is_found() {
    let text = "# Esker\n\nIt serves a dashboard.\n\n## What it does not do\n\nThere is no dashboard.\n";
    let found = unfounded(Path::new("README.md"), text, |module| !module.ends_with("dashboard.rs"));
    assert_eq!(found, ["README.md:3 claims \"dashboard\" without crates/server/src/dashboard.rs"]);
    assert_eq!(unfounded(Path::new("README.md"), text, |_| true), Vec::<String>::new());
}

/// `crate/module.rs` in the architecture document is a file of that crate.
#[test]
fn the_architecture_document_names_modules_that_exist() {
    let document = text(Path::new("docs/ARCHITECTURE.md"));
    let mut complaints = Vec::new();
    let mut named = 0;
    for code in document.split('`').skip(1).step_by(2).filter(|code| code.ends_with(".rs")) {
        let Some((name, module)) = code.split_once('/') else { continue };
        named += 1;
        if !root().join(format!("crates/{name}/src/{module}")).exists() {
            complaints.push(format!("docs/ARCHITECTURE.md names {code}, which does not exist"));
        }
    }
    assert!(named > 20, "the document names {named} modules");
    report("modules of the architecture document", &complaints);
}

/// Adding or moving a module must not leave the table of capabilities wrong.
#[test]
fn the_table_of_capabilities_says_which_modules_exist() {
    let wrong = CAPABILITIES.iter().filter(|c| root().join(c.module).exists() != c.built);
    let complaints: Vec<String> =
        wrong.map(|c| format!("{}: built is {}, which is wrong", c.module, c.built)).collect();
    report("modules of capabilities", &complaints);
}
