//! Checks servers and proxies: requests the head of the repository from each, all at the same time.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

use esker_format::blacklist::Blacklist;
use esker_format::compress::{Compression, decompress};
use esker_format::master_keys::MasterKeys;
use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_format::trust::{self, ClaimedHead, TrustError};
use esker_format::{manifest, whitelist};
use esker_store::{
    Callback, Cause, Engine, EngineOptions, Fetch, Order, Proxies, Proxy, Servers, StoreError, Stored,
    connect,
};
use tracing::subscriber::{NoSubscriber, with_default};

use super::Checking;
use crate::{Files, Finding, Parameters, Severity};

/// Largest manifest, certificate or whitelist in bytes.
const HEAD_MAX: u64 = 1 << 20;
/// Remaining validity of a whitelist in seconds below which the check warns.
const SOON: i64 = 3 * 86_400;

/// Server or proxy that is checked.
struct Asked {
    what: String,
    parameter: &'static str,
    mend: String,
    servers: Servers,
}

/// Verdict on a reply.
enum Answer {
    Good {
        expires: UnixTime,
    },
    /// The server replies with a head that fails verification.
    Untrusted(TrustError),
    Failed(StoreError),
}

pub(super) fn check(
    parameters: &Parameters,
    mut servers: Servers,
    name: &RepositoryName,
    keys: Option<MasterKeys>,
    how: &Checking,
    findings: &mut Vec<Finding>,
) {
    // Each server or proxy is tested alone, without fail-over.
    (servers.order, servers.most) = (Order::Given, 0);
    servers.timings.retries = 0;
    servers.within(how.patience / 4);
    servers.timings.direct = Some(servers.timings.direct.unwrap_or(how.patience).min(how.patience / 4));
    let list = parameters.blacklist().ok().and_then(|path| how.root.read(&path, HEAD_MAX).ok());
    let trust = Trust {
        name: name.clone(),
        keys,
        blacklist: list.map_or_else(Blacklist::default, |text| Blacklist::parse(&text)),
    };
    let asked = proxies_and_servers(&servers);
    let (sender, receiver) = mpsc::channel();
    for (at, one) in asked.iter().enumerate() {
        let (sender, servers, trust) = (sender.clone(), one.servers.clone(), trust.clone());
        let thread = esker_threads::spawn("check", move || {
            // The finding has what the log would say.
            let answer = with_default(NoSubscriber::default(), || ask(servers, &trust));
            // After the timeout the receiver is gone.
            let _ = sender.send((at, answer));
        });
        if let Err(error) = thread {
            let what = format!("can't ask {}: {error}", one.what);
            findings.push(Finding::new(Severity::Error, what, "allow this user more threads"));
        }
    }
    drop(sender);
    let mut answers: Vec<Option<Answer>> = asked.iter().map(|_| None).collect();
    let deadline = Instant::now() + how.patience;
    while let Ok((at, answer)) = receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        answers[at] = Some(answer);
    }
    for (one, answer) in asked.iter().zip(answers) {
        findings.extend(judge(parameters, one, answer, how.patience));
    }
}

/// Returns every proxy with all servers behind it, and every server behind all proxies.
fn proxies_and_servers(servers: &Servers) -> Vec<Asked> {
    let mut asked = Vec::new();
    for (parameter, proxies) in
        [("CVMFS_HTTP_PROXY", &servers.proxies), ("CVMFS_FALLBACK_PROXY", &servers.fallback)]
    {
        let members = proxies.groups().iter().flatten().filter(|proxy| **proxy != Proxy::Direct);
        for proxy in members {
            asked.push(Asked {
                what: format!("the proxy {proxy}"),
                parameter,
                mend: format!("start it, open the firewall for it, or remove it from {parameter}"),
                servers: Servers {
                    proxies: Proxies::only(proxy.clone()),
                    fallback: Proxies::none(),
                    ..servers.clone()
                },
            });
        }
    }
    for url in &servers.urls {
        asked.push(Asked {
            what: format!("the server {url}"),
            parameter: "CVMFS_SERVER_URL",
            mend: "check that it is up and reachable from here; otherwise remove it from CVMFS_SERVER_URL"
                .into(),
            servers: Servers { urls: vec![url.clone()], ..servers.clone() },
        });
    }
    asked
}

fn judge(
    parameters: &Parameters,
    asked: &Asked,
    answer: Option<Answer>,
    patience: Duration,
) -> Option<Finding> {
    let Asked { what, parameter, mend, .. } = asked;
    let now = now();
    let finding = match answer {
        Some(Answer::Good { expires }) if expires.0.saturating_sub(now.0) < SOON => Finding::new(
            Severity::Warning,
            format!("the whitelist of {what} expires at {expires}"),
            "ask the owner of the repository to sign it again; if the server is out of date, it has to replicate",
        ),
        Some(Answer::Good { .. }) => return None,
        Some(Answer::Untrusted(error)) => Finding::new(
            Severity::Error,
            format!("the data of {what} can't be verified: {error}"),
            "check that the public key and the server are this repository's; if both are, inform its owner",
        ),
        Some(Answer::Failed(error)) => {
            Finding::new(Severity::Error, format!("{what} does not work: {}", error.full_text()), mend)
        }
        None => Finding::new(
            Severity::Error,
            format!("{what} did not answer within {} s", patience.as_secs_f32()),
            mend,
        ),
    };
    let place = parameters.get(parameter).map(|setting| setting.origin.to_string());
    Some(Finding { place, ..finding })
}

fn now() -> UnixTime {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    UnixTime(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

/// Keys and authorities for verification.
#[derive(Clone)]
struct Trust {
    name: RepositoryName,
    keys: Option<MasterKeys>,
    blacklist: Blacklist,
}

fn ask(servers: Servers, trust: &Trust) -> Answer {
    match head(servers, trust) {
        Ok(Ok(expires)) => Answer::Good { expires },
        Ok(Err(error)) => Answer::Untrusted(error),
        Err(error) => match error.cause() {
            Cause::Untrusted(untrusted) => Answer::Untrusted(untrusted.clone()),
            _ => Answer::Failed(error),
        },
    }
}

/// Fetches the head and verifies it; when its whitelist expires.
fn head(servers: Servers, trust: &Trust) -> Result<Result<UnixTime, TrustError>, StoreError> {
    let engine = Engine::start(EngineOptions::default())?;
    let source = connect(&engine, servers)?;
    let fetch = |path: String, what: &str| -> Result<Vec<u8>, StoreError> {
        let what: Arc<str> = format!("the {what} of {}", trust.name).into();
        let stored: Stored =
            Callback::wait(|done| source.fetch(Fetch::new(path, what.clone(), HEAD_MAX), done))?;
        let spooled = |source| Cause::Disk { doing: "reading back", path: "spooled bytes".into(), source };
        stored.into_bytes().map_err(|error| StoreError::new(&*what, spooled(error)))
    };
    let manifest = fetch(manifest::PATH.into(), "manifest")?;
    let offered = trust::check_offered_manifest(&manifest, &trust.name, None);
    let claimed = match offered.and_then(|()| ClaimedHead::parse(&manifest)) {
        Ok(claimed) => claimed,
        Err(error) => return Ok(Err(error)),
    };
    let certificate = fetch(claimed.certificate_path(), "certificate")?;
    let whitelist = fetch(whitelist::PATH.into(), "whitelist")?;
    let Some(keys) = &trust.keys else {
        // The lack of keys was reported already.
        return Ok(Ok(UnixTime(i64::MAX)));
    };
    // Bytes that don't inflate are no certificate, which the verifier tells.
    let certificate = decompress(&certificate, Compression::Zlib, None, HEAD_MAX).unwrap_or_default();
    let evidence = trust::Evidence {
        manifest: &manifest,
        whitelist: &whitelist,
        certificate: &certificate,
        keys,
        blacklist: &trust.blacklist,
        name: &trust.name,
        now: now(),
        seen: None,
    };
    Ok(trust::verify(&evidence).map(|head| head.whitelist_expires()))
}
