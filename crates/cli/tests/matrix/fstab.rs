//! Mounts as sites make them: mount(8) with our helpers, and fstab.

use esker_testkit::fixture;
use esker_testkit::skip;

use crate::machine::Machine;
use crate::test_env::{TestEnv, mountinfo, words};
use crate::test_user::TestUser;

/// Returns root's world, unless an ordinary user runs the tests.
fn root() -> Option<TestEnv> {
    let myself = TestUser::myself();
    if !myself.is_root() {
        skip!("only root does to a machine what administrators do");
    }
    Some(TestEnv::new(myself, fixture::RMD))
}

#[test]
fn mount_finds_its_helper() {
    let Some(world) = root() else { return };
    let said = Machine::new(&world).run(
        r#"
        ln -s "$ESKER" /sbin/mount.esker
        mkdir "/cvmfs/$NAME" && cd /cvmfs
        mount -t esker "$URL" "$NAME" -o "nodev,_netdev,fixed,quota=2G,public_key=$KEY"
        ls "$NAME" | grep -c . >/dev/null
        findmnt -no FSTYPE,SOURCE "/cvmfs/$NAME"
        "$ESKER" status --json | tr , '\n' | grep quota
        # The daemon has a session of its own, so that no terminal ends it.
        pid=$("$ESKER" status --json | tr , '\n' | sed -n 's/.*"pid": *//p')
        [ "$(cut -d' ' -f6 "/proc/$pid/stat")" = "$pid" ] && echo its own session
        mount -o remount "/cvmfs/$NAME" && echo remounted
        umount "$NAME"
        findmnt "/cvmfs/$NAME" || echo gone
        "#,
    );
    for part in [&world.url(), "2147483648", "its own session", "remounted", "gone"] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
}

#[test]
fn a_line_in_fstab_is_enough() {
    let Some(world) = root() else { return };
    let said = Machine::new(&world).run(
        r#"
        ln -s "$ESKER" /sbin/mount.esker
        mkdir "/cvmfs/$NAME"
        echo "$URL /cvmfs/$NAME esker defaults,noexec,_netdev,x-systemd.automount,public_key=$KEY 0 0" >/etc/fstab
        mount -a
        # What is mounted is mounted: a machine may say it twice.
        mount -a && echo twice
        findmnt -no OPTIONS "/cvmfs/$NAME"
        umount "/cvmfs/$NAME"
        # At once, while the daemon of the first is still on its way out.
        mount "/cvmfs/$NAME"
        stat -c %F "/cvmfs/$NAME"
        umount -a -t fuse.esker
        findmnt "/cvmfs/$NAME" || echo gone
        "#,
    );
    for part in ["twice", "noexec", "nosuid", "directory", "gone"] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
}

/// mount(8) returns the helper's code: 1 for a wrong call, 32 for a mount that failed.
#[test]
fn helpers_end_with_the_codes_of_mount() {
    let Some(world) = root() else { return };
    let machine = Machine::new(&world);
    let said = machine.run(
        r#"
        for name in mount.esker umount.esker; do ln -s "$ESKER" "/sbin/$name"; done
        mkdir "/cvmfs/$NAME"
        code() { "$@" >/tmp/said.$$ 2>&1 && code=0 || code=$?; echo "$code: $(tr '\n' ' ' </tmp/said.$$)"; rm /tmp/said.$$; }
        code mount -t esker "$URL" "/cvmfs/$NAME" -o "fixxed,public_key=$KEY"
        code mount -t esker "$URL" "/cvmfs/$NAME" -o "quota=big,public_key=$KEY"
        code mount -t esker "$URL" "/cvmfs/$NAME" -o "public_key=/no/such.pub"
        code mount -t esker http://127.0.0.1:1/rmd.test "/cvmfs/$NAME" -o "public_key=$KEY"
        code mount -t esker "$URL" /cvmfs/none -o "public_key=$KEY"
        code mount.esker "$URL"
        code mount.esker -f -v "$URL" "/cvmfs/$NAME" -o "fixxed,public_key=$KEY" -s
        code umount.esker "/cvmfs/$NAME"
        code mount -t esker "$URL" "/cvmfs/$NAME" -o "public_key=$KEY"
        code mount -t esker "$URL" "/cvmfs/$NAME" -o "public_key=$KEY,ro"
        code umount.esker "/cvmfs/$NAME"
        "#,
    );
    let expected = [
        ("1: ", "\"fixxed\" is unknown"),
        ("1: ", "big"),
        ("1: ", "/no/such.pub"),
        ("32: ", "refused"),
        ("32: ", "/cvmfs/none"),
        ("1: ", "takes 2 arguments, not 1"),
        ("0: ", "esker mount --source="),
        ("32: ", "not mounted"),
        ("0: ", ""),
        ("32: ", "mounted already"),
        ("0: ", ""),
    ];
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), expected.len(), "{said}");
    for (line, (code, part)) in lines.iter().zip(expected) {
        assert!(line.starts_with(code) && line.contains(part), "{line:?} is not {code}…{part}…");
    }
}

/// A script on a test machine leaves nothing behind, mounts included.
#[test]
fn a_test_machine_leaves_nothing() {
    let Some(world) = root() else { return };
    let output = Machine::new(&world).output(
        r#"
        ln -s "$ESKER" /sbin/mount.esker
        mkdir "/cvmfs/$NAME"
        mount -t esker "$URL" "/cvmfs/$NAME" -o "public_key=$KEY"
        exit 7
        "#,
    );
    assert_eq!(output.status.code(), Some(7), "{}", words(&output));
    let mounts = mountinfo();
    assert!(!mounts.contains(&world.url()), "{mounts}");
}
