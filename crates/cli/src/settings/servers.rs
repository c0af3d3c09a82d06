//! Resolves the servers of a repository and the routes to them.

use esker_config::{Origin, Parameters};
use esker_store::{Proxies, Servers, without_passwords};

use super::address::Address;
use super::args::RepositoryArgs;
use super::configuration::{authorities, of_parameter, without_files};
use super::environment::Environment;
use crate::error::{Failure, warn};

/// Returns the servers of a repository and their routes, from the first URL on the command line.
pub(crate) fn servers(
    url: &str,
    args: &RepositoryArgs,
    environment: &Environment,
) -> Result<Servers, Failure> {
    let mut servers = Servers::direct(url);
    for further in &args.server {
        let further = Address::parse(further, args.fqrn.as_deref())?;
        servers.urls.push(further.url);
    }
    if let Some(groups) = &args.proxy {
        servers.proxies = Proxies::parse(groups, environment.proxy()).map_err(|error| {
            Failure::usage(format!("--proxy {:?}: {error}", without_passwords(groups)))
                .hint("write it like 'http://squid1:3128|http://squid2:3128;DIRECT'")
        })?;
    }
    servers.order = args.server_order.unwrap_or_default();
    servers.http2 = !args.no_http2;
    servers.authorities = authorities(&without_files(environment), &args.ca)?;
    if !args.external.is_empty() {
        let urls = args.external.iter().map(|url| url.trim_end_matches('/').to_owned()).collect();
        servers.external = Some(Box::new(Servers { urls, ..servers.clone() }));
    }
    set_timeouts(&mut servers, args);
    let mixed = servers.urls.iter().any(|url| url.starts_with("file:"));
    if mixed && (servers.urls.len() > 1 || args.proxy.is_some()) {
        return Err(Failure::usage("a folder needs no proxy, and can't be one of several servers"));
    }
    Ok(servers)
}

/// Returns the servers of a configured repository, with the options that override its parameters.
pub(super) fn configured(
    parameters: &Parameters,
    args: &RepositoryArgs,
    environment: &Environment,
) -> Result<Servers, Failure> {
    let auto = environment.proxy();
    if let Some(unknown) = parameters.unknown_auto(auto) {
        warn(Some(&format!("{unknown}; {}", unknown.mend)));
    }
    let mut servers = parameters.servers(auto).map_err(of_parameter)?;
    for url in &mut servers.urls {
        *url = Address::parse(url, parameters.name())?.url;
    }
    parameters.add_external(&mut servers, auto).map_err(of_parameter)?;
    let authorities = authorities(parameters, &args.ca)?;
    if let Some(external) = &mut servers.external {
        external.authorities = authorities.clone();
    }
    servers.authorities = authorities;
    set_timeouts(&mut servers, args);
    Ok(servers)
}

/// Applies options of the command line, which override the files.
pub(super) fn overrule(parameters: &mut Parameters, args: &RepositoryArgs) -> Result<(), Failure> {
    if !args.server.is_empty() {
        let urls: Result<Vec<_>, _> = args
            .server
            .iter()
            .map(|url| Address::parse(url, args.fqrn.as_deref()).map(|it| it.url))
            .collect();
        parameters.overrule("CVMFS_SERVER_URL", urls?.join(";"), Origin::Option("--server"));
    }
    if !args.external.is_empty() {
        parameters.overrule("CVMFS_EXTERNAL_URL", args.external.join(";"), Origin::Option("--external"));
    }
    if args.no_http2 {
        parameters.overrule("ESKER_HTTP2", "no".to_owned(), Origin::Option("--no-http2"));
    }
    if let Some(order) = &args.server_order {
        parameters.overrule("ESKER_SERVER_ORDER", order.to_string(), Origin::Option("--server-order"));
    }
    if let Some(proxy) = &args.proxy {
        parameters.overrule("CVMFS_HTTP_PROXY", proxy.clone(), Origin::Option("--proxy"));
    }
    Ok(())
}

/// Applies the timeouts that the command line sets.
fn set_timeouts(servers: &mut Servers, args: &RepositoryArgs) {
    if let Some(timeout) = args.timeout {
        (servers.timings.proxy, servers.timings.direct) = (timeout, Some(timeout));
        servers.dns.timeout = timeout;
    }
    if let Some(reset) = args.reset_after {
        (servers.timings.proxy_reset, servers.timings.server_reset) = (Some(reset), Some(reset));
    }
}
