//! The gateway of the reference, on a machine of its own that has the keys and the storage of a repository.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;

use esker_testkit::waiting::Pace;

use super::machine::Machine;
use crate::publishing::NAME;
use crate::test_env::PATIENCE;

/// Returns a port for a server that is named before it runs.
pub(super) fn free_port() -> u16 {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
    free.expect("a free port").port()
}

/// A gateway that ends with this value.
pub(super) struct ReferenceGateway {
    machine: Machine,
    port: u16,
}

impl ReferenceGateway {
    /// Starts the gateway for the repository in a folder of storages.
    pub(super) fn start(machine: Machine, home: &Path, web: &str, access: &str, lease_seconds: u32) -> Self {
        // The gateway takes no port 0.
        let port = free_port();
        let home = home.display();
        machine.does(&format!(
            r#"set -e
            mkdir -p /etc/cvmfs/gateway /var/lib/gateway /etc/cvmfs/repositories.d/{NAME} /var/spool/cvmfs/{NAME}/tmp
            cp {home}/keys/{NAME}.* /etc/cvmfs/keys
            : >/var/spool/cvmfs/{NAME}/client.local
            sed -n '/^--/q;s/^Y//p' {home}/storage/{NAME}/.cvmfspublished >/var/spool/cvmfs/{NAME}/reflog.chksum
            echo '{access}' >/etc/cvmfs/gateway/repo.json
            echo '{{"port":{port},"max_lease_time":{lease_seconds},"work_dir":"/var/lib/gateway","num_receivers":1,
                "receiver_path":"/usr/bin/cvmfs_receiver"}}' >/etc/cvmfs/gateway/user.json
            cd /etc/cvmfs/repositories.d/{NAME}
            for line in CREATOR_VERSION=143 REPOSITORY_NAME={NAME} REPOSITORY_TYPE=stratum0 USER=root \
                SPOOL_DIR=/var/spool/cvmfs/{NAME} STRATUM0={web} HASH_ALGORITHM=sha1 COMPRESSION_ALGORITHM=default \
                UPSTREAM_STORAGE=local,{home}/storage/{NAME}/data/txn,{home}/storage/{NAME} \
                USE_FILE_CHUNKING=true MIN_CHUNK_SIZE=4194304 AVG_CHUNK_SIZE=8388608 MAX_CHUNK_SIZE=16777216 \
                GARBAGE_COLLECTION=true AUTOCATALOGS=false PUBLIC_KEY=/etc/cvmfs/keys/{NAME}.pub; do
                echo "CVMFS_$line"
            done | tee client.conf >server.conf"#
        ));
        let gateway = Self { machine, port };
        gateway.run();
        gateway
    }

    fn run(&self) {
        self.machine.does("setsid cvmfs_gateway >>/var/log/gateway.log 2>&1 & echo $! >/run/gateway.pid");
        let answers = || TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok();
        assert!(Pace::PROCESS.until(PATIENCE, answers), "{}", self.machine.does("cat /var/log/gateway.log"));
    }

    /// Kills the gateway and starts it again.
    pub(super) fn is_killed_and_restarted(&self) {
        self.machine.does("kill -9 $(cat /run/gateway.pid)");
        let is_gone = || TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_err();
        assert!(Pace::PROCESS.until(PATIENCE, is_gone), "the gateway does not end");
        self.run();
    }

    /// Returns the URL as publishers of Esker name it.
    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}
