mod import;

use std::path::{Path, PathBuf};

use esker_format::name::RepositoryName;

use crate::error::{Context, Failure, Kind, warn};
use crate::machine::setup::content::{self, With};
use crate::machine::setup::{Item, Left, Machine, Plan, serving, undo};
use crate::output::Output;
use crate::settings::Settings;

/// Writes files of autofs, systemd or fstab that mount, replicate or serve repositories.
///
/// With --import it imports domains instead: that adds the servers and public keys of its repositories. `--undo` removes what was written.
///
/// Example: esker setup --with autofs --root stage --program /usr/bin/esker
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Repositories to mount; none for autofs, which mounts all configured ones. With --with serve: folders and object
    /// storage to serve [default: /srv/cvmfs]. With --import: domains and repositories to import [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Program that reads the files, and what it does
    #[arg(long, value_enum, default_value = "autofs")]
    with: With,

    /// Folder for the mount points of repositories [default: /cvmfs, with --side-by-side /esker]
    #[arg(long, value_name = "DIR")]
    mount_dir: Option<PathBuf>,

    /// Leave /cvmfs and its configuration to CernVM-FS, and mount in another folder
    #[arg(long)]
    side_by_side: bool,

    /// File, folder, archive or URL to import servers and keys of domains from: for all users as root, for this user
    /// otherwise
    #[arg(long, value_name = "FILE|DIR|URL", conflicts_with_all = ["with", "mount_dir", "side_by_side", "program"])]
    import: Option<String>,

    #[command(flatten)]
    consent: import::Consent,

    /// Root directory of the machine to set up
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,

    /// Path of esker on that machine [default: this program; with --root /usr/bin/esker]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,

    /// Print the changes without making them
    #[arg(long)]
    dry_run: bool,

    /// Remove what setup wrote; files that were changed since then stay
    #[arg(long, conflicts_with_all = ["names", "with", "mount_dir", "side_by_side", "program", "import"])]
    undo: bool,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let named = args.root.as_deref().unwrap_or(Path::new("/"));
    let root = std::path::absolute(named)
        .context(Kind::Usage, format!("--root {} can't be used", named.display()))?;
    let machine = Machine::at(&root);
    // Without root's rights, the settings of the user.
    let own = settings.own_record.clone().filter(|_| args.root.is_none()).map(Machine::of_user);
    if args.undo {
        return take_back(own.as_ref().unwrap_or(&machine), args.dry_run);
    }
    if let Some(source) = &args.import {
        let folder = match &own {
            Some(_) => settings.own_config.clone().ok_or_else(|| {
                Failure::usage("there is no folder for your configuration: HOME is not set")
                    .hint("set HOME, or use --root DIR")
            })?,
            None => OWN_CONFIG.into(),
        };
        let target = import::Target { machine: own.as_ref().unwrap_or(&machine), folder: &folder };
        let given =
            import::Given { source, names: &args.names, consent: &args.consent, dry_run: args.dry_run };
        return import::run(&given, &target, settings);
    }
    let mount_dir = mount_dir(args)?;
    refuse_reference(args, &machine, &mount_dir)?;
    let plan = Plan::new(&machine, wanted(args, &machine, &mount_dir)?)?;
    let mut out = Output::new();
    for item in &plan.there {
        out.line(format!("there already: {}", item.path().display()))?;
    }
    for item in &plan.missing {
        out.line(if args.dry_run { format!("would {}", item.words()) } else { item.words() })?;
    }
    if !args.dry_run {
        plan.apply(&machine)?;
    }
    for step in next_steps(args, &machine, &mount_dir) {
        out.line(format!("next: {step}"))?;
    }
    out.finish()
}

/// Folder of the machine's own settings.
const OWN_CONFIG: &str = "/etc/esker";
/// Folder of repositories that is served if no other is named.
const SERVED: &str = "/srv/cvmfs";

fn mount_dir(args: &Args) -> Result<PathBuf, Failure> {
    let default = if args.side_by_side { "/esker" } else { "/cvmfs" };
    let dir = args.mount_dir.clone().unwrap_or_else(|| default.into());
    let text = dir.to_string_lossy();
    // It goes into maps and units, whose rules for blanks and the like all differ.
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte));
    if !dir.is_absolute() || text.trim_matches('/').is_empty() || !plain {
        return Err(Failure::usage(format!(
            "--mount-dir {text}: name an absolute path of letters, digits, dots, dashes and underscores"
        )));
    }
    Ok(dir.components().collect())
}

/// Refuses the mount folder of another automounter.
fn refuse_reference(args: &Args, machine: &Machine, mount_dir: &Path) -> Result<(), Failure> {
    if machine.has_reference() && mount_dir == Path::new("/cvmfs") && args.with == With::Autofs {
        return Err(Failure::failed("CernVM-FS is installed here and has /cvmfs")
            .hint("`esker setup --side-by-side` mounts below /esker; for /cvmfs remove CernVM-FS first, its configuration can stay"));
    }
    Ok(())
}

fn wanted(args: &Args, machine: &Machine, mount_dir: &Path) -> Result<Vec<Item>, Failure> {
    let program = match &args.program {
        Some(program) => program.clone(),
        None if machine.is_this() => {
            std::env::current_exe().context(Kind::Failed, "can't find out where this program is")?
        }
        None => "/usr/bin/esker".into(),
    };
    if args.with == With::Metrics {
        if let Some(name) = args.names.first() {
            return Err(Failure::usage(format!("metrics are those of every mount, not only of {name}"))
                .hint("omit the names"));
        }
        return Ok(content::metrics(&program));
    }
    let sbin = machine.sbin();
    let link = |name: &str| Item::Link { path: sbin.join(name), target: program.clone() };
    if let With::ReplicaFollow | With::ReplicaTimer = args.with {
        return replicas(args, &program);
    }
    if args.with == With::Serve {
        return Ok(serving::units(&program, &places(args)?));
    }
    let mut items = vec![link("mount.esker")];
    if !args.side_by_side && !machine.has_reference() {
        items.push(link("mount.cvmfs"));
    }
    if args.with == With::Autofs {
        if let Some(name) = args.names.first() {
            return Err(Failure::usage(format!("autofs mounts every repository, not only {name}"))
                .hint("omit the names, or use --with systemd or --with fstab"));
        }
        items.extend(content::autofs(mount_dir));
        return Ok(items);
    }
    if args.names.is_empty() {
        return Err(Failure::usage("which repositories?")
            .hint("name them, as in `esker setup --with fstab sw.example.org`"));
    }
    for name in &args.names {
        let name = RepositoryName::parse(name).map_err(|error| Failure::usage(error.to_string()))?;
        items.extend(match args.with {
            With::Systemd => content::systemd(mount_dir, name.as_str()),
            _ => content::fstab(mount_dir, name.as_str()),
        });
    }
    Ok(items)
}

/// Returns the folders and the object storage to serve.
fn places(args: &Args) -> Result<Vec<String>, Failure> {
    if args.names.is_empty() {
        return Ok(vec![SERVED.to_owned()]);
    }
    for place in &args.names {
        // It goes into a unit, whose rules for blanks and the like are its own.
        let is_plain = place.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-:+@=,".contains(&byte));
        if !is_plain || !(place.starts_with('/') || place.contains("://")) {
            return Err(Failure::usage(format!("{place:?} can't be served by a unit")).hint(
                "name absolute paths of letters, digits and ._-, or object storage like s3://BUCKET/PREFIX/NAME",
            ));
        }
    }
    Ok(args.names.clone())
}

/// Returns the units of replicas.
fn replicas(args: &Args, program: &Path) -> Result<Vec<Item>, Failure> {
    if args.names.is_empty() {
        return Err(Failure::usage("which replicas?")
            .hint("name them, as in `esker setup --with replica-follow sw.example.org`"));
    }
    let mut items = Vec::new();
    for name in &args.names {
        let name = RepositoryName::parse(name).map_err(|error| Failure::usage(error.to_string()))?;
        items.extend(content::replica(program, name.as_str(), args.with == With::ReplicaFollow));
    }
    Ok(items)
}

/// Returns the steps that the user has to take after setup.
fn next_steps(args: &Args, machine: &Machine, mount_dir: &Path) -> Vec<String> {
    let mut steps = Vec::new();
    match args.with {
        With::Autofs => {
            if !machine.has("/usr/sbin/automount") && !machine.has("/sbin/automount") {
                steps.push("install the automounter: the package autofs".to_owned());
            }
            let master =
                std::fs::read_to_string(machine.place(Path::new("/etc/auto.master"))).unwrap_or_default();
            if !master.lines().any(|line| line.trim_end_matches('/') == "+dir:/etc/auto.master.d") {
                steps.push("have the line `+dir:/etc/auto.master.d` in /etc/auto.master".to_owned());
            }
            steps.push(format!(
                "systemctl restart autofs; then `ls {}/NAME` mounts NAME",
                mount_dir.display()
            ));
        }
        With::Systemd => {
            let units =
                args.names.iter().map(|name| format!("'{}'", content::automount_unit(mount_dir, name)));
            let units: Vec<_> = units.collect();
            steps.push(format!("systemctl daemon-reload && systemctl start {}", units.join(" ")));
        }
        With::ReplicaFollow | With::ReplicaTimer => {
            let timer = args.with == With::ReplicaTimer;
            let units: Vec<_> = args.names.iter().map(|name| content::replica_unit(name, timer)).collect();
            steps.push(format!("systemctl daemon-reload && systemctl start {}", units.join(" ")));
            return steps;
        }
        With::Metrics => {
            return vec!["systemctl daemon-reload && systemctl start esker-metrics.socket".to_owned()];
        }
        With::Serve => {
            if args.names.iter().any(|place| place.contains("://")) {
                steps.push(
                    "write the credentials into /etc/esker/serve.env, readable by root alone".to_owned(),
                );
            }
            steps.push(serving::start());
            return steps;
        }
        With::Fstab => steps.push("systemctl daemon-reload, where systemd is; then `mount -a`".to_owned()),
    }
    if machine.is_this() {
        if let Some(blocked) = esker_run::device_blocked() {
            steps.push(format!("{blocked}; {}", blocked.remedy));
        }
        if let Some(setting) = esker_kernel_mount::namespace_setting() {
            steps.push(format!("for `esker run` by users: {setting}"));
        }
    }
    steps
}

fn take_back(machine: &Machine, dry: bool) -> Result<(), Failure> {
    let mut out = Output::new();
    let done = undo(machine, dry)?;
    if done.is_empty() {
        out.line("nothing was set up here")?;
    }
    for one in done {
        match one {
            Left::Gone(path) if dry => out.line(format!("would take back {}", path.display()))?,
            Left::Gone(path) => out.line(format!("took back {}", path.display()))?,
            Left::Kept(path, why) => warn(Some(&format!("{} is left: {why}", path.display()))),
        }
    }
    out.finish()
}
