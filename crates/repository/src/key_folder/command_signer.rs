//! A command that signs in place of a private key, for hardware tokens and signing services.
//!
//! The command gets the bytes to sign on standard input and writes the raw signature to standard output. The bytes are
//! at most 49, to be padded as PKCS#1 v1.5 type 1: `pkcs11-tool --mechanism RSA-PKCS`, `openssl pkeyutl -sign`.

use std::io::{self, Read as _, Write as _};
use std::process::{Child, Command, Stdio};

use esker_format::hash::ContentHash;
use esker_format::write::keys::KeyError;
use esker_format::write::signer::{Purpose, Signer};

/// Maximum length of a signature in bytes; keys of 16384 bits need less.
const SIGNATURE_MAX: u64 = 2048;

/// A command that signs.
#[derive(Clone, Debug)]
pub(super) struct CommandSigner {
    command: String,
    repository: String,
    prepare: fn(&mut Command),
}

impl CommandSigner {
    pub(super) fn new(command: &str, repository: &str, prepare: fn(&mut Command)) -> Self {
        Self { command: command.to_owned(), repository: repository.to_owned(), prepare }
    }

    fn run(&self, purpose: Purpose, hash: &ContentHash) -> io::Result<Vec<u8>> {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", &self.command])
            .env("ESKER_SIGN", purpose.name())
            .env("ESKER_SIGN_HASH", hash.to_string())
            .env("ESKER_REPOSITORY", &self.repository)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        (self.prepare)(&mut command);
        let mut child = command.spawn()?;
        let exchanged = exchange(&mut child, &purpose.input(hash));
        let status = child.wait()?;
        if !status.success() {
            return Err(io::Error::other(format!("it ended with {status}")));
        }
        let signature = exchanged?;
        match signature.len() as u64 {
            0 => Err(io::Error::other("it wrote no signature")),
            length if length > SIGNATURE_MAX => Err(io::Error::other("it wrote more than a signature")),
            _ => Ok(signature),
        }
    }
}

/// Sends the input, and reads at most a signature.
fn exchange(child: &mut Child, input: &[u8]) -> io::Result<Vec<u8>> {
    if let Some(mut stdin) = child.stdin.take() {
        match stdin.write_all(input) {
            // A command that has its input in the environment need not read it.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            other => other?,
        }
    }
    let mut signature = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(SIGNATURE_MAX + 1).read_to_end(&mut signature)?;
    }
    Ok(signature)
}

impl Signer for CommandSigner {
    fn sign(&self, purpose: Purpose, hash: &ContentHash) -> Result<Vec<u8>, KeyError> {
        let failed =
            |error: io::Error| KeyError::Signer { command: self.command.clone(), reason: error.to_string() };
        self.run(purpose, hash).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_format::hash::HashAlgorithm;

    fn sign(command: &str, purpose: Purpose) -> Result<Vec<u8>, KeyError> {
        CommandSigner::new(command, "a.test", |_| ())
            .sign(purpose, &ContentHash::of(HashAlgorithm::Sha1, b"x"))
    }

    #[test]
    fn a_command_gets_the_input_and_the_purpose() {
        let hash = ContentHash::of(HashAlgorithm::Sha1, b"x");
        assert_eq!(sign("cat", Purpose::Whitelist).unwrap(), hash.to_string().as_bytes());
        assert_eq!(sign("cat", Purpose::Manifest).unwrap(), Purpose::Manifest.input(&hash));
        let told =
            sign("printf %s \"$ESKER_SIGN $ESKER_REPOSITORY $ESKER_SIGN_HASH\"", Purpose::Manifest).unwrap();
        assert_eq!(String::from_utf8(told).unwrap(), format!("manifest a.test {hash}"));
    }

    #[test]
    fn a_command_that_fails_makes_no_signature() {
        for command in ["exit 3", "cat; exit 1", "true", "/no/such", "kill -9 $$", "head -c 5000 /dev/zero"] {
            let error = sign(command, Purpose::Whitelist).unwrap_err();
            assert!(matches!(&error, KeyError::Signer { .. }), "{command}: {error}");
        }
        // It is stopped by its closed output.
        assert!(sign("cat /dev/zero", Purpose::Whitelist).is_err());
    }
}
