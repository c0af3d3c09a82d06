//! Lists of proxies: for every shape of a list and every state of its members, which of them get requests, and how
//! many.
//!
//! In a list, `P` and `Q` stand for proxies by their addresses, `p` and `q` for the same ones by a name, `n` for a name
//! with the addresses of both, `F` and `f` for a third one, and `x` for a name without an address. In a cell, letters
//! name those that serve all requests; `O` is the server itself, and `-` means that requests fail.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use esker_store::{
    Callback, Engine, EngineOptions, ObjectStore, Proxies, RetryPolicy, RouteStatus, Servers, Source, connect,
};
use esker_testkit::log_lines::LogLines;
use esker_testkit::mirror::{Fault, Mirror};
use esker_testkit::name_server::{NameAnswer, NameServer};
use esker_testkit::waiting::until;
use tempfile::TempDir;

use crate::rig::{Made, PATIENCE, Rig, bytes, objects, roomy};

/// Objects that are read in each cell.
const READS: usize = 6;

/// A list, the fallback proxies, and the serving member in each state.
struct Row {
    list: &'static str,
    fallback: &'static str,
    /// All are up. Also when names are resolved late, and when everything that failed came back.
    up: &'static str,
    /// P refuses connections, or never answers.
    first_down: &'static str,
    /// P and Q refuse connections.
    group_down: &'static str,
    /// The names of P, Q and F have no address.
    unresolved: &'static str,
    /// The names of P and `n` have the address of Q alone from now on.
    moved: &'static str,
}

#[rustfmt::skip]
const ROWS: &[Row] = &[
    row("P",               "",         ["P",  "-",  "-", "P",  "P"]),
    row("DIRECT",          "",         ["O",  "O",  "O", "O",  "O"]),
    row("P;DIRECT",        "",         ["P",  "O",  "O", "P",  "P"]),
    row("P|Q",             "",         ["PQ", "Q",  "-", "PQ", "PQ"]),
    row("P|Q;DIRECT",      "",         ["PQ", "Q",  "O", "PQ", "PQ"]),
    row("P;Q",             "",         ["P",  "Q",  "-", "P",  "P"]),
    row("P;Q;DIRECT",      "",         ["P",  "Q",  "O", "P",  "P"]),
    row("P;DIRECT;Q",      "",         ["P",  "O",  "O", "P",  "P"]),
    row("DIRECT;P",        "",         ["O",  "O",  "O", "O",  "O"]),
    row("DIRECT|P",        "",         ["OP", "O",  "O", "OP", "OP"]),
    row("P|DIRECT;Q",      "",         ["OP", "O",  "O", "OP", "OP"]),
    row("DIRECT;P;DIRECT", "",         ["O",  "O",  "O", "O",  "O"]),
    row("p",               "",         ["P",  "-",  "-", "-",  "Q"]),
    row("p;DIRECT",        "",         ["P",  "O",  "O", "O",  "Q"]),
    row("p;",              "",         ["P",  "O",  "O", "O",  "Q"]),
    row("p|q;DIRECT",      "",         ["PQ", "Q",  "O", "O",  "Q"]),
    row("p;q;DIRECT",      "",         ["P",  "Q",  "O", "O",  "Q"]),
    row("P|q;DIRECT",      "",         ["PQ", "Q",  "O", "P",  "PQ"]),
    row("p|Q;DIRECT",      "",         ["PQ", "Q",  "O", "Q",  "Q"]),
    row("P;q;DIRECT",      "",         ["P",  "Q",  "O", "P",  "P"]),
    row("p;Q;DIRECT",      "",         ["P",  "Q",  "O", "Q",  "Q"]),
    row("p;DIRECT;Q",      "",         ["P",  "O",  "O", "O",  "Q"]),
    row("DIRECT;p",        "",         ["O",  "O",  "O", "O",  "O"]),
    row("DIRECT|p",        "",         ["OP", "O",  "O", "O",  "OQ"]),
    row("n",               "",         ["PQ", "Q",  "-", "-",  "Q"]),
    row("n;DIRECT",        "",         ["PQ", "Q",  "O", "O",  "Q"]),
    row("n;F;DIRECT",      "",         ["PQ", "Q",  "F", "F",  "Q"]),
    row("n|f;DIRECT",      "",         ["PQF","QF", "F", "O",  "QF"]),
    row("x;P;DIRECT",      "",         ["P",  "O",  "O", "P",  "P"]),
    row("x|P;DIRECT",      "",         ["P",  "O",  "O", "P",  "P"]),
    row("x|p;q;DIRECT",    "",         ["P",  "Q",  "O", "O",  "Q"]),
    row("x;DIRECT",        "",         ["O",  "O",  "O", "O",  "O"]),
    row("x",               "",         ["-",  "-",  "-", "-",  "-"]),
    row("P",               "F",        ["P",  "F",  "F", "P",  "P"]),
    row("P;DIRECT",        "F",        ["P",  "F",  "F", "P",  "P"]),
    row("p|q;DIRECT",      "f",        ["PQ", "Q",  "F", "-",  "Q"]),
    row("p;DIRECT",        "F;DIRECT", ["P",  "F",  "F", "F",  "Q"]),
    row("p",               "f|q",      ["P",  "FQ", "F", "-",  "Q"]),
    row("P;Q",             "f",        ["P",  "Q",  "F", "P",  "P"]),
    row("DIRECT",          "F",        ["F",  "F",  "F", "F",  "F"]),
];

const fn row(
    list: &'static str,
    fallback: &'static str,
    [up, first_down, group_down, unresolved, moved]: [&'static str; 5],
) -> Row {
    Row { list, fallback, up, first_down, group_down, unresolved, moved }
}

/// Proxies, which have everything in their caches, and the server. All proxies listen at the same port.
struct Bench {
    folder: TempDir,
    objects: Vec<Made>,
    proxies: [(char, SocketAddr, Option<Mirror>); 3],
    origin: Mirror,
    names: NameServer,
    lines: LogLines,
    rig: Rig,
}

fn name(letter: char) -> String {
    format!("{letter}.test")
}

fn serve(folder: &TempDir, objects: &[Made], address: SocketAddr) -> Mirror {
    let mirror = Mirror::serve_on(folder.path(), address);
    for object in objects {
        mirror.put(&format!("/repo/{}", object.wanted.name.path()), object.stored.clone());
    }
    mirror.put("/repo/.cvmfspublished", "whether it answers");
    mirror
}

/// A port at which no process listens on any of these addresses.
fn free_port(addresses: &[Ipv4Addr]) -> u16 {
    loop {
        let first = TcpListener::bind((addresses[0], 0)).unwrap();
        let port = first.local_addr().unwrap().port();
        if addresses[1..].iter().all(|address| TcpListener::bind((*address, port)).is_ok()) {
            return port;
        }
    }
}

impl Bench {
    fn new() -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let objects = objects(READS as u64 * 2);
        let addresses = [[127, 0, 0, 11], [127, 0, 0, 12], [127, 0, 0, 13]].map(Ipv4Addr::from);
        let port = free_port(&addresses);
        let at = |number: usize| SocketAddr::from((addresses[number], port));
        let proxies = [('P', 0), ('Q', 1), ('F', 2)]
            .map(|(letter, number)| (letter, at(number), Some(serve(&folder, &objects, at(number)))));
        let names = NameServer::start(3600);
        for (letter, known) in
            [('p', &addresses[..1]), ('q', &addresses[1..2]), ('f', &addresses[2..]), ('n', &addresses[..2])]
        {
            names.tell(&name(letter), NameAnswer::At(known.to_vec()));
        }
        let lines = LogLines::collect();
        let pause = Duration::from_millis(5);
        let retry =
            RetryPolicy { attempts: 2, first_pause: pause, longest_pause: pause, ..RetryPolicy::default() };
        let engine = Engine::start(EngineOptions { retry, ..EngineOptions::default() }).unwrap();
        let origin = serve(&folder, &objects, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        Bench { folder, objects, proxies, origin, names, lines, rig: Rig::with(engine, roomy()) }
    }

    /// The list with addresses and names in place of letters.
    fn list(&self, text: &str) -> String {
        let port = self.proxies[0].1.port();
        let member = |member: &str| match member {
            "" | "DIRECT" => member.to_owned(),
            "P" | "Q" | "F" => {
                let (_, at, _) =
                    self.proxies.iter().find(|(letter, ..)| member.starts_with(*letter)).unwrap();
                format!("http://{at}")
            }
            _ => format!("http://{member}.test:{port}"),
        };
        let group = |group: &str| group.split('|').map(member).collect::<Vec<_>>().join("|");
        text.split(';').map(group).collect::<Vec<_>>().join(";")
    }

    fn servers(&self, row: &Row) -> Servers {
        let mut servers = Servers::direct(self.origin.url("repo"));
        servers.proxies = Proxies::parse(&self.list(row.list), None).unwrap();
        if !row.fallback.is_empty() {
            servers.fallback = Proxies::parse(&self.list(row.fallback), None).unwrap();
        }
        servers.timings.proxy = Duration::from_secs(5);
        servers.timings.direct = Some(Duration::from_secs(10));
        servers.dns.server = Some(self.names.address());
        servers
    }

    fn proxy(&mut self, letter: char) -> &mut (char, SocketAddr, Option<Mirror>) {
        self.proxies.iter_mut().find(|(other, ..)| *other == letter).unwrap()
    }

    fn stop(&mut self, letter: char) {
        self.proxy(letter).2.take().unwrap().stop();
    }

    fn start(&mut self, letter: char) {
        let at = self.proxy(letter).1;
        self.proxy(letter).2 = Some(serve(&self.folder, &self.objects, at));
    }

    /// How many objects each was asked for, those that were asked for none left out.
    fn counts(&self) -> Vec<(char, usize)> {
        let mirrors = self.proxies.iter().filter_map(|(letter, _, mirror)| Some((*letter, mirror.as_ref()?)));
        let counts = mirrors
            .chain([('O', &self.origin)])
            .map(|(letter, mirror)| (letter, mirror.count(|path| path.contains("/data/"))));
        counts.filter(|(_, count)| *count > 0).collect()
    }

    /// Reads objects one after the other. All or none must be served.
    fn read(&self, store: &dyn ObjectStore, objects: &[Made]) -> bool {
        let good = objects.iter().filter(|object| {
            let read = bytes(store, &object.wanted);
            assert!(read.as_ref().map_or(true, |plain| *plain == object.plain));
            read.is_ok()
        });
        let good = good.count();
        assert!(good == 0 || good == objects.len(), "{good} of {} reads", objects.len());
        good > 0
    }
}

/// Holds when `served`, counted since `before`, is what a cell says.
#[track_caller]
fn check(bench: &Bench, row: &Row, cell: &str, read: bool, before: &[(char, usize)], route: &RouteStatus) {
    let earlier =
        |letter: char| before.iter().find(|(other, _)| *other == letter).map_or(0, |(_, count)| *count);
    let counts: Vec<(char, usize)> =
        bench.counts().into_iter().map(|(letter, count)| (letter, count - earlier(letter))).collect();
    let served: usize = counts.iter().map(|(_, count)| count).sum();
    let told = format!("{:?} {:?}: {counts:?}, {route:#?}, {:#?}", row.list, row.fallback, bench.lines.all());
    assert_eq!(read, cell != "-", "{told}");
    assert!(counts.iter().all(|(letter, count)| *count == 0 || cell.contains(*letter)), "not {cell}: {told}");
    assert_eq!(served, if cell == "-" { 0 } else { READS }, "{told}");
}

/// Does what `check` does, and holds when one member of a group has all the work.
#[track_caller]
fn check_one(
    bench: &Bench,
    row: &Row,
    cell: &str,
    read: bool,
    before: &[(char, usize)],
    route: &RouteStatus,
) {
    check(bench, row, cell, read, before, route);
    let earlier =
        |letter: char| before.iter().find(|(other, _)| *other == letter).map_or(0, |(_, count)| *count);
    let working = bench.counts().into_iter().filter(|(letter, count)| *count > earlier(*letter)).count();
    assert!(working <= 1, "{:?} {:?}: {:?}", row.list, row.fallback, bench.counts());
}

fn source(bench: &Bench, row: &Row) -> Arc<dyn Source> {
    connect(&bench.rig.engine, bench.servers(row)).unwrap()
}

/// Fills a column of the table.
///
/// > W8: Groups of proxies are used in the order in which they are listed, whatever is resolved first: a request goes through a later group, or directly where that stands later, only while everything before it fails.
fn column(cell: impl Fn(&Row) -> &'static str, set_up: impl Fn(&mut Bench)) {
    for row in ROWS {
        let mut bench = Bench::new();
        set_up(&mut bench);
        let source = source(&bench, row);
        let read = bench.read(&bench.rig.store(source.clone()), &bench.objects[..READS]);
        check_one(&bench, row, cell(row), read, &[], &source.network().route);
    }
}

#[test]
fn a_list_whose_members_are_all_up_is_used_in_order() {
    column(|row| row.up, |_| {});
}

#[test]
fn another_member_replaces_a_first_member_that_is_down() {
    column(|row| row.first_down, |bench| bench.stop('P'));
}

#[test]
fn the_second_group_replaces_a_first_group_that_is_down() {
    column(|row| row.group_down, |bench| ['P', 'Q'].into_iter().for_each(|letter| bench.stop(letter)));
}

#[test]
fn names_without_an_address_are_skipped() {
    column(
        |row| row.unresolved,
        |bench| {
            for letter in ['p', 'q', 'f', 'n'] {
                bench.names.tell(&name(letter), NameAnswer::Nowhere);
            }
        },
    );
}

/// A name server that never answers questions for version 6 changes nothing.
#[test]
fn names_with_addresses_of_one_family_are_used() {
    column(|row| row.up, |bench| bench.names.tell_v6(None));
}

/// The first member accepts requests and never answers: it gets one request, and the next member serves.
#[test]
fn another_member_replaces_a_silent_first_member() {
    for row in ROWS {
        let bench = Bench::new();
        let rule = bench.proxies[0].2.as_ref().unwrap().fault(|_| true, Fault::NoAnswer);
        let mut servers = bench.servers(row);
        servers.timings.proxy = Duration::from_secs(1);
        let source = connect(&bench.rig.engine, servers).unwrap();
        let read = bench.read(&bench.rig.store(source.clone()), &bench.objects[..READS]);
        assert_eq!(read, row.first_down != "-", "{:?}", row.list);
        let (silent, counts): (Vec<_>, Vec<_>) =
            bench.counts().into_iter().partition(|(letter, _)| *letter == 'P');
        let told = format!("{:?} {:?}: {counts:?} {silent:?}", row.list, row.fallback);
        if read {
            assert!(silent.iter().all(|(_, count)| *count <= 1), "{told}");
            assert!(counts.iter().all(|(letter, _)| row.first_down.contains(*letter)), "{told}");
            assert_eq!(counts.iter().map(|(_, count)| count).sum::<usize>(), READS, "{told}");
        }
        if row.up == "P" {
            rule.assert_hit();
        }
    }
}

/// Names are resolved late: requests wait for them, and later members get no request meanwhile.
#[test]
fn names_that_are_resolved_late_are_used() {
    for row in ROWS {
        let bench = Bench::new();
        bench.names.hold();
        let source = source(&bench, row);
        let store = bench.rig.store(source.clone());
        let (told, read) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let members = row.list.split([';', '|']).chain(row.fallback.split([';', '|']));
                let names =
                    members.filter(|member| member.starts_with(|letter: char| letter.is_ascii_lowercase()));
                for name in names {
                    bench.names.wait_for(&format!("{name}.test"), 1);
                }
                if row.list.starts_with(|letter: char| letter.is_ascii_lowercase()) {
                    assert_eq!(bench.counts(), [], "{:?}: a request did not wait", row.list);
                }
                bench.names.release();
            });
            told.send(bench.read(&store, &bench.objects[..READS])).unwrap();
        });
        check_one(&bench, row, row.up, read.recv().unwrap(), &[], &source.network().route);
    }
}

/// Requests an object that no server has; the request may change the route.
fn look(source: &dyn Source) {
    let fetch = esker_store::Fetch::new(".cvmfspublished", "a look", 1 << 10);
    let _ = Callback::wait(|done| source.fetch(fetch, done));
}

/// Addresses change during requests: their order stays.
#[test]
fn changed_addresses_of_names_are_used() {
    for row in ROWS {
        let bench = Bench::new();
        let mut servers = bench.servers(row);
        // An answer is used for this long, whatever it says.
        (servers.dns.least_ttl, servers.dns.longest_ttl) = (Duration::ZERO, Duration::from_millis(1));
        let source = connect(&bench.rig.engine, servers).unwrap();
        let store = bench.rig.store(source.clone());
        bench.read(&store, &bench.objects[..1]);
        let q = Ipv4Addr::from([127, 0, 0, 12]);
        for letter in ['p', 'n'].map(name) {
            bench.names.tell(&letter, NameAnswer::At(vec![q]));
            let asked = bench.names.asked(&letter);
            if asked > 0 {
                // Each look is a request that asks for names whose time is over.
                let again = until(PATIENCE, || {
                    bench.read(&store, &bench.objects[1..2]);
                    look(&*source);
                    bench.names.asked(&letter) >= asked + 2
                });
                assert!(again, "{:?}: {letter} is not looked up again", row.list);
            }
        }
        let before = bench.counts();
        let read = bench.read(&store, &bench.objects[2..2 + READS]);
        check_one(&bench, row, row.moved, read, &before, &source.network().route);
    }
}

/// A member that was down returns: it is used again, and its replacement is not.
#[test]
fn a_recovered_first_group_is_used_again() {
    for row in ROWS {
        let mut bench = Bench::new();
        let mut servers = bench.servers(row);
        servers.timings.proxy_reset = Some(Duration::from_millis(1));
        ['P', 'Q'].into_iter().for_each(|letter| bench.stop(letter));
        let source = connect(&bench.rig.engine, servers).unwrap();
        let store = bench.rig.store(source.clone());
        let read = bench.read(&store, &bench.objects[..READS]);
        assert_eq!(read, row.group_down != "-", "{:?}", row.list);
        ['P', 'Q'].into_iter().for_each(|letter| bench.start(letter));
        let is_back = |route: &RouteStatus| {
            let mut down =
                route.proxies.iter().flatten().filter(|proxy| proxy.out && !proxy.name.contains("x.test"));
            let group = route.proxies.iter().position(|group| group.iter().any(|proxy| proxy.active));
            // Groups behind the one in use are not looked at.
            down.all(|proxy| {
                route.proxies.iter().skip(group.map_or(0, |group| group + 1)).flatten().any(|it| it == proxy)
            })
        };
        let back = row.up == "-"
            || until(PATIENCE, || {
                look(&*source);
                is_back(&source.network().route)
            });
        assert!(back, "{:?}: {:#?}", row.list, source.network().route);
        let before = bench.counts();
        let read = bench.read(&store, &bench.objects[READS..]);
        // The work may move between the members of a group when both come back.
        check(&bench, row, row.up, read, &before, &source.network().route);
    }
}

/// A name that is never resolved is waited for as long as name servers may take, and no longer.
#[test]
fn an_unresolved_name_times_out() {
    let bench = Bench::new();
    bench.names.tell(&name('p'), NameAnswer::Silence);
    let row = row("p;DIRECT", "", ["O"; 5]);
    let mut servers = bench.servers(&row);
    (servers.dns.timeout, servers.dns.retries) = (Duration::from_millis(300), 0);
    let source = connect(&bench.rig.engine, servers).unwrap();
    let began = Instant::now();
    let read = bench.read(&bench.rig.store(source.clone()), &bench.objects[..READS]);
    assert!(began.elapsed() >= Duration::from_millis(300), "it was not waited for");
    let route = source.network().route;
    check_one(&bench, &row, "O", read, &[], &route);
    let down = &route.proxies[0][0];
    assert!(
        down.out && down.name.contains("p.test") && down.why.is_some() && down.since.is_some(),
        "{down:?}"
    );
    let lines = bench.lines.all();
    let line = lines.iter().find(|line| line.contains("p.test")).expect("a line of the log");
    assert!(line.contains("is out of use, going on with DIRECT"), "{line}");
}

/// A member of a group that is known is used after a second, though the name of another one is still being resolved.
#[test]
fn a_group_is_used_while_one_of_its_names_is_not_resolved() {
    let bench = Bench::new();
    bench.names.tell(&name('q'), NameAnswer::Silence);
    let row = row("P|q;DIRECT", "", ["P"; 5]);
    let mut servers = bench.servers(&row);
    servers.dns.timeout = Duration::from_secs(600);
    let source = connect(&bench.rig.engine, servers).unwrap();
    let began = Instant::now();
    let read = bench.read(&bench.rig.store(source.clone()), &bench.objects[..READS]);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    check_one(&bench, &row, "P", read, &[], &source.network().route);
}

/// A proxy that could not be resolved is used as soon as its name has an address.
#[test]
fn a_name_that_is_resolved_later_is_used_again() {
    let bench = Bench::new();
    bench.names.tell(&name('p'), NameAnswer::Nowhere);
    let row = row("p;DIRECT", "", ["P"; 5]);
    let mut servers = bench.servers(&row);
    servers.dns.least_ttl = Duration::ZERO;
    let source = connect(&bench.rig.engine, servers).unwrap();
    let store = bench.rig.store(source.clone());
    bench.read(&store, &bench.objects[..1]);
    assert_eq!(bench.counts(), [('O', 1)]);
    bench.names.tell(&name('p'), NameAnswer::At(vec![[127, 0, 0, 11].into()]));
    let is_active = || source.network().route.proxies[0][0].active;
    let back = until(PATIENCE, || {
        look(&*source);
        is_active()
    });
    assert!(back, "{:#?}", source.network().route);
    let before = bench.counts();
    let read = bench.read(&store, &bench.objects[READS..]);
    check_one(&bench, &row, "P", read, &before, &source.network().route);
    assert!(
        bench.lines.all().iter().any(|line| line.contains("p.test") && line.contains("has an address now"))
    );
}

/// With sharding all members of the first group work, and nothing behind it.
#[test]
fn groups_that_share_objects_are_used_in_their_order() {
    for (list, cell) in
        [("P|Q;DIRECT", "PQ"), ("p|q;F;DIRECT", "PQ"), ("n;DIRECT", "PQ"), ("x;P|F;DIRECT", "PF")]
    {
        let bench = Bench::new();
        let row = row(list, "", [cell; 5]);
        let mut servers = bench.servers(&row);
        servers.sharding = true;
        let source = connect(&bench.rig.engine, servers).unwrap();
        assert!(bench.read(&bench.rig.store(source), &bench.objects));
        let counts = bench.counts();
        assert!(counts.iter().all(|(letter, _)| cell.contains(*letter)), "{list}: {counts:?}");
        assert_eq!(
            counts.iter().map(|(_, count)| count).sum::<usize>(),
            bench.objects.len(),
            "{list}: {counts:?}"
        );
    }
}
