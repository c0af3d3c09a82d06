//! Source of passphrases for encrypted keys.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::error::RepositoryError;

/// Reason for which a passphrase is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassphraseFor {
    /// A key is decrypted.
    Opening,
    /// A key is encrypted, so a typing error would lose it.
    Protecting,
}

/// Function that returns the passphrase of a key file, or the reason why there is none.
type Ask = dyn Fn(&Path, PassphraseFor) -> Result<String, String> + Send + Sync;

/// Source of passphrases: a prompt, a file or a credential of the service manager.
#[derive(Clone)]
pub struct Passphrases(Arc<Ask>);

impl Passphrases {
    /// Makes a source from a function.
    pub fn new(ask: impl Fn(&Path, PassphraseFor) -> Result<String, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(ask))
    }

    /// Returns the passphrase of a key file.
    pub(super) fn of(&self, path: &Path, purpose: PassphraseFor) -> Result<String, RepositoryError> {
        (self.0)(path, purpose)
            .map_err(|reason| RepositoryError::Passphrase { path: path.to_owned(), reason })
    }
}

impl fmt::Debug for Passphrases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Passphrases")
    }
}
