//! Lists of proxies through real mounts and squids, with requests counted at the server by their source address.
//! `store/tests/it/proxy_lists.rs` has the whole table.

use std::net::Ipv4Addr;

use super::client::Client;
use super::process::Process;
use super::{RESET, SWITCHED, TIMEOUT};
use crate::exclusive;
use crate::test_env::words;

/// Files read in each cell.
const READS: usize = 3;
const DIRECT: Ipv4Addr = Ipv4Addr::LOCALHOST;
const FIRST: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 21);
const SECOND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 22);

/// A list, and the sources of requests at the server while all are up, and while the first squid is down. `P` and `Q`
/// are squids, `p` is the first one by a name, `x` an unknown name.
const ROWS: [(&str, &[Ipv4Addr], &[Ipv4Addr]); 9] = [
    ("P;DIRECT", &[FIRST], &[DIRECT]),
    ("p;DIRECT", &[FIRST], &[DIRECT]),
    ("P|Q;DIRECT", &[FIRST, SECOND], &[SECOND]),
    ("p|Q;DIRECT", &[FIRST, SECOND], &[SECOND]),
    ("P;Q;DIRECT", &[FIRST], &[SECOND]),
    ("p;Q;DIRECT", &[FIRST], &[SECOND]),
    ("x;P;DIRECT", &[FIRST], &[DIRECT]),
    ("x|P;Q", &[FIRST], &[SECOND]),
    ("DIRECT;P", &[DIRECT], &[DIRECT]),
];

fn counts(origin: &Process) -> Vec<(Ipv4Addr, usize)> {
    [DIRECT, FIRST, SECOND].map(|address| (address, origin.answered_to(address))).into()
}

/// > W8: Groups of proxies are used in the order in which they are listed, whatever is resolved first: a request goes through a later group, or directly where that stands later, only while everything before it fails.
#[test]
fn lists_of_proxies_are_used_in_their_order_by_mounts() {
    let _pass = exclusive::among_others();
    let client = Client::new();
    let origin = client.nginx("origin", Some(&client.storage()));
    let mut first = client.squid_from("first-squid", FIRST);
    let second = client.squid_from("second-squid", SECOND);
    let by_name = format!("http://localhost:{}", first.address.port());
    let list = |text: &str| {
        let member = |member: &str| match member {
            "P" => first.url(),
            "Q" => second.url(),
            "p" => by_name.clone(),
            "x" => "http://no-such-proxy.invalid:3128".to_owned(),
            direct => direct.to_owned(),
        };
        let group = |group: &str| group.split('|').map(member).collect::<Vec<_>>().join("|");
        text.split(';').map(group).collect::<Vec<_>>().join(";")
    };
    let lists: Vec<String> = ROWS.iter().map(|(text, ..)| list(text)).collect();
    let cell = |number: usize, down: bool, expected: &[Ipv4Addr]| {
        let options = ["--proxy", &lists[number], "--timeout", TIMEOUT, "--reset-after", "300"];
        let mount = client.at("cell", &origin, &options);
        let before = counts(&origin);
        mount.mount_empty(SWITCHED);
        for _ in 0..READS {
            client.read_new(&mount, SWITCHED);
        }
        let asked: Vec<(Ipv4Addr, usize)> = counts(&origin)
            .into_iter()
            .zip(before)
            .map(|((address, count), (_, earlier))| (address, count - earlier))
            .filter(|(_, count)| *count > 0)
            .collect();
        let told = format!("{} {down}: {asked:?}, {:#}", ROWS[number].0, mount.route());
        assert!(asked.iter().all(|(address, _)| expected.contains(address)), "{told}");
        // One member of a group does all the work. Objects that another mount fetched are in a squid's cache.
        assert!(asked.len() == 1 && asked[0].1 >= READS, "{told}");
        mount.umount();
    };
    for (number, (_, up, _)) in ROWS.iter().enumerate() {
        cell(number, false, up);
    }
    first.stop();
    for (number, (_, _, down)) in ROWS.iter().enumerate() {
        cell(number, true, down);
    }
}

/// A proxy that is down is shown by `status`, as text and as JSON, by the doctor and in the log, and so is its return.
#[test]
fn a_proxy_that_is_down_is_reported_everywhere() {
    let _pass = exclusive::among_others();
    let client = Client::new();
    let origin = client.nginx("origin", Some(&client.storage()));
    let mut squid = client.squid_from("squid", FIRST);
    let list = format!("{};DIRECT", squid.url());
    let options = ["--proxy", &list, "--timeout", TIMEOUT, "--reset-after", RESET];
    let mount = client.at("seen", &origin, &options);
    mount.mount_empty(SWITCHED);
    client.wait_for_first(&mount);
    squid.stop();
    client.read_new(&mount, SWITCHED);
    let proxy = mount.route()["proxies"][0][0].clone();
    assert!(proxy["out"] == true && proxy["active"] == false && proxy["since"].is_u64(), "{proxy:#}");
    assert!(proxy["why"].as_str().is_some_and(|why| why.contains("can't be reached")), "{proxy:#}");
    assert_eq!(mount.route()["proxies"][1][0]["active"], true);
    let (output, _) = mount.esker(&["status"], true, SWITCHED);
    let text = words(&output);
    let line =
        text.lines().find(|line| line.trim_start().starts_with("down ")).unwrap_or_else(|| panic!("{text}"));
    assert!(
        line.contains(&squid.url()) && line.contains("since") && line.contains("can't be reached"),
        "{line}"
    );
    let (output, _) = mount.esker(&["doctor", "--json"], false, SWITCHED);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON from esker doctor");
    let findings = report["findings"].as_array().expect("a list");
    let finding = findings.iter().find(|finding| finding["check"] == "proxy").expect("a finding of a proxy");
    let says = |field: &str, words: &str| finding[field].as_str().is_some_and(|text| text.contains(words));
    assert!(says("found", &squid.url()) && says("found", "out of use"), "{finding:#}");
    assert!(finding["grade"] == "warning" && says("mend", "check that it runs"), "{finding:#}");
    let log = mount.log();
    assert!(log.contains(&format!("proxy {} is out of use, going on with DIRECT", squid.url())), "{log}");
    squid.run();
    client.wait_for_first(&mount);
    assert!(mount.log().contains("answers again"), "{}", mount.log());
    let before = (origin.answered_to(DIRECT), origin.answered_to(FIRST));
    for _ in 0..READS {
        client.read_new(&mount, SWITCHED);
    }
    let after = (origin.answered_to(DIRECT), origin.answered_to(FIRST));
    assert_eq!(after.0, before.0, "the way around the proxy was not left");
    assert!(after.1 >= before.1 + READS, "{after:?} {before:?}");
}
