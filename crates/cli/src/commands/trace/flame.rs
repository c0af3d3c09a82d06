//! Folds a trace into stacks: program, directories of the mount point, directories, file.

use std::collections::BTreeMap;

use super::collected::Collected;
use crate::output::plain;

/// Microseconds by stack.
pub(super) type Stacks = BTreeMap<Vec<String>, u64>;

/// Returns the stacks of a trace.
pub(super) fn stacks(collected: &Collected) -> Stacks {
    let mut stacks = Stacks::new();
    for ((command, mount, path), nanos) in &collected.stacks {
        let full = collected.full_path(*mount, path);
        let parts = full.split('/').filter(|part| !part.is_empty());
        let frames: Vec<String> = std::iter::once(command.as_str()).chain(parts).map(frame).collect();
        *stacks.entry(frames).or_default() += nanos.div_ceil(1_000);
    }
    stacks
}

/// Returns the text of a frame, without the characters that separate frames and lines.
fn frame(text: &str) -> String {
    plain(text).replace(';', ",")
}

/// Returns a line for each stack: frames joined by `;`, a space, and microseconds.
pub(super) fn folded(stacks: &Stacks) -> Vec<u8> {
    let mut text = String::new();
    for (frames, micros) in stacks {
        text.push_str(&frames.join(";"));
        text.push_str(&format!(" {micros}\n"));
    }
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use esker_node::trace::{Operation, TraceStart, TracedCall};

    use super::super::tests::call;
    use super::*;

    #[test]
    fn a_folded_line_has_the_program_the_directories_and_microseconds() {
        let start = TraceStart { mountpoint: "/cvmfs/a.test".into(), ..TraceStart::default() };
        let mut collected = Collected::new(vec![start], Vec::new());
        for took_ns in [1_500, 2_500] {
            collected.add(0, &TracedCall { took_ns, ..call("/lib/a;b c\n.py", Operation::Read) });
        }
        collected.add(0, &call("/", Operation::List));
        let text = String::from_utf8(folded(&stacks(&collected))).expect("text");
        assert_eq!(text, "python3;cvmfs;a.test 1\npython3;cvmfs;a.test;lib;a,b c?.py 4\n");
    }
}
