//! TLS of the server: certificate and key from files that are read again when they change.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use esker_store::open_named;
use parking_lot::{Mutex, RwLock};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// Interval for looking at the files. A renewed certificate is used so much later at most.
const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum size of a file of certificates or a key in bytes.
const FILE_MAX: u64 = 1 << 20;

/// Failure to use a certificate.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file can't be read.
    #[error("can't read {path}")]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// A file has no certificate or key in PEM.
    #[error("{path} has no {wanted} in PEM form: {reason}")]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// Expected content of the file.
        wanted: &'static str,
        /// Reason of the parser.
        reason: String,
    },
    /// The certificate and the key can't be used together.
    #[error("can't use the certificate {certificate} with the key {key}: {reason}")]
    Unusable {
        /// Path of the certificate.
        certificate: PathBuf,
        /// Path of the key.
        key: PathBuf,
        /// Reason of the TLS library.
        reason: String,
    },
}

/// The certificate of the server and its key.
#[derive(Debug)]
pub struct TlsFiles {
    certificate: PathBuf,
    key: PathBuf,
    config: RwLock<Arc<ServerConfig>>,
    changed: Mutex<Changed>,
}

/// Times of change of the two files.
type Changed = [Option<SystemTime>; 2];

impl TlsFiles {
    /// Reads a certificate with the certificates of its issuers, and its key, both in PEM form.
    pub fn open(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let changed = changed(certificate, key);
        let config = RwLock::new(read(certificate, key)?);
        Ok(Self { certificate: certificate.into(), key: key.into(), config, changed: Mutex::new(changed) })
    }

    /// Reads the files again; connections that exist keep the old certificate.
    pub fn reload(&self) -> Result<(), TlsError> {
        let changed = changed(&self.certificate, &self.key);
        let config = read(&self.certificate, &self.key);
        // A file that can't be used is not tried again until it changes.
        *self.changed.lock() = changed;
        *self.config.write() = config?;
        Ok(())
    }

    /// Returns true if a file has changed since it was read.
    fn is_stale(&self) -> bool {
        *self.changed.lock() != changed(&self.certificate, &self.key)
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.config.read().clone().into()
    }

    /// Reads the files again whenever they change.
    pub(crate) async fn follow(self: Arc<Self>) {
        // Another program replaces the files, with a rename or in place, on any file system.
        let mut ticks = tokio::time::interval(POLL_INTERVAL);
        loop {
            ticks.tick().await;
            let files = self.clone();
            let reloaded =
                tokio::task::spawn_blocking(move || files.is_stale().then(|| files.reload())).await;
            match reloaded {
                Ok(Some(Ok(()))) => {
                    tracing::info!("read the certificate {} again", self.certificate.display())
                }
                Ok(Some(Err(error))) => tracing::warn!("keeping the old certificate: {error}"),
                Ok(None) | Err(_) => {}
            }
        }
    }
}

fn changed(certificate: &Path, key: &Path) -> Changed {
    // The folder around a key may be closed to the user of this server.
    [certificate, key].map(|path| open_named(path).and_then(|file| file.metadata()?.modified()).ok())
}

fn contents(path: &Path) -> Result<Vec<u8>, TlsError> {
    use std::io::Read;
    let unreadable = |source| TlsError::Unreadable { path: path.into(), source };
    let file = open_named(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(FILE_MAX).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

fn read(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let malformed =
        |path: &Path, wanted, reason: String| TlsError::Malformed { path: path.into(), wanted, reason };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&contents(certificate)?).collect();
    let chain = chain.map_err(|error| malformed(certificate, "certificate", error.to_string()))?;
    if chain.is_empty() {
        return Err(malformed(certificate, "certificate", "nothing was found".into()));
    }
    let secret = PrivateKeyDer::from_pem_slice(&contents(key)?)
        .map_err(|error| malformed(key, "private key", error.to_string()))?;
    let unusable = |error: rustls::Error| TlsError::Unusable {
        certificate: certificate.into(),
        key: key.into(),
        reason: error.to_string(),
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(unusable)?.with_no_client_auth().with_single_cert(chain, secret);
    let mut config = config.map_err(unusable)?;
    config.alpn_protocols = [&b"h2"[..], b"http/1.1"].map(<[u8]>::to_vec).into();
    Ok(Arc::new(config))
}
