//! Implements `esker help cvmfs`: the table of CernVM-FS commands and their equivalents.

use std::ffi::OsString;

use crate::error::Failure;
use crate::output::Output;

/// Hint that names this command.
pub(crate) const HINT: &str = "`esker help cvmfs` lists the counterparts of CernVM-FS's commands";

/// Commands of CernVM-FS with their equivalents in Esker; where there is none, advice.
const COUNTERPARTS: &[(&str, &str)] = &[
    ("mount -t cvmfs NAME DIR", "esker mount NAME DIR"),
    ("umount DIR, cvmfs_config umount", "esker umount DIR"),
    ("cvmfsexec NAME -- COMMAND", "esker run NAME -- COMMAND"),
    ("cvmfs_config setup", "esker setup mount"),
    ("cvmfs_config chksetup", "esker config check"),
    ("cvmfs_config showconfig NAME", "esker config show NAME --origin"),
    ("cvmfs_config probe", "esker doctor"),
    ("cvmfs_config stat, status", "esker status"),
    ("cvmfs_talk internal affairs", "esker top, esker trace -- COMMAND"),
    ("cvmfs_config wipecache", "esker cache wipe"),
    ("cvmfs_config bugreport", "esker status --json"),
    ("cvmfs_config reload", "esker reload, esker upgrade"),
    ("cvmfs_talk proxy set, host set, timeout set", "esker reload NAME, after changing the configuration"),
    ("cvmfs_talk nameserver set, cache limit set", "esker reload NAME, after changing the configuration"),
    ("cvmfs_talk remount sync", "esker revision DIR --update"),
    ("cvmfs_talk revision", "esker revision DIR"),
    ("cvmfs_talk cache size, cache list", "esker cache status"),
    ("cvmfs_talk cleanup MB", "esker cache evict --to SIZE"),
    ("cvmfs_talk pin PATH", "esker cache pin NAME:/PATH"),
    ("cvmfs_talk host info, proxy info", "esker status DIR"),
    ("CVMFS_DEBUGLOG, the system's log", "esker logs NAME"),
    ("cvmfs_talk internal affairs, latency", "esker metrics"),
    ("prometheus-cvmfs", "esker metrics --listen --names cvmfs"),
    ("cvmfs_fsck", "esker cache check"),
    ("cvmfs_preload", "esker cache preload NAME"),
    ("cvmfs_server mkfs NAME", "esker repo create NAME"),
    ("cvmfs_server transaction, publish", "esker transaction NAME -- COMMAND, esker publish NAME DIR"),
    ("cvmfs_server transaction", "esker transaction NAME --open, esker transaction enter NAME"),
    ("cvmfs_server abort", "esker transaction abort NAME"),
    ("cvmfs_server enter", "esker transaction NAME"),
    ("cvmfs_server checkout -b BRANCH -t TAG", "esker transaction NAME --branch BRANCH --from TAG --tag NEW"),
    ("cvmfs_server tag -b", "esker tag list NAME --branches"),
    (
        "cvmfs_server transaction -T /A=/B",
        "esker transaction NAME --template /A /B, esker repo copy NAME /A /B",
    ),
    ("cvmfs_server publish -X", "esker publish NAME DIR --external"),
    ("cvmfs_server list-catalogs", "esker repo catalogs NAME"),
    ("cvmfs_swissknife graft", "esker graft FILE"),
    ("cvmfs_server ingest", "esker ingest NAME FILE --to PATH"),
    ("cvmfs_server tag -l, tag -i", "esker tag list NAME, tag show NAME TAG"),
    ("cvmfs_server tag -a, tag -r", "esker tag add NAME TAG, tag remove NAME TAG"),
    ("cvmfs_server publish -a TAG", "esker publish NAME DIR --tag TAG"),
    ("cvmfs_server diff", "esker diff NAME OLD NEW"),
    ("cvmfs_server rollback -t TAG", "esker rollback NAME --to TAG"),
    ("cvmfs_server rollback", "esker undo NAME"),
    ("cvmfs_server list-tags, lstags", "esker log NAME"),
    ("cvmfs_server resign", "esker repo resign NAME"),
    ("cvmfs_server resign -p", "esker key rotate NAME --finish"),
    ("cvmfs_server resign -w", "esker key request NAME, esker key sign FILE"),
    ("cvmfs_server masterkeycard", "esker key signer NAME --master CMD"),
    ("cvmfs_server list", "esker repo list"),
    ("cvmfs_server info", "esker repo info NAME"),
    ("cvmfs_server import NAME", "esker repo import NAME"),
    ("cvmfs_server rmfs NAME", "esker repo remove NAME"),
    ("server.conf of cvmfs_server", "esker repo set NAME --list"),
    ("cvmfs_server gc", "esker collect NAME"),
    ("cvmfs_server check, check -i", "esker check NAME, esker check NAME --data"),
    ("cvmfs_server add-replica, snapshot", "esker replicate URL, esker replicate --all"),
    ("Apache on a server", "esker serve DIR"),
    ("cvmfs_server mkfs -u gw,… NAME", "esker publish NAME DIR --gateway URL --key FILE"),
    ("cvmfs_swissknife lease -a drop", "esker gateway lease end NAME/PATH"),
    ("cvmfs_gateway, repo.json", "esker gateway, esker gateway key add KEY NAME/PATH"),
    ("squid at a site", "esker proxy --upstream URL --cache DIR"),
];

/// True if the arguments after the program's name ask for it.
pub(crate) fn requested(arguments: &[OsString]) -> bool {
    matches!(arguments, [help, topic] if help == "help" && topic == "cvmfs")
}

pub(crate) fn print() -> Result<(), Failure> {
    let mut out = Output::new();
    let width = COUNTERPARTS.iter().map(|(theirs, _)| theirs.len()).max().unwrap_or_default();
    for (theirs, ours) in COUNTERPARTS {
        out.line(format!("{theirs:width$}  {ours}"))?;
    }
    out.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use clap::CommandFactory as _;

    use crate::Esker;

    fn page() -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/parity.md");
        std::fs::read_to_string(path).expect("docs/parity.md")
    }

    /// Returns the texts between backquotes.
    fn quoted(page: &str) -> impl Iterator<Item = &str> {
        page.split('`').skip(1).step_by(2)
    }

    /// Every `esker` command on the page of counterparts exists, with its options.
    #[test]
    fn commands_of_the_parity_page_exist() {
        let whole = Esker::command();
        let page = page();
        let mut found = 0;
        for text in quoted(&page).filter_map(|text| text.strip_prefix("esker ")) {
            let mut command = &whole;
            for word in text.split_whitespace() {
                if word == "--version" {
                    continue;
                }
                if let Some(option) = word.strip_prefix("--") {
                    let known = command.get_arguments().any(|known| known.get_long() == Some(option));
                    assert!(known, "`esker {text}`: no option --{option}");
                } else if word != "help" && word != "cvmfs" {
                    let next = command.find_subcommand(word);
                    command = next.unwrap_or_else(|| panic!("`esker {text}`: no command {word}"));
                }
            }
            found += 1;
        }
        assert!(found > 30, "{found}");
    }

    /// Every test that the page names exists.
    #[test]
    fn tests_of_the_parity_page_exist() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut known = BTreeSet::new();
        let mut folders = vec![crates];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let text = std::fs::read_to_string(&path).expect("a source file");
                    known.extend(text.lines().filter_map(|line| {
                        line.trim_start()
                            .strip_prefix("fn ")?
                            .split_once('(')
                            .map(|(name, _)| name.to_owned())
                    }));
                }
            }
        }
        let page = page();
        let rows = page.lines().filter(|line| line.starts_with('|') && line.matches('|').count() == 4);
        let tests = rows.filter_map(|row| row.trim_end_matches('|').rsplit('|').next());
        let is_test = |text: &str| text.matches('_').count() >= 2 && !text.contains([' ', '.', '-']);
        let mut found = 0;
        for test in tests.flat_map(quoted).filter(|text| is_test(text)) {
            assert!(known.contains(test), "there is no test {test}");
            found += 1;
        }
        assert!(found > 20, "{found}");
    }
}
