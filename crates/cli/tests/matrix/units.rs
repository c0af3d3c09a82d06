//! The units that `esker setup` writes, with systemd as the first process of a machine of their own.

use std::fs;

use esker_testkit::fixture;
use esker_testkit::{skip, skip_optional};

use crate::machine::Machine;
use crate::test_env::{TestEnv, words};
use crate::test_user::TestUser;

/// Makes systemd the first process. It has a group of processes below ours, in a hierarchy of which it sees nothing else,
/// no unit but those of the script, and ends when `judge.service` has run `$RESULTS/judge`.
const SYSTEMD: &str = r#"
cat >/etc/systemd/system/judge.target <<EOF
[Unit]
DefaultDependencies=no
Wants=judge.service $UNITS
EOF
# Services want these targets, whose units would clean /tmp of the machine that the test runs on, and more.
for target in sysinit basic network-online shutdown; do
    printf '[Unit]\nDefaultDependencies=no\n' >/etc/systemd/system/$target.target
done
for unit in systemd-tmpfiles-setup.service systemd-tmpfiles-clean.service systemd-tmpfiles-clean.timer; do
    ln -sf /dev/null /etc/systemd/system/$unit
done
cat >/etc/systemd/system/judge.service <<EOF
[Unit]
DefaultDependencies=no
After=$UNITS
[Service]
Type=oneshot
Environment=NAME=$NAME
ExecStart=/bin/bash -euo pipefail $RESULTS/judge
ExecStopPost=/bin/sh -c 'echo \$SERVICE_RESULT >>$RESULTS/said; systemctl --force --force poweroff 2>/dev/null'
TimeoutStartSec=60
StandardOutput=append:$RESULTS/said
StandardError=append:$RESULTS/said
EOF
mount -t tmpfs none /sys/fs/cgroup
mkdir /sys/fs/cgroup/all
if ! mount -t cgroup2 none /sys/fs/cgroup/all || ! mkdir "/sys/fs/cgroup/all/$GROUP"; then
    echo "no group of processes can be made here" >"$RESULTS/impossible"
    exit 0
fi
echo $$ >"/sys/fs/cgroup/all/$GROUP/cgroup.procs"
exec unshare --cgroup $UNSHARED /bin/bash -euc '
    ip link set lo up
    umount /sys/fs/cgroup/all /sys/fs/cgroup
    mount -t cgroup2 none /sys/fs/cgroup
    exec env --ignore-environment container=esker "PATH=$PATH" /lib/systemd/systemd --system --unit=judge.target'
"#;

/// Removes the remaining control groups.
const CLEAN: &str = r#"
mount -t cgroup2 none /mnt
[ ! -d "/mnt/$GROUP" ] || find "/mnt/$GROUP" -depth -type d -exec rmdir {} +
"#;

/// systemd's mount at first use, its state, and its unmounting.
const JUDGE: &str = r#"
unit=cvmfs-$NAME
systemctl is-active $unit.automount
systemctl is-active $unit.mount || :
setpriv --reuid 1 --regid 1 --clear-groups stat -c %F "/cvmfs/$NAME/."
systemctl is-active $unit.mount
findmnt -no FSTYPE,SOURCE -t fuse.esker "/cvmfs/$NAME"
# The daemon belongs to the unit of the mount, and ends with it.
grep -c . "/sys/fs/cgroup/system.slice/$unit.mount/cgroup.procs"
# It says that it may be back at any time.
systemctl stop $unit.mount 2>/dev/null
systemctl is-active $unit.mount || :
grep -c " /cvmfs/$NAME fuse.esker " /proc/mounts || :
ls "/cvmfs/$NAME" >/dev/null
systemctl is-active $unit.mount
systemctl stop $unit.automount $unit.mount
grep -c " /cvmfs/$NAME " /proc/mounts || :
"#;

/// Runs `prepare`, and then systemd with some units and a judge, with further namespaces of `unshare`. Returns what the judge said; none where systemd can't run.
fn judged(world: &TestEnv, (units, unshared): (&str, &str), prepare: &str, judge: &str) -> Option<String> {
    let results = world.path("results");
    fs::create_dir(&results).expect("a folder");
    fs::write(results.join("judge"), judge).expect("writing");
    let names = format!(
        "export RESULTS={} GROUP=esker-test-{} UNITS=\"{units}\" UNSHARED={unshared}",
        results.display(),
        std::process::id()
    );
    let machine = Machine::new(world);
    let output = machine.output(&format!(
        r#"
        {names}
        rm -rf /etc/systemd/system/*
        echo 0123456789abcdef0123456789abcdef >/etc/machine-id
        {prepare}
        {SYSTEMD}
        "#
    ));
    let cleaned = machine.output(&format!("{names}\n{CLEAN}"));
    if let Ok(why) = fs::read_to_string(results.join("impossible")) {
        // A second systemd needs control groups that not every virtual machine delegates.
        skip_optional!("systemd can't be started here: {}", why.trim());
        return None;
    }
    let said = fs::read_to_string(results.join("said")).unwrap_or_else(|_| panic!("{}", words(&output)));
    assert!(said.ends_with("success\n"), "{said}\n{}", words(&output));
    assert!(cleaned.status.success(), "{}", words(&cleaned));
    Some(said)
}

/// Returns the world of an administrator where systemd is installed.
fn with_systemd() -> Option<TestEnv> {
    let myself = TestUser::myself();
    if !myself.is_root() {
        skip!("only root does to a machine what administrators do");
    }
    if !fs::exists("/lib/systemd/systemd").expect("looking for systemd") {
        skip!("systemd is not installed; its units are only read by systemd-analyze, if at all");
    }
    Some(TestEnv::new(myself, fixture::RMD))
}

/// The units are enough for systemd: a repository is mounted at any user's first use, and unmounted by systemctl.
#[test]
fn systemd_mounts_a_repository_at_first_use() {
    let Some(world) = with_systemd() else { return };
    let prepare = r#"
        mkdir -p /etc/cvmfs/keys /etc/cvmfs/config.d
        cp "$KEY" "/etc/cvmfs/keys/$NAME.pub"
        echo CVMFS_HTTP_PROXY=DIRECT >/etc/cvmfs/default.local
        echo "CVMFS_SERVER_URL=$URL" >"/etc/cvmfs/config.d/$NAME.conf"
        "$ESKER" setup mount --with systemd "$NAME"
    "#;
    let Some(said) = judged(&world, ("cvmfs-$NAME.automount", ""), prepare, JUDGE) else { return };
    let expected = [
        "active",
        "inactive",
        "directory",
        "active",
        "fuse.esker rmd.test",
        // A daemon, its helper and its supervisor.
        "3",
        "inactive",
        "0",
        "active",
        "0",
        "success",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected, "{said}");
}

/// What the services of a release manager and a site do.
const SERVICES: &str = r#"
trap 'systemctl --no-pager --full status esker-\*' ERR
published() { curl --silent --show-error --fail --max-time 20 --retry 10 --retry-connrefused --retry-delay 1 "$1/cvmfs/own.example.org/.cvmfspublished" | head -c 1; echo; }
published http://127.0.0.1:8000
published http://127.0.0.1:3128
curl --silent --fail http://127.0.0.1:4929/healthz >/dev/null
curl --silent --fail http://127.0.0.1:9868/metrics | grep -c "^esker_up\|^# TYPE" | sed 's/.*/metrics/'
systemctl is-active esker-proxy esker-broker esker-gateway esker-serve
for unit in check collect resign; do
    systemctl start esker-$unit.service || journalctl --no-pager -u esker-$unit.service
    systemctl show -P Result esker-$unit.service
done
# Their private folders in /tmp go with them.
timeout 20 systemctl stop esker-serve esker-proxy esker-broker esker-gateway esker-metrics >/dev/null 2>&1 || :
"#;

/// Each service does its work within the restrictions of its unit.
#[test]
fn services_work_as_narrow_as_their_units_are() {
    let Some(world) = with_systemd() else { return };
    let prepare = r#"
        "$ESKER" repo create own.example.org
        mkdir /tree && echo content >/tree/file
        "$ESKER" publish own.example.org /tree
        "$ESKER" gateway key add build own.example.org/ --output /build.gw
        "$ESKER" setup serve
        "$ESKER" setup proxy --upstream http://127.0.0.1:8000
        "$ESKER" setup broker
        "$ESKER" setup gateway
        "$ESKER" setup metrics
        "$ESKER" setup check
        "$ESKER" setup collect
        "$ESKER" setup resign
    "#;
    let units = "esker-serve.socket esker-proxy.service esker-broker.service esker-gateway.service esker-metrics.socket";
    let Some(said) = judged(&world, (units, "--net"), prepare, SERVICES) else { return };
    let expected = [
        "C", "C", "metrics", "active", "active", "active", "active", "success", "success", "success",
        "success",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected, "{said}");
}
