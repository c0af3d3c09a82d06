use super::*;
use crate::write::bundle::BundleDraft;

fn spec(dependencies: &str, more: &str) -> Vec<u8> {
    let head = r##"#%CVMFS_BUNDLE version=1 encoding=UTF-8
{"name":"CVMFS_BUNDLE","version":"1.0.0","encoding":"UTF-8","##;
    format!("{head}\"dependencies\":[{dependencies}]{more}}}").into_bytes()
}

fn paths(bundle: &Bundle) -> Vec<&str> {
    bundle.files.iter().map(|path| std::str::from_utf8(path).unwrap()).collect()
}

fn whole(file: usize) -> BundleRead {
    BundleRead { file, range: None }
}

#[test]
fn a_specification_of_the_reference_is_parsed() {
    let bundle = Bundle::parse(&spec(r#""/a/b","c/d","./e","/\u00fc""#, ""), b"/dir").unwrap();
    assert_eq!(paths(&bundle), ["/a/b", "/dir/c/d", "/dir/e", "/ü"]);
    assert_eq!(bundle.reads, [whole(0), whole(1), whole(2), whole(3)]);
    assert_eq!(bundle.left_out, 0);
    let unknown = Bundle::parse(&spec(r#""/a""#, r#","later":{"x":[1,2]},"n":7"#), b"").unwrap();
    assert_eq!(paths(&unknown), ["/a"]);
}

#[test]
fn order_and_ranges_are_parsed() {
    let steps =
        r#","esker-reads":["2","0:0-10","1:5-5","7","x","0:10-20","0:-3","2:18446744073709551616-1"]"#;
    let bundle = Bundle::parse(&spec(r#""/a","/b","/c""#, steps), b"").unwrap();
    let range = |range| BundleRead { file: 0, range: Some(range) };
    assert_eq!(bundle.reads, [whole(2), range(0..10), range(10..20), whole(1)]);
    assert_eq!(bundle.left_out, 5);
}

#[test]
fn paths_outside_of_the_repository_are_left_out() {
    let long = format!("\"/{}\"", "n/".repeat(2048));
    let name = format!("\"/{}\"", "n".repeat(256));
    for bad in [
        r#""""#,
        r#""/""#,
        r#""/a/../b""#,
        r#""..""#,
        r#""/a//b""#,
        r#""/a/""#,
        r#""/a\u0000""#,
        &long,
        &name,
    ] {
        let bundle = Bundle::parse(&spec(&format!("{bad},\"/good\""), r#","esker-reads":["0","1"]"#), b"/d");
        let bundle = bundle.unwrap();
        assert_eq!((paths(&bundle), bundle.reads.len(), bundle.left_out), (vec!["/good"], 1, 2), "{bad}");
    }
}

#[test]
fn files_and_steps_beyond_the_limits_are_left_out() {
    let many = vec!["\"/a\""; FILES_MAX + 5].join(",");
    let bundle = Bundle::parse(&spec(&many, ""), b"").unwrap();
    assert_eq!((bundle.files.len(), bundle.reads.len(), bundle.left_out), (FILES_MAX, FILES_MAX, 5));
    // A long directory makes relative paths longer than the specification.
    let relative = vec!["\"a\""; FILES_MAX].join(",");
    let bundle = Bundle::parse(
        &spec(&relative, ""),
        format!("/{}", "d/".repeat(1000).trim_end_matches('/')).as_bytes(),
    );
    let bundle = bundle.unwrap();
    assert!(bundle.files.len() < 5000 && bundle.files.len() + bundle.left_out == FILES_MAX);
    let large = spec(&format!("\"/{}\"", "x".repeat(BYTES_MAX)), "");
    assert!(matches!(Bundle::parse(&large, b""), Err(BundleError::TooLarge(_))));
}

#[test]
fn invalid_specifications_are_rejected() {
    let good = String::from_utf8(spec("\"/a\"", "")).unwrap();
    for (from, to) in [
        ("CVMFS_BUNDLE\"", "OTHER\""),
        ("\"1.0.0\"", "\"2.0.0\""),
        ("\"UTF-8\"", "\"latin1\""),
        ("\"name\":", "\"nam\":"),
        ("[\"/a\"]", "[1]"),
        ("[\"/a\"]", "\"/a\""),
        ("}", ""),
    ] {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good);
        assert!(Bundle::parse(bad.as_bytes(), b"").is_err(), "{bad}");
    }
    assert!(Bundle::parse(b"#only a comment", b"").is_err());
    let not_utf8 = [&spec("\"/", "")[..], b"\xff"].concat();
    assert!(Bundle::parse(&not_utf8, b"").is_err());
}

#[test]
fn a_written_bundle_is_parsed_again() {
    let mut draft = BundleDraft::new();
    assert!(draft.push(b"/one \"quoted\" \\ \xc3\xbc", None));
    assert!(draft.push(b"/large", Some(0..1 << 20)));
    assert!(draft.push("/one \"quoted\" \\ ü".as_bytes(), Some(0..5)), "it is read already");
    assert!(draft.push(b"/large", Some(u64::MAX - 1..u64::MAX)));
    for bad in [&b"relative"[..], b"/not utf8 \xff", b"/a/../b", b""] {
        assert!(!draft.push(bad, None));
    }
    assert!(!draft.push(b"/empty", Some(3..3)));
    let bundle = Bundle::parse(&draft.finish(), b"/ignored").unwrap();
    assert_eq!(bundle, draft.bundle());
    assert_eq!((bundle.files.len(), bundle.reads.len()), (2, 3));
    let mut plain = BundleDraft::new();
    assert!(plain.is_empty() && plain.push(b"/a", None));
    assert!(!String::from_utf8(plain.finish()).unwrap().contains("esker"));
}

#[test]
fn a_draft_stays_within_the_limits() {
    let mut draft = BundleDraft::new();
    let name = "n".repeat(250);
    let taken =
        (0..FILES_MAX).take_while(|number| draft.push(format!("/{name}/{number}").as_bytes(), None)).count();
    assert!(taken > 10_000 && taken < FILES_MAX && taken == draft.len());
    let text = draft.finish();
    assert!(text.len() <= BYTES_MAX && text.len() > BYTES_MAX / 2);
    assert_eq!(Bundle::parse(&text, b"").unwrap().files.len(), taken);
}

#[test]
fn names_of_specifications_and_triggers_match() {
    assert_eq!(name_for(b"tool").unwrap(), b".cvmfsbundle-tool");
    assert_eq!(name_for(&[b'x'; 242]).unwrap().len(), 255);
    assert_eq!((name_for(&[b'x'; 243]), name_for(b"")), (None, None));
    assert_eq!(trigger_of(b".cvmfsbundle-a"), Some(&b"a"[..]));
    assert_eq!((trigger_of(b".cvmfsbundle-"), trigger_of(b"a")), (None, None));
}
