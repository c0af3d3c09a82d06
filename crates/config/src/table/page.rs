//! Formats the table as a page of the documentation.

use super::{State, parts};

const HEAD: &str = "\
# Client parameters

<!-- Made by `cargo run -p esker-config --example parameters > docs/parameters.md`; a test compares. -->

Every parameter of the CernVM-FS 2.12 client, and what Esker does with it. *Honoured*: it has its effect, and the test
that is named proves it; that values reach the code which that test tests is proven for all by `parameters_have_types`. *Accepted*: it has no meaning here, for the reason given, and nothing is said about it. *Not
honoured*: it has no effect, for the reason given, and wherever it is set to anything but its default that is told by
`esker config show`, `esker config check` and mounting. Names that are not in the table are told, too, with the
known name that is most like them.

In Esker's own files (`/etc/esker/esker.toml` and others, see [configuration](guides/configuration.md)) a parameter is
written in small letters and without `CVMFS_`: `http_proxy = \"http://proxy:3128\"`.
";

/// Returns the text of `docs/parameters.md`.
pub fn page() -> String {
    let mut text = HEAD.to_owned();
    for (title, rows) in parts() {
        text.push_str(&format!("\n## {title}\n\n| Parameter | Takes | Default | |\n|---|---|---|---|\n"));
        for row in rows {
            let mut name = format!("`{}`", row.name);
            for alias in row.aliases {
                name.push_str(&format!(", `{alias}`"));
            }
            let state = match row.state {
                State::Honoured(test) => format!("honoured: `{test}`"),
                State::Meaningless(why) => format!("accepted: {why}"),
                State::Not(why) => format!("not honoured: {why}"),
            };
            let takes = row.kind.words().replace('|', "\\|");
            let default = if row.default.is_empty() { String::new() } else { format!("`{}`", row.default) };
            text.push_str(&format!("| {name} | {takes} | {default} | {state} |\n"));
        }
    }
    text
}
