//! Leases of a gateway that runs, for its operators.

use std::path::PathBuf;

use esker_format::time::UnixTime;
use esker_gateway::{GatewayAddress, LeasePath, Operator};
use esker_repository::GatewayFailure;
use esker_store::Authorities;
use serde_json::json;

use crate::error::{Failure, Kind, chain};
use crate::output::{show, show_all};

commands! {
    /// Lists and ends leases of a gateway that runs, with the key of an operator.
    ///
    /// Example: esker gateway lease list --key boss.gw
    args, _call;
    List(ListArgs) => list(&args);
    End(EndArgs) => end(&args);
    Log(LogArgs) => log(&args);
}

/// Options for the gateway and the operator's key.
#[derive(clap::Args, Clone, Debug)]
struct OperatorArgs {
    /// Address of the gateway
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:4929")]
    gateway: String,

    /// File of a key that was made with --operator
    #[arg(long, value_name = "FILE")]
    key: PathBuf,

    /// Additional CA certificates for TLS: a file or a folder of files
    #[arg(long, value_name = "FILE|DIR")]
    ca: Vec<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Lists the leases that are held, with their keys, hosts and ends.
///
/// Example: esker gateway lease list --key boss.gw
#[derive(clap::Args, Debug)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    operator: OperatorArgs,
}

/// Ends the leases of a directory and below it, because their publisher is gone.
///
/// A publisher that still works fails with its next request, and publishes nothing. A commit under way is not ended.
///
/// Example: esker gateway lease end sw.example.org/gcc --key boss.gw
#[derive(clap::Args, Debug)]
pub(crate) struct EndArgs {
    /// Directory, as NAME/PATH; NAME/ is a whole repository
    #[arg(value_name = "NAME/PATH", value_parser = super::parse_path)]
    path: LeasePath,

    #[command(flatten)]
    operator: OperatorArgs,
}

/// Shows the newest records of the audit log: which key leased and published what.
///
/// Example: esker gateway lease log --key boss.gw
#[derive(clap::Args, Debug)]
pub(crate) struct LogArgs {
    #[command(flatten)]
    operator: OperatorArgs,
}

impl OperatorArgs {
    fn operator(&self) -> Result<Operator, Failure> {
        let authorities = Authorities {
            paths: self.ca.iter().map(|path| path.to_string_lossy().into_owned()).collect(),
            ..Authorities::default()
        };
        let address = GatewayAddress::new(&self.gateway, &self.key, authorities).map_err(|error| {
            Failure::usage(chain(&error)).hint("name the key of an operator with --key FILE")
        })?;
        Ok(Operator::new(address))
    }

    fn failed(&self, failure: &GatewayFailure) -> Failure {
        let kind =
            if matches!(failure, GatewayFailure::Unavailable(_)) { Kind::Network } else { Kind::Failed };
        Failure::new(kind, format!("{}: {}", self.gateway, chain(failure))).hint(
            "name the gateway with --gateway URL, and a key that was made with --operator with --key FILE",
        )
    }
}

fn list(ListArgs { operator }: &ListArgs) -> Result<(), Failure> {
    let (leases, waiting) = operator.operator()?.leases().map_err(|failure| operator.failed(&failure))?;
    show(operator.json, json!({ "leases": leases, "waiting": waiting }), |out| {
        for lease in &leases {
            let what = if lease.state == "open" { "until" } else { "is being published, until" };
            let (path, key, host) = (&lease.path, &lease.key_id, &lease.hostname);
            out.line(format!("{path}  key {key} at {host}, {what} {}", lease.expires))?;
        }
        match waiting {
            0 => Ok(()),
            count => out.line(format!("{count} publishers wait")),
        }
    })
}

fn end(EndArgs { path, operator }: &EndArgs) -> Result<(), Failure> {
    let ended = operator.operator()?.end(path).map_err(|failure| operator.failed(&failure))?;
    show(operator.json, json!({ "ended": ended }), |out| {
        out.line(match ended {
            1 => "ended 1 lease".to_owned(),
            count => format!("ended {count} leases"),
        })
    })
}

fn log(LogArgs { operator }: &LogArgs) -> Result<(), Failure> {
    let records = operator.operator()?.records().map_err(|failure| operator.failed(&failure))?;
    show_all(operator.json, records.iter(), |out| {
        records.iter().try_for_each(|record| {
            let at = UnixTime(record.at.0.div_euclid(1000));
            out.line(format!(
                "{at}  {}  {}  key {}  {}",
                record.event, record.path, record.key, record.detail
            ))
        })
    })
}
