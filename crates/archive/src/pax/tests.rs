use super::*;

fn at(seconds: i64, nanoseconds: u32) -> Option<Time> {
    Some(Time { seconds, nanoseconds })
}

#[test]
fn times_are_parsed_as_by_gnu_tar() {
    for (text, expected) in [
        ("12", at(12, 0)),
        ("12.5", at(12, 500_000_000)),
        ("12.0000000019", at(12, 1)),
        ("12.", at(12, 0)),
        ("12x", at(12, 0)),
        ("-1.25", at(-2, 750_000_000)),
        ("-1.0000000001", at(-2, 999_999_999)),
        ("-3", at(-3, 0)),
        ("-9223372036854775808", at(i64::MIN, 0)),
        ("9223372036854775808", None),
        ("x", None),
        (".5", None),
        ("+1", None),
        ("", None),
    ] {
        assert_eq!(time(text.as_bytes()), expected, "{text}");
    }
}

fn all(text: &[u8]) -> Result<Extended, String> {
    let mut extended = Extended::default();
    records(text, |key, value| extended.take(key, value))?;
    Ok(extended)
}

#[test]
fn the_last_record_of_a_keyword_wins() {
    let text = b"10 uid=10\n8 uid=7\n14 path=a\nb\n\0\n16 linkpath=x=y\n\0\0\0";
    let extended = all(text).expect("records");
    assert_eq!(extended.uid, Some(7));
    assert_eq!(extended.path.as_deref(), Some(&b"a\nb\n\0"[..]));
    assert_eq!(extended.link.as_deref(), Some(&b"x=y"[..]));
    for bad in [
        &b"x path=a\n"[..],
        b"99 path=a\n",
        b"9 path=ab\n",
        b"7 path\n",
        b"2 ",
        b"18446744073709551616 a=b\n",
        b"8 uid=x\n",
        b"9 uid=-1\n",
        b"18 uid=4294967295\n",
        b"8 size=\n",
    ] {
        assert!(all(bad).is_err(), "{:?}", String::from_utf8_lossy(bad));
    }
}

#[test]
fn names_and_values_of_attributes_are_decoded() {
    let mut extended = Extended::default();
    let mut take = |key: &str, value: &[u8]| extended.take(key.as_bytes(), value).expect("a record");
    take("SCHILY.xattr.user.x%3Dy%25%20", b"a\n\0b");
    take("SCHILY.xattr.user.twice", b"1");
    take("SCHILY.xattr.user.twice", b"0");
    take("LIBARCHIVE.xattr.user.a%20b", b"AP8K");
    take("LIBARCHIVE.xattr.user.twice", b"AA");
    let expected: [(&[u8], &[u8]); 3] =
        [(b"user.a b", &[0, 0xff, b'\n']), (b"user.twice", b"0"), (b"user.x=y%%20", b"a\n\0b")];
    let expected = expected.map(|(name, value)| (name.to_vec(), value.to_vec()));
    assert_eq!(extended.take_xattrs().expect("attributes"), expected);
    assert!(extended.take(b"SCHILY.xattr.user.a\0b", b"").is_err());
    extended.take(b"LIBARCHIVE.xattr.user.a%00b", b"").expect("a record");
    assert!(extended.take_xattrs().is_err());
}

#[test]
fn base_64_is_decoded_with_or_without_padding() {
    for (text, expected) in
        [("", Some(&b""[..])), ("QQ", Some(b"A")), ("QUI=", Some(b"AB")), ("QUJD", Some(b"ABC"))]
    {
        assert_eq!(base_64(text.as_bytes()).as_deref(), expected, "{text}");
    }
    assert!(base_64(b"Q").is_none() && base_64(b"Q!").is_none() && base_64(b"QQ=A").is_none());
}

#[test]
fn maps_in_both_old_formats_are_parsed() {
    let mut sparse = Sparse::default();
    let mut take = |key: &str, value: &str| sparse.take(key.as_bytes(), value.as_bytes());
    take("numblocks", "2").expect("a record");
    take("offset", "0").expect("a record");
    take("numbytes", "512").expect("a record");
    take("offset", "1024").expect("a record");
    take("numbytes", "0").expect("a record");
    assert!(take("offset", "2000").is_err(), "one more than announced");
    take("numblocks", "2").expect("a record");
    take("map", "0,512,1024,0").expect("a record");
    assert!(take("map", "0").is_err());
    assert_eq!(sparse.map().expect("a map").expect("a map").end(), 1024);
}
