//! Extracts the fenced boxes of a Markdown text, so that tests can run a guide's commands.

/// A fenced code block of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fenced {
    /// Info string behind the three backticks: a language, and more.
    pub info: String,
    /// Number of its first line.
    pub line: usize,
    /// Content of the box.
    pub text: String,
}

/// Returns the boxes of a text, in order.
pub fn fenced(markdown: &str) -> Vec<Fenced> {
    let mut found = Vec::new();
    let mut open: Option<Fenced> = None;
    for (number, line) in markdown.lines().enumerate() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(info), None) => {
                open = Some(Fenced { info: info.trim().to_owned(), line: number + 2, text: String::new() });
            }
            (Some(_), Some(_)) => found.extend(open.take()),
            (None, Some(fenced)) => {
                fenced.text.push_str(line);
                fenced.text.push('\n');
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "the box at line {} has no end", open.map_or(0, |fenced| fenced.line));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_blocks_are_found_with_their_info_strings() {
        let found = fenced("a\n```sh server\nb\n\nc\n```\nd\n```\ne\n```\n");
        let expected = [("sh server", 3, "b\n\nc\n"), ("", 9, "e\n")];
        let expected =
            expected.map(|(info, line, text)| Fenced { info: info.into(), line, text: text.into() });
        assert_eq!(found, expected);
    }

    #[test]
    #[should_panic(expected = "no end")]
    fn an_unclosed_code_block_is_an_error() {
        fenced("```sh\na\n");
    }
}
