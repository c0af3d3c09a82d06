use super::*;

const HASH: &str = "0123456789abcdef0123456789abcdef01234567";

#[test]
fn a_marker_is_read_with_its_chunks() {
    let text = format!(
        "# made by hand\n\n size = 30 \nchecksum={}\ncompression=none\nchunk_offsets=0,10,20\nchunk_checksums={HASH}P,{HASH},{HASH}P\nother=1\n",
        "0".repeat(40)
    );
    let graft = Graft::parse(text.as_bytes()).unwrap();
    assert_eq!((graft.size, graft.hash, graft.compression), (30, None, Some(Compression::Stored)));
    let pieces: Vec<_> = graft.chunks.iter().map(|chunk| (chunk.offset, chunk.size)).collect();
    assert_eq!(pieces, [(0, 10), (10, 10), (20, 10)]);
    assert_eq!(Graft::parse(graft.to_text().as_bytes()).unwrap(), graft);
}

#[test]
fn invalid_markers_are_refused() {
    let zeros = "0".repeat(40);
    for (text, reason) in [
        (String::new(), "no size"),
        ("size=1\n".to_owned(), "no checksum"),
        (format!("checksum={HASH}\n"), "no size"),
        (format!("size=-1\nchecksum={HASH}\n"), "line 1"),
        (format!("size=9999999999999999999\nchecksum={HASH}\n"), "beyond"),
        ("size=1\nchecksum=123\n".to_owned(), "line 2"),
        (format!("size=1\nchecksum={zeros}\n"), "neither"),
        (format!("size=1\nchecksum={HASH}\nnothing\n"), "line 3"),
        (format!("size=1\nchecksum={HASH}\ncompression=lzma\n"), "line 3"),
        (format!("size=9\nchecksum={HASH}\nchunk_offsets=0\n"), "1 offsets and 0"),
        (format!("size=9\nchecksum={HASH}\nchunk_offsets=1\nchunk_checksums={HASH}\n"), "begin at 0"),
        (
            format!("size=9\nchecksum={HASH}\nchunk_offsets=0,5,5\nchunk_checksums={HASH},{HASH},{HASH}\n"),
            "at 5",
        ),
        (format!("size=9\nchecksum={HASH}\nchunk_offsets=0,9\nchunk_checksums={HASH},{HASH}\n"), "at 9"),
        (format!("size=9\nchecksum={HASH}-rmd160\nchunk_offsets=0\nchunk_checksums={HASH}\n"), "different"),
    ] {
        let refused = Graft::parse(text.as_bytes()).unwrap_err();
        assert!(refused.contains(reason), "{text:?}: {refused}");
    }
}

#[test]
fn files_are_cut_into_chunks_of_the_given_size() {
    let of = |content: &[u8], options: GraftOptions| options.graft(&mut &content[..]).unwrap();
    let small = GraftOptions { chunk_size: Some(10), ..GraftOptions::default() };
    let sha = |bytes: &[u8]| ContentHash::of(HashAlgorithm::Sha1, bytes);
    for len in [0, 1, 10] {
        let content = vec![7; len];
        let graft = of(&content, small);
        assert_eq!((graft.size, graft.hash), (len as u64, Some(sha(&content))));
        assert!(graft.chunks.is_empty(), "{len}");
    }
    let content: Vec<u8> = (0..25).collect();
    let graft = of(&content, GraftOptions { whole: true, ..small });
    assert_eq!((graft.size, graft.hash), (25, Some(sha(&content))));
    let hashes: Vec<_> = graft.chunks.iter().map(|chunk| chunk.hash).collect();
    assert_eq!(hashes, [sha(&content[..10]), sha(&content[10..20]), sha(&content[20..])]);
    assert_eq!(of(&content[..20], small).chunks.len(), 2);
    let whole = of(&content, GraftOptions { chunk_size: None, ..small });
    assert_eq!((whole.hash, whole.chunks.len()), (Some(sha(&content)), 0));
    let zlib = of(&content, GraftOptions { compression: Compression::Zlib, ..small });
    assert_ne!(zlib.chunks[0].hash, graft.chunks[0].hash);
    assert_eq!(Graft::parse(zlib.to_text().as_bytes()).unwrap(), zlib);
    let unbounded = GraftOptions { compression: Compression::Zlib, chunk_size: None, ..small };
    assert!(unbounded.graft(&mut &content[..]).is_err());
}
