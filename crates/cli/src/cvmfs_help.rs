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
    ("cvmfs_config fsck", "esker cache check"),
    ("cvmfs_config fuser, killall", "esker status DIR, esker umount DIR --lazy"),
    ("cvmfs_config wsl2_start", "esker mount NAME DIR"),
    ("cvmfs_talk internal affairs", "esker top, esker trace -- COMMAND"),
    ("cvmfs_talk tracebuffer flush, open catalogs", "esker trace -- COMMAND"),
    ("cvmfs_config wipecache", "esker cache wipe"),
    ("cvmfs_config bugreport", "esker status --json"),
    ("cvmfs_config reload", "esker reload, esker upgrade"),
    ("cvmfs_talk proxy set, host set, timeout set", "esker reload NAME, after changing the configuration"),
    ("cvmfs_talk nameserver set, cache limit set", "esker reload NAME, after changing the configuration"),
    ("cvmfs_talk remount sync", "esker revision DIR --update"),
    ("cvmfs_talk revision", "esker revision DIR"),
    ("cvmfs_talk mountpoint, pid, device id, version, hotpatch history", "esker status DIR"),
    ("cvmfs_talk parameters", "esker config show NAME"),
    ("cvmfs_talk max ttl set", "esker reload NAME, after changing the configuration"),
    ("cvmfs_talk reset error counters", "not needed: esker metrics counts from the start of the mount"),
    ("cvmfs_talk cache size, cache list", "esker cache status"),
    ("cvmfs_talk cleanup MB", "esker cache evict --to SIZE"),
    ("cvmfs_talk pin PATH", "esker cache pin NAME:/PATH"),
    ("cvmfs_talk cache instance, cache limit get", "esker cache status"),
    ("cvmfs_talk evict PATH, cleanup rate", "esker cache evict NAME:/PATH, esker cache status"),
    ("cvmfs_talk host info, proxy info, timeout info", "esker status DIR"),
    ("cvmfs_talk metalink info, external host info", "esker config show NAME"),
    ("cvmfs_talk metrics prometheus", "esker metrics"),
    ("CVMFS_DEBUGLOG, the system's log", "esker logs NAME"),
    ("cvmfs_talk internal affairs, latency", "esker metrics"),
    ("prometheus-cvmfs", "esker metrics --listen --names cvmfs"),
    ("cvmfs_fsck", "esker cache check"),
    ("cvmfs_preload", "esker cache preload NAME"),
    ("cvmfs_shrinkwrap", "esker image build FILE NAME:/PATH"),
    ("cvmfs_ducc", "esker ingest NAME FILE --to PATH, esker run IMAGE"),
    ("cvmfs_snapshotter", "esker run IMAGE"),
    ("cvmfs_rsync", "esker publish NAME DIR"),
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
    ("cvmfs_swissknife create, sync, dirtab, sign, upload, remove, peek", "parts of esker publish NAME DIR"),
    ("cvmfs_swissknife ingest, ingestsql", "esker ingest NAME FILE --to PATH, esker graft FILE"),
    (
        "cvmfs_swissknife tag_edit, tag_list, tag_info",
        "esker tag add NAME TAG, tag list NAME, tag show NAME TAG",
    ),
    ("cvmfs_swissknife tag_rollback, tag_empty_bin", "esker rollback NAME --to TAG"),
    ("cvmfs_swissknife check, scrub", "esker check NAME, esker check NAME --data"),
    ("cvmfs_swissknife lsrepo", "esker repo catalogs NAME"),
    ("cvmfs_swissknife pull", "esker replicate URL"),
    (
        "cvmfs_swissknife gc, reconstruct_reflog, list_reflog",
        "esker collect NAME, esker check NAME --repair-reflog",
    ),
    ("cvmfs_swissknife info, version", "esker repo info NAME"),
    ("cvmfs_swissknife migrate", "left to cvmfs_swissknife, before esker repo import NAME"),
    ("cvmfs_swissknife notify", "not needed: esker serve announces revisions"),
    ("cvmfs_swissknife filestats", "esker find NAME:/ --json"),
    ("cvmfs_swissknife letter, zpipe, rotate-statsdb", "not needed: no statistics are kept in databases"),
    ("cvmfs_swissknife graft", "esker graft FILE"),
    ("cvmfs_server ingest", "esker ingest NAME FILE --to PATH"),
    ("cvmfs_server tag -l, tag -i", "esker tag list NAME, tag show NAME TAG"),
    ("cvmfs_server tag -a, tag -r", "esker tag add NAME TAG, tag remove NAME TAG"),
    ("cvmfs_server publish -a TAG", "esker publish NAME DIR --tag TAG"),
    ("cvmfs_server diff", "esker diff NAME OLD NEW"),
    ("cvmfs_server rollback -t TAG", "esker rollback NAME --to TAG"),
    ("cvmfs_server rollback", "esker undo NAME"),
    ("cvmfs_server list-tags, lstags", "esker log NAME"),
    ("cvmfs_publish mkfs, transaction, commit, abort, enter, info, diff", "as with cvmfs_server"),
    ("cvmfs_publish lsof", "esker status DIR"),
    ("cvmfs_publish zpipe, hash", "any zlib, sha1sum"),
    ("cvmfs_server resign", "esker repo resign NAME"),
    ("cvmfs_server resign -p", "esker key rotate NAME --finish"),
    ("cvmfs_server resign -w", "esker key request NAME, esker key sign FILE"),
    ("cvmfs_server alterfs -m on|off", "the file .cvmfs_master_replica in the storage"),
    (
        "cvmfs_server skeleton, mount, fix-permissions",
        "not needed: publishing has no mounts and no helpers with privileges",
    ),
    ("cvmfs_server migrate, catalog-chown", "left to cvmfs_server, before esker repo import NAME"),
    (
        "cvmfs_server eliminate-hardlinks, eliminate-bulk-hashes",
        "left to cvmfs_server, before esker repo import NAME",
    ),
    ("cvmfs_server fix-stats", "esker check NAME --repair-counters"),
    ("cvmfs_server update-geodb", "esker serve --geo-database FILE"),
    (
        "cvmfs_server update-info, update-repoinfo",
        "not needed: esker serve answers info/v1 from the repositories",
    ),
    ("cvmfs_server print-stats, merge-stats", "not needed: each command has --json"),
    ("cvmfs_server connect-gw", "esker publish NAME DIR --gateway URL --key FILE"),
    ("cvmfs_server refresh-lease", "not needed: esker publish renews its lease"),
    ("cvmfs_server ingestsql", "esker graft FILE, esker publish NAME DIR --external"),
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

    use super::COUNTERPARTS;

    fn page() -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/parity.md");
        std::fs::read_to_string(path).expect("docs/parity.md")
    }

    /// Commands of each program of CernVM-FS 2.14.
    const COMMANDS: &[(&str, &str)] = &[
        (
            "cvmfs_server",
            "abort add-replica alterfs catalog-chown check checkout connect-gw diff eliminate-bulk-hashes \
             eliminate-hardlinks enter fix-permissions fix-stats gc import info ingest ingestsql list list-catalogs \
             list-tags lstags masterkeycard merge-stats migrate mkfs mount print-stats publish refresh-lease resign rmfs \
             rollback skeleton snapshot tag transaction update-geodb update-info update-repoinfo",
        ),
        ("cvmfs_publish", "abort commit diff enter hash info lsof mkfs transaction zpipe"),
        (
            "cvmfs_swissknife",
            "check create dirtab filestats gc graft info ingest ingestsql lease letter list_reflog lsrepo migrate notify \
             peek pull reconstruct_reflog remove rotate-statsdb scrub sign sync tag_edit tag_empty_bin tag_info tag_list \
             tag_rollback upload version zpipe",
        ),
        (
            "cvmfs_config",
            "bugreport chksetup fsck fuser killall probe reload setup showconfig stat status umount wipecache wsl2_start",
        ),
        (
            "cvmfs_talk",
            "cache cleanup device evict external host hotpatch internal latency max metalink metrics mountpoint \
             nameserver open parameters pid pin proxy remount reset revision timeout tracebuffer version",
        ),
    ];

    /// Returns the names of commands between commas, without their arguments.
    fn names(list: &str) -> impl Iterator<Item = &str> {
        list.split(',').filter_map(|part| part.split_whitespace().next())
    }

    #[test]
    fn all_commands_of_the_reference_have_a_row_in_the_help() {
        for (program, commands) in COMMANDS {
            let rows = COUNTERPARTS.iter().flat_map(|(theirs, _)| {
                theirs.split_once(program).into_iter().flat_map(|(_, rest)| names(rest))
            });
            let known: BTreeSet<&str> = rows.collect();
            let missing: Vec<&str> = commands.split(' ').filter(|name| !known.contains(name)).collect();
            assert!(missing.is_empty(), "{program}: {missing:?}");
        }
    }

    #[test]
    fn all_commands_of_the_reference_have_a_row_on_the_parity_page() {
        let page = page();
        for (program, commands) in COMMANDS {
            let sections = page
                .split("\n## ")
                .filter(|section| section.lines().next().is_some_and(|heading| heading.contains(program)));
            let rows =
                sections.flat_map(str::lines).filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
            let words: BTreeSet<&str> =
                rows.flat_map(quoted).flat_map(|text| text.split([' ', ','])).collect();
            let missing: Vec<&str> = commands.split(' ').filter(|name| !words.contains(name)).collect();
            assert!(missing.is_empty(), "{program}: {missing:?}");
        }
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
