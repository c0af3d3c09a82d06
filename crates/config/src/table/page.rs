//! Formats the table as a page of the documentation.

use super::{Setter, State, parts};

const HEAD: &str = "\
# Client parameters

<!-- Made by `cargo run -p esker-config --example parameters > docs/parameters.md`; a test compares. -->

All parameters of the CernVM-FS 2.14 client, and their effect in Esker. *Honoured*: the parameter has its effect, which
the named test proves; `parameters_have_types` proves for all of them that values reach the tested code. *Accepted*: the
parameter has no meaning here, for the given reason, and causes no message. *Not honoured*: the parameter has no effect,
for the given reason; `esker config show`, `esker config check` and mounting report it if its value is not the default.
They also report names that are not in the table, with the most similar known name.

*Set by*: any file of the configuration, or only files of this machine. What the client writes to, listens at, sends its counters to or
keeps back is not for the publisher of a configuration repository (`CVMFS_CONFIG_REPOSITORY`) to say: such a line there is ignored,
and reported. A folder below the one that this machine gives is accepted.

In Esker's own files (`/etc/esker/esker.toml` and others, see [configuration](guides/configuration.md)) a parameter is
written in small letters and without `CVMFS_`: `http_proxy = \"http://proxy:3128\"`.
";

/// Returns the text of `docs/parameters.md`.
pub fn page() -> String {
    let mut text = HEAD.to_owned();
    for (title, rows) in parts() {
        text.push_str(&format!(
            "\n## {title}\n\n| Parameter | Takes | Default | Set by | |\n|---|---|---|---|---|\n"
        ));
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
            let setter = match (row.setter, row.state) {
                (Setter::Local, _) => "this machine",
                (Setter::Any, State::Honoured(_)) => "any",
                (Setter::Any, _) => "",
            };
            let takes = row.kind.words().replace('|', "\\|");
            let default = if row.default.is_empty() { String::new() } else { format!("`{}`", row.default) };
            text.push_str(&format!("| {name} | {takes} | {default} | {setter} | {state} |\n"));
        }
    }
    text
}
