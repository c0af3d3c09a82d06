//! Runs the command of a transaction in the writable tree.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use esker_format::copied_xattr::OverlayOwner;
use esker_format::name::RepositoryName;
use esker_repository::{KeyFolder, RememberedGateway};
use esker_run::{Ending, Forwarding, Writable};
use esker_view::{Pin, ViewOptions};

use super::Transaction;
use crate::error::{Context as _, Failure, Kind, chain};
use crate::mounting::open::{session_options, view_options};
use crate::mounting::run_mounted::{MountedRun, Started, ToMount};
use crate::process::limits::OpenFiles;
use crate::publisher::{of_operation, readable};
use crate::settings::Settings;
use crate::settings::args::RepositoryArgs;
use crate::settings::repository::ResolvedRepository;

/// Environment variable with the id of a command's transaction.
pub(super) const VARIABLE: &str = "ESKER_TRANSACTION";

/// A command in the tree of a transaction.
pub(crate) struct RunningCommand<'a> {
    pub(crate) transaction: &'a mut Transaction,
    pub(crate) command: Vec<OsString>,
    pub(crate) settings: &'a Settings,
    pub(crate) files: OpenFiles,
    /// True if the output of this process is JSON, which that of the command must not mix with.
    pub(crate) json: bool,
    /// Called once the tree is there, if the command only keeps it for others.
    pub(crate) opened: Option<&'a mut dyn FnMut() -> io::Result<()>>,
}

impl RunningCommand<'_> {
    /// Runs the command, and notes how it ended.
    pub(crate) fn run(self, forwarding: Forwarding) -> Result<Ending, Failure> {
        let record = self.transaction.record()?.clone();
        let upper = self.transaction.upper()?;
        upper.restore_modes().map_err(|error| Failure::failed(chain(&error)))?;
        let name = RepositoryName::parse(&record.repository).context(Kind::Damaged, "can't use this name")?;
        let keys = KeyFolder::new(record.keys.clone(), &name);
        let mut repository = RepositoryArgs::of_publisher(&record.repository, keys.public_key_file());
        let gateway = RememberedGateway::read(&record.storage)
            .map_err(|error| of_operation("can't use the gateway", &error))?;
        if let Some(gateway) = gateway {
            repository.public_key = gateway.public_keys;
            repository.ca = gateway.authorities.iter().map(PathBuf::from).collect();
        }
        let readable = readable(&record.storage)?;
        if readable.is_private {
            repository.cache = Some(self.transaction.cache_folder());
        }
        let checked = ResolvedRepository::new(&readable.url, &repository, self.settings)?;
        let push = checked.push(None);
        let directory = record.directory();
        let (upper_folder, work) = (self.transaction.upper_folder(), self.transaction.work_folder());
        self.transaction.note(None);
        let environment = vec![(VARIABLE, self.transaction.id.clone())];
        let transaction = &mut *self.transaction;
        let started = self.opened.map(|ready| -> Started<'_> {
            Box::new(|mount| {
                transaction.note_open(mount)?;
                ready().context(Kind::Failed, "the process that opens the transaction is gone")
            })
        });
        let mounted_run = MountedRun {
            settings: self.settings,
            files: self.files,
            command: self.command,
            view: ViewOptions {
                pin: Some(Pin::Root(upper.base.root)),
                prefetch: true,
                // Whatever copies a symlink publishes the target that it sees.
                raw_targets: true,
                overlay: Some(if record.claimed.is_some() { OverlayOwner::User } else { OverlayOwner::Root }),
                ..view_options(self.settings)
            },
            session: session_options(&repository, None),
            overlay: false,
            replay: false,
            writable: Some(Writable { upper: upper_folder, work, directory }),
            environment,
            output_to_stderr: self.json,
            started,
        };
        let (ending, ()) = mounted_run.run(vec![ToMount { checked, push }], forwarding, |_| (), |_| ())?;
        self.transaction.note(Some(ending.into()));
        Ok(ending)
    }
}
