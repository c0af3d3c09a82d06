//! Images of archives equal the images of the archived folders.

use std::fs::File;
use std::process::{Command, Stdio};

use esker_squashfs::writer::Archive;

use super::fixture::Fixture;
use super::quick;
use super::readers::ImageReader;

#[track_caller]
fn shell(fixture: &Fixture, text: &str) {
    let status = Command::new("sh").args(["-euc", text]).current_dir(fixture.path("")).status();
    assert!(status.expect("a shell").success(), "{text}");
}

const TAR: &str = "tar --format=pax --xattrs --xattrs-include='*' -C tree -c .";

#[test]
fn an_archive_and_its_folder_make_the_same_tree() {
    let fixture = Fixture::new().without_odd_names();
    // Sockets are not archived.
    shell(&fixture, &format!("rm tree/socket; touch -d @1000000000 tree; {TAR} --sort=name > it.tar"));
    for (name, command) in
        [("it.tar", "true"), ("it.gz", "gzip -1"), ("it.zst", "zstd -1 -q"), ("it.xz", "xz -0")]
    {
        if name != "it.tar" {
            shell(&fixture, &format!("{command} < it.tar > {name}"));
        }
        let mut archive = Archive::open(&fixture.path(name)).expect("an archive");
        fixture.build_of(&mut archive, &quick()).expect("an image");
        fixture.check_with(ImageReader::Unsquashfs, name);
    }
}

#[test]
fn an_archive_can_be_read_from_a_pipe() {
    let fixture = Fixture::new().without_odd_names();
    shell(&fixture, "rm tree/socket; touch -d @1000000000 tree");
    let mut tar = Command::new("sh")
        .args(["-euc", TAR])
        .current_dir(fixture.path(""))
        .stdout(Stdio::piped())
        .spawn()
        .expect("tar");
    let pipe = tar.stdout.take().expect("a pipe");
    let mut archive = Archive::of_stream("the pipe".to_owned(), Box::new(pipe)).expect("an archive");
    let report = fixture.build_of(&mut archive, &quick()).expect("an image");
    assert!(tar.wait().expect("tar").success());
    assert!(report.duplicates >= 2, "{report:?}");
    fixture.check_with(ImageReader::Unsquashfs, "a pipe");
}

#[test]
fn a_truncated_archive_makes_no_image() {
    let fixture = Fixture::new();
    shell(&fixture, &format!("{TAR} > it.tar"));
    let len = fixture.path("it.tar").metadata().expect("the archive").len();
    for cut in [len / 2, len / 3, 700] {
        File::options().write(true).open(fixture.path("it.tar")).expect("it").set_len(cut).expect("a length");
        let archive = Archive::open(&fixture.path("it.tar"));
        let built = archive.and_then(|mut archive| fixture.build_of(&mut archive, &quick()));
        built.expect_err("it ends early");
        assert!(!fixture.path("image").exists());
    }
}

#[test]
fn a_compressed_archive_with_a_wrong_checksum_makes_no_image() {
    let fixture = Fixture::empty();
    fixture.write("file", b"content");
    shell(&fixture, "tar -C tree -cf it.tar .");
    // Distance from the end of the file to a byte of the checksum: in gzip before the length, in zstd the
    // last byte, in xz in the index.
    for (command, at) in [("gzip -1", 6), ("zstd -1 -q", 2), ("xz -0", 20)] {
        shell(&fixture, &format!("{command} < it.tar > it.packed"));
        let mut bytes = std::fs::read(fixture.path("it.packed")).expect("the archive");
        for is_whole in [true, false] {
            std::fs::write(fixture.path("it.packed"), &bytes).expect("written");
            let mut archive = Archive::open(&fixture.path("it.packed")).expect("an archive");
            assert_eq!(fixture.build_of(&mut archive, &quick()).is_ok(), is_whole, "{command}");
            let len = bytes.len();
            bytes[len - at] ^= 1;
        }
    }
}

#[test]
fn bytes_after_the_last_member_of_a_gzip_file_are_ignored() {
    let fixture = Fixture::empty();
    fixture.write("file", b"content");
    let parts = "tar -C tree -cf it.tar .; split -n 2 it.tar part; for part in part*; do gzip -1 < $part; done > it.gz";
    shell(&fixture, &format!("touch -d @5 tree tree/file; {parts}; head -c 5000 /dev/zero >> it.gz"));
    let mut archive = Archive::open(&fixture.path("it.gz")).expect("an archive");
    fixture.build_of(&mut archive, &quick()).expect("an image");
    fixture.check_with(ImageReader::Unsquashfs, "two parts and zeros");
}

#[test]
fn later_archive_entries_replace_earlier_ones() {
    let fixture = Fixture::empty();
    fixture.write("a/file", b"first");
    fixture.write("b", b"first");
    shell(&fixture, "tar -C tree -cf it.tar a b; rm -r tree/a; echo -n second > tree/a; mkdir tree/c");
    shell(
        &fixture,
        "tar -C tree -rf it.tar a; echo -n last > tree/b; tar -C tree -rf it.tar b c; touch -d @5 tree",
    );
    for stream in [false, true] {
        let file = File::open(fixture.path("it.tar")).expect("the archive");
        let opened = match stream {
            true => Archive::of_stream("it".to_owned(), Box::new(file)),
            false => Archive::open(&fixture.path("it.tar")),
        };
        fixture.build_of(&mut opened.expect("an archive"), &quick()).expect("an image");
        ImageReader::Unsquashfs.show(&fixture.path("image"), &fixture.path("shown"), |shown| {
            let read = |name: &str| std::fs::read_to_string(shown.join(name)).expect("a file");
            assert_eq!((read("a").as_str(), read("b").as_str()), ("second", "last"));
            assert!(shown.join("c").is_dir());
        });
    }
}

#[test]
fn holes_in_every_sparse_format_stay_holes() {
    let fixture = Fixture::empty();
    fixture.sparse("hole", 9 << 20, &[(500_000, b"in the middle")]);
    shell(&fixture, "touch -d @5 tree tree/hole");
    for form in ["--format=gnu", "--sparse-version=0.0", "--sparse-version=0.1", "--sparse-version=1.0"] {
        shell(&fixture, &format!("tar --sparse --format=pax {form} -C tree -cf it.tar ."));
        assert!(fixture.path("it.tar").metadata().expect("an archive").len() < 100_000, "it is sparse");
        let mut archive = Archive::open(&fixture.path("it.tar")).expect("an archive");
        let report = fixture.build_of(&mut archive, &quick()).expect("an image");
        assert!(report.blocks_hole > 60 && report.bytes < 1 << 20, "{form}: {report:?}");
        fixture.check_with(ImageReader::Unsquashfs, form);
        let stream = Box::new(File::open(fixture.path("it.tar")).expect("an archive"));
        let mut archive = Archive::of_stream("it".to_owned(), stream).expect("an archive");
        let report = fixture.build_of(&mut archive, &quick()).expect("an image");
        assert!(report.blocks_hole > 60 && report.bytes < 1 << 20, "{form}: {report:?}");
        fixture.check_with(ImageReader::Unsquashfs, form);
    }
}

#[test]
fn names_with_newlines_are_preserved_by_pax() {
    let fixture = Fixture::new();
    // Sockets are not archived.
    shell(&fixture, &format!("rm tree/socket; touch -d @1000000000 tree; {TAR} --sort=name > it.tar"));
    let mut archive = Archive::open(&fixture.path("it.tar")).expect("an archive");
    fixture.build_of(&mut archive, &quick()).expect("an image");
    fixture.check_with(ImageReader::Unsquashfs, "odd names");
}

#[test]
fn links_in_an_archive_are_followed_as_gnu_tar_follows_them() {
    let add = |members: &[(tar::EntryType, &str, &str)]| {
        let mut archive = tar::Builder::new(Vec::new());
        for (kind, path, target) in members {
            let mut header = tar::Header::new_ustar();
            header.set_entry_type(*kind);
            header.set_mode(0o755);
            header.set_size(0);
            header.set_mtime(5);
            header.set_uid(0);
            header.set_gid(0);
            match target.is_empty() {
                true => archive.append_data(&mut header, path, &[][..]).expect("a member"),
                false => archive.append_link(&mut header, path, target).expect("a link"),
            }
        }
        archive.into_inner().expect("an archive")
    };
    let build = |bytes: Vec<u8>| {
        let fixture = Fixture::empty();
        let mut archive =
            Archive::of_stream("it".to_owned(), Box::new(std::io::Cursor::new(bytes))).expect("an archive");
        let built = fixture.build_of(&mut archive, &quick()).map(|_| fixture.listed());
        assert!(built.is_ok() || !fixture.path("image").exists());
        built
    };
    let (directory, link, file) =
        (tar::EntryType::Directory, tar::EntryType::Symlink, tar::EntryType::Regular);
    let hard = tar::EntryType::Link;
    let listed =
        build(add(&[(directory, "d", ""), (link, "s", "./d"), (file, "s/x", ""), (hard, "h", "s/x")]));
    let listed = listed.expect("an image");
    assert!(listed.contains(" /d/x") && listed.contains(" /s -> ./d") && listed.contains(" /h"), "{listed}");
    for target in ["none", "../d", "/d", "s"] {
        let error = build(add(&[(directory, "d", ""), (link, "s", target), (file, "s/x", "")]));
        assert!(error.expect_err("refused").to_string().contains("is no directory"), "{target}");
    }
    let replaced =
        build(add(&[(directory, "d", ""), (link, "s", "d"), (directory, "s", ""), (file, "s/x", "")]));
    assert!(replaced.expect("an image").contains(" /s/x"));
}

#[test]
fn an_archive_of_a_container_image_is_rejected_unless_requested() {
    use esker_testkit::container::{ContainerImage, Packing};
    let fixture = Fixture::empty();
    let image = ContainerImage::new(Default::default()).layer(Packing::Gzip, |layer| {
        layer.file("a", 0o644, "text");
    });
    image.write_docker_archive(&fixture.path("docker.tar"), "it:1");
    image.write_layout_archive(&fixture.path("oci.tar"), "latest");
    for (name, hint) in [("docker.tar", "docker-archive:"), ("oci.tar", "oci-archive:")] {
        let mut archive = Archive::open(&fixture.path(name)).expect("an archive");
        archive.refuse_container_images();
        let error = fixture.build_of(&mut archive, &quick()).expect_err("refused").to_string();
        assert!(error.contains(hint) && error.contains("container image"), "{error}");
        assert!(!fixture.path("image").exists());
        let mut archive = Archive::open(&fixture.path(name)).expect("an archive");
        fixture.build_of(&mut archive, &quick()).expect("an image of its parts");
        std::fs::remove_file(fixture.path("image")).expect("the image");
    }
}

#[test]
fn attribute_names_beyond_the_list_limit_are_left_out() {
    let fixture = Fixture::empty();
    let mut archive = tar::Builder::new(File::create(fixture.path("it.tar")).expect("a file"));
    let keys: Vec<String> = (0..300).map(|number| format!("SCHILY.xattr.user.{number:0245}")).collect();
    archive.append_pax_extensions(keys.iter().map(|key| (key.as_str(), &b"value"[..]))).expect("attributes");
    let mut header = tar::Header::new_ustar();
    header.set_size(0);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(5);
    archive.append_data(&mut header, "file", &[][..]).expect("a file");
    archive.finish().expect("an archive");
    let mut archive = Archive::open(&fixture.path("it.tar")).expect("an archive");
    let report = fixture.build_of(&mut archive, &quick()).expect("an image");
    // Each name takes 251 bytes of the 64 KiB.
    assert_eq!(report.xattrs_left_out, 300 - 261);
}
