mod import;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use esker_format::name::RepositoryName;

use crate::error::{Context, Failure, Kind, warn};
use crate::machine::setup::content::{self, With};
use crate::machine::setup::services::Service;
use crate::machine::setup::{Item, Left, Machine, Plan, serving, undo};
use crate::output::{Output, QuietArgs, parse_rate};
use crate::settings::Settings;

commands! {
    /// Writes files that mount, replicate, serve or publish repositories, and imports domains.
    ///
    /// The files are those of autofs, systemd or fstab. `esker setup undo` removes what was written.
    ///
    /// Example: esker setup mount --root stage --program /usr/bin/esker
    args, call;
    Mount(MountArgs) => mount(&args);
    Replicate(ReplicateArgs) => replicate(&args);
    Serve(ServeArgs) => serve(&args);
    Proxy(ProxyArgs) => proxy(&args);
    /// Writes a systemd unit for the broker, one cache for all users of this node.
    ///
    /// Example: esker setup broker --root stage --program /usr/bin/esker
    Broker(ProgramArgs) => service(&args, Service::broker, "esker-broker.service");
    Check(CheckArgs) => timed(&args.on, |program| Service::check(program, &args.scrub), ("esker-check", WEEKLY));
    /// Writes a systemd service and timer that collect old revisions of all repositories each day.
    ///
    /// Example: esker setup collect --root stage --program /usr/bin/esker
    Collect(ProgramArgs) => timed(&args, Service::collect, ("esker-collect", DAILY));
    /// Writes a systemd service and timer that sign the whitelists of all repositories again each week.
    ///
    /// The master keys have to be in the keys folder; a passphrase comes from a credential of systemd.
    ///
    /// Example: esker setup resign --root stage --program /usr/bin/esker
    Resign(ProgramArgs) => timed(&args, Service::resign, ("esker-resign", WEEKLY));
    Gateway(GatewayArgs) => gateway(&args);
    /// Writes systemd units that serve the metrics of all mounts at 127.0.0.1:9868.
    ///
    /// Example: esker setup metrics --root stage --program /usr/bin/esker
    Metrics(ProgramArgs) => metrics(&args);
    Import(import::Args) => import::run(&args, call.settings);
    /// Removes what setup wrote; files that were changed since then stay.
    ///
    /// Example: esker setup undo --dry-run
    Undo(MachineArgs) => take_back(&args, call.settings);
}

/// Options for the machine to set up.
#[derive(clap::Args, Debug)]
pub(crate) struct MachineArgs {
    /// Root directory of the machine to set up
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,

    /// Print the changes without making them
    #[arg(long)]
    dry_run: bool,
}

/// Options for a machine, and for esker there.
#[derive(clap::Args, Debug)]
pub(crate) struct ProgramArgs {
    #[command(flatten)]
    machine: MachineArgs,

    /// Path of esker on that machine [default: this program; with --root /usr/bin/esker]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,

    #[command(flatten)]
    _quiet: QuietArgs,
}

/// Writes files of autofs, systemd or fstab that mount repositories.
///
/// Example: esker setup mount --with fstab sw.example.org --root stage
#[derive(clap::Args, Debug)]
pub(crate) struct MountArgs {
    /// Repositories to mount; none for autofs, which mounts all configured ones
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Program that mounts
    #[arg(long, value_enum, default_value = "autofs")]
    with: With,

    /// Folder for the mount points of repositories [default: /cvmfs, with --side-by-side /esker]
    #[arg(long, value_name = "DIR")]
    mount_dir: Option<PathBuf>,

    /// Leave /cvmfs and its configuration to CernVM-FS, and mount in another folder
    #[arg(long)]
    side_by_side: bool,

    #[command(flatten)]
    on: ProgramArgs,
}

/// Times of timers.
const DAILY: &str = "OnCalendar=daily\nRandomizedDelaySec=2h\nPersistent=true\n";
const WEEKLY: &str = "OnCalendar=weekly\nRandomizedDelaySec=6h\nPersistent=true\n";

/// Writes a systemd unit for the proxy of a site, which caches repositories for its clients.
///
/// Example: esker setup proxy --upstream http://server --root stage
#[derive(clap::Args, Debug)]
pub(crate) struct ProxyArgs {
    /// Server of repositories; further ones are used when those before fail
    #[arg(long, value_name = "URL", required = true)]
    upstream: Vec<String>,

    /// Address to listen on
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:3128")]
    listen: SocketAddr,

    #[command(flatten)]
    on: ProgramArgs,
}

/// Writes a systemd service and timer that check all data of repositories and replicas each week.
///
/// Example: esker setup check --root stage --program /usr/bin/esker
#[derive(clap::Args, Debug)]
pub(crate) struct CheckArgs {
    /// Maximum rate of reads
    #[arg(long, value_name = "RATE", default_value = "50M/s", value_parser = rate)]
    scrub: String,

    #[command(flatten)]
    on: ProgramArgs,
}

/// Returns a rate as it is written, if it is one.
fn rate(text: &str) -> Result<String, String> {
    parse_rate(text).map(|_| text.to_owned())
}

/// Writes systemd units that keep replicas up to date.
///
/// Without names one service follows all replicas, also those that are made later.
///
/// Example: esker setup replicate sw.example.org --root stage
#[derive(clap::Args, Debug)]
pub(crate) struct ReplicateArgs {
    /// Replicas [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Replicate each ten minutes [default: as the server announces revisions]
    #[arg(long)]
    timer: bool,

    #[command(flatten)]
    on: ProgramArgs,
}

/// Writes systemd units that serve repositories over HTTP, from the first request on.
///
/// Example: esker setup serve /srv/cvmfs --root stage
#[derive(clap::Args, Debug)]
pub(crate) struct ServeArgs {
    /// Folders of repositories, and repositories in object storage
    #[arg(value_name = "DIR|URL", default_value = "/srv/cvmfs")]
    places: Vec<String>,

    #[command(flatten)]
    on: ProgramArgs,
}

/// Writes a systemd unit for a gateway, which publishes for publishers without keys of a repository.
///
/// Example: esker setup gateway --root stage
#[derive(clap::Args, Debug)]
pub(crate) struct GatewayArgs {
    /// Folder of repositories, or a bucket, like s3://BUCKET/PREFIX
    #[arg(long, value_name = "DIR|URL", default_value = "/srv/cvmfs")]
    storage: String,

    /// Address to listen on
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:4929")]
    listen: SocketAddr,

    /// Certificate in PEM form for TLS, followed by those of its issuers
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<String>,

    /// Key of the certificate in PEM form
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<String>,

    #[command(flatten)]
    on: ProgramArgs,
}

impl MachineArgs {
    /// Returns the machine to set up.
    fn machine(&self) -> Result<Machine, Failure> {
        let named = self.root.as_deref().unwrap_or(Path::new("/"));
        let root = std::path::absolute(named)
            .context(Kind::Usage, format!("--root {} can't be used", named.display()))?;
        Ok(Machine::at(&root))
    }

    /// Returns the files of this user on this machine, for users other than root.
    fn own(&self, settings: &Settings) -> Option<Machine> {
        settings.own_record.clone().filter(|_| self.root.is_none()).map(Machine::of_user)
    }
}

impl ProgramArgs {
    /// Returns the path of esker on the machine.
    fn program(&self, machine: &Machine) -> Result<PathBuf, Failure> {
        match &self.program {
            Some(program) => Ok(program.clone()),
            None if machine.is_this() => {
                std::env::current_exe().context(Kind::Failed, "can't find out where this program is")
            }
            None => Ok("/usr/bin/esker".into()),
        }
    }

    /// Makes the items, and prints what the user has to do then.
    fn make(&self, machine: &Machine, items: Vec<Item>, next: &[String]) -> Result<(), Failure> {
        let plan = Plan::new(machine, items)?;
        let is_dry = self.machine.dry_run;
        let mut out = Output::new();
        for item in &plan.there {
            out.line(format!("there already: {}", item.path().display()))?;
        }
        for item in &plan.missing {
            out.line(if is_dry { format!("would {}", item.words()) } else { item.words() })?;
        }
        if !is_dry {
            plan.apply(machine)?;
        }
        next.iter().try_for_each(|step| out.line(format!("next: {step}")))?;
        out.finish()
    }
}

/// Returns the command that starts units.
fn start(units: impl IntoIterator<Item = String>) -> String {
    let units: Vec<String> = units.into_iter().collect();
    format!("systemctl daemon-reload && systemctl start {}", units.join(" "))
}

fn names(names: &[String]) -> Result<Vec<RepositoryName>, Failure> {
    let parse =
        |name: &String| RepositoryName::parse(name).map_err(|error| Failure::usage(error.to_string()));
    names.iter().map(parse).collect()
}

fn mount(args: &MountArgs) -> Result<(), Failure> {
    let machine = args.on.machine.machine()?;
    let dir = mount_dir(args)?;
    if machine.has_reference() && dir == Path::new("/cvmfs") && args.with == With::Autofs {
        return Err(Failure::failed("CernVM-FS is installed here and has /cvmfs")
            .hint("`esker setup mount --side-by-side` mounts below /esker; for /cvmfs remove CernVM-FS first, its configuration can stay"));
    }
    let (sbin, program) = (machine.sbin(), args.on.program(&machine)?);
    let link = |name: &str| Item::Link { path: sbin.join(name), target: program.clone() };
    let mut items = vec![link("mount.esker")];
    if !args.side_by_side && !machine.has_reference() {
        items.push(link("mount.cvmfs"));
    }
    let names = names(&args.names)?;
    match (args.with, names.first()) {
        (With::Autofs, None) => items.extend(content::autofs(&dir)),
        (With::Autofs, Some(name)) => {
            return Err(Failure::usage(format!("autofs mounts every repository, not only {name}"))
                .hint("omit the names, or use --with systemd or --with fstab"));
        }
        (_, None) => {
            return Err(Failure::usage("which repositories?")
                .hint("name them, as in `esker setup mount --with fstab sw.example.org`"));
        }
        (With::Systemd, _) => {
            items.extend(names.iter().flat_map(|name| content::systemd(&dir, name.as_str())))
        }
        (With::Fstab, _) => items.extend(names.iter().flat_map(|name| content::fstab(&dir, name.as_str()))),
    }
    args.on.make(&machine, items, &next_steps(args, &machine, &dir))
}

fn mount_dir(args: &MountArgs) -> Result<PathBuf, Failure> {
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

/// Returns the steps that the user has to take before repositories are mounted.
fn next_steps(args: &MountArgs, machine: &Machine, mount_dir: &Path) -> Vec<String> {
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
            let unit = |name| format!("'{}'", content::automount_unit(mount_dir, name));
            steps.push(start(args.names.iter().map(|name| unit(name))));
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

fn replicate(args: &ReplicateArgs) -> Result<(), Failure> {
    let machine = args.on.machine.machine()?;
    let (program, names) = (args.on.program(&machine)?, names(&args.names)?);
    let names: Vec<Option<&str>> = match names.as_slice() {
        [] => vec![None],
        names => names.iter().map(|name| Some(name.as_str())).collect(),
    };
    let units = names.iter().flat_map(|name| content::replica(&program, *name, !args.timer));
    let next = start(names.iter().map(|name| content::replica_unit(*name, args.timer)));
    args.on.make(&machine, units.collect(), &[next])
}

fn proxy(args: &ProxyArgs) -> Result<(), Failure> {
    args.upstream.iter().try_for_each(|url| check_place(url))?;
    let upstreams: String = args.upstream.iter().map(|url| format!(" --upstream {url}")).collect();
    let options = format!("{upstreams} --listen {}", args.listen);
    service(&args.on, |program| Service::proxy(program, &options), "esker-proxy.service")
}

/// Writes a service that runs from the start of the machine on.
fn service<'s>(on: &ProgramArgs, make: impl FnOnce(&Path) -> Service<'s>, name: &str) -> Result<(), Failure> {
    let machine = on.machine.machine()?;
    let items = make(&on.program(&machine)?).enabled();
    on.make(&machine, items, &[start([name.to_owned()])])
}

/// Writes a service that a timer starts.
fn timed<'s>(
    on: &ProgramArgs,
    make: impl FnOnce(&Path) -> Service<'s>,
    (name, when): (&str, &str),
) -> Result<(), Failure> {
    let machine = on.machine.machine()?;
    let items = make(&on.program(&machine)?).timed(when);
    on.make(&machine, items, &[start([format!("{name}.timer")])])
}

fn metrics(args: &ProgramArgs) -> Result<(), Failure> {
    let machine = args.machine.machine()?;
    let units = content::metrics(&args.program(&machine)?);
    args.make(&machine, units, &[start(["esker-metrics.socket".to_owned()])])
}

/// Refuses a path or URL that a unit can't name: its rules for blanks and the like are its own.
fn check_place(place: &str) -> Result<(), Failure> {
    let is_plain = place.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-:+@=,".contains(&byte));
    if is_plain && (place.starts_with('/') || place.contains("://")) {
        return Ok(());
    }
    Err(Failure::usage(format!("{place:?} can't be named in a unit")).hint(
        "name absolute paths of letters, digits and ._-, or object storage like s3://BUCKET/PREFIX/NAME",
    ))
}

fn gateway(args: &GatewayArgs) -> Result<(), Failure> {
    let files = args.tls_cert.iter().chain(&args.tls_key);
    files.chain([&args.storage]).try_for_each(|place| check_place(place))?;
    let machine = args.on.machine.machine()?;
    let tls = args.tls_cert.iter().zip(&args.tls_key);
    let tls: String = tls.map(|(cert, key)| format!(" --tls-cert {cert} --tls-key {key}")).collect();
    let options = format!(" --storage {} --listen {}{tls}", args.storage, args.listen);
    let units = Service::gateway(&args.on.program(&machine)?, &options).enabled();
    let credentials = args.storage.contains("://").then(|| {
        "write the credentials of the bucket into /etc/esker/gateway.env, readable by root alone".to_owned()
    });
    let next =
        ["esker gateway key add KEY NAME/PATH".to_owned(), start(["esker-gateway.service".to_owned()])];
    args.on.make(&machine, units, &credentials.into_iter().chain(next).collect::<Vec<_>>())
}

fn serve(args: &ServeArgs) -> Result<(), Failure> {
    args.places.iter().try_for_each(|place| check_place(place))?;
    let machine = args.on.machine.machine()?;
    let units = serving::units(&args.on.program(&machine)?, &args.places);
    let is_stored = args.places.iter().any(|place| place.contains("://"));
    let credentials = is_stored
        .then(|| "write the credentials into /etc/esker/serve.env, readable by root alone".to_owned());
    let next: Vec<String> = credentials.into_iter().chain([start([serving::socket()])]).collect();
    args.on.make(&machine, units, &next)
}

fn take_back(args: &MachineArgs, settings: &Settings) -> Result<(), Failure> {
    let machine = args.own(settings).map_or_else(|| args.machine(), Ok)?;
    let mut out = Output::new();
    let done = undo(&machine, args.dry_run)?;
    if done.is_empty() {
        out.line("nothing was set up here")?;
    }
    for one in done {
        match one {
            Left::Gone(path) if args.dry_run => out.line(format!("would take back {}", path.display()))?,
            Left::Gone(path) => out.line(format!("took back {}", path.display()))?,
            Left::Kept(path, why) => warn(Some(&format!("{} is left: {why}", path.display()))),
        }
    }
    out.finish()
}
