//! `esker setup`: a machine that mounts repositories by itself, with the real automounter.

use std::path::Path;
use std::process::Command;

use esker_testkit::fixture;
use esker_testkit::skip;

use crate::machine::Machine;
use crate::test_env::{TestEnv, words};
use crate::test_user::TestUser;

/// Starts the automounter as its service does. Its process group is its own, for that one sees folders that are not
/// mounted.
const AUTOMOUNT: &str = r#"
echo "+dir:/etc/auto.master.d" >/etc/auto.master
setsid automount --foreground --dont-check-daemon >/run/automount.log 2>&1 &
automount=$!
trap 'code=$?; if [ $code != 0 ]; then cat /run/automount.log >&2; fi; exit $code' EXIT
# It is ready when the kernel has its file system.
until grep -q " $MOUNTS autofs " /proc/mounts; do kill -0 $automount; read -t 0.05 <> <(:) || :; done
"#;

/// A program map in place of ours, for a repository that no configuration knows.
const MAP: &str = r#"
source=$(printf %s "$URL" | sed 's/:/\\:/g')
{
    echo '#!/bin/sh'
    echo "[ \"\$1\" = '$NAME' ] && printf '%s\n' '-fstype=esker,public_key=$KEY :$source'"
} >/etc/auto.esker
"#;

/// A repository is mounted at first access by the real automounter, and unmounted when idle.
#[test]
fn a_repository_appears_at_first_access() {
    let myself = TestUser::myself();
    if !myself.is_root() {
        skip!("only root does to a machine what administrators do");
    }
    let world = TestEnv::new(myself, fixture::RMD);
    let said = Machine::new(&world).run(&format!(
        r#"
        "$ESKER" setup mount >/dev/null
        {MAP}
        MOUNTS=/cvmfs
        {AUTOMOUNT}
        [ -z "$(ls -A /cvmfs)" ]
        stat -c %n "/cvmfs/$NAME/."
        findmnt -no FSTYPE "/cvmfs/$NAME" | tail -1
        # Any user's first access does, several at once make one mount, and what doesn't exist isn't there.
        umount "/cvmfs/$NAME"
        all=
        for turn in 1 2 3 4; do
            setpriv --reuid 1 --regid 1 --clear-groups stat -c %F "/cvmfs/$NAME/." & all="$all $!"
        done
        wait $all
        grep -c " /cvmfs/$NAME fuse.esker " /proc/mounts
        for none in nothing a.b.example.org .hidden; do ! ls "/cvmfs/$none" 2>/dev/null; done
        # An unused mount goes, and comes back.
        kill -USR1 $automount
        until ! grep -q " /cvmfs/$NAME fuse.esker " /proc/mounts; do kill -0 $automount; read -t 0.05 <> <(:) || :; done
        stat -c %F "/cvmfs/$NAME/." >/dev/null && echo back
        kill -TERM $automount
        wait $automount
        grep -c -e " /cvmfs/$NAME " -e " /cvmfs autofs" /proc/mounts || :
        trap - EXIT
        # The map was changed, so it stays and is named; the rest is gone.
        "$ESKER" setup undo 2>&1 | grep -c "/etc/auto.esker is left: it was changed"
        ls /etc/auto.master.d/esker.autofs /sbin/mount.esker /sbin/mount.cvmfs 2>/dev/null || echo undone
        "#
    ));
    let lines: Vec<_> = said.lines().collect();
    let directories = ["directory"; 4];
    let expected =
        [&["/cvmfs/rmd.test/.", "fuse.esker"][..], &directories, &["1", "back", "0", "1", "undone"]];
    assert_eq!(lines, expected.concat(), "{said}");
}

/// Settings of a site for CernVM-FS: servers, proxies and keys, and its automounter's map.
const SITE: &str = r#"
mkdir -p /etc/cvmfs/keys /etc/cvmfs/config.d
cp "$KEY" "/etc/cvmfs/keys/$NAME.pub"
printf 'CVMFS_HTTP_PROXY=DIRECT\nCVMFS_KEYS_DIR=/etc/cvmfs/keys\n' >/etc/cvmfs/default.local
echo "CVMFS_SERVER_URL=$URL" >"/etc/cvmfs/config.d/$NAME.conf"
"#;

/// A machine with a configuration for CernVM-FS needs no new setting, neither with our map nor with its own.
#[test]
fn a_configuration_for_cernvm_fs_is_enough() {
    let myself = TestUser::myself();
    if !myself.is_root() {
        skip!("only root does to a machine what administrators do");
    }
    let world = TestEnv::new(myself, fixture::RMD);
    let theirs = "rm /etc/auto.master.d/esker.autofs
        echo '/cvmfs /etc/auto.cvmfs' >/etc/auto.master.d/cvmfs.autofs
        echo '* -fstype=cvmfs :&' >/etc/auto.cvmfs";
    for map in ["", theirs] {
        let said = Machine::new(&world).run(&format!(
            r#"
            {SITE}
            "$ESKER" setup mount >/dev/null
            {map}
            MOUNTS=/cvmfs
            {AUTOMOUNT}
            stat -c %n "/cvmfs/$NAME/."
            findmnt -no FSTYPE,SOURCE "/cvmfs/$NAME" | tail -1
            umount "/cvmfs/$NAME"
            kill -TERM $automount
            wait $automount
            trap - EXIT
            mkdir /cvmfs/none
            mount.cvmfs nowhere.example.org /cvmfs/none 2>/dev/null || echo "code $?"
            "#
        ));
        assert_eq!(said, "/cvmfs/rmd.test/.\nfuse.esker rmd.test\ncode 1\n");
    }
}

/// A site whose configuration is in a repository, which has the settings of the other one.
const CONFIG_REPOSITORY: &str = r#"
"$ESKER" repo create config.test --storage /run/srv --keys /run/keys >/dev/null 2>&1
mkdir -p /run/tree/etc/cvmfs/config.d /run/tree/etc/cvmfs/keys /etc/cvmfs/default.d /etc/cvmfs/config.d
cp "$KEY" /run/tree/etc/cvmfs/keys/its.pub
printf 'CVMFS_SERVER_URL=%s\nCVMFS_PUBLIC_KEY=%s\n' "$URL" /cvmfs/config.test/etc/cvmfs/keys/its.pub >"/run/tree/etc/cvmfs/config.d/$NAME.conf"
"$ESKER" publish config.test /run/tree --storage /run/srv --keys /run/keys >/dev/null 2>&1
echo CVMFS_CONFIG_REPOSITORY=config.test >/etc/cvmfs/default.d/50-site.conf
echo CVMFS_HTTP_PROXY=DIRECT >/etc/cvmfs/default.local
printf 'CVMFS_SERVER_URL=%s\nCVMFS_PUBLIC_KEY=%s\n' file:///run/srv/config.test /run/keys/config.test.pub >/etc/cvmfs/config.d/config.test.conf
"#;

/// The configuration repository is mounted before the repository it configures: by mount(8) itself, and by the
/// automounter, which ignores its own process group.
#[test]
fn the_configuration_repository_is_mounted_first() {
    let myself = TestUser::myself();
    if !myself.is_root() {
        skip!("only root does to a machine what administrators do");
    }
    let world = TestEnv::new(myself, fixture::RMD);
    let machine = Machine::new(&world);
    let said = machine.run(&format!(
        r#"
        {CONFIG_REPOSITORY}
        ln -s "$ESKER" /sbin/mount.esker
        mkdir "/cvmfs/$NAME"
        mount -t esker "$NAME" "/cvmfs/$NAME"
        findmnt -no SOURCE "/cvmfs/$NAME"
        findmnt -no FSTYPE /cvmfs/config.test
        # Unlike umount(8), this waits until the daemons no longer use their cache.
        "$ESKER" umount "/cvmfs/$NAME"
        "$ESKER" umount /cvmfs/config.test
        # Where it can't be had, that is said, and nothing is left of it.
        rmdir /cvmfs/config.test
        rm -rf /run/srv /var/lib/esker
        mount -t esker "$NAME" "/cvmfs/$NAME" 2>&1 | grep -o "the configuration repository config.test can't be mounted" || :
        ls /cvmfs
        "#
    ));
    let expected =
        "rmd.test\nfuse.esker\nthe configuration repository config.test can't be mounted\nrmd.test\n";
    assert_eq!(said, expected);
    let said = machine.run(&format!(
        r#"
        {CONFIG_REPOSITORY}
        "$ESKER" setup mount >/dev/null
        MOUNTS=/cvmfs
        {AUTOMOUNT}
        stat -c %n "/cvmfs/$NAME/."
        findmnt -no SOURCE /cvmfs/config.test | tail -1
        umount "/cvmfs/$NAME" /cvmfs/config.test
        kill -TERM $automount
        wait $automount
        trap - EXIT
        "#
    ));
    assert_eq!(said, "/cvmfs/rmd.test/.\nconfig.test\n");
}

/// Beside CernVM-FS, from its configuration: its files and its automounter's folder stay as they are, and ours are
/// removed again.
#[test]
fn both_clients_can_be_set_up_beside_each_other() {
    let myself = TestUser::myself();
    if !myself.is_root() {
        skip!("only root does to a machine what administrators do");
    }
    let world = TestEnv::new(myself, fixture::RMD);
    let said = Machine::new(&world).run(&format!(
        r#"
        {SITE}
        echo '/cvmfs /etc/auto.cvmfs' >/etc/auto.master.d/cvmfs.autofs
        printf '#!/bin/sh\necho "-fstype=tmpfs :theirs"\n' >/etc/auto.cvmfs
        chmod 755 /etc/auto.cvmfs
        state() {{ find /etc/cvmfs /etc/auto.cvmfs /etc/auto.master.d/cvmfs.autofs -type f -exec sha256sum {{}} + | sort; }}
        state >/run/before
        "$ESKER" setup mount 2>&1 | grep -c "CernVM-FS is installed here" || :
        "$ESKER" setup mount --side-by-side >/dev/null
        [ ! -e /sbin/mount.cvmfs ] || echo "its helper was replaced"
        MOUNTS=/esker
        {AUTOMOUNT}
        stat -c %n "/esker/$NAME/."
        findmnt -no FSTYPE "/esker/$NAME" | tail -1
        # Theirs is still theirs: a stand-in, which mounts something else.
        stat -c %n "/cvmfs/$NAME/."
        findmnt -no FSTYPE "/cvmfs/$NAME" | tail -1
        "$ESKER" config show "$NAME" | grep -c "CVMFS_SERVER_URL=$URL"
        umount "/esker/$NAME" "/cvmfs/$NAME"
        kill -TERM $automount
        wait $automount
        trap - EXIT
        "$ESKER" setup undo >/dev/null
        state | cmp - /run/before && echo untouched
        ls /etc/auto.esker /etc/auto.master.d/esker.autofs /sbin/mount.esker 2>/dev/null || echo undone
        "#
    ));
    let expected =
        ["1", "/esker/rmd.test/.", "fuse.esker", "/cvmfs/rmd.test/.", "tmpfs", "1", "untouched", "undone"];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected, "{said}");
}

/// Our map has names that can be repositories, and no others.
#[test]
fn the_program_map_resolves_names() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let output = staged(&world, &["mount"]);
    assert!(output.status.success(), "{}", words(&output));
    let answer = |key: &str| {
        let mut map = world.person.command("/bin/sh");
        map.arg(world.path("home/stage/etc/auto.esker")).arg(key).output().expect("running the map")
    };
    for key in ["sw.example.org", "a-b_c.d", "0.x"] {
        let output = answer(key);
        assert!(output.status.success(), "{key}: {}", words(&output));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(said, format!("-fstype=esker,nodev,nosuid :{key}\n"));
    }
    for key in ["", ".", "..", "x", ".a.b", "a.b.", "-o.x", "a b.c", "a.b;id", "a.b\nc", "$(id).x", "ä.b"] {
        let output = answer(key);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{key:?}: {}", words(&output));
    }
}

/// Runs `esker setup` on a folder that stands for a machine; no rights are needed for that.
fn staged(world: &TestEnv, arguments: &[&str]) -> std::process::Output {
    let stage = world.path("home/stage");
    let mut command = world.esker(&["setup"]);
    command.args(arguments).arg("--root").arg(stage);
    command.output().expect("running esker")
}

/// Packagers and tests set up a folder; systemd has no complaint about the units.
#[test]
fn systemd_accepts_the_written_units() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::RMD);
        let output =
            staged(&world, &["mount", "--with", "systemd", "sw-dev.example.org", "--program", "/bin/true"]);
        assert!(output.status.success(), "{}", words(&output));
        let folder = world.path("home/stage/etc/systemd/system");
        for kind in ["mount", "automount"] {
            let unit = folder.join(format!(r"cvmfs-sw\x2ddev.example.org.{kind}"));
            let output = Command::new("systemd-analyze").arg("verify").arg(&unit).output();
            let output = output.expect("running systemd-analyze");
            assert!(output.status.success() && output.stderr.is_empty(), "{}", words(&output));
        }
        let link = folder.join(r"multi-user.target.wants/cvmfs-sw\x2ddev.example.org.automount");
        let target = person.does(|| std::fs::read_link(link)).expect("a link");
        assert!(target.starts_with("/etc/systemd/system"), "{target:?}");
        let output = staged(&world, &["undo"]);
        assert!(output.status.success(), "{}", words(&output));
        let left = person.does(|| std::fs::read_dir(world.path("home/stage")).map(Iterator::count));
        assert_eq!(left.expect("a folder"), 0, "{}", words(&output));
    }
}

#[test]
fn wrong_calls_of_setup_change_nothing() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let cases: [(&[&str], &str); 6] = [
        (&["mount", "--with", "systemd"], "which repositories"),
        (&["mount", "--with", "autofs", "a.test"], "not only a.test"),
        (&["mount", "--with", "fstab", "a b"], "a b"),
        (&["mount", "--mount-dir", "cvmfs"], "absolute"),
        (&["mount", "--mount-dir", "/a b"], "absolute"),
        (&["mount", "--with", "nonsense"], "nonsense"),
    ];
    for (arguments, named) in cases {
        let output = staged(&world, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", words(&output));
        assert!(String::from_utf8_lossy(&output.stderr).contains(named), "{}", words(&output));
    }
    let told = staged(&world, &["mount", "--with", "fstab", "a.test", "--dry-run"]);
    assert!(told.status.success(), "{}", words(&told));
    assert!(
        String::from_utf8_lossy(&told.stdout).contains("would add to /etc/fstab: a.test /cvmfs/a.test esker")
    );
    assert!(!Path::new(&world.path("home/stage")).exists());
}
