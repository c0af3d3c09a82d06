//! Names of formats that Esker doesn't read, for error messages.

use crate::Compression;

/// Offset of a signature, its bytes, and the name of the format.
const FORMATS: [(usize, &[u8], &str); 20] = [
    (0, b"PK\x03\x04", "a zip archive"),
    (0, b"PK\x05\x06", "an empty zip archive"),
    (0, b"070701", "a cpio archive"),
    (0, b"070702", "a cpio archive"),
    (0, b"070707", "a cpio archive"),
    (0, b"\xc7\x71", "a cpio archive"),
    (0, b"\x71\xc7", "a cpio archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (0, b"Rar!\x1a\x07", "a rar archive"),
    (0, b"!<arch>\n", "an ar archive or Debian package"),
    (0, b"\xed\xab\xee\xdb", "an RPM package"),
    (0, b"xar!", "a xar archive"),
    (0, b"MSCF", "a cabinet archive"),
    (0, b"hsqs", "a squashfs image"),
    (0, b"\x1f\x9d", "compressed with compress (.Z)"),
    (0, b"\x89LZO\0\r\n\x1a\n", "compressed with lzop"),
    (0, b"\x02\x21\x4c\x18", "compressed with the old format of lz4"),
    (0, b"LRZI", "compressed with lrzip"),
    (0, b"\x7fELF", "a program"),
    (0, b"<!DOCTYPE", "a web page"),
];

/// Returns the name of the format that begins with `start`, if it is a known format other than tar.
pub(crate) fn name_of_format(start: &[u8]) -> Option<String> {
    let has =
        |(at, magic, _): &&(usize, &[u8], &str)| start.get(*at..).unwrap_or_default().starts_with(magic);
    if let Some((_, _, name)) = FORMATS.iter().find(has) {
        return Some((*name).to_owned());
    }
    Compression::of(start).map(|compression| format!("compressed with {}", compression.name_and_command().0))
}

/// Returns the end of the sentence "it is no tar archive": the actual format, and what the user can do.
pub(crate) fn explained(start: &[u8]) -> String {
    if start.iter().all(|byte| *byte == 0) {
        return String::new();
    }
    match name_of_format(start) {
        None => String::new(),
        Some(name) if name.starts_with("compressed") => {
            format!(", it is {name} inside: remove that compression first")
        }
        Some(name) if name.ends_with("archive") => {
            format!(
                " but {name}: unpack it and name the folder, or convert it with `bsdtar -cf FILE.tar @ARCHIVE`"
            )
        }
        Some(name) => format!(" but {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_identified_by_name() {
        assert_eq!(name_of_format(b"PK\x03\x04rest").as_deref(), Some("a zip archive"));
        assert_eq!(name_of_format(b"\x1f\x9d\x90").as_deref(), Some("compressed with compress (.Z)"));
        assert_eq!(name_of_format(b"\x1f\x8b\x08").as_deref(), Some("compressed with gzip"));
        assert_eq!(name_of_format(b"hello"), None);
        assert!(explained(b"070701...").contains("cpio") && explained(b"070701...").contains("bsdtar"));
        assert_eq!(explained(&[0; 9]), "");
    }
}
