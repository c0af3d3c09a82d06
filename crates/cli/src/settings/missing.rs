//! Reports all missing settings of a configured repository at once, with advice.

use esker_config::Parameters;

use crate::error::Failure;

/// Returns the keys, unless servers, keys or proxies are missing: then an error with all of them, and advice.
pub(super) fn name_all<T>(parameters: &Parameters, keys: Result<T, Failure>) -> Result<T, Failure> {
    let name = parameters.name().unwrap_or_default();
    let domain = name.split_once('.').map_or("DOMAIN", |(_, domain)| domain);
    let is_missing = |parameter| parameters.get(parameter).is_none();
    let no_servers = is_missing("CVMFS_SERVER_URL");
    let no_proxies = is_missing("CVMFS_HTTP_PROXY");
    let (mut missing, mut mends) = (Vec::new(), Vec::new());
    if no_servers {
        missing.push(format!("its servers: CVMFS_SERVER_URL is not set for {name}"));
        mends.push(format!(
            "servers: set it in /etc/cvmfs/domain.d/{domain}.local, copy the domain's /etc/cvmfs/domain.d/{domain}.conf and keys from a machine that has them, use --server URL, or give a URL in place of the name"
        ));
    }
    let keys = keys.map_err(|failure| {
        missing.push(format!("its keys: {}", failure.message));
        mends.extend(failure.hint.map(|hint| format!("keys: {hint}")));
    });
    if no_proxies {
        missing.push(format!("its proxies: CVMFS_HTTP_PROXY is not set for {name}"));
        mends.push(
            "proxies: set it in /etc/cvmfs/default.local (or http_proxy in esker.toml), to DIRECT if there is no proxy, or use --proxy GROUPS"
                .to_owned(),
        );
    }
    if missing.is_empty()
        && let Ok(keys) = keys
    {
        return Ok(keys);
    }
    if no_servers || keys.is_err() {
        mends.push(
            "servers and keys of a domain come with `esker setup import FILE|DIR|URL`, from its configuration repository, \
             a machine that has them, or its publisher"
                .to_owned(),
        );
    }
    Err(Failure::usage(format!("the configuration lacks settings for {name}: {}", missing.join("; ")))
        .hint(mends.join("\n")))
}
