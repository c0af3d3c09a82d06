//! Documents agree with each other and with the tests that quote them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use esker_testkit::promises::{self, Test};

use super::{files_ending, report, root, rows, text};

/// Returns the targets of the links in a Markdown text, code left out.
fn links(markdown: &str) -> Vec<String> {
    let mut links = Vec::new();
    let mut in_code = false;
    for line in markdown.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for rest in line.split("](").skip(1) {
            if let Some((target, _)) = rest.split_once(')') {
                links.push(target.to_owned());
            }
        }
    }
    links
}

/// Returns the anchor a heading gets: lower case, spaces to dashes, other marks dropped.
fn anchor(heading: &str) -> String {
    heading
        .trim_start_matches('#')
        .trim()
        .to_lowercase()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        })
        .collect()
}

#[test]
fn links_lead_somewhere() {
    let mut complaints = Vec::new();
    for file in files_ending("md") {
        let folder = file.parent().unwrap_or(Path::new(""));
        for link in links(&text(&file)) {
            if link.starts_with("http://") || link.starts_with("https://") {
                continue;
            }
            let (path, wanted) = link.split_once('#').unwrap_or((&link, ""));
            let target = if path.is_empty() { file.clone() } else { folder.join(path) };
            if !root().join(&target).exists() {
                complaints.push(format!("{}: {link} leads nowhere", file.display()));
            } else if !wanted.is_empty()
                && !text(&target).lines().any(|line| line.starts_with('#') && anchor(line) == wanted)
            {
                complaints.push(format!("{}: {link} has no such heading", file.display()));
            }
        }
    }
    report("links in documents", &complaints);
}

/// Returns every test function of the source tree.
fn tests() -> Vec<Test> {
    files_ending("rs").iter().flat_map(|file| promises::tests(file, &text(file))).collect()
}

/// A test quotes a promise word for word in its doc comment, behind an angle bracket, its name and a colon.
#[test]
fn promises_are_quoted_by_the_tests_that_prove_them() {
    let promises = promises::promises(&text("docs/semantics.md".as_ref()));
    let mut quoted = BTreeSet::new();
    let mut complaints = Vec::new();
    for test in tests() {
        let place = format!("{}:{}", test.file.display(), test.line);
        for (id, sentence) in test.quotes() {
            match promises.get(id) {
                None => {
                    complaints.push(format!("{place} quotes {id}, which docs/semantics.md does not have"))
                }
                Some(promise) if sentence.trim().starts_with(promise.as_str()) => {
                    quoted.insert(id.to_owned());
                }
                Some(promise) => complaints.push(format!("{place} misquotes {id}; it reads: {promise}")),
            }
        }
    }
    for id in promises.keys().filter(|id| !quoted.contains(*id)) {
        complaints.push(format!("no test quotes promise {id}"));
    }
    report("promises of docs/semantics.md", &complaints);
}

/// Returns the tables of `docs/reports/medians.toml` as text, by name.
fn medians() -> BTreeMap<String, String> {
    let document = text("docs/reports/medians.toml".as_ref());
    let tables = document.split("\n\n[").skip(1).filter_map(|table| table.split_once("]\n"));
    tables.map(|(name, rest)| (name.to_owned(), rest.to_owned())).collect()
}

/// A row of `docs/performance.md` that names a measurement shows a figure and an interval of that measurement.
#[test]
fn figures_of_performance_are_in_the_medians() {
    let medians = medians();
    let mut complaints = Vec::new();
    let mut checked = 0;
    for cells in rows(&text("docs/performance.md".as_ref())) {
        let Some(name) = cells.last().and_then(|last| last.split('`').nth(1)) else { continue };
        let interval = cells.windows(2).find_map(|pair| Some((&pair[0], pair[1].split_once('–')?)));
        let Some((figure, (low, high))) = interval else {
            complaints.push(format!("{cells:?} has no interval"));
            continue;
        };
        let wanted = format!("[{}, {low}, {high}]", figure.trim_end_matches(" s"));
        checked += 1;
        match medians.get(name) {
            None => complaints.push(format!("docs/reports/medians.toml has no {name}")),
            Some(table) if !table.contains(&wanted) => complaints.push(format!("{name} has no {wanted}")),
            Some(_) => {}
        }
    }
    assert!(checked > 20, "docs/performance.md shows figures");
    report("figures of docs/performance.md", &complaints);
}

/// Documents that a reader goes through from the first to the last line have a length limit.
#[test]
fn documents_are_short_enough_to_read() {
    let lines = |path: &Path| text(path).lines().count();
    let mut complaints = Vec::new();
    for (path, most) in [("docs/performance.md", 150), ("README.md", 150)] {
        let count = lines(path.as_ref());
        if count > most {
            complaints.push(format!("{path} has {count} lines, at most {most} are allowed"));
        }
    }
    for path in files_ending("md").into_iter().filter(|path| path.starts_with("docs/guides")) {
        let count = lines(&path);
        if count > 250 {
            complaints.push(format!("{} has {count} lines, a guide has at most 250", path.display()));
        }
    }
    report("lengths of documents", &complaints);
}

/// `docs/decisions/README.md` has one row for each record, with the record's title.
#[test]
fn the_index_of_decisions_is_complete() {
    let index = text("docs/decisions/README.md".as_ref());
    let mut complaints = Vec::new();
    for path in files_ending("md").into_iter().filter(|path| path.starts_with("docs/decisions")) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name == "README.md" {
            continue;
        }
        let first = text(&path).lines().next().unwrap_or_default().to_owned();
        let row = first.strip_prefix("# ").and_then(|first| first.split_once(": "));
        match row {
            Some((number, title)) if name.starts_with(number) => {
                if !index.contains(&format!("| {number} | [{title}]({name}) | ")) {
                    complaints
                        .push(format!("{name}: the index has no row {number} with the title {title:?}"));
                }
            }
            _ => complaints.push(format!("{name}: the first line is not \"# NUMBER: TITLE\"")),
        }
    }
    report("index of decisions", &complaints);
}
