//! `esker setup import`: shows the keys to be trusted, asks for consent, and writes the files.

use std::io::{BufRead, IsTerminal};
use std::path::Path;
use std::time::Duration;

use super::MachineArgs;
use crate::error::{Failure, warn};
use crate::machine::import::{self, Import, Scope, Unit};
use crate::machine::setup::Plan;
use crate::output::{Output, parse_duration, tell};
use crate::settings::Settings;

/// Imports domains: adds the servers and keys of their repositories, as root for all users.
///
/// Other users import for themselves. Shows the keys and asks for confirmation; without a terminal, --yes or --fingerprint is required.
///
/// Example: esker setup import /cvmfs/config.example.org example.org
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// File, folder, archive or URL that has servers and keys of domains
    #[arg(value_name = "FILE|DIR|URL")]
    source: String,

    /// Domains and repositories to import [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Trust the keys that are found without confirmation
    #[arg(long)]
    yes: bool,

    /// SHA-256 of a trusted key in DER form; each found key must be listed
    #[arg(long, value_name = "SHA256", value_parser = fingerprint)]
    fingerprint: Vec<String>,

    /// Time to wait for a server
    #[arg(long, hide = true, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    patience: Duration,

    #[command(flatten)]
    machine: MachineArgs,
}

/// Folder of the machine's own settings.
const OWN_CONFIG: &str = "/etc/esker";

fn fingerprint(text: &str) -> Result<String, String> {
    let text = text.strip_prefix("SHA256:").unwrap_or(text);
    let digits: String = text.chars().filter(|c| *c != ':').map(|c| c.to_ascii_lowercase()).collect();
    if digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(digits);
    }
    Err("a fingerprint has 64 hexadecimal digits".into())
}

pub(super) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let (machine, folder) = match args.machine.own(settings) {
        Some(own) => {
            let folder = settings.own_config.clone().ok_or_else(|| {
                Failure::usage("there is no folder for your configuration: HOME is not set")
                    .hint("set HOME, or use --root DIR")
            })?;
            (own, folder)
        }
        None => (args.machine.machine()?, OWN_CONFIG.into()),
    };
    let tree = import::read(&args.source, &args.names, settings, args.patience)?;
    let import = Import::new(tree, &args.names, settings)?;
    let items = import.units.iter().flat_map(|unit| unit.items(&folder, &args.source)).collect();
    let plan = Plan::new(&machine, items)?;
    let mut out = Output::new();
    for remark in &import.remarks {
        warn(Some(remark));
    }
    for unit in &import.units {
        show(unit, &mut out)?;
    }
    for item in &plan.there {
        out.line(format!("there already: {}", item.path().display()))?;
    }
    for item in &plan.missing {
        out.line(format!("would {}", item.words()))?;
    }
    if args.machine.dry_run || plan.missing.is_empty() {
        return out.finish();
    }
    out.flush()?;
    agreed(&import.units, args)?;
    plan.apply(&machine)?;
    out.line("done; `esker setup undo` takes it back")?;
    for step in next_steps(&import.units, &folder) {
        out.line(format!("next: {step}"))?;
    }
    out.finish()
}

/// Shows the settings and keys of a unit.
fn show(unit: &Unit, out: &mut Output) -> Result<(), Failure> {
    match &unit.scope {
        Scope::Domain(name) => out.line(format!("the domain {name}"))?,
        Scope::Repository(name) => out.line(format!("the repository {name}"))?,
    }
    for taken in &unit.settings {
        out.line(format!("  {}    # from {}", taken.line(), taken.origin))?;
    }
    for found in &unit.keys {
        out.line(format!(
            "  public key, SHA-256 of its DER form: {}    # from {}",
            found.key.fingerprint, found.file
        ))?;
    }
    Ok(())
}

/// Returns an error unless the user trusts the keys.
fn agreed(units: &[Unit], args: &Args) -> Result<(), Failure> {
    let mut found: Vec<&str> =
        units.iter().flat_map(|unit| &unit.keys).map(|found| found.key.fingerprint.as_str()).collect();
    found.sort_unstable();
    found.dedup();
    if !args.fingerprint.is_empty() {
        let said = |key: &str| args.fingerprint.iter().any(|said| said == key);
        if let Some(unsaid) = found.iter().find(|key| !said(key)) {
            return Err(Failure::usage(format!("the key {unsaid} is not one that --fingerprint names"))
                .hint("nothing was changed; ask the publisher of the repositories which keys are theirs"));
        }
        if let Some(missing) = args.fingerprint.iter().find(|said| !found.contains(&said.as_str())) {
            return Err(Failure::usage(format!("no key has the fingerprint {missing}"))
                .hint("nothing was changed; ask the publisher of the repositories which keys are theirs"));
        }
        return Ok(());
    }
    if args.yes {
        return Ok(());
    }
    let compare = "compare the fingerprints with those that the publisher of the repositories gives, then use --fingerprint SHA256 for each key, or --yes";
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(
            "nothing was changed: the holders of these keys would be trusted, and there is no terminal to ask for consent",
        )
        .hint(compare));
    }
    tell(&format!("Trust {} with all that these repositories run here? [y/N] ", count(found.len())));
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::usage("nothing was changed").hint(compare)),
    }
}

fn count(keys: usize) -> String {
    if keys == 1 { "this key".into() } else { format!("these {keys} keys") }
}

fn next_steps(units: &[Unit], folder: &Path) -> Vec<String> {
    let mut steps = Vec::new();
    if units.iter().any(|unit| unit.wants_proxy) {
        steps.push(format!(
            "set the route to the servers in {}: `http_proxy = \"http://PROXY:3128\"`, or \"DIRECT\" where there is no proxy",
            folder.join("esker.toml").display()
        ));
    }
    let example = units.first().map(|unit| match &unit.scope {
        Scope::Domain(name) => format!("NAME.{name}"),
        Scope::Repository(name) => name.clone(),
    });
    steps
        .extend(example.map(|name| format!("`esker run {name} -- COMMAND`, or `esker config check {name}`")));
    steps
}
