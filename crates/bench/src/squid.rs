//! A real squid in front of a server, with its cache in memory, for the time of a measurement.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::child::Ending;

/// Timeout for squid to start listening.
const PATIENCE: Duration = Duration::from_secs(20);

/// A squid, stopped when this is dropped.
#[derive(Debug)]
pub struct Squid {
    child: Ending,
    _folder: TempDir,
    /// Address that squid listens at.
    pub address: SocketAddr,
}

impl Squid {
    /// Starts squid as a proxy of `server` with `cache` bytes of memory.
    pub fn start(program: &Path, server: SocketAddr, cache: u64) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("esker-bench-").tempdir()?;
        // Started by root it goes on as a user of its own.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777))?;
        let address = free_port()?;
        let config = folder.path().join("squid.conf");
        fs::write(&config, configuration(folder.path(), address, server, cache))?;
        let child = Command::new(program)
            .arg("-N")
            .arg("-f")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("can't start {}", program.display()))?;
        let mut squid = Self { child: Ending(child), _folder: folder, address };
        squid.wait_until_ready()?;
        Ok(squid)
    }

    /// Returns the process id of squid.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        while TcpStream::connect(self.address).is_err() {
            if let Some(status) = self.child.ended()? {
                let log = fs::read_to_string(self._folder.path().join("cache.log")).unwrap_or_default();
                bail!("squid ended: {status}\n{log}");
            }
            if start.elapsed() > PATIENCE {
                bail!("squid doesn't listen at {}", self.address);
            }
            // Squid doesn't report that it listens.
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// Returns a free port. Squid can't choose one itself; it ends if another program takes this one first.
fn free_port() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

fn configuration(folder: &Path, address: SocketAddr, server: SocketAddr, cache: u64) -> String {
    let folder = folder.display();
    let (host, port) = (server.ip(), server.port());
    let megabytes = cache.div_ceil(1 << 20);
    format!(
        "http_port {address} accel no-vhost defaultsite={host}\n\
         cache_peer {host} parent {port} 0 no-query originserver\n\
         http_access allow all\n\
         cache_mem {megabytes} MB\n\
         maximum_object_size_in_memory 64 MB\n\
         maximum_object_size 64 MB\n\
         memory_replacement_policy heap GDSF\n\
         collapsed_forwarding on\n\
         max_filedescriptors 16384\n\
         access_log none\n\
         cache_log {folder}/cache.log\n\
         pid_filename {folder}/squid.pid\n\
         coredump_dir {folder}\n\
         visible_hostname bench\n\
         pinger_enable off\n\
         shutdown_lifetime 0 seconds\n"
    )
}
