use std::path::PathBuf;

use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_maintain::{ListedRepository, list_repositories, remembered_spool};

use crate::error::Failure;
use crate::output::{Output, show_all};
use crate::publisher::{now, of_operation};
use crate::settings::Settings;
use crate::transaction::Transactions;

/// Lists the repositories in a folder, with revision, last publish, whitelist expiry and source.
///
/// Example: esker repo list
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Folder of repositories [default: /srv/cvmfs for root, else ~/.local/share/esker/repositories]
    #[arg(long, value_name = "DIR")]
    storage: Option<PathBuf>,

    /// Folder of open transactions [default: as of `esker transaction`]
    #[arg(long, value_name = "DIR")]
    transactions: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let storage = settings.storage(args.storage.as_deref())?;
    let mut all = list_repositories(&storage, now())
        .map_err(|error| of_operation("the repositories were not listed", &error))?;
    let open = settings.transactions(args.transactions.as_deref()).map(Transactions::new).ok();
    for listed in &mut all {
        listed.open_transactions = open.as_ref().map_or(0, |open| open.of_repository(&listed.name).len());
        let name = RepositoryName::parse(&listed.name).ok();
        let spool = name.and_then(|name| {
            settings.spool(&name, &listed.folder).or_else(|| remembered_spool(&listed.folder))
        });
        listed.transaction = spool.is_some_and(|spool| spool.join("in_transaction.lock").exists());
    }
    show_all(args.json, all.iter(), |out| {
        if all.is_empty() {
            out.line(format!("there are no repositories in {}", storage.display()))?;
        }
        let width = all.iter().map(|listed| listed.name.len()).max().unwrap_or_default();
        for listed in &all {
            let line = line(listed, width, out);
            out.line(line)?;
        }
        Ok(())
    })
}

fn line(listed: &ListedRepository, width: usize, out: &Output) -> String {
    let time =
        |seconds: Option<i64>| seconds.map_or_else(|| "-".to_owned(), |time| UnixTime(time).to_string());
    let revision = listed.revision.map_or_else(|| "-".to_owned(), |revision| revision.to_string());
    let mut line =
        format!("{:width$}  revision {revision}  published {}", listed.name, time(listed.published));
    match (listed.whitelist_expired, listed.whitelist_expires) {
        (Some(true), expires) => {
            line += "  ";
            line += &out.warning(&format!("whitelist expired at {}", time(expires)));
        }
        (_, expires) => line += &format!("  whitelist until {}", time(expires)),
    }
    if let Some(replica) = &listed.replica {
        line += &format!("  replica of {}, {} revisions behind", replica.servers, replica.behind);
        line += &format!(", last success {}", time(replica.succeeded));
        if let Some(why) = &replica.failure {
            line +=
                &format!(", {}", out.warning(&format!("failed at {}: {why}", time(Some(replica.attempted)))));
        }
    }
    if listed.transaction {
        line += "  in transaction";
    }
    match listed.open_transactions {
        0 => {}
        1 => line += "  1 open transaction",
        count => line += &format!("  {count} open transactions"),
    }
    if let Some(problem) = &listed.problem {
        line += "  ";
        line += &out.warning(problem);
    }
    line
}
