//! Runs a server on this machine for the duration of a measurement.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::child::Ending;

/// `esker serve`, stopped when this is dropped.
#[derive(Debug)]
pub struct Served {
    _child: Ending,
    /// URL of the server's first repository.
    pub url: String,
}

impl Served {
    /// Serves a repository's folder on loopback.
    pub fn start(esker: &str, folder: &Path) -> Result<Self> {
        let mut command = Command::new(esker);
        command.arg("serve").arg(folder).args(["--listen", "127.0.0.1:0", "--json"]);
        as_this_user(&mut command);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = Ending(child.with_context(|| format!("can't start {esker}"))?);
        let stdout = child.0.stdout.take().context("no pipe")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let ready: Value = serde_json::from_str(&line)
            .with_context(|| format!("`esker serve {}` didn't become ready", folder.display()))?;
        let url = ready["repositories"][0]["url"].as_str();
        let url = url.with_context(|| format!("{} holds no repository", folder.display()))?.to_owned();
        Ok(Self { _child: child, url })
    }
}

/// Keeps root's server root: its folders are those of a bench, which no other user can read.
pub fn as_this_user(command: &mut Command) {
    if rustix::process::geteuid().is_root() {
        command.args(["--user", "root"]);
    }
}

/// Returns the server's address in `http://HOST:PORT/…`.
pub fn address(url: &str) -> Result<SocketAddr> {
    let (host, _) = split(url)?;
    let with_port = if host.rsplit(']').next().is_some_and(|tail| tail.contains(':')) {
        host.to_owned()
    } else {
        format!("{host}:80")
    };
    let mut found = with_port.to_socket_addrs().with_context(|| format!("can't look up {host}"))?;
    found.next().with_context(|| format!("{host} has no address"))
}

/// Returns the same URL with another address.
pub fn at(url: &str, address: SocketAddr) -> Result<String> {
    let (_, path) = split(url)?;
    Ok(format!("http://{address}{path}"))
}

fn split(url: &str) -> Result<(&str, &str)> {
    let rest = url.strip_prefix("http://").with_context(|| format!("{url} isn't an http:// URL"))?;
    Ok(rest.split_at(rest.find('/').unwrap_or(rest.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_change_their_address() {
        let url = "http://127.0.0.1:8000/cvmfs/a.b";
        let there: SocketAddr = "127.0.0.1:9".parse().expect("an address");
        assert_eq!(at(url, there).expect("a url"), "http://127.0.0.1:9/cvmfs/a.b");
        assert_eq!(address(url).expect("an address").port(), 8000);
        assert_eq!(address("http://127.0.0.1/x").expect("an address").port(), 80);
        assert_eq!(address("http://[::1]/x").expect("an address").port(), 80);
        assert_eq!(address("http://[::1]:81").expect("an address").port(), 81);
        assert!(address("https://a/").is_err());
    }
}
