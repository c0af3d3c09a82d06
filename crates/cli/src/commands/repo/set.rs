use esker_repository::{NAMED, SettingsChange, SettingsChanged};
use serde_json::json;

use crate::error::Failure;
use crate::output::show;
use crate::publisher::{ChangeArgs, Interrupt, NamedArgs, now, of_operation};
use crate::settings::Settings;

/// Changes settings of a repository, or lists them.
///
/// The next publish uses the new settings. A change of garbage_collectable signs the head again at once.
///
/// Example: esker repo set sw.example.org automatic_tags_for=30
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    named: NamedArgs,

    /// Settings to change
    #[arg(value_name = "KEY=VALUE", conflicts_with = "list")]
    values: Vec<String>,

    /// Return a setting to the value of a new repository; may be repeated
    #[arg(long, value_name = "KEY", conflicts_with = "list")]
    unset: Vec<String>,

    /// List all settings with their values and meanings
    #[arg(long)]
    list: bool,

    #[command(flatten)]
    change: ChangeArgs,
}

pub(super) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let interrupt = Interrupt::on_signals()?;
    let place = args.named.place(settings)?;
    let failed = |error| of_operation(&format!("the settings of {} were not changed", place.name), &error);
    let mut values = Vec::new();
    for text in &args.values {
        let (name, value) = text.split_once('=').ok_or_else(|| {
            Failure::usage(format!("{text:?} is not KEY=VALUE"))
                .hint("`esker repo set NAME --list` lists the settings")
        })?;
        values.push((name.to_owned(), Some(value.to_owned())));
    }
    values.extend(args.unset.iter().map(|name| (name.clone(), None)));
    let change = SettingsChange { values };
    if args.list || change.values.is_empty() {
        return list(args, &place.root);
    }
    let done = match args.change.dry_run {
        true => change.dry_run(&place.root),
        false => args
            .change
            .lock
            .when_free(&interrupt, false, || change.run(&place.root, || place.try_open(), now())),
    };
    report(args, &done.map_err(failed)?)
}

fn report(args: &Args, done: &SettingsChanged) -> Result<(), Failure> {
    let value = json!({ "repository": args.named.name, "changed": !args.change.dry_run, "settings": done });
    show(args.change.json, &value, |out| {
        for setting in &done.changed {
            let would = if args.change.dry_run { "would be" } else { "is" };
            out.line(format!("{} {would} {}; before: {}", setting.name, setting.after, setting.before))?;
        }
        if done.changed.is_empty() {
            out.line("nothing changes")?;
        } else if done.signs_head {
            let did = if args.change.dry_run { "would be" } else { "was" };
            out.line(format!("the head {did} signed again"))?;
        }
        Ok(())
    })
}

fn list(args: &Args, root: &std::path::Path) -> Result<(), Failure> {
    let failed = |error| of_operation(&format!("the settings of {} were not read", args.named.name), &error);
    let values = SettingsChange::list(root).map_err(failed)?;
    show(args.change.json, json!({ "repository": args.named.name, "settings": values }), |out| {
        let pair = |name: &str, value: &Option<String>| format!("{name}={}", value.as_deref().unwrap_or("?"));
        let width = values.iter().map(|value| pair(value.name, &value.value).len()).max().unwrap_or_default();
        for (value, named) in values.iter().zip(NAMED) {
            let pair = pair(value.name, &value.value);
            out.line(format!("{pair:width$}  {} ({})", named.meaning, named.values))?;
        }
        Ok(())
    })
}
