//! Questions on the terminal before a change that can't be undone.

use std::io::{self, BufRead as _, IsTerminal as _};
use std::os::fd::AsFd as _;

use super::interrupt::{Interrupt, Woken};
use crate::output::tell;

/// Asks a question on the terminal; without a terminal the answer is no.
pub(crate) fn confirm(question: &str, interrupt: &Interrupt) -> bool {
    let stdin = io::stdin();
    if !stdin.is_terminal() || !io::stderr().is_terminal() {
        return false;
    }
    tell(&format!("{question} [y/N] "));
    if !matches!(interrupt.wait(Some(stdin.as_fd()), None), Ok(Woken::Readable)) {
        // The line of the question is not the error's.
        tell("\n");
        return false;
    }
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer).is_ok() && is_yes(&answer)
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim(), "y" | "Y" | "yes" | "Yes" | "YES")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_is_yes() {
        for yes in ["y\n", "Y", " yes \n"] {
            assert!(is_yes(yes), "{yes:?}");
        }
        for no in ["", "\n", "n\n", "yep\n", "no"] {
            assert!(!is_yes(no), "{no:?}");
        }
    }
}
