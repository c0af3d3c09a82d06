//! Archives of headers that are made by hand.

use std::collections::BTreeMap;

use esker_testkit::listing::Entry;
use esker_testkit::object::sha256;
use esker_testkit::raw_tar::{GNU, Raw, USTAR, V7, archive, octal12, old_sparse, pax_sparse, record};

use crate::cases::{Case, Expected};

fn file() -> Raw {
    Raw::file(b"f", b"hi")
}

/// Member behind the headers under test: it is not read if those before it are not parsed.
fn next() -> Raw {
    Raw::file(b"next", b"data")
}

fn pax(records: &[(&str, &[u8])]) -> Raw {
    extended(b'x', records)
}

fn extended(kind: u8, records: &[(&str, &[u8])]) -> Raw {
    let records: Vec<(&[u8], &[u8])> = records.iter().map(|(key, value)| (key.as_bytes(), *value)).collect();
    Raw::pax(kind, &records)
}

fn case(name: &str, members: &[Raw]) -> Case {
    Case::new(name, archive(&[members, &[next()]].concat()))
}

pub(crate) fn cases() -> Vec<Case> {
    [numbers(), types(), names(), records(), holes(), ends()].concat()
}

fn numbers() -> Vec<Case> {
    let mut cases = Vec::new();
    let forms: [(&str, &[u8]); 14] = [
        ("zeros", b""),
        ("blanks", b"        "),
        ("blanks and zeros", b"    \0\0\0\0"),
        ("led by blanks", b"     7 \0"),
        ("without an end", b"00000007"),
        ("led by a zero", b"\x00000007\0"),
        ("with another digit", b"0000008\0"),
        ("with other text", b"64x\0"),
        ("of base 256", b"\x80\0\0\0\0\x2d\xc6\xc0"),
        ("of base 256 at the end", b"\x80\0\0\0\xff\xff\xff\xfe"),
        ("of base 256 beyond all", b"\x80\0\0\x01\0\0\0\0"),
        ("of base 256 below zero", b"\xff\xff\xff\xff\xff\xff\xff\xfb"),
        ("of an odd base", b"\x81\0\0\0\0\0\0\0"),
        ("ended by a blank", b"7 8\0"),
    ];
    for (name, field) in forms {
        cases.push(case(&format!("owner {name}"), &[file().uid(field)]));
        cases.push(case(&format!("group {name}"), &[file().gid(field)]));
        cases.push(case(&format!("mode {name}"), &[file().mode(field)]));
        // A time has four bytes more.
        let mut time = field.to_vec();
        if field.starts_with(&[0x80]) || field.starts_with(&[0xff]) || field.starts_with(&[0x81]) {
            let fill = if field[0] == 0xff { 0xff } else { 0 };
            time.splice(1..1, [fill; 4]);
        } else if name == "blanks" {
            time = vec![b' '; 12];
        }
        if name != "of base 256 beyond all" && name != "of base 256 at the end" {
            cases.push(case(&format!("time {name}"), &[file().mtime(&time)]));
        }
    }
    let odd = "4294967295 is no owner for the kernel, and GNU tar leaves the file to root";
    cases.push(case("owner 4294967295", &[file().uid(b"\x80\0\0\0\xff\xff\xff\xff")]).refused(odd));
    cases.push(case("size below zero", &[file().size(&[0xff; 12])]));
    cases.push(case("size of base 256", &[file().size(b"\x80\0\0\0\0\0\0\0\0\0\0\x02")]).python_agrees());
    cases.push(case("size beyond the archive", &[file().size(b"\x80\0\0\0\0\0\0\x10\0\0\0\0")]));
    cases.push(case("size beyond all", &[file().size(&[0x80, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])]));
    cases.push(case("size of blanks", &[Raw::file(b"f", b"").size(b"            ")]));
    cases.push(case("base 64", &[file().uid(b"+BA\0")]));
    let mut signed = Raw::file("é".as_bytes(), b"hi");
    signed.signed = true;
    cases.push(case("signed checksum", &[signed.clone()]).python_agrees());
    let mut wrong = archive(&[signed, next()]);
    wrong[1024] ^= 1;
    cases.push(Case::new("wrong checksum", wrong));
    let mut blank = archive(&[file(), next()]);
    blank[1024 + 148..1024 + 156].fill(b' ');
    cases.push(Case::new("blank checksum", blank));
    cases.push(case("mode with other bits", &[file().mode(b"0107777\0")]));
    cases.push(
        case("modes", &[file().mode(b"0004755\0"), Raw::directory(b"d/").mode(b"0001777\0")]).python_agrees(),
    );
    cases
}

fn types() -> Vec<Case> {
    let size = octal12(2);
    let device = |major: &[u8], minor: &[u8]| Raw::new(b'3', b"c").device(major, minor);
    let mut cases = vec![
        case("v7 file", &[file().kind(0).magic(V7)]).python_agrees(),
        case("v7 directory by a slash", &[Raw::new(0, b"d/").magic(V7)]).python_agrees(),
        case("directory by a slash", &[Raw::new(b'0', b"d/").magic(USTAR)]),
        case("directory by a slash with a size", &[Raw::new(b'0', b"d/").size(&size)]),
        case("directory by a slash with content", &[Raw::new(b'0', b"d/").data(b"xx")]),
        case("directory by a slash of pax", &[pax(&[("path", b"d/")]), Raw::new(b'0', b"x")]),
        case("directory by a long name", &[Raw::long(b'L', b"d/"), Raw::new(b'0', b"x").magic(GNU)]),
        case("directory with a size", &[Raw::directory(b"d/").size(&size), Raw::file(b"d/x", b"in it")])
            .python_agrees(),
        case("directory with content", &[Raw::directory(b"d/").data(b"xx")]),
        case("contiguous file", &[file().kind(b'7')]).python_agrees(),
        case("label", &[Raw::new(b'V', b"label").magic(GNU), file()]),
        case("label between", &[file(), Raw::new(b'V', b"label").magic(GNU)]),
        case("part of a volume", &[Raw::new(b'M', b"part").magic(GNU).data(b"xx")]),
        case(
            "dumped directory",
            &[Raw::new(b'D', b"d/").magic(GNU).data(b"Yx\0\0"), Raw::file(b"d/x", b"in it")],
        ),
        case("dumped directory of ustar", &[Raw::new(b'D', b"d/").data(b"Yx\0\0")]),
        case("unknown type", &[file().kind(b'Z')]),
        case("unknown type N", &[file().kind(b'N')]),
        case("unknown type below space", &[file().kind(1)]),
        case("symlink", &[Raw::link(b'2', b"l", b"../some where")]).python_agrees(),
        case("symlink with a size", &[Raw::link(b'2', b"l", b"x").size(&size)]).python_agrees(),
        case("symlink with a size of blanks", &[Raw::link(b'2', b"l", b"x").size(b"            ")]),
        case("symlink without a target", &[Raw::link(b'2', b"l", b"")]),
        case("absolute symlink", &[Raw::link(b'2', b"l", b"/etc/passwd")]).python_agrees(),
        case("pipe", &[Raw::new(b'6', b"p")]).python_agrees(),
        case("pipe with a size", &[Raw::new(b'6', b"p").size(&size)]),
        case("device", &[device(b"0000005\0", b"0000001\0")]).root(),
        case("device of blanks", &[device(b"        ", b"0000001\0")]).root(),
        case("device of zeros", &[device(b"", b"")]).root(),
        case("device at the end", &[device(b"0007777\0", b"3777777\0")]).root(),
        case("device beyond the end", &[device(b"0000001\0", b"4000000\0")]).root(),
        case("device of v7", &[device(b"0000005\0", b"0000001\0").magic(V7)]).root(),
        case("block device", &[Raw::new(b'4', b"b").device(b"0000010\0", b"0000001\0")]).root(),
        case("device numbers of a file", &[file().device(b"        ", b"xxxxxxxx")]),
        case("hard link", &[file(), Raw::link(b'1', b"l", b"f")]).python_agrees(),
        case("hard link with a dot", &[file(), Raw::link(b'1', b"l", b"./f")]),
        case("absolute hard link", &[file(), Raw::link(b'1', b"l", b"/f")]),
        case("hard link with a size", &[file(), Raw::link(b'1', b"l", b"f").size(&size)]).python_agrees(),
        case("hard link with a size at the end", &[file(), Raw::link(b'1', b"l", b"f")]),
        case("hard link to nothing", &[Raw::link(b'1', b"l", b"none")]),
        case("hard link to a directory", &[Raw::directory(b"d/"), Raw::link(b'1', b"l", b"d")]),
        case("hard link to a symlink", &[Raw::link(b'2', b"s", b"f"), Raw::link(b'1', b"l", b"s")]),
        case("hard link to itself", &[file(), Raw::link(b'1', b"f", b"f")]),
        case("hard link without a target", &[file(), Raw::link(b'1', b"l", b"")]),
        case("hard link with ..", &[file(), Raw::link(b'1', b"l", b"../f")])
            .refused("`..` is refused in all names, and GNU tar takes it away from hard links"),
        case("type S of ustar", &[Raw::new(b'S', b"f")])
            .refused("the format has no such type, and GNU tar takes what is stored for the file"),
    ];
    for (name, link) in [
        ("hard link with content", Raw::link(b'1', b"l", b"f").size(&size).unsized_data(b"hi")),
        (
            "hard link with content of v7",
            Raw::link(b'1', b"l", b"f").size(&size).unsized_data(b"hi").magic(V7),
        ),
    ] {
        let mut case = case(name, &[file(), link]);
        let expected = ["f", "l", "next"].map(|path| (format!("/{path}").into_bytes(), plain(path)));
        case.expected = Expected::Read(
            [(b"/".to_vec(), directory())].into_iter().chain(expected).collect(),
            "pax allows hard links to have content",
        );
        cases.push(case);
    }
    cases
}

fn plain(path: &str) -> Entry {
    let content: &[u8] = if path == "next" { b"data" } else { b"hi" };
    Entry {
        path: Vec::new(),
        mode: 0o100_644,
        mtime_ns: 0o13_000_000_000 * 1_000_000_000,
        uid: 7,
        gid: 8,
        size: Some(content.len() as u64),
        nlink: None,
        rdev: None,
        target: None,
        sha256: Some(sha256(content)),
        xattrs: BTreeMap::new(),
    }
}

fn directory() -> Entry {
    // Changed after any archive was made, so that its time isn't compared.
    Entry { mode: 0o040_755, mtime_ns: i64::MAX, size: None, sha256: None, ..plain("f") }
}

fn names() -> Vec<Case> {
    let long = [b'n'; 255];
    let longer = [b'n'; 256];
    let deep = [b"d/".repeat(40), b"x".to_vec()].concat();
    let cut = "GNU tar ends the text at the zero byte, and the file has another name than the archive says";
    let within = "links in an image lead to places of the image";
    let target = [b't'; 4095];
    let target_longer = [b't'; 4096];
    vec![
        case("prefix", &[Raw::file(b"name", b"x").prefix(b"a/prefix")]).python_agrees(),
        case("prefix of 155", &[Raw::file(b"name", b"x").prefix(&[b'p'; 155])]).python_agrees(),
        case("prefix of gnu", &[Raw::file(b"name", b"x").magic(GNU).prefix(b"a/prefix")]),
        case("prefix of v7", &[Raw::file(b"name", b"x").magic(V7).prefix(b"a/prefix")]),
        case("magic without an end", &[Raw::file(b"name", b"x").magic(b"ustar00").prefix(b"a/prefix")]),
        case("name of 100", &[Raw::file(&[b'n'; 100], b"x")]).python_agrees(),
        case("name of 255", &[pax(&[("path", &long)]), file()]).python_agrees(),
        case("name of 256", &[pax(&[("path", &longer)]), file()]),
        case("long name of 255", &[Raw::long(b'L', &long), file().magic(GNU)]).python_agrees(),
        case("long name of 256", &[Raw::long(b'L', &longer), file().magic(GNU)]),
        case("long name with a zero byte", &[Raw::long(b'L', b"abc\0def"), file().magic(GNU)])
            .python_agrees(),
        case("two long names", &[Raw::long(b'L', b"one"), Raw::long(b'L', b"two"), file().magic(GNU)]),
        case("deep name", &[Raw::long(b'L', &deep), file().magic(GNU)]).python_agrees(),
        case("path of 4097", &[Raw::long(b'L', &[b"d/".repeat(2048), b"x".to_vec()].concat()), file()]),
        case("long target", &[Raw::long(b'K', &[b't'; 300]), Raw::link(b'2', b"l", b"x").magic(GNU)])
            .python_agrees(),
        case("target of 4095 bytes", &[pax(&[("linkpath", &target)]), Raw::link(b'2', b"l", b"x")]),
        case("target of 4096 bytes", &[pax(&[("linkpath", &target_longer)]), Raw::link(b'2', b"l", b"x")]),
        case("no name", &[Raw::file(b"", b"hi")]),
        case("no name of pax", &[pax(&[("path", b"")]), file()]),
        case("the folder itself", &[Raw::directory(b"./").mode(b"0000700\0"), file()]),
        case("a file as the folder", &[Raw::file(b".", b"hi")]),
        case("a symlink as the folder", &[Raw::link(b'2', b"./", b"x")]),
        case("absolute name", &[Raw::file(b"/etc/passwd", b"hi")]).python_agrees(),
        case("slashes and dots", &[Raw::file(b".//./a//b/./c", b"hi")]),
        case("name with ..", &[Raw::file(b"../x", b"hi")]),
        case("name with .. inside", &[Raw::directory(b"a/"), Raw::file(b"a/../x", b"hi")]),
        case("name of dots", &[Raw::file(b"...", b"hi"), Raw::file(b"..x", b"hi")]),
        case("name of bytes", &[Raw::file(b"\xff\xfe \x01\x1b[31m", b"hi")]),
        case("name with a newline", &[Raw::file(b"a\nb", b"hi")]).python_agrees(),
        case("name with a backslash", &[Raw::file(b"a\\nb", b"hi")]).python_agrees(),
        case("zero byte in pax path", &[pax(&[("path", b"a\0b")]), file()]).refused(cut),
        case("zero byte in pax linkpath", &[pax(&[("linkpath", b"a\0b")]), Raw::link(b'2', b"l", b"x")])
            .refused(cut),
        case("zero byte in a sparse name", &{
            let mut records = pax(&[("GNU.sparse.name", b"a\0b")]);
            records = records.name(b"x");
            [records, file()]
        })
        .refused(cut),
        case("the same name twice", &[Raw::file(b"f", b"first"), Raw::file(b"f", b"second")]),
        case(
            "a directory twice",
            &[Raw::directory(b"d"), Raw::file(b"d/x", b""), Raw::directory(b"d/").mode(b"0000711\0")],
        ),
        case("a file where a symlink was", &[Raw::link(b'2', b"f", b"next"), file()]),
        case("a directory where a file was", &[file(), Raw::directory(b"f/")]),
        case("a file where an empty directory was", &[Raw::directory(b"f/"), file()]),
        case("below a file", &[file(), Raw::file(b"f/x", b"")]),
        case(
            "below a symlink",
            &[Raw::directory(b"d/"), Raw::link(b'2', b"s", b"d"), Raw::file(b"s/x", b"hi")],
        ),
        case("below a symlink to nothing", &[Raw::link(b'2', b"s", b"d"), Raw::file(b"s/x", b"hi")])
            .read_as_a_layer(within),
        case(
            "below a symlink that leads up",
            &[Raw::directory(b"d/"), Raw::link(b'2', b"d/s", b"../d"), Raw::file(b"d/s/x", b"hi")],
        )
        .read_as_a_layer(within),
        case("below an absolute symlink", &[Raw::link(b'2', b"s", b"/tmp"), Raw::file(b"s/x", b"hi")])
            .read_as_a_layer(within),
        case(
            "a directory where a symlink was",
            &[
                Raw::directory(b"d/"),
                Raw::link(b'2', b"s", b"d"),
                Raw::directory(b"s/"),
                Raw::file(b"s/x", b"hi"),
            ],
        ),
        case("directories that are implied", &[Raw::file(b"a/b/c/d", b"hi")]).python_agrees(),
    ]
}

fn records() -> Vec<Case> {
    let times: [(&str, &[u8]); 12] = [
        ("whole", b"5"),
        ("with a fraction", b"5.25"),
        ("with a long fraction", b"5.1234567899"),
        ("before 1970", b"-1.25"),
        ("with an end", b"5."),
        ("with text behind", b"12x"),
        ("with a sign", b"+1"),
        ("of nothing", b""),
        ("without a whole part", b".5"),
        ("of an exponent", b"1e3"),
        ("beyond all", b"99999999999999999999"),
        ("of text", b"now"),
    ];
    let mut cases: Vec<Case> = times
        .iter()
        .map(|(name, value)| case(&format!("pax time {name}"), &[pax(&[("mtime", value)]), file()]))
        .collect();
    let owners: [&[u8]; 7] =
        [b"3000000000", b"007", b"-1", b"12x", b"", b"4294967296", b"99999999999999999999"];
    for value in owners {
        let text = String::from_utf8_lossy(value).into_owned();
        cases.push(case(&format!("pax uid {text}"), &[pax(&[("uid", value)]), file()]));
        cases.push(case(&format!("pax gid {text}"), &[pax(&[("gid", value)]), file()]));
    }
    let raw = |text: &[u8]| Raw::new(b'x', b"x").data(text);
    cases.extend([
        case("pax uid 4294967295", &[pax(&[("uid", b"4294967295")]), file()])
            .refused("4294967295 is no owner for the kernel, and GNU tar leaves the file to root"),
        case("pax size", &[pax(&[("size", b"2")]), file().size(&octal12(0))]).python_agrees(),
        case("pax size of text", &[pax(&[("size", b"2x")]), file()]),
        case("pax path with a newline", &[pax(&[("path", b"a\nb")]), file()]).python_agrees(),
        case("pax linkpath with a newline", &[pax(&[("linkpath", b"a\nb")]), Raw::link(b'2', b"l", b"x")])
            .python_agrees(),
        case(
            "pax path before a long name",
            &[pax(&[("path", b"of pax")]), Raw::long(b'L', b"of gnu"), file()],
        ),
        case(
            "pax path after a long name",
            &[Raw::long(b'L', b"of gnu"), pax(&[("path", b"of pax")]), file()],
        ),
        case(
            "keyword twice",
            &[pax(&[("mtime", b"5"), ("mtime", b"6"), ("path", b"a"), ("path", b"b")]), file()],
        )
        .python_agrees(),
        case(
            "two extended headers",
            &[pax(&[("uid", b"9"), ("mtime", b"5")]), pax(&[("mtime", b"6")]), file()],
        ),
        case("extended header of solaris", &[extended(b'X', &[("path", b"of solaris")]), file()]),
        case("extended header before a label", &[pax(&[("mtime", b"5")]), Raw::new(b'V', b"label"), file()]),
        case("extended header without records", &[pax(&[]), file()]),
        case("extended header at the end", &[file(), next(), pax(&[("mtime", b"5")])]),
        case("records with zeros behind", &[raw(b"10 mtime=5\n\0\0\0"), file()]),
        case("record with blanks", &[raw(b"12   mtime=5\n"), file()]),
        case("record with a blank in front", &[raw(b" 11 mtime=5\n"), file()]),
        case("record with a wrong length", &[raw(b"99 mtime=5\n"), file()]),
        case("record with a short length", &[raw(b"8 mtime=5\n"), file()]),
        case("record without a length", &[raw(b"mtime=5\n"), file()]),
        case("record without a value", &[raw(b"8 mtime\n"), file()]),
        case("record without a keyword", &[raw(b"5 =a\n"), file()]),
        case("unknown keyword", &[pax(&[("VENDOR.key", b"a\0\nb")]), file()]).python_agrees(),
        case("charset", &[pax(&[("hdrcharset", b"BINARY"), ("path", b"\xff\xfe")]), file()]),
        case("global header", &[extended(b'g', &[("mtime", b"5"), ("uid", b"9")]), file()]).python_agrees(),
        case("global header and own", &[extended(b'g', &[("mtime", b"5")]), pax(&[("mtime", b"6")]), file()])
            .python_agrees(),
        case("own header and global", &[pax(&[("mtime", b"6")]), extended(b'g', &[("mtime", b"5")]), file()]),
        case(
            "two global headers",
            &[extended(b'g', &[("mtime", b"5"), ("uid", b"9")]), file(), extended(b'g', &[("mtime", b"6")])],
        ),
        case(
            "global header without records",
            &[extended(b'g', &[("uid", b"9")]), extended(b'g', &[]), file()],
        ),
        case("global comment of git", &[extended(b'g', &[("comment", b"0123456789abcdef")]), file()])
            .python_agrees(),
        case("damaged global header", &[Raw::new(b'g', b"g").data(b"99 mtime=5\n"), file()]),
        case(
            "volume of pax",
            &[extended(b'g', &[("GNU.volume.filename", b"f"), ("GNU.volume.offset", b"50")]), file()],
        )
        .refused("the archive goes on with a part of a file, which GNU tar takes for all of it"),
        case("label of pax", &[extended(b'g', &[("GNU.volume.label", b"label")]), file()]).python_agrees(),
    ]);
    let attributes: [(&str, &str, &[u8]); 6] = [
        ("attribute", "SCHILY.xattr.user.a", b"value"),
        ("attribute of bytes", "SCHILY.xattr.user.a", b"a\n\0\xff=b"),
        ("attribute with an encoded name", "SCHILY.xattr.user.x%3Dy%25", b"1"),
        ("attribute with other codes", "SCHILY.xattr.user.x%20%3d%", b"1"),
        ("attribute without a value", "SCHILY.xattr.user.a", b""),
        ("attribute of 200 bytes", "SCHILY.xattr.user.a", &[b'x'; 200]),
    ];
    for (name, key, value) in attributes {
        cases.push(case(name, &[pax(&[(key, value)]), file()]));
    }
    let twice: &[(&str, &[u8])] = &[("SCHILY.xattr.user.a", b"first"), ("SCHILY.xattr.user.a", b"a last")];
    cases.push(case("attribute twice", &[pax(twice), file()]));
    cases.push(case("attribute of a directory", &[pax(twice), Raw::directory(b"d/")]));
    cases.push(case(
        "zero byte in the name of an attribute",
        &[pax(&[("SCHILY.xattr.user.a\0b", b"1")]), file()],
    ));
    cases
}

fn holes() -> Vec<Case> {
    let stored = [[b'a'; 512], [b'b'; 512]].concat();
    let map: [(u64, u64); 3] = [(0, 512), (1024, 512), (3000, 0)];
    let sparse = |name: &str, bytes: Vec<u8>| Case::new(name, [bytes, archive(&[next()])].concat());
    let of_pax = |map: &[(u64, u64)], real, stored: &[u8]| pax_sparse(b"f", map, real, stored);
    let of_gnu = |map: &[(u64, u64)], real, stored: &[u8]| old_sparse(b"f", map, real, stored);
    let many: Vec<(u64, u64)> = (0..60).map(|number| (number * 1024, 512)).chain([(70_000, 0)]).collect();
    let data: Vec<u8> = (0..60).flat_map(|number| [number; 512]).collect();
    let numbers: [(&str, &[u8]); 2] = [("GNU.sparse.size", b"3000"), ("GNU.sparse.numblocks", b"3")];
    let list = |rest: &[(&str, &[u8])]| {
        [pax(&[&numbers[..], rest].concat()).bytes(), Raw::file(b"f", &stored).bytes()].concat()
    };
    let pairs: Vec<(&str, &[u8])> = vec![
        ("GNU.sparse.offset", b"0"),
        ("GNU.sparse.numbytes", b"512"),
        ("GNU.sparse.offset", b"1024"),
        ("GNU.sparse.numbytes", b"512"),
        ("GNU.sparse.offset", b"3000"),
        ("GNU.sparse.numbytes", b"0"),
    ];
    let all_map: (&str, &[u8]) = ("GNU.sparse.map", b"0,512,1024,512,3000,0");
    let odd = "regions that are not in order are not read";
    let mut star = Raw::new(b'S', b"f").put(475, b"\0").put(476, b"13000000000 ").put(488, b"13000000000 ");
    let fields: Vec<u8> =
        map.iter().flat_map(|(offset, len)| [octal12(*offset), octal12(*len)].concat()).collect();
    star = star.put(356, &fields).put(452, &octal12(3000)).data(&stored);
    vec![
        sparse("old sparse", of_gnu(&map, 3000, &stored)).python_agrees(),
        sparse("old sparse of many regions", of_gnu(&many, 70_000, &data)).python_agrees(),
        sparse("old sparse of a hole", of_gnu(&[(3000, 0)], 3000, b"")).python_agrees(),
        sparse("old sparse without a map", of_gnu(&[], 0, b"")),
        sparse("old sparse without an end", of_gnu(&map[..2], 3000, &stored)),
        sparse("old sparse behind its end", of_gnu(&map[..2], 1000, &stored)),
        sparse(
            "old sparse with a last region of 100",
            of_gnu(&[(512, 512), (4096, 100)], 4196, &stored[..612]),
        )
        .python_agrees(),
        sparse("star sparse", star.bytes()),
        sparse("sparse 1.0", of_pax(&map, 3000, &stored)).python_agrees(),
        sparse("sparse 1.0 of many regions", of_pax(&many, 70_000, &data)).python_agrees(),
        sparse("sparse 1.0 of a hole", of_pax(&[(3000, 0)], 3000, b"")).python_agrees(),
        sparse("sparse 1.0 without regions", of_pax(&[], 0, b"")),
        sparse("sparse 1.0 without an end", of_pax(&map[..2], 3000, &stored)),
        sparse(
            "sparse 1.0 with regions between blocks",
            of_pax(&[(0, 100), (1024, 100)], 1124, &stored[..200]),
        ),
        sparse("sparse 1.0 with regions of whole blocks", of_pax(&[(0, 100), (1024, 100)], 1124, &stored)),
        sparse("sparse 1.0 out of order", of_pax(&[(1024, 512), (0, 512)], 1536, &stored)).refused(odd),
        sparse("sparse 1.0 overlapping", of_pax(&[(0, 512), (256, 512)], 1536, &stored)).refused(odd),
        sparse("sparse 1.0 beyond all", of_pax(&[(1 << 62, 512)], 1536, &stored[..512])),
        sparse("sparse 0.1", list(&[all_map])).python_agrees(),
        sparse("sparse 0.1 with a name", list(&[("GNU.sparse.name", b"g"), ("path", b"h"), all_map])),
        sparse("sparse 0.1 with an odd map", list(&[("GNU.sparse.map", b"0,512,1024")])),
        sparse("sparse 0.1 with too many regions", list(&[("GNU.sparse.numblocks", b"2"), all_map])),
        sparse("sparse 0.1 without a count", {
            let records = pax(&[("GNU.sparse.size", b"3000"), all_map]);
            [records.bytes(), Raw::file(b"f", &stored).bytes()].concat()
        }),
        sparse("sparse 0.0", list(&pairs)).python_agrees(),
        sparse("sparse 0.0 with fewer regions", {
            let more = [&pairs[..], &[]].concat();
            let records =
                [&[("GNU.sparse.size", &b"3000"[..]), ("GNU.sparse.numblocks", b"5")], &more[..]].concat();
            [pax(&records).bytes(), Raw::file(b"f", &stored).bytes()].concat()
        }),
        sparse("sparse 0.0 with a length too many", list(&[("GNU.sparse.numbytes", b"1")]))
            .refused("a length without an offset has no place"),
    ]
}

fn ends() -> Vec<Case> {
    let one = file().bytes();
    let whole = archive(&[file()]);
    let zeros = |len: usize| vec![0; len];
    let cut = "what is cut within a header may have lost entries";
    let huge = |raw: Raw| Case::new("", [raw.size(&octal12(1 << 30)).bytes(), vec![b'x'; 4096]].concat());
    let named = |case: Case, name: &str| Case { name: name.to_owned(), ..case };
    let text = |length: usize| record(b"comment", &vec![b'x'; length]);
    vec![
        Case::new("no end", one.clone()).python_agrees(),
        Case::new("one zero block", [one.clone(), zeros(512), one.clone()].concat()),
        Case::new("garbage behind the end", [whole.clone(), vec![b'x'; 700]].concat()).python_agrees(),
        Case::new(
            "another archive behind the end",
            [whole.clone(), archive(&[Raw::file(b"g", b"")])].concat(),
        ),
        Case::new("garbage in place of the end", [one.clone(), vec![b'x'; 512]].concat()),
        Case::new("cut within content", one[..513].to_vec()),
        Case::new("cut within filling", one[..600].to_vec()),
        Case::new("cut within a header", [one.clone(), one[..100].to_vec()].concat()).refused(cut),
        Case::new(
            "cut within an extended header",
            [one.clone(), pax(&[("path", b"x")]).bytes()[..512].to_vec()].concat(),
        ),
        Case::new("padded to a tape's record", [whole, zeros(10_240)].concat()).python_agrees(),
        Case::new("nothing but an end", zeros(1024)).python_agrees(),
        named(huge(Raw::long(b'L', b"x")), "long name of a gigabyte"),
        named(huge(Raw::long(b'K', b"x")), "long target of a gigabyte"),
        named(huge(pax(&[])), "extended header of a gigabyte"),
        named(huge(extended(b'g', &[])), "global header of a gigabyte"),
        case("extended header of a megabyte", &[Raw::new(b'x', b"x").data(&text(1 << 20)), file()])
            .python_agrees(),
        Case::new("text", b"no archive at all, but a text that is longer than a header\n".repeat(20)),
        Case::new("zip", [b"PK\x03\x04".to_vec(), vec![1; 600]].concat()),
        Case::new("cpio", [b"070701".to_vec(), vec![b'0'; 600]].concat()),
    ]
}
