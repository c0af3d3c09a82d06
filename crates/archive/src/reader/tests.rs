use std::io::Write as _;
use std::sync::Arc;

use esker_testkit::raw_tar::{self, GNU, Raw, V7, archive, octal12, old_sparse, pax_sparse};

use super::*;
use crate::content::bounded;
use crate::entry::{Device, Time};
use crate::{FileContent, Holes, Kind};

#[path = "../../../../fuzz/src/archive.rs"]
#[allow(dead_code, unreachable_pub)]
mod fuzz;

/// Returns the entries of an archive with the contents of files.
fn all(bytes: &[u8]) -> Result<Vec<(Entry, Vec<u8>)>, ArchiveError> {
    let mut reader = Reader::new(bytes);
    let mut found = Vec::new();
    while let Some(entry) = reader.next()? {
        let mut content = Vec::new();
        if matches!(entry.kind, Kind::File(_)) {
            reader
                .content()
                .read_to_end(&mut content)
                .map_err(|source| ArchiveError::Io { offset: 0, source })?;
        }
        found.push((entry, content));
    }
    Ok(found)
}

fn members(members: &[Raw]) -> Vec<(Entry, Vec<u8>)> {
    all(&archive(members)).expect("an archive")
}

fn paths(found: &[(Entry, Vec<u8>)]) -> Vec<String> {
    found.iter().map(|(entry, _)| String::from_utf8_lossy(&entry.path).into_owned()).collect()
}

#[track_caller]
fn assert_rejected(bytes: &[u8], expected: &[&str]) {
    let error = all(bytes).expect_err("refused").to_string();
    assert!(expected.iter().all(|expected| error.contains(expected)), "{expected:?}: {error}");
}

#[test]
fn entries_of_every_type_are_read() {
    let found = members(&[
        Raw::directory(b"./d/"),
        Raw::file(b"d/f", b"hello"),
        Raw::link(b'1', b"d/h", b"./d/f"),
        Raw::link(b'2', b"l", b"../x"),
        Raw::new(b'3', b"c").device(b"0000005\0", b"0000001\0"),
        Raw::new(b'4', b"b").device(b"0007777\0", b"3777777\0"),
        Raw::new(b'6', b"p"),
        Raw::file(b"contiguous", b"x").kind(b'7'),
        Raw::file(b"name", b"x").prefix(b"a/prefix"),
    ]);
    assert_eq!(paths(&found), ["d", "d/f", "d/h", "l", "c", "b", "p", "contiguous", "a/prefix/name"]);
    let kinds: Vec<&Kind> = found.iter().map(|(entry, _)| &entry.kind).collect();
    assert_eq!(kinds[0], &Kind::Directory);
    assert_eq!(kinds[1], &Kind::File(Data { size: 5, start: 1024, regions: None }));
    assert_eq!(kinds[2], &Kind::Hardlink(b"d/f".to_vec()));
    assert_eq!(kinds[3], &Kind::Symlink(b"../x".to_vec()));
    assert_eq!(kinds[4], &Kind::CharDevice(Device { major: 5, minor: 1 }));
    assert_eq!(kinds[5], &Kind::BlockDevice(Device { major: 4095, minor: 1_048_575 }));
    assert_eq!(kinds[6], &Kind::Fifo);
    let (file, content) = &found[1];
    assert_eq!((content.as_slice(), file.mode, file.uid, file.gid), (&b"hello"[..], 0o644, 7, 8));
    assert_eq!((file.mtime.seconds, file.offset), (0o13_000_000_000, 512));
    assert!(found.iter().all(|(entry, _)| entry.unknown_type.is_none()));
}

#[test]
fn long_name_and_extended_headers_apply_to_the_next_entry() {
    let long = format!("{}/name", "long".repeat(60));
    let target = "t".repeat(200);
    let found = members(&[
        Raw::long(b'L', long.as_bytes()),
        Raw::pax(b'x', &[(b"mtime", b"99.5"), (b"SCHILY.xattr.user.a", b"x\0y"), (b"uid", b"3000000000")]),
        Raw::file(b"short", b"1").magic(GNU),
        Raw::long(b'K', target.as_bytes()),
        Raw::link(b'2', b"link", b"short"),
        Raw::pax(b'x', &[(b"path", b"from\npax")]),
        Raw::long(b'L', b"not this"),
        Raw::file(b"nor this", b"2"),
        Raw::pax(b'x', &[(b"mtime", b"1")]),
        Raw::pax(b'X', &[(b"uid", b"5")]),
        Raw::file(b"the last one counts", b"2"),
        Raw::pax(b'x', &[(b"mtime", b"1")]),
        Raw::new(b'V', b"label"),
        Raw::file(b"after a label", b""),
        Raw::pax(b'x', &[(b"mtime", b"1")]),
    ]);
    assert_eq!(paths(&found), [&*long, "link", "from\npax", "the last one counts", "after a label"]);
    let (file, _) = &found[0];
    assert_eq!(file.mtime, Time { seconds: 99, nanoseconds: 500_000_000 });
    assert_eq!((file.uid, &file.xattrs[..]), (3_000_000_000, &[(b"user.a".to_vec(), b"x\0y".to_vec())][..]));
    assert_eq!(found[1].0.kind, Kind::Symlink(target.into_bytes()));
    assert_eq!((found[1].0.uid, found[1].0.mtime.seconds), (7, 0o13_000_000_000));
    assert_eq!((found[3].0.uid, found[3].0.mtime.seconds), (5, 0o13_000_000_000));
    assert_eq!(found[4].0.mtime.seconds, 0o13_000_000_000);
}

#[test]
fn a_global_header_applies_to_all_entries_until_the_next_global_header() {
    let found = members(&[
        Raw::file(b"before", b""),
        Raw::pax(b'g', &[(b"mtime", b"5"), (b"uid", b"9"), (b"comment", b"of git")]),
        Raw::file(b"a", b""),
        Raw::pax(b'x', &[(b"mtime", b"6")]),
        Raw::file(b"b", b""),
        Raw::pax(b'g', &[(b"mtime", b"7")]),
        Raw::file(b"c", b""),
    ]);
    let expected: Vec<(i64, u32)> = found.iter().map(|(entry, _)| (entry.mtime.seconds, entry.uid)).collect();
    assert_eq!(expected, [(0o13_000_000_000, 7), (5, 9), (6, 9), (7, 7)]);
    assert_rejected(&archive(&[Raw::pax(b'g', &[(b"GNU.volume.offset", b"50")])]), &["volume"]);
}

#[test]
fn sizes_are_ignored_for_entries_without_content() {
    let size = octal12(2);
    let found = members(&[
        Raw::directory(b"d/").size(&size),
        Raw::new(0, b"v7/").magic(V7).size(&size),
        Raw::link(b'2', b"l", b"x").size(&size),
        Raw::new(b'6', b"p").size(&size),
        Raw::file(b"f", b"hi"),
        Raw::link(b'1', b"of ustar", b"f").size(&size),
        Raw::link(b'1', b"of pax", b"f").size(&size).unsized_data(b"hi"),
        Raw::new(b'D', b"dumped").magic(GNU).data(b"Yfile\0\0"),
        Raw::file(b"last", b"end"),
    ]);
    assert_eq!(paths(&found), ["d", "v7", "l", "p", "f", "of ustar", "of pax", "dumped", "last"]);
    for directory in [0, 1, 7] {
        assert_eq!(found[directory].0.kind, Kind::Directory);
    }
    assert_eq!(found[8].1, b"end");
}

fn expanded(regions: &[(u64, &[u8])], size: usize) -> Vec<u8> {
    let mut file = vec![0; size];
    for (offset, bytes) in regions {
        let offset = usize::try_from(*offset).expect("small");
        file[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
    file
}

#[test]
fn sparse_files_of_every_format_are_read() {
    let (a, b) = ([b'a'; 512], [b'b'; 512]);
    let stored = [a, b].concat();
    let map: [(u64, u64); 3] = [(0, 512), (1024, 512), (3000, 0)];
    let file = expanded(&[(0, &a), (1024, &b)], 3000);
    let of_records = |records: &[(&[u8], &[u8])]| {
        [Raw::pax(b'x', records).bytes(), Raw::file(b"it", &stored).bytes()].concat()
    };
    let size: (&[u8], &[u8]) = (b"GNU.sparse.size", b"3000");
    let count: (&[u8], &[u8]) = (b"GNU.sparse.numblocks", b"3");
    let pairs = of_records(&[
        size,
        count,
        (b"GNU.sparse.offset", b"0"),
        (b"GNU.sparse.numbytes", b"512"),
        (b"GNU.sparse.offset", b"1024"),
        (b"GNU.sparse.numbytes", b"512"),
        (b"GNU.sparse.offset", b"3000"),
        (b"GNU.sparse.numbytes", b"0"),
    ]);
    let list = of_records(&[
        size,
        count,
        (b"GNU.sparse.name", b"it"),
        (b"GNU.sparse.map", b"0,512,1024,512,3000,0"),
    ]);
    let mut star = Raw::new(b'S', b"it").put(475, b"\0").put(476, b"13000000000 ").put(488, b"13000000000 ");
    let fields: Vec<u8> =
        map.iter().flat_map(|(offset, len)| [octal12(*offset), octal12(*len)].concat()).collect();
    star = star.put(356, &fields).put(452, &octal12(3000)).data(&stored);
    let forms = [
        old_sparse(b"it", &map, 3000, &stored),
        pairs,
        list,
        pax_sparse(b"it", &map, 3000, &stored),
        star.bytes(),
    ];
    for (number, form) in forms.into_iter().enumerate() {
        let bytes = [form, archive(&[Raw::file(b"next", b"data")])].concat();
        let found = all(&bytes).expect("an archive");
        assert_eq!(paths(&found), ["it", "next"], "form {number}");
        assert!(found[0].1 == file, "form {number}");
        let Kind::File(data) = &found[0].0.kind else { panic!("no file") };
        // Reads the same archive from a file, with its holes.
        let mut copy = tempfile_of(&bytes);
        copy.flush().expect("written");
        let copy = Arc::new(copy);
        let mut content = FileContent::new(copy.clone(), data.clone());
        let mut start = [0; 512];
        content.read_exact(&mut start).expect("the first region");
        assert!(
            start == a && content.skip_hole(512).expect("a hole") && !content.skip_hole(1).expect("data")
        );
        let mut rest = Vec::new();
        content.read_to_end(&mut rest).expect("the rest");
        assert!(rest == file[1024..]);
        let mut reader = Reader::of_file(copy).expect("a reader");
        let mut names = Vec::new();
        while let Some(entry) = reader.next().expect("an entry") {
            names.push(entry.path);
        }
        assert_eq!(names, [&b"it"[..], b"next"]);
    }
}

/// Returns an unnamed file.
fn tempfile_of(bytes: &[u8]) -> std::fs::File {
    let path = std::env::temp_dir().join(format!("esker-archive-{}-{:p}", std::process::id(), bytes));
    let options = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path);
    let mut file = options.expect("a file");
    std::fs::remove_file(&path).expect("removed");
    file.write_all(bytes).expect("written");
    file
}

#[test]
fn maps_with_many_regions_continue_in_further_blocks() {
    let map: Vec<(u64, u64)> = (0..60).map(|number| (number * 1024, 512)).collect();
    let stored: Vec<u8> = (0..60).flat_map(|number| [number; 512]).collect();
    for bytes in [old_sparse(b"it", &map, 60_000, &stored), pax_sparse(b"it", &map, 60_928, &stored)] {
        let found = match all(&[bytes, archive(&[Raw::file(b"next", b"")])].concat()) {
            Ok(found) => found,
            // In the old format the last region ends behind the file's end here.
            Err(error) => {
                assert!(error.to_string().contains("beyond its end"), "{error}");
                continue;
            }
        };
        assert_eq!((found[0].1.len(), found.len()), (60_928, 2));
        assert!(found[0].1[59 * 1024..] == [59; 512] && found[0].1[512..1024] == [0; 512]);
    }
    let found = all(&old_sparse(b"it", &map, 60_928, &stored)).expect("an archive");
    assert!(found[0].1[59 * 1024..] == [59; 512]);
}

#[test]
fn entries_invalid_on_every_file_system_are_rejected_by_name() {
    let long = [b'x'; 256];
    let deep = [b"d/".repeat(2048), b"x".to_vec()].concat();
    let target = [b't'; 4096];
    let pax = |key: &[u8], value: &[u8]| Raw::pax(b'x', &[(key, value)]);
    let file = || Raw::file(b"the file", b"hi");
    let cases: [(Vec<Raw>, &[&str]); 22] = [
        (vec![Raw::file(b"../x", b"")], &["../x", "`..`", "byte 0"]),
        (vec![file(), Raw::file(b"a/../../x", b"")], &["a/../../x", "byte 1024"]),
        (vec![Raw::file(b"", b"")], &["no name"]),
        (vec![Raw::file(b"/", b"")], &["the folder itself"]),
        (vec![pax(b"path", b"a\0b"), file()], &["a\\u{0}b", "zero byte"]),
        (vec![pax(b"path", &long), file()], &["256 bytes"]),
        (vec![Raw::long(b'L', &deep), file()], &["4097 bytes"]),
        (vec![pax(b"linkpath", b"a\0b"), Raw::link(b'2', b"the link", b"x")], &["the link", "zero byte"]),
        (vec![pax(b"linkpath", &target), Raw::link(b'2', b"the link", b"x")], &["the link", "4096 bytes"]),
        (vec![Raw::link(b'2', b"the link", b"")], &["the link", "without a target"]),
        (vec![Raw::link(b'1', b"the link", b"../x")], &["the link", "`..`"]),
        (vec![Raw::link(b'1', b"the link", b"")], &["the link", "without a target"]),
        (vec![pax(b"SCHILY.xattr.user.a\0b", b""), file()], &["the file", "zero byte"]),
        (vec![pax(b"uid", b"4294967295"), file()], &["the file", "4294967295"]),
        (vec![file().uid(b"\x80\0\0\x01\0\0\0\0")], &["the file", "owner is 4294967296"]),
        (vec![file().gid(b"\xff\xff\xff\xff\xff\xff\xff\xff")], &["the file", "group is -1"]),
        (vec![file().uid(b"        ")], &["the file", "owner is blank"]),
        (vec![file().mode(b"64x\0")], &["the file", "mode is no number"]),
        (vec![file().size(&[0xff; 12])], &["the file", "size is -1"]),
        (vec![Raw::new(b'3', b"the device").device(b"", b"4000000\0")], &["the device", "minor"]),
        (vec![Raw::new(b'M', b"the part").magic(GNU)], &["the part", "volume"]),
        (vec![Raw::new(b'S', b"the part")], &["the part", "type S"]),
    ];
    for (members, expected) in cases {
        assert_rejected(&archive(&members), expected);
    }
}

#[test]
fn entries_of_unknown_type_are_regular_files() {
    let found = members(&[Raw::file(b"odd", b"hi").kind(b'Z'), Raw::file(b"next", b"")]);
    assert_eq!((found[0].0.unknown_type, found[0].1.as_slice(), found.len()), (Some(b'Z'), &b"hi"[..], 2));
}

#[test]
fn checksums_over_signed_bytes_are_accepted() {
    let mut raw = Raw::file("é".as_bytes(), b"hi");
    raw.signed = true;
    assert_eq!(paths(&members(&[raw.clone()])), ["é"]);
    let mut bytes = archive(&[raw]);
    bytes[0] ^= 1;
    assert_rejected(&bytes, &["no tar archive"]);
}

#[test]
fn archives_end_at_a_zero_block_or_with_the_file() {
    let file = Raw::file(b"f", b"hi").bytes();
    let names = |bytes: &[u8]| all(bytes).map(|found| found.len());
    assert_eq!(names(&file).expect("no end"), 1);
    assert_eq!(names(&[file.clone(), vec![0; 512], file.clone()].concat()).expect("one zero block"), 1);
    assert_eq!(names(&[file.clone(), vec![0; 1024], vec![b'x'; 700]].concat()).expect("garbage"), 1);
    assert_eq!(names(b"").expect("nothing"), 0);
    let cut = |bytes: &[u8]| all(bytes).expect_err("cut");
    assert!(matches!(
        cut(&[file.clone(), file[..100].to_vec()].concat()),
        ArchiveError::Cut { offset: 1124, .. }
    ));
    assert!(cut(&file[..513]).is_of_reading(), "its content is cut");
    assert_eq!(cut(&file[..600]).to_string(), "the archive ends at byte 600, within f", "its filling is cut");
    assert_rejected(&[file.clone(), vec![b'x'; 512]].concat(), &["a header", "byte 1024"]);
    assert_rejected(b"hello", &["no tar archive", "5 bytes"]);
    assert_rejected(&[b"PK\x03\x04".to_vec(), vec![1; 600]].concat(), &["zip archive", "bsdtar"]);
    assert_rejected(&[vec![0x1f, 0x8b, 8], vec![1; 600]].concat(), &["gzip inside"]);
}

/// Endless stream of zeros that fails after the maximum length of a header.
struct EndlessZeros {
    start: std::io::Cursor<Vec<u8>>,
    left: u64,
}

impl Read for EndlessZeros {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let len = self.start.read(room)?;
        if len > 0 {
            return Ok(len);
        }
        assert!(self.left > 0, "more is read than a header may have");
        let room = bounded(room, self.left);
        room.fill(b'1');
        self.left -= room.len() as u64;
        Ok(room.len())
    }
}

#[test]
fn memory_use_does_not_depend_on_claimed_lengths() {
    let claims = octal12(1 << 30);
    let huge = |raw: Raw| raw.size(&claims).bytes();
    let sparse = Raw::pax(b'x', &[(b"GNU.sparse.major", b"1"), (b"GNU.sparse.realsize", b"1")]).bytes();
    let map = [sparse, Raw::file(b"it", b"").size(&claims).bytes(), b"1000000000000\n1\n".to_vec()].concat();
    for (start, expected) in [
        (huge(Raw::long(b'L', b"").unsized_data(b"")), "1073741824 bytes"),
        (huge(Raw::long(b'K', b"").unsized_data(b"")), "1073741824 bytes"),
        (huge(Raw::new(b'x', b"x")), "1073741824 bytes"),
        (huge(Raw::new(b'X', b"x")), "1073741824 bytes"),
        (huge(Raw::new(b'g', b"x")), "1073741824 bytes"),
        (map, "sparse map is damaged"),
    ] {
        let mut reader = Reader::new(EndlessZeros { start: std::io::Cursor::new(start), left: 1024 });
        let error = reader.next().expect_err("refused").to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn sparse_maps_are_read_only_up_to_their_limit() {
    let mut lines = b"2000000\n".to_vec();
    for number in 0..1_100_000_u64 {
        lines.extend(format!("{number}\n0\n").into_bytes());
    }
    let records: [(&[u8], &[u8]); 2] = [(b"GNU.sparse.major", b"1"), (b"GNU.sparse.realsize", b"1")];
    let bytes = [Raw::pax(b'x', &records).bytes(), Raw::file(b"it", &lines).bytes()].concat();
    // Regions without bytes take no memory, but the map is read no further than its limit.
    assert_rejected(&bytes, &["it:"]);
}

#[test]
fn a_damaged_archive_is_an_error_or_harmless() {
    let bytes = [
        old_sparse(b"it", &[(0, 512), (1024, 0)], 1024, &[1; 512]),
        pax_sparse(b"it", &[(0, 512), (1024, 0)], 1024, &[1; 512]),
        archive(&[
            Raw::long(b'L', b"long"),
            Raw::pax(b'x', &[(b"mtime", b"99.5"), (b"SCHILY.xattr.user.a", b"x")]),
            Raw::file(b"f", b"content"),
            Raw::link(b'1', b"l", b"f"),
        ]),
    ]
    .concat();
    for at in 0..bytes.len() {
        for value in [0, 0x80, 0xff, b'7'] {
            let mut damaged = bytes.clone();
            damaged[at] = value;
            let _ = fuzz::check(&damaged);
        }
    }
    for end in 0..bytes.len() {
        let _ = fuzz::check(&bytes[..end]);
    }
    assert_eq!(fuzz::check(&bytes), Ok(4));
}

proptest::proptest! {
    /// Headers with arbitrary fields and a valid checksum are read or rejected.
    #[test]
    fn headers_with_arbitrary_fields_are_read_or_rejected(
        fields in proptest::collection::vec((0_usize..148, proptest::collection::vec(0_u8.., 1..13)), 1..6),
        kind in proptest::prop_oneof![proptest::sample::select(b"0123456789LKxgXSDVM".to_vec()), 0_u8..],
        tail in proptest::collection::vec(0_u8.., 0..300),
        gnu in 0_u8..3,
    ) {
        let mut raw = Raw::new(kind, b"name").magic([V7, GNU, raw_tar::USTAR][usize::from(gnu)]);
        for (at, bytes) in fields {
            let len = bytes.len().min(148 - at);
            raw = raw.put(at, &bytes[..len]);
        }
        let _ = fuzz::check(&archive(&[raw.unsized_data(&tail), Raw::file(b"next", b"x")]));
    }
}
