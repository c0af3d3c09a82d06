//! Variant symlinks: targets that contain `$(NAME)` or `$(NAME:-default)`.

use std::borrow::Cow;

/// Replaces the variables in a symlink target by the values of `lookup`, or by their defaults.
///
/// An unset variable without default is empty; a set variable keeps its value even if empty. Values are not
/// expanded again, and `$(` without a closing parenthesis stands for itself.
pub fn expand(target: &[u8], lookup: impl Fn(&[u8]) -> Option<Vec<u8>>) -> Cow<'_, [u8]> {
    if !target.contains(&b'$') {
        return Cow::Borrowed(target);
    }
    let mut expanded = Vec::with_capacity(target.len());
    let mut rest = target;
    while let Some((before, variable, after)) = split_variable(rest) {
        expanded.extend_from_slice(before);
        let (name, default) = split_default(variable);
        match lookup(name) {
            Some(value) => expanded.extend_from_slice(&value),
            None => expanded.extend_from_slice(default),
        }
        rest = after;
    }
    expanded.extend_from_slice(rest);
    Cow::Owned(expanded)
}

/// Splits `before$(variable)after` at the first variable.
fn split_variable(text: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let start = text.windows(2).position(|pair| pair == b"$(")?;
    let (before, opened) = text.split_at_checked(start)?;
    let inner = opened.get(2..)?;
    let end = inner.iter().position(|byte| *byte == b')')?;
    let (variable, closed) = inner.split_at_checked(end)?;
    Some((before, variable, closed.get(1..)?))
}

fn split_default(variable: &[u8]) -> (&[u8], &[u8]) {
    match variable.windows(2).position(|pair| pair == b":-") {
        Some(at) => (variable.get(..at).unwrap_or_default(), variable.get(at + 2..).unwrap_or_default()),
        None => (variable, &[]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn expanded(target: &str) -> String {
        let lookup = |name: &[u8]| match name {
            b"ARCH" => Some(b"x86_64".to_vec()),
            b"EMPTY" => Some(Vec::new()),
            b"NEST" => Some(b"$(ARCH)".to_vec()),
            _ => None,
        };
        String::from_utf8(expand(target.as_bytes(), lookup).into_owned()).unwrap()
    }

    #[test]
    fn variables_and_defaults_are_replaced_once() {
        for (target, result) in [
            ("plain/../target", "plain/../target"),
            ("/sw/$(ARCH)/lib", "/sw/x86_64/lib"),
            ("$(ARCH)$(ARCH)", "x86_64x86_64"),
            ("/sw/$(NOT)/lib", "/sw//lib"),
            ("/sw/$(NOT:-def/ault)/lib", "/sw/def/ault/lib"),
            ("$(EMPTY:-default)", ""),
            ("$(NEST)", "$(ARCH)"),
            ("$(NOT:-a:-b)", "a:-b"),
            ("$()", ""),
            ("a$(ARCH", "a$(ARCH"),
            ("a$(A $(ARCH)", "a"),
            ("$ARCH $ $(", "$ARCH $ $("),
            ("cost$5", "cost$5"),
        ] {
            assert_eq!(expanded(target), result, "{target}");
        }
    }

    proptest! {
        #[test]
        fn a_target_without_variables_is_unchanged(target: Vec<u8>) {
            let result = expand(&target, |_| None);
            prop_assert!(result.len() <= target.len());
            if !target.contains(&b')') {
                prop_assert_eq!(&*result, &*target);
            }
        }
    }
}
