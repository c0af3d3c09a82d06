use esker_publish::{BranchInfo, PublishError, TagChange, TagInfo, TagReport};
use esker_repository::RepositoryError;
use esker_vfs::Time;

use crate::error::Failure;
use crate::output::{self, Output};
use crate::publisher::{
    ChangeArgs, GatewayArgs, HookFacts, Hooked, Interrupt, LeaseArgs, PublisherArgs, for_each, names_in, now,
    of_operation, publishable,
};
use crate::settings::Settings;
use crate::trees::entry::time_text;
use crate::trees::revision_source::RevisionArgs;
commands! {
    /// Lists, adds, moves and removes tags, which are names of revisions.
    ///
    /// Example: esker tag add sw.example.org v1.2 --message "release 1.2"
    args, call;
    List(Box<ListArgs>) => list(&args, call.settings);
    Show(Box<ShowArgs>) => show(&args, call.settings);
    Add(AddArgs) => apply(&args.placed.each, &args.change()?, (&args.placed.change, &args.placed.gateway), call.settings);
    /// Moves a tag to another revision.
    ///
    /// The tag keeps its branch, and without `--message` its description.
    ///
    /// Example: esker tag move sw.example.org production --revision v1.2
    Move(PlacedArgs) => apply(&args.each, &args.change()?, (&args.change, &args.gateway), call.settings);
    Remove(RemoveArgs) => apply(&args.each, &TagChange::Remove { names: args.each.tags()? }, (&args.change, &args.gateway), call.settings);
}

/// Repositories whose tags change, and the names of the tags.
#[derive(clap::Args, Debug)]
pub(crate) struct EachArgs {
    /// Names of repositories, separated by commas, unless --all stands for them; then the names of tags
    #[arg(value_name = "NAME[,NAME…] TAG", required = true)]
    names: Vec<String>,

    /// Change the tags of all repositories in the storage folder, but for replicas
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    place: PublisherArgs,
}

impl EachArgs {
    /// Returns the repositories.
    fn repositories(&self, settings: &Settings) -> Result<Vec<String>, Failure> {
        match self.names.first().filter(|_| !self.all) {
            Some(names) => Ok(names.split(',').map(str::to_owned).collect()),
            None => publishable(&self.place, settings),
        }
    }

    /// Returns the tags.
    fn tags(&self) -> Result<Vec<String>, Failure> {
        match self.names.get(usize::from(!self.all)..) {
            Some(tags @ [_, ..]) => Ok(tags.to_vec()),
            _ => Err(Failure::usage("the name of a tag is missing").hint("as in: esker tag add NAME v1.2")),
        }
    }

    /// Returns the only tag.
    fn tag(&self) -> Result<String, Failure> {
        match <[String; 1]>::try_from(self.tags()?) {
            Ok([tag]) => Ok(tag),
            Err(tags) => Err(Failure::usage(format!("{} tags are named, and one can be", tags.len()))
                .hint("separate the names of several repositories by commas")),
        }
    }
}

/// Lists the tags of a repository, newest first.
///
/// Example: esker tag list sw.example.org
#[derive(clap::Args, Debug)]
pub(crate) struct ListArgs {
    /// Repositories: their NAMEs or URLs
    #[arg(value_name = "NAME|URL", required_unless_present = "all")]
    places: Vec<String>,

    /// List the tags of all repositories in the storage folder
    #[arg(long, conflicts_with = "places")]
    all: bool,

    /// List the branches instead, each with its newest tag
    #[arg(long)]
    branches: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    source: RevisionArgs,
}

/// Shows a tag and its revision.
///
/// Example: esker tag show sw.example.org trunk
#[derive(clap::Args, Debug)]
pub(crate) struct ShowArgs {
    /// Repository: its NAME or URL
    #[arg(value_name = "NAME|URL")]
    place: String,

    /// Name of the tag
    #[arg(value_name = "TAG")]
    tag: String,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    source: RevisionArgs,
}

/// A tag, and the revision that it is to name.
#[derive(clap::Args, Debug)]
pub(crate) struct PlacedArgs {
    #[command(flatten)]
    each: EachArgs,

    /// Revision: a number, another tag, or the hash of a root catalog [default: the newest]
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,

    /// Description of the tag
    #[arg(long, value_name = "TEXT")]
    message: Option<String>,

    #[command(flatten)]
    change: ChangeArgs,

    #[command(flatten)]
    gateway: GatewayArgs,
}

/// Adds a tag to a revision.
///
/// Example: esker tag add sw.example.org v1.2 --revision 12
#[derive(clap::Args, Debug)]
pub(crate) struct AddArgs {
    #[command(flatten)]
    placed: PlacedArgs,

    /// Move the tag if it exists
    #[arg(long)]
    force: bool,
}

/// Removes tags; if one of them can't be removed, removes none.
///
/// Example: esker tag remove sw.example.org v1.0 v1.1
#[derive(clap::Args, Debug)]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    each: EachArgs,

    #[command(flatten)]
    change: ChangeArgs,

    #[command(flatten)]
    gateway: GatewayArgs,
}

impl PlacedArgs {
    fn change(&self) -> Result<TagChange, Failure> {
        let description = self.message.clone().unwrap_or_default();
        Ok(TagChange::Move { name: self.each.tag()?, revision: self.revision.clone(), description })
    }
}

impl AddArgs {
    fn change(&self) -> Result<TagChange, Failure> {
        let (PlacedArgs { each, revision, message, .. }, force) = (&self.placed, self.force);
        let description = message.clone().unwrap_or_default();
        Ok(TagChange::Add { name: each.tag()?, revision: revision.clone(), description, force })
    }
}

/// Returns a time of the repository as text.
pub(crate) fn when(seconds: i64) -> String {
    time_text(Time { secs: seconds, nanos: 0 })
}

fn list(args: &ListArgs, settings: &Settings) -> Result<(), Failure> {
    let places = match args.all {
        true => names_in(&args.source.published.storage_folder(settings)?)?,
        false => args.places.clone(),
    };
    for_each(&places, "have tags that were not read", |place| {
        if places.len() > 1 && !args.json {
            show_name(place)?;
        }
        list_of(place, args, settings)
    })
}

fn list_of(place: &str, args: &ListArgs, settings: &Settings) -> Result<(), Failure> {
    let revisions = args.source.open(place, settings)?;
    let mut out = Output::new();
    if args.branches {
        let branches = revisions.history().map(BranchInfo::list).unwrap_or_default();
        if args.json {
            out.json_array(branches.iter())?;
        } else {
            for branch in &branches {
                let line = out.name(branch_line(branch).as_bytes()).into_owned();
                out.line(line)?;
            }
        }
        return out.finish();
    }
    if args.json {
        out.json_array(revisions.tags().iter().map(TagInfo::from))?;
        return out.finish();
    }
    if revisions.tags().is_empty() {
        out.line(format!("{place} has no tags"))?;
    }
    let width = revisions.tags().iter().map(|tag| tag.name.chars().count()).max().unwrap_or_default();
    for tag in revisions.tags().iter().map(TagInfo::from) {
        out.line(line(&out, &tag, width))?;
    }
    out.finish()
}

fn line(out: &Output, tag: &TagInfo, width: usize) -> Vec<u8> {
    let branch = if tag.branch.is_empty() { String::new() } else { format!(" on branch {}", tag.branch) };
    let TagInfo { name, revision, root, description, .. } = tag;
    let published = when(tag.published);
    let line = format!("{name:<width$}  {published} UTC  revision {revision}{branch}  {root}  {description}");
    out.name(line.trim_end().as_bytes()).into_owned()
}

/// Returns the line of a branch: indented below the one that it started from.
fn branch_line(branch: &BranchInfo) -> String {
    let BranchInfo { name, depth, first, newest, tags, .. } = branch;
    let name = if name.is_empty() { "(default)" } else { name };
    let newest = newest.as_ref().map_or_else(String::new, |tag| {
        format!(", newest {}: revision {}, {} UTC", tag.name, tag.revision, when(tag.published))
    });
    let first = if *depth == 0 { String::new() } else { format!("  since revision {first}") };
    format!("{:indent$}{name}{first}  {tags} tags{newest}", "", indent = depth * 2)
}

fn show(args: &ShowArgs, settings: &Settings) -> Result<(), Failure> {
    let revisions = args.source.open(&args.place, settings)?;
    let found = revisions.tags().iter().find(|tag| tag.name == args.tag).map(TagInfo::from);
    let tag = found.ok_or_else(|| {
        Failure::failed(format!("{} has no tag {}", args.place, args.tag))
            .hint(format!("`esker tag list {}` lists its tags", args.place))
    })?;
    output::show(args.json, &tag, |out| {
        out.line(out.bold(&tag.name))?;
        out.line(format!("  revision  {}", tag.revision))?;
        out.line(format!("  root      {}", tag.root))?;
        out.line(format!("  time      {} UTC", when(tag.published)))?;
        if !tag.branch.is_empty() {
            out.line(format!("  branch    {}", tag.branch))?;
        }
        if !tag.description.is_empty() {
            out.line(out.name(format!("  message   {}", tag.description).as_bytes()))?;
        }
        Ok(())
    })
}

fn apply(
    each: &EachArgs,
    change: &TagChange,
    options: (&ChangeArgs, &GatewayArgs),
    settings: &Settings,
) -> Result<(), Failure> {
    let interrupt = Interrupt::on_signals()?;
    let repositories = each.repositories(settings)?;
    for_each(&repositories, "have tags that were not changed", |name| {
        if repositories.len() > 1 && !options.0.json {
            show_name(name)?;
        }
        apply_to(name, &each.place, change, options, (settings, &interrupt))
    })
}

/// Prints the name of one of several repositories, above its tags.
fn show_name(name: &str) -> Result<(), Failure> {
    output::show(false, (), |out| out.line(out.bold(name)))
}

fn apply_to(
    name: &str,
    place: &PublisherArgs,
    change: &TagChange,
    (args, gateway): (&ChangeArgs, &GatewayArgs),
    (settings, interrupt): (&Settings, &Interrupt),
) -> Result<(), Failure> {
    let place = gateway.place(place, name, settings)?;
    let all = LeaseArgs { paths: &[], token: None, take_over: gateway.take_over };
    let session = if args.dry_run { None } else { place.lease(all, args.lock, args.json)? };
    let repository = match &session {
        Some(session) => place.open_leased(session)?,
        None => place.open(args.lock, interrupt, args.json)?,
    };
    let named = change.names().join(" ");
    let facts = HookFacts { tag: Some(&named), ..HookFacts::default() };
    if !args.dry_run {
        Hooked::Tag.before(&place.root, place.name.as_str(), facts)?;
    }
    let done = match args.dry_run {
        true => change.dry_run(&repository),
        false => change.run(&repository, now(), &interrupt.flag()),
    };
    let report = done.map_err(|error| failed(place.name.as_str(), &error))?;
    if !args.dry_run {
        let revision = report.added.iter().chain(&report.moved).map(|tag| tag.revision).next();
        Hooked::Tag.after(&place.root, place.name.as_str(), HookFacts { revision, ..facts });
    }
    output::show(args.json, &report, |out| print(out, &report, args.dry_run))
}

fn failed(name: &str, error: &PublishError) -> Failure {
    use esker_format::write::history::TagError;
    let failure = of_operation(&format!("the tags of {name} were not changed"), error);
    match error {
        PublishError::Repository(RepositoryError::Tag(TagError::Exists(tag))) => {
            failure.hint(format!("move it with `esker tag move {name} {tag}`, or with --force"))
        }
        PublishError::Repository(RepositoryError::Tag(TagError::Unknown(_))) => {
            failure.hint(format!("`esker tag list {name}` lists its tags"))
        }
        _ => failure,
    }
}

fn print(out: &mut Output, report: &TagReport, dry_run: bool) -> Result<(), Failure> {
    let would = if dry_run { "would be " } else { "" };
    for tag in &report.added {
        out.line(format!("{} {would}added: revision {}", tag.name, tag.revision))?;
    }
    for (tag, from) in report.moved.iter().zip(&report.moved_from) {
        out.line(format!(
            "{} {would}moved: from revision {} to revision {}",
            tag.name, from.revision, tag.revision
        ))?;
    }
    for tag in &report.removed {
        out.line(format!("{} {would}removed: revision {}", tag.name, tag.revision))?;
    }
    for branch in &report.branches_removed {
        out.line(format!("branch {branch} {would}removed: it has no tags"))?;
    }
    if let Some(revision) = report.snapshots {
        out.line(format!("revision {revision} shows these tags in /.cvmfs/snapshots"))?;
    }
    Ok(())
}
