//! Parses numbers in headers, as GNU tar does.

/// Number in a header. Fields have at most 12 bytes, so 128 bits are enough for any value.
pub(crate) type Number = i128;

/// Reasons why a field has no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberError {
    /// The field is blank.
    Blank,
    /// The field has text other than a number.
    NoNumber,
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Parses a field: octal digits, base 256 with the first bit set, or the base 64 of GNU tar 1.13.
///
/// Leading blanks are ignored; a zero byte or a blank ends the digits. A field of zero bytes is the number 0.
pub(crate) fn number(field: &[u8]) -> Result<Number, NumberError> {
    match start_of(field)? {
        [b'-', digits @ ..] => base_64(digits).map(|value| -value),
        [b'+', digits @ ..] => base_64(digits),
        [0x80, digits @ ..] if !digits.is_empty() => Ok(base_256(0, digits)),
        [0xff, digits @ ..] if !digits.is_empty() => Ok(base_256(-1, digits)),
        text => octal_text(text),
    }
}

/// Parses a field that may have octal digits only.
pub(crate) fn octal(field: &[u8]) -> Result<Number, NumberError> {
    octal_text(start_of(field)?)
}

/// Returns the field without ignored leading bytes. Old writers put a zero byte before numbers.
fn start_of(field: &[u8]) -> Result<&[u8], NumberError> {
    let field = field.strip_prefix(&[0]).unwrap_or(field);
    let start = field.iter().position(|byte| !is_blank(*byte)).ok_or(NumberError::Blank)?;
    Ok(field.get(start..).unwrap_or_default())
}

fn octal_text(text: &[u8]) -> Result<Number, NumberError> {
    let len = text.iter().take_while(|byte| matches!(byte, b'0'..=b'7')).count();
    let (digits, rest) = text.split_at(len);
    ended(rest)?;
    Ok(digits.iter().fold(0, |value, digit| value << 3 | Number::from(digit - b'0')))
}

fn base_64(text: &[u8]) -> Result<Number, NumberError> {
    let digits: Vec<u8> = text.iter().map_while(|byte| digit_64(*byte)).collect();
    ended(text.get(digits.len()..).unwrap_or_default())?;
    Ok(digits.into_iter().fold(0, |value, digit| value << 6 | Number::from(digit)))
}

/// Returns the value of a base 64 digit.
pub(crate) fn digit_64(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

fn base_256(start: Number, digits: &[u8]) -> Number {
    digits.iter().fold(start, |value, digit| value << 8 | Number::from(*digit))
}

fn ended(rest: &[u8]) -> Result<(), NumberError> {
    match rest.first() {
        Some(byte) if *byte != 0 && !is_blank(*byte) => Err(NumberError::NoNumber),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_parsed_as_by_gnu_tar() {
        let cases: [(&[u8], Result<Number, NumberError>); 17] = [
            (b"0000644\0", Ok(0o644)),
            (b"00000007", Ok(7)),
            (b"     7 \0", Ok(7)),
            (b"\x000000007", Ok(7)),
            (b"\0\0\0\0\0\0\0\0", Ok(0)),
            (b"    \0\0\0\0", Ok(0)),
            (b"        ", Err(NumberError::Blank)),
            (b"", Err(NumberError::Blank)),
            (b"0000008\0", Err(NumberError::NoNumber)),
            (b"64x\0", Err(NumberError::NoNumber)),
            (b"\x81\0\0\0\0\0\0\0", Err(NumberError::NoNumber)),
            (b"\x80\0\0\x01\0\0\0\0", Ok(1 << 32)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xf0", Ok(-16)),
            (b"\xff\0\0\0\0\0\0\0\0\0\0\0", Ok(-(1 << 88))),
            (b"-1\0", Ok(-53)),
            (b"+BA\0", Ok(64)),
            (b"7 8\0", Ok(7)),
        ];
        for (field, expected) in cases {
            assert_eq!(number(field), expected, "{field:?}");
        }
        assert_eq!(octal(b"\xff\xff\xff\xff"), Err(NumberError::NoNumber));
    }
}
