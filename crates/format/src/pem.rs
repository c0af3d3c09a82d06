//! PEM: binary structures as text between `-----BEGIN x-----` and `-----END x-----`.

use crate::base64;

/// Returns the decoded blocks with one of the `labels`, in order. Blocks that are not base64 are left out.
pub(crate) fn blocks(text: &[u8], labels: &[&str]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    while let Some(line) = lines.next() {
        let Some(label) = boundary(line, "BEGIN") else { continue };
        let mut base64 = Vec::new();
        for line in lines.by_ref() {
            if boundary(line, "END").is_some() {
                if labels.iter().any(|wanted| wanted.as_bytes() == label) {
                    found.extend(base64::decode(&base64));
                }
                break;
            }
            base64.extend_from_slice(line);
        }
    }
    found
}

fn boundary<'l>(line: &'l [u8], word: &str) -> Option<&'l [u8]> {
    line.strip_prefix(b"-----")?.strip_prefix(word.as_bytes())?.strip_prefix(b" ")?.strip_suffix(b"-----")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_selected_by_label() {
        let text = b"noise\n-----BEGIN A-----\naGVsbG8=\n-----END A-----\n-----BEGIN B-----\r\naGVs\r\nbG8h\r\n-----END B-----\r\n-----BEGIN A-----\n!!!!\n-----END A-----\n-----BEGIN A-----\naGVs";
        assert_eq!(blocks(text, &["A"]), [b"hello".to_vec()]);
        assert_eq!(blocks(text, &["B"]), [b"hello!".to_vec()]);
        assert_eq!(blocks(text, &["A", "B"]).len(), 2);
    }
}
