//! Fetches a source from a server.

use std::sync::mpsc;
use std::time::Duration;

use esker_store::{Callback, Engine, EngineOptions, Fetch, Proxies, Servers, connect, without_passwords};

use super::tree::SOURCE_MAX;
use crate::error::{Failure, of_store};
use crate::settings::Settings;
use crate::settings::configuration;

/// Fetches the file at a URL, through the proxies of the environment or the configuration.
pub(super) fn fetch(url: &str, settings: &Settings, patience: Duration) -> Result<Vec<u8>, Failure> {
    let what = format!("can't get {url}");
    let plain = url.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#%\"\\".contains(&byte));
    let Some((base, file)) =
        url.rsplit_once('/').filter(|(base, file)| plain && base.contains("://") && !file.is_empty())
    else {
        return Err(Failure::usage(format!("{what}: it is not a plain URL of a file"))
            .hint("get it in another way, and import the file"));
    };
    let mut servers = Servers { proxies: proxies(settings)?, ..Servers::direct(base) };
    (servers.timings.proxy, servers.timings.direct) = (patience / 2, Some(patience / 2));
    let failed = |error| of_store(&what, &error);
    let engine = Engine::start(EngineOptions::default()).map_err(failed)?;
    let source = connect(&engine, servers).map_err(failed)?;
    let (sender, receiver) = mpsc::sync_channel(1);
    source.fetch(
        Fetch::new(file, "the configuration", SOURCE_MAX),
        Callback::new(move |outcome| {
            // After the timeout the receiver is gone.
            let _ = sender.send(outcome);
        }),
    );
    let answer = receiver.recv_timeout(patience).map_err(|_| {
        Failure::new(
            crate::error::Kind::Network,
            format!("{what}: it did not arrive within {} s", patience.as_secs_f32()),
        )
        .hint("check that the server is reachable from here, or get the file in another way")
    })?;
    let stored = answer.map_err(failed)?;
    stored.into_bytes().map_err(|error| Failure::failed(format!("{what}: {error}")))
}

/// Returns the proxies of the environment, or of this machine's configuration, or none.
fn proxies(settings: &Settings) -> Result<Proxies, Failure> {
    let environment = settings.environment.proxy();
    let general = configuration::load(settings, None);
    let configured = general.get("CVMFS_HTTP_PROXY").map(|setting| setting.value.clone());
    let (text, from) = match (environment, configured) {
        (Some(proxy), _) => (format!("{proxy};DIRECT"), "$http_proxy"),
        (None, Some(configured)) => (configured, "CVMFS_HTTP_PROXY"),
        (None, None) => ("DIRECT".to_owned(), "DIRECT"),
    };
    Proxies::parse(&text, environment)
        .map_err(|error| Failure::usage(format!("{from}={}: {error}", without_passwords(&text))))
}
