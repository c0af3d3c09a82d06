//! Tokens of leases.

use std::fmt;

use data_encoding::BASE32;
use rand_core::{OsRng, RngCore as _};

/// Number of random bytes of a token.
const LEN: usize = 32;

/// Secret name of a lease, from the random numbers of the operating system.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(String);

impl Token {
    /// Makes a token that no other lease has.
    pub fn random() -> Self {
        let mut bytes = [0; LEN];
        OsRng.fill_bytes(&mut bytes);
        Self(BASE32.encode(&bytes))
    }

    /// Returns the token that a publisher proposes; none if it is of another form than those of [`Self::random`].
    pub fn proposed(text: &str) -> Option<Self> {
        let is_token = BASE32.decode(text.as_bytes()).is_ok_and(|bytes| bytes.len() == LEN);
        is_token.then(|| Self::named(text))
    }

    /// Returns the token that a publisher names. It need not be one of a lease.
    pub fn named(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Returns the text, which is given to the publisher only.
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// Returns the beginning of the text, which names the lease for operators and in logs.
    pub fn short(&self) -> &str {
        self.0.get(..8).unwrap_or(&self.0)
    }
}

/// Shows the beginning only: the token is the right to use the lease.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({}…)", self.short())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_the_form_of_the_reference_and_are_not_shown() {
        let (one, other) = (Token::random(), Token::random());
        assert_ne!(one, other);
        assert_eq!((one.secret().len(), BASE32.decode(one.secret().as_bytes()).unwrap().len()), (56, LEN));
        assert!(!format!("{one:?}").contains(one.secret()));
        assert_eq!(Token::proposed(one.secret()), Some(one.clone()));
        assert!(
            ["", "MFRGG===", &one.secret().to_lowercase()].iter().all(|text| Token::proposed(text).is_none())
        );
    }
}
