use std::path::{Path, PathBuf};
use std::sync::Mutex;

use esker_format::manifest::{self, Manifest};
use esker_format::master_keys::MasterKeys;
use esker_format::name::RepositoryName;
use esker_maintain::{
    Check, CheckPlace, CheckProgress, CheckReport, DataCheck, MirrorServer, PARTIAL, Repair, Repaired,
    note_outcome,
};
use esker_repository::{ReplicaState, signed::SMALL_FILE_MAX};
use esker_store::{LocalSink, StoredFiles};
use serde_json::json;

use crate::error::{Context as _, Failure, Kind, of_store};
use crate::output::{Output, QuietArgs, parse_rate, show, size};
use crate::process::limits::JobsArgs;
use crate::progress::ProgressMeter;
use crate::publisher::{
    Interrupt, Place, PublisherArgs, for_each, names_in, now, of_operation, refuse_address,
};
use crate::settings::Settings;

/// Checks a repository in a folder or on a server, and repairs one in a folder if requested.
///
/// Checks signatures, history, reflog, all catalogs of the head and of tagged revisions, and that every object
/// exists; with --data it reads every byte. Exit code 4 reports faults. A check without repair needs neither keys nor
/// a valid whitelist nor write permission. With write permission, a whole check notes its time and outcome in
/// .cvmfs_status.json, for monitors and the page of `esker serve`. A check of a server sends up to 16 requests at once.
///
/// Example: esker check sw.example.org --data --scrub 50M/s
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Names of repositories, their folders, or their URLs on a server
    #[arg(value_name = "NAME|DIR|URL", required_unless_present = "all")]
    targets: Vec<PathBuf>,

    /// Check all repositories in the storage folder, one after the other
    #[arg(long, conflicts_with = "targets")]
    all: bool,

    #[command(flatten)]
    place: PublisherArgs,

    /// Public key of the owner [default: that which a replica was made with, else NAME.pub in the keys folder]
    #[arg(long, value_name = "FILE")]
    public_key: Option<PathBuf>,

    /// Check only the revision with this tag
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,

    /// Check only this path and the entries below it
    #[arg(long, value_name = "/PATH")]
    path: Option<PathBuf>,

    /// Read every object and compare its hash with its name; after an interruption the next check continues where it
    /// stopped
    #[arg(long)]
    data: bool,

    /// Maximum rate of reads with --data, like 50M/s [default: no limit]
    #[arg(long, value_name = "RATE", value_parser = parse_rate, requires = "data")]
    scrub: Option<u64>,

    /// Fetch missing and damaged objects from this mirror, a folder or URL, rebuild a damaged reflog, and publish a
    /// revision with right counters if some are wrong
    #[arg(long, value_name = "FROM")]
    repair: Option<PathBuf>,

    /// Rebuild a damaged reflog, and fetch nothing
    #[arg(long)]
    repair_reflog: bool,

    /// Publish a revision with right counters if some are wrong, and fetch nothing; needs the publisher's key
    #[arg(long)]
    repair_counters: bool,

    #[command(flatten)]
    jobs: JobsArgs,

    #[command(flatten)]
    quiet: QuietArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let interrupt = Interrupt::on_signals()?;
    let targets = match args.all {
        true => names_in(&args.place.storage_folder(settings)?)?.into_iter().map(PathBuf::from).collect(),
        false => args.targets.clone(),
    };
    if let (Some(from), [_, _, ..]) = (&args.repair, targets.as_slice()) {
        return Err(Failure::usage(format!("--repair {} is a mirror of one repository", from.display()))
            .hint("name one repository; --repair-reflog and --repair-counters work with several"));
    }
    for_each(&targets, "have faults or were not checked", |target| one(target, args, settings, &interrupt))
}

fn one(target: &Path, args: &Args, settings: &Settings, interrupt: &Interrupt) -> Result<(), Failure> {
    use std::os::unix::ffi::OsStrExt as _;
    let url = target.to_str().filter(|text| is_url(text)).map(|text| text.trim_end_matches('/'));
    let (place, keys) = match url {
        Some(url) => server(url, args, settings)?,
        None => place(target, args, settings)?,
    };
    let name = place.name.clone();
    let spool = place.spool_folder().filter(|_| url.is_none()).map(Path::to_owned);
    let checked = CheckPlace { root: place.root.clone(), name: name.clone(), keys, spool };
    let meter = Mutex::new(ProgressMeter::new(args.quiet.is_set()));
    let progress = |progress| {
        if let Ok(mut meter) = meter.try_lock() {
            meter.say(|| describe(progress));
        }
    };
    let mut check = Check::new(&progress);
    check.tag.clone_from(&args.tag);
    check.selected = selected(&place, url)?;
    check.path = args.path.as_ref().map(|path| {
        let bytes = path.as_os_str().as_bytes();
        bytes.strip_suffix(b"/").unwrap_or(bytes).to_vec()
    });
    let resume = if url.is_none() { settings.check_resume(&name, &place.root) } else { None };
    check.data = args.data.then_some(DataCheck { rate: args.scrub, resume });
    check.threads = args.jobs.count();
    check.stop = interrupt.flag();
    let failed = |error| of_operation(&format!("{name} was not checked"), &error);
    let mut repaired = if let Some(url) = url {
        let server =
            MirrorServer::new(url, None).map_err(|error| of_store("can't ask the server", &error))?;
        let scratch = Scratch::make(&name)?;
        let left = check.run_remote(&server, &checked, &scratch.0, now()).map_err(failed)?;
        Repaired { left, ..Repaired::default() }
    } else if args.repair.is_some() || args.repair_reflog || args.repair_counters {
        let mirror = args.repair.as_deref().map(|from| mirror(from, &place)).transpose()?;
        let publisher = place.keys.publisher().ok();
        let open = || place.try_open();
        let may_publish = publisher.is_some() || args.repair_counters;
        let repair = Repair {
            from: mirror.as_deref(),
            publisher: publisher.as_ref(),
            open: may_publish.then_some(&open as &dyn Fn() -> _),
        };
        repair.run(&check, &checked, now()).map_err(failed)?
    } else {
        Repaired { left: check.run(&checked, now()).map_err(failed)?, ..Repaired::default() }
    };
    let stop = check.stop.clone();
    drop(meter);
    let is_whole = args.tag.is_none() && args.path.is_none();
    if url.is_none()
        && is_whole
        && let Err(error) = note_outcome(&checked.root, &repaired.left, now(), &stop)
    {
        let cause = crate::error::chain(&error);
        repaired.left.notes.push(format!("the outcome is not noted in .cvmfs_status.json: {cause}"));
    }
    print(&repaired, name.as_str(), args)
}

/// Returns true for the URL of a server.
fn is_url(text: &str) -> bool {
    ["http://", "https://"].iter().any(|scheme| text.starts_with(scheme))
}

/// Folder for what a check of a server notes; removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn make(name: &RepositoryName) -> Result<Self, Failure> {
        use std::os::unix::fs::DirBuilderExt as _;
        let path = std::env::temp_dir().join(format!("esker-check-{name}-{}", std::process::id()));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.context(Kind::Failed, format!("can't make the folder {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left of it harms nothing but space.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the repository at a URL, which this machine may publish too, and the public keys of its owner.
fn server(url: &str, args: &Args, settings: &Settings) -> Result<(Place, Option<MasterKeys>), Failure> {
    if args.repair.is_some() || args.repair_reflog || args.repair_counters {
        return Err(Failure::usage("a repository on a server can't be repaired from here")
            .hint("repeat this with the folder of the repository, on the machine that has it"));
    }
    let last = url.rsplit('/').next().unwrap_or_default();
    let place = args.place.place_at(last, Path::new(""), settings)?;
    let keys = public_keys(&place, args)?;
    Ok((place, keys))
}

/// Returns the mirror in a folder or at a URL, which has to have the repository.
fn mirror(from: &Path, place: &Place) -> Result<Box<dyn StoredFiles>, Failure> {
    let text = from.to_string_lossy();
    let asking = format!("can't repair from {text}");
    let files: Box<dyn StoredFiles> = if is_url(&text) || text.starts_with("file://") {
        Box::new(MirrorServer::new(&text, None).map_err(|error| of_store(&asking, &error))?)
    } else {
        refuse_address("--repair", from)?;
        Box::new(LocalSink::open(from))
    };
    let head = files.read(manifest::PATH, SMALL_FILE_MAX).map_err(|error| of_store(&asking, &error))?;
    let named = head.map(|bytes| Manifest::parse(&bytes).map(|head| head.name));
    let unusable = match named {
        None => format!("there is no repository: it has no {}", manifest::PATH),
        Some(Err(error)) => format!("its {} can't be read: {error}", manifest::PATH),
        Some(Ok(Some(name))) if name != place.name.as_str() => format!("it has the repository {name}"),
        Some(Ok(_)) => return Ok(files),
    };
    let name = &place.name;
    Err(Failure::usage(format!("{asking}: {unusable}")).hint(format!(
        "name a folder or URL of {name} itself, like http://stratum1.example.org/cvmfs/{name}"
    )))
}

/// Returns the repository, and the known public keys of its owner.
fn place(target: &Path, args: &Args, settings: &Settings) -> Result<(Place, Option<MasterKeys>), Failure> {
    refuse_address("NAME|DIR|URL", target)?;
    let shown = target.display();
    let is_folder = target.join(manifest::PATH).exists() || target.components().count() > 1;
    let place = if is_folder {
        let bytes = std::fs::read(target.join(manifest::PATH)).unwrap_or_default();
        let named = Manifest::parse(&bytes).ok().and_then(|head| head.name);
        // A damaged manifest has no name; the folder has.
        let last = target.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = named.or(last).ok_or_else(|| Failure::usage(format!("{shown} names no repository")))?;
        args.place.place_at(&name, target, settings)?
    } else {
        args.place.place(&target.to_string_lossy(), settings)?
    };
    if !place.root.is_dir() {
        let text = format!("there is no repository in {}", place.root.display());
        return Err(
            Failure::usage(text).hint("name its folder, or the folder of repositories with --storage DIR")
        );
    }
    let keys = public_keys(&place, args)?;
    Ok((place, keys))
}

/// Returns the public keys that are named, those that a replica was made with, or those in the keys folder.
fn public_keys(place: &Place, args: &Args) -> Result<Option<MasterKeys>, Failure> {
    let Some(file) = &args.public_key else {
        let own = || place.keys.public_key_file().exists().then(|| place.keys.public().ok()).flatten();
        let copied = replica(place, None).ok().flatten().and_then(|replica| replica.master_keys().ok());
        return Ok(copied.or_else(own));
    };
    let text = std::fs::read(file).context(Kind::Usage, "can't read the public key")?;
    MasterKeys::parse(&text).context(Kind::Usage, "can't use the public key").map(Some)
}

/// Returns the state of a replica; none for a repository that is no replica, or on a server.
fn replica(place: &Place, url: Option<&str>) -> Result<Option<ReplicaState>, Failure> {
    if url.is_some() || place.root.as_os_str().is_empty() {
        return Ok(None);
    }
    ReplicaState::read(&place.root)
        .map_err(|error| of_operation(&format!("{} was not checked", place.name), &error))
}

/// Returns the paths of a partial replica; none for a whole one. Who can't read its state reads what clients do.
fn selected(place: &Place, url: Option<&str>) -> Result<Vec<Vec<u8>>, Failure> {
    let paths = match replica(place, url)? {
        Some(replica) => replica.paths,
        None if url.is_some() => Vec::new(),
        None => {
            let listed = std::fs::read_to_string(place.root.join(PARTIAL)).unwrap_or_default();
            listed.lines().map(str::to_owned).collect()
        }
    };
    Ok(paths.into_iter().map(String::into_bytes).collect())
}

fn describe(progress: CheckProgress) -> String {
    match progress {
        CheckProgress::Catalogs { done } => format!("read {done} catalogs"),
        CheckProgress::Presence { objects } => format!("looking for {objects} objects"),
        CheckProgress::Data { bytes, folders } => {
            format!("read {} of objects, {folders} of 256 folders", size(bytes))
        }
    }
}

fn print(repaired: &Repaired, name: &str, args: &Args) -> Result<(), Failure> {
    let report = &repaired.left;
    let value = json!({
        "repository": name,
        "repaired": {
            "objects": repaired.objects, "files": repaired.files, "recounted": repaired.recounted,
        },
        "report": report,
    });
    show(args.json, &value, |out| text(out, repaired, name, args.data))?;
    match report.findings.len() as u64 + report.more {
        0 => Ok(()),
        count => {
            let faults = if count == 1 { "fault".to_owned() } else { "faults".to_owned() };
            Err(Failure::new(Kind::Damaged, format!("{name} has {count} {faults}")))
        }
    }
}

fn text(out: &mut Output, repaired: &Repaired, name: &str, data: bool) -> Result<(), Failure> {
    let report: &CheckReport = &repaired.left;
    for finding in &report.findings {
        let about: Vec<&str> =
            [&finding.path, &finding.object].into_iter().flatten().map(String::as_str).collect();
        let about = if about.is_empty() { String::new() } else { format!(" {}", about.join(" ")) };
        let line = format!("{}{about}: {}", finding.kind, finding.detail);
        out.fault(&*out.name(line.as_bytes()).into_owned())?;
        if !finding.revisions.is_empty() {
            out.fault(format!("    in revision {}", finding.revisions.join("; ")))?;
        }
        out.fault(format!("    {}", finding.fix.text()))?;
    }
    if report.more > 0 {
        out.fault(format!("and {} more", report.more))?;
    }
    for note in &report.notes {
        out.line(format!("note: {note}"))?;
    }
    if !repaired.objects.is_empty() || !repaired.files.is_empty() {
        let files = if repaired.files.is_empty() {
            String::new()
        } else {
            format!(", {}", repaired.files.join(", "))
        };
        out.line(format!("repaired {} objects{files}", repaired.objects.len()))?;
    }
    if let Some(revision) = repaired.recounted {
        out.line(format!("published revision {revision} with right counters"))?;
    }
    let revision = report.revision.map_or_else(|| "?".to_owned(), |revision| revision.to_string());
    let read = if data {
        format!("; read {} of {} objects", size(report.read_bytes), report.read_objects)
    } else {
        String::new()
    };
    out.line(format!(
        "{name}: revision {revision}; checked {} revisions, {} catalogs, {} entries, {} objects{read}",
        report.revisions, report.catalogs, report.entries, report.objects
    ))
}
