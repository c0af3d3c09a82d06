//! Images on web servers and in repositories: read in parts, kept, checked, and never of two versions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Instant;

use esker_testkit::fixture;
use esker_testkit::mirror::{Fault, Mirror};
use esker_testkit::waiting::until_some;
use esker_testkit::web::Web;

use crate::containers::rootfs::Rootfs;
use crate::publishing::{NAME, Workshop};
use crate::test_env::{Mounted, PATIENCE, TestEnv, complaint, printed, printed_bytes, words};
use crate::test_user::TestUser;

/// Path of the image on the mirror.
const PLACE: &str = "/images/it.sqfs";
const BLOCK: usize = 256 << 10;
/// Several of the chunks in which a repository stores a file.
const LARGE: usize = 40 << 20;

/// Test environment with an image on a server.
struct Reader {
    world: TestEnv,
    image: Vec<u8>,
    root: String,
}

/// Bytes that don't compress.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    use rand::{RngCore as _, SeedableRng as _};
    let mut bytes = vec![0; len];
    rand::rngs::StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

impl Reader {
    /// Serves an image of two files that are far apart, with its list of digests.
    fn new(person: TestUser) -> Reader {
        let world = TestEnv::new(person, fixture::RMD);
        let (image, list, root) = made(&world, 1);
        world.mirror.put(PLACE, image.clone());
        world.mirror.put(&format!("{PLACE}.digests"), list);
        world.mirror.say("ETag", "\"one\"");
        Reader { world, image, root }
    }

    fn url(&self) -> String {
        self.world.mirror.url(PLACE)
    }

    fn esker(&self, arguments: &[&str]) -> Output {
        self.world.esker(arguments).output().expect("running esker")
    }

    #[track_caller]
    fn done(&self, arguments: &[&str]) -> Vec<u8> {
        printed_bytes(&mut self.world.esker(arguments))
    }

    #[track_caller]
    fn refused(&self, code: i32, arguments: &[&str]) -> String {
        complaint(&mut self.world.esker(arguments), code)
    }

    /// Requests for the image, and for its list.
    fn asked(&self) -> usize {
        self.world.mirror.count(|path| path.starts_with(PLACE))
    }

    fn forget(&self) {
        fs::remove_dir_all(self.world.path("home/.cache/esker")).expect("emptying the cache");
    }
}

/// Makes an image: its bytes, the list of its digests, and the root of that.
fn made(world: &TestEnv, seed: u64) -> (Vec<u8>, Vec<u8>, String) {
    let folder = world.path(&format!("home/tree-{seed}"));
    let image = world.path(&format!("home/{seed}.sqfs"));
    let at = |name: &str| folder.join(name);
    world.person.does(|| {
        fs::create_dir_all(at("sub")).expect("folders");
        fs::write(at("a"), noise(seed, 3 << 20)).expect("a file");
        fs::write(at("sub/b"), noise(seed + 100, 3 << 20)).expect("a file");
        fs::write(at("small"), "small\n").expect("a file");
    });
    let run = |arguments: &[&str]| printed(&mut world.esker(arguments)).trim().to_owned();
    let path = image.display().to_string();
    run(&["image", "build", &path, &folder.display().to_string(), "--mtime", "1000"]);
    let root = run(&["image", "digest", &path]);
    let list = fs::read(format!("{path}.digests")).expect("the list");
    (fs::read(&image).expect("the image"), list, root)
}

#[test]
fn a_remote_image_is_read_in_blocks_which_are_cached() {
    let reader = Reader::new(TestUser::ordinary());
    let (url, blocks) = (reader.url(), reader.image.len().div_ceil(BLOCK));
    let cat = |more: &[&str]| reader.esker(&[&["image", "cat", &url, "/small"], more].concat());
    let output = cat(&[]);
    assert!(output.status.success() && words(&output).contains("not authenticated"), "{}", words(&output));
    assert_eq!(output.stdout, b"small\n");
    let first = reader.asked();
    assert!(first > 1 && first < blocks, "{first} requests for {blocks} blocks");
    assert!(cat(&[]).status.success());
    assert_eq!(reader.asked(), first + 1, "what is kept is used; the version is asked for");

    let output = cat(&["--digest", &reader.root]);
    assert!(output.status.success() && !words(&output).contains("authenticated"), "{}", words(&output));
    let checked = reader.asked();
    assert!(cat(&["--digest", &reader.root]).status.success());
    assert_eq!(reader.asked(), checked, "a digest says all that has to be known");
    let verified = reader.done(&["image", "verify", &url, "--digest", &reader.root]);
    assert!(String::from_utf8_lossy(&verified).contains("0 faults"));
    assert_eq!(reader.done(&["image", "ls", &url, "--digest", &reader.root]), b"a\nsmall\nsub\n");
    // Damaged blocks on disk are fetched again.
    for part in files(&reader.world.path("home/.cache/esker/images")) {
        let mut bytes = fs::read(&part).expect("a part");
        bytes.truncate(bytes.len() / 2);
        fs::write(&part, bytes).expect("damage");
    }
    let read = reader.done(&["image", "cat", &url, "/sub/b", "--digest", &reader.root]);
    assert!(read == noise(101, 3 << 20));
    assert!(String::from_utf8_lossy(&reader.done(&["cache", "wipe"])).contains("of images"));
    assert_eq!(files(&reader.world.path("home/.cache/esker/images")).len(), 1, "the lock");
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    folders.iter().flat_map(|folder| self::files(folder)).chain(files).collect()
}

#[test]
fn damaged_messages_are_noticed() {
    let reader = Reader::new(TestUser::ordinary());
    let (url, mirror) = (reader.url(), &reader.world.mirror);
    let cat = ["image", "cat", &url, "/sub/b"];
    let checked = ["image", "cat", &url, "/sub/b", "--digest", &reader.root];
    let picks = |path: &str| path == PLACE;
    let good = noise(101, 3 << 20);
    for passing in [Fault::Status(503), Fault::CloseAfter(1000), Fault::Status(500)] {
        let rule = mirror.fault_times(1, picks, passing.clone());
        assert!(reader.done(&cat) == good, "{passing:?}");
        rule.assert_hit();
        reader.forget();
    }
    let rule = mirror.fault(picks, Fault::Redirect(mirror.url("/elsewhere")));
    mirror.put("/elsewhere", reader.image.clone());
    assert!(reader.done(&cat) == good);
    rule.assert_hit();
    rule.lift();
    reader.forget();

    // Within the second file.
    let last = reader.image.len() as u64 / 4 * 3;
    for (fault, reason) in [
        (Fault::FlipByte(last), "are not those that the list of digests names"),
        (Fault::Truncate(last), "has changed on the server"),
        (Fault::Content(noise(9, reader.image.len())), "are not those that the list of digests names"),
        (Fault::Missing, "no such object"),
    ] {
        // Opened before, so that it is a part that is missed.
        reader.done(&["image", "ls", &url, "--digest", &reader.root]);
        let rule = mirror.fault(picks, fault.clone());
        let output = reader.esker(&checked);
        assert!(!output.status.success(), "{fault:?}");
        assert!(words(&output).contains(reason), "{fault:?}: {}", words(&output));
        rule.assert_hit();
        rule.lift();
        assert!(reader.done(&checked) == good, "{fault:?}: nothing wrong was kept");
        reader.forget();
    }
    let rule = mirror.fault(|path: &str| path.ends_with(".digests"), Fault::Content(b"no list".to_vec()));
    let told = reader.refused(4, &checked);
    assert!(told.contains("it has the digest") && told.contains(&reader.root), "{told}");
    rule.assert_hit();
    mirror.say("ETag", "W/\"weak\"");
    let told = reader.refused(1, &cat);
    assert!(told.contains("neither ETag") && told.contains("--digest"), "{told}");
}

#[test]
fn a_mounted_image_is_of_one_version() {
    for person in TestUser::all() {
        let reader = Reader::new(person);
        let mounted = reader.world.mount_of(&reader.url(), &["--deadline", "2"]);
        let read = |name: &str| mounted.does(|| fs::read(mounted.path(name)));
        assert!(read("a").expect("reading") == noise(1, 3 << 20));
        assert_eq!(mounted.status()["image"]["authenticated"], "no");
        let (other, ..) = made(&reader.world, 2);
        reader.world.mirror.put(PLACE, other);
        reader.world.mirror.say("ETag", "\"two\"");
        let error = read("sub/b").expect_err("it has changed");
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        assert!(read("a").expect("what was read before") == noise(1, 3 << 20));
        let status = mounted.status();
        let told = status["errors"].to_string();
        assert!(told.contains("has changed on the server"), "{status:#}");
        // Put back, it goes on.
        reader.world.mirror.put(PLACE, reader.image.clone());
        reader.world.mirror.say("ETag", "\"one\"");
        assert!(read_at_last(&mounted, "sub/b") == noise(101, 3 << 20));
    }
}

/// A slow link causes no failure: the deadline counts from the last bytes.
#[test]
fn an_image_is_read_over_a_slow_link_without_a_timeout() {
    let reader = Reader::new(TestUser::ordinary());
    let mounted = reader.world.mount_of(&reader.url(), &["--deadline", "2"]);
    mounted.does(|| fs::read_dir(mounted.path("")).expect("listing").count());
    reader.world.mirror.narrow(512 << 10);
    let since = Instant::now();
    std::thread::scope(|scope| {
        let read = |name: &'static str| scope.spawn(|| mounted.does(|| fs::read(mounted.path(name))));
        let reads = [read("a"), read("sub/b")];
        for (read, content) in reads.into_iter().zip([noise(1, 3 << 20), noise(101, 3 << 20)]) {
            assert!(read.join().expect("joined").expect("reading") == content);
        }
    });
    assert!(since.elapsed().as_secs() > 4, "it was slow: {:?}", since.elapsed());
}

/// Reads a file until it succeeds: an earlier request may still fail.
fn read_at_last(mounted: &Mounted<'_>, name: &str) -> Vec<u8> {
    let read = until_some(PATIENCE, || mounted.does(|| fs::read(mounted.path(name))).ok());
    read.unwrap_or_else(|| panic!("{name} can't be read again"))
}

#[test]
fn waiting_for_an_unreachable_server_is_bounded() {
    let reader = Reader::new(TestUser::ordinary());
    let options = ["--deadline", "1", "--digest", &reader.root];
    let mounted = reader.world.mount_of(&reader.url(), &options);
    assert_eq!(mounted.status()["image"]["authenticated"], "digest");
    reader.world.mirror.leave();
    let start = Instant::now();
    let error = mounted.does(|| fs::read(mounted.path("sub/b"))).expect_err("no answer");
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    reader.world.mirror.come_back();
    assert!(read_at_last(&mounted, "sub/b") == noise(101, 3 << 20));
}

/// A real server, with its validators and ranges; and one without.
#[test]
fn nginx_serves_images() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let (image, list, root) = made(&world, 1);
    let web = Web::nginx(2, |folder, ports| {
        fs::write(folder.join("it.sqfs"), &image).expect("the image");
        fs::write(folder.join("it.sqfs.digests"), &list).expect("the list");
        let server = |port: u16, more: &str| {
            format!("server {{ listen 127.0.0.1:{port}; root {}; {more} }}\n", folder.display())
        };
        server(ports[0], "") + &server(ports[1], "max_ranges 0;")
    });
    let ports = web.ports().to_vec();
    let cat = |port: usize, more: &[&str]| {
        let place = format!("http://127.0.0.1:{}/it.sqfs", ports[port]);
        let arguments = [&["image", "cat", &place, "/sub/b"], more].concat();
        world.esker(&arguments)
    };
    let good = noise(101, 3 << 20);
    for more in [&[][..], &["--digest", &root]] {
        assert!(printed_bytes(&mut cat(0, more)) == good, "{more:?}");
    }
    let log = web.log();
    let whole = log.lines().filter(|line| line.contains("/it.sqfs ") && !line.contains("\" 206 ")).count();
    assert_eq!(whole, 0, "{log}");
    for more in [&[][..], &["--digest", &root, "--cache", &world.path("home/other").display().to_string()]] {
        let output = cat(1, more).output().expect("running esker");
        assert!(!output.status.success(), "it has no ranges");
        assert!(words(&output).contains("sends whole files"), "{}", words(&output));
    }
    drop(web);
    let start = Instant::now();
    complaint(&mut cat(0, &["--deadline", "1"]), 3);
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
}

#[test]
fn a_command_runs_from_an_image_on_a_server() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let system = Rootfs::new(&world.path("root"));
    let image = world.path("home/system.sqfs").display().to_string();
    printed(&mut world.esker(&["image", "build", &image, &system.path().display().to_string()]));
    world.mirror.put("/system.sqfs", fs::read(&image).expect("the image"));
    world.mirror.say("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT");
    let url = world.mirror.url("/system.sqfs");
    let run = ["run", &url, "--", "cat", "/made-for-this-test"];
    let output = world.esker(&run).output().expect("running esker");
    assert!(output.status.success() && output.stdout == b"a system\n", "{}", words(&output));
    assert!(words(&output).contains("not authenticated"), "{}", words(&output));
}

/// A published image is fetched on demand, and authenticated by its repository; and it is a file of the mounted
/// repository like any other.
#[test]
fn an_image_of_a_repository_is_mounted_and_run() {
    let workshop = Workshop::with(TestUser::ordinary(), |tree| fs::create_dir_all(tree).expect("a folder"));
    let world = &workshop.world;
    let system = Rootfs::new(&world.path("root"));
    system.write("/share/noise", "", 0o644);
    fs::write(system.path().join("share/noise"), noise(5, LARGE)).expect("a file");
    let build = ["image", "build", &workshop.home("tree/system.sqfs"), &system.path().display().to_string()];
    printed(&mut world.esker(&build));
    workshop.create();
    workshop.json(&["publish", NAME, &workshop.tree()]);
    let mirror = Mirror::serve(workshop.home("storage"));
    let key = workshop.home(&format!("keys/{NAME}.pub"));
    let cache = world.cache().display().to_string();
    let repository = ["--public-key", &key, "--cache", &cache];
    let place = format!("{}:/system.sqfs", mirror.url(NAME));

    let esker = |arguments: &[&str], rest: &[&str]| {
        printed(&mut world.esker(&[arguments, &repository[..], rest].concat()))
    };
    assert_eq!(esker(&["image", "cat", &place, "/made-for-this-test"], &[]), "a system\n");
    let fetched: u64 =
        files(&world.cache()).iter().map(|file| fs::metadata(file).expect("a file").len()).sum();
    assert!(fetched > 0 && fetched < LARGE as u64, "{fetched} bytes: not the whole image");
    let ran = esker(&["run", &place], &["--", "cat", "/made-for-this-test"]);
    assert_eq!(ran, "a system\n");

    let mountpoint = world.mountpoint();
    let mount = ["mount", &place, &mountpoint.display().to_string()];
    esker(&mount, &[]);
    {
        let mounted = world.mounted();
        assert_eq!(mounted.status()["image"]["authenticated"], "repository");
        let read = mounted.does(|| fs::read(mounted.path("share/noise"))).expect("reading");
        assert!(read == noise(5, LARGE));
    }
    let refused = world
        .esker(&["mount", &format!("{}:/", mirror.url(NAME)), &mountpoint.display().to_string()])
        .args(repository)
        .output()
        .expect("running esker");
    assert!(words(&refused).contains("is not a file"), "{}", words(&refused));

    // As a file below a mount.
    esker(&["mount", &mirror.url(NAME), &mountpoint.display().to_string()], &[]);
    let mounted = world.mounted();
    let file = mounted.path("system.sqfs").display().to_string();
    assert_eq!(esker(&["image", "cat", &file, "/made-for-this-test"], &[]), "a system\n");
    let ran = esker(&["run", &file], &["--", "cat", "/made-for-this-test"]);
    assert_eq!(ran, "a system\n");
}
