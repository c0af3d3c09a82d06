//! `esker status` of root and of users: visible mounts, and their details.

use serde_json::Value;

use esker_testkit::fixture;
use esker_testkit::skip;

use crate::machine::Machine;
use crate::test_env::TestEnv;
use crate::test_user::TestUser;

/// Mounts one repository as root and one as each of two users, one with a runtime folder of a login session and one
/// without. Another user lays traps.
const MOUNTS: &str = r#"
mkdir -p "/cvmfs/$NAME" /run/user/1/esker /run/m/one /run/m/two /run/user/3
chown -R 1:1 /run/user/1 /run/m/one
chown 2:2 /run/m/two
chmod 700 /run/user/1 /run/user/1/esker
chown 3:3 /run/user/3
user() { id=$1; shift; setpriv --reuid "$id" --regid "$id" --clear-groups env HOME=/tmp "$@"; }
umask 022
# What stays in reach of all users when there is another /tmp.
mkdir -m 755 /run/kept
cp "$ESKER" /run/kept/esker
cp "$KEY" /run/kept/key.pub
chmod a+r /run/kept/key.pub
ESKER=/run/kept/esker KEY=/run/kept/key.pub
mount -t tmpfs -o mode=1777 none /tmp
ln -s "$ESKER" /sbin/mount.esker
mount -t esker "$URL" "/cvmfs/$NAME" -o "public_key=$KEY"
user 1 XDG_RUNTIME_DIR=/run/user/1 "$ESKER" mount "$URL" /run/m/one --public-key "$KEY" --cache /tmp/cache-1
user 2 "$ESKER" mount "$URL" /run/m/two --public-key "$KEY" --cache /tmp/cache-2
# A link to another user's registry, a pipe, and a socket at which nothing answers.
ln -s /run/user/1/esker /run/user/3/esker
user 4 sh -c 'mkdir -m 700 /tmp/esker-4 && mkfifo /tmp/esker-4/0123456789abcdef.json'
"#;

const END: &str = r#"
umount -l "/cvmfs/$NAME" /run/m/one /run/m/two
"#;

fn mounts(line: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    all["mounts"].as_array().expect("mounts").clone()
}

#[test]
fn root_sees_all_mounts_and_users_see_those_of_root() {
    let myself = TestUser::myself();
    if !myself.is_root() {
        skip!("only root sees the mounts of all users");
    }
    let world = TestEnv::new(myself, fixture::RMD);
    let said = Machine::new(&world).run(&format!(
        r#"
        {MOUNTS}
        "$ESKER" status --json | tr -d '\n'; echo
        user 1 XDG_RUNTIME_DIR=/run/user/1 "$ESKER" status --json | tr -d '\n'; echo
        user 5 "$ESKER" status --json | tr -d '\n'; echo
        "$ESKER" status /run/m/two
        user 5 "$ESKER" status
        {END}
        "#
    ));
    let lines: Vec<&str> = said.lines().collect();
    let at = |mounts: &[Value], place: &str| {
        mounts.iter().find(|mount| mount["mountpoint"] == place).cloned().unwrap_or_default()
    };
    let of_root = mounts(lines[0]);
    assert_eq!(of_root.len(), 3, "{said}");
    let own = at(&of_root, "/cvmfs/rmd.test");
    assert_eq!((&own["state"], &own["user"]), (&"serving".into(), &Value::Null), "{own:#}");
    for (place, user) in [("/run/m/one", 1), ("/run/m/two", 2)] {
        let theirs = at(&of_root, place);
        assert_eq!((&theirs["state"], &theirs["user"]), (&"serving".into(), &user.into()), "{theirs:#}");
        assert_eq!(theirs["repository"], "rmd.test");
        assert!(theirs["revision"].as_u64().is_some(), "{theirs:#}");
    }
    // A user has their own, and of root's the name, the place and the revision; of other users' nothing.
    let of_user = mounts(lines[1]);
    assert_eq!(of_user.len(), 2, "{said}");
    assert_eq!(at(&of_user, "/run/m/one")["state"], "serving");
    let shared = at(&of_user, "/cvmfs/rmd.test");
    let expected = serde_json::json!({
        "user": 0,
        "state": "shared",
        "mountpoint": "/cvmfs/rmd.test",
        "repository": "rmd.test",
        "revision": own["revision"],
    });
    assert_eq!(shared, expected);
    assert_eq!(mounts(lines[2]), [expected]);
    let text = lines[3..].join("\n");
    assert!(text.contains("/run/m/two — rmd.test, revision") && text.contains("user      2"), "{text}");
    let (_, of_stranger) = text.split_once("/cvmfs/rmd.test — rmd.test, revision").expect("root's mount");
    assert!(
        of_stranger.contains("user      root") && !text.contains(&world.path("").display().to_string()),
        "{text}"
    );
}
