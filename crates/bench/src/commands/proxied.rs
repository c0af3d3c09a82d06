use std::path::PathBuf;

use anyhow::Result;
use esker_bench::proxied::{Plan, Report};

/// Options of fetches through a proxy.
#[derive(clap::Args, Debug)]
pub(crate) struct ProxiedArgs {
    /// Folder of the repository, or a folder that contains it
    #[arg(long, value_name = "DIR")]
    repository: PathBuf,

    /// Number of clients
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    clients: usize,

    /// Megabytes that each client fetches
    #[arg(long, value_name = "MB", default_value_t = 20)]
    megabytes: u64,

    /// Number of rounds
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    repetitions: usize,

    /// Path of the esker binary
    #[arg(long, value_name = "FILE", default_value = "esker")]
    binary: String,

    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl ProxiedArgs {
    /// Runs a measurement and prints its table.
    pub(crate) fn run(
        self,
        connections: usize,
        measure: impl FnOnce(&Plan, fn(&str)) -> Result<Report>,
    ) -> Result<()> {
        let plan = Plan {
            repository: self.repository,
            clients: self.clients,
            bytes: self.megabytes * 1_000_000,
            connections,
            repetitions: self.repetitions,
            esker: self.binary,
        };
        let report = measure(&plan, |what| eprintln!("{what}"))?;
        print!("{}", report.table());
        super::write_json(self.json.as_deref(), &report)
    }
}
