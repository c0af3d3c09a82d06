//! Names of proxies, told by a name server of the test's own.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use esker_store::{Family, Order, Proxies, Servers, connect};
use esker_testkit::mirror::Mirror;

use crate::rig::{Rig, bytes, objects, serve};

/// Answers every question for an address with those it is told to.
struct NameServer {
    address: SocketAddr,
    told: Arc<Mutex<Vec<Ipv4Addr>>>,
    asked: Arc<AtomicUsize>,
}

impl NameServer {
    fn start(ttl: u32, addresses: &[Ipv4Addr]) -> NameServer {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let (told, asked) = (Arc::new(Mutex::new(addresses.to_vec())), Arc::<AtomicUsize>::default());
        let (addresses, count) = (told.clone(), asked.clone());
        // It ends with the test's process; nobody waits for it.
        std::thread::spawn(move || {
            let mut packet = [0; 512];
            while let Ok((len, from)) = socket.recv_from(&mut packet) {
                if addresses.lock().unwrap().is_empty() {
                    // It is silent.
                    count.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                let reply = reply(&packet[..len], ttl, &addresses.lock().unwrap(), &count);
                let _ = socket.send_to(&reply, from);
            }
        });
        NameServer { address, told, asked }
    }
}

/// RFC 1035, section 4: the question comes back, with an A record for each address; and, for whoever asks for version 6, one
/// AAAA record of the address of this machine.
fn reply(query: &[u8], ttl: u32, addresses: &[Ipv4Addr], asked: &AtomicUsize) -> Vec<u8> {
    let name_end = 12 + query[12..].iter().position(|byte| *byte == 0).expect("a name") + 1;
    let question = &query[12..name_end + 4];
    let is_v4 = query[name_end..name_end + 2] == [0, 1];
    let answers: &[Ipv4Addr] = if is_v4 { addresses } else { &[] };
    asked.fetch_add(usize::from(is_v4), Ordering::SeqCst);
    let count = u16::try_from(answers.len()).unwrap() + u16::from(!is_v4);
    let mut reply = query[..2].to_vec();
    reply.extend([0x81, 0x80, 0, 1]);
    reply.extend(count.to_be_bytes());
    reply.extend([0, 0, 0, 0]);
    reply.extend(question);
    for address in answers {
        reply.extend([0xc0, 12, 0, 1, 0, 1]);
        reply.extend(ttl.to_be_bytes());
        reply.extend([0, 4]);
        reply.extend(address.octets());
    }
    if !is_v4 {
        reply.extend([0xc0, 12, 0, 28, 0, 1]);
        reply.extend(ttl.to_be_bytes());
        reply.extend([0, 16]);
        reply.extend(Ipv6Addr::LOCALHOST.octets());
    }
    reply
}

/// Proxies that listen at one port of several loopback addresses can't be had from a mirror, so one address is good and
/// nobody listens at the others.
fn servers(name_server: &NameServer, proxy: &Mirror) -> Servers {
    let mut servers = Servers::direct("http://origin.invalid/repo");
    servers.proxies = Proxies::parse(&format!("http://proxy.site.test:{}", proxy.port()), None).unwrap();
    servers.timings.proxy = Duration::from_secs(5);
    servers.dns.server = Some(name_server.address);
    servers
}

#[test]
fn each_address_of_a_name_is_a_proxy() {
    let objects = objects(3);
    let (proxy, _folder) = serve(&objects);
    let bad = [[127, 0, 0, 2], [127, 0, 0, 3]].map(Ipv4Addr::from);
    let names = NameServer::start(3600, &[bad[0], Ipv4Addr::LOCALHOST, bad[1]]);
    let rig = Rig::new();
    let source = connect(&rig.engine, servers(&names, &proxy)).unwrap();
    let store = rig.store(source.clone());
    for object in &objects {
        assert_eq!(bytes(&store, &object.wanted).unwrap(), object.plain);
    }
    let route = source.network().route;
    assert_eq!(route.proxies[0].len(), 3, "{route:?}");
    let active: Vec<_> = route.proxies[0].iter().filter(|proxy| proxy.active).collect();
    assert_eq!(active[0].name, format!("http://127.0.0.1:{}", proxy.port()));
    assert_eq!(names.asked.load(Ordering::SeqCst), 1, "an answer is used as long as it holds");
}

#[test]
fn a_name_is_looked_up_again_when_its_time_is_over() {
    let objects = objects(200);
    let (proxy, _folder) = serve(&objects);
    let names = NameServer::start(3600, &[[127, 0, 0, 2].into()]);
    let rig = Rig::new();
    let mut servers = servers(&names, &proxy);
    // However long the name server says.
    (servers.dns.least_ttl, servers.dns.longest_ttl) = (Duration::ZERO, Duration::from_millis(10));
    let source = connect(&rig.engine, servers).unwrap();
    let store = rig.store(source.clone());
    assert!(bytes(&store, &objects[0].wanted).is_err(), "nobody listens there");
    *names.told.lock().unwrap() = vec![Ipv4Addr::LOCALHOST];
    let read = objects.iter().position(|object| bytes(&store, &object.wanted).is_ok());
    assert!(read.is_some(), "{:?}", source.network().route);
    assert!(names.asked.load(Ordering::SeqCst) >= 2);
}

#[test]
fn no_more_addresses_are_used_than_allowed() {
    let objects = objects(1);
    let (proxy, _folder) = serve(&objects);
    let names = NameServer::start(60, &[Ipv4Addr::LOCALHOST, [127, 0, 0, 1].into(), [127, 0, 0, 5].into()]);
    let rig = Rig::new();
    let mut servers = servers(&names, &proxy);
    servers.dns.addresses_max = 1;
    let source = connect(&rig.engine, servers).unwrap();
    // Whether the one that was picked is the good one is chance.
    let _ = bytes(&rig.store(source.clone()), &objects[0].wanted);
    assert_eq!(source.network().route.proxies[0].len(), 1);
}

#[test]
fn addresses_of_the_preferred_kind_are_used() {
    let objects = objects(1);
    let (proxy, _folder) = serve(&objects);
    let names = NameServer::start(60, &[Ipv4Addr::LOCALHOST]);
    for (family, kind) in
        [(Family::PreferV4, "127.0.0.1"), (Family::PreferV6, "[::1]"), (Family::OnlyV4, "127.0.0.1")]
    {
        let rig = Rig::new();
        let mut servers = servers(&names, &proxy);
        servers.dns.family = family;
        let source = connect(&rig.engine, servers).unwrap();
        // The mirror listens with version 4 alone.
        let outcome = bytes(&rig.store(source.clone()), &objects[0].wanted);
        assert_eq!(outcome.is_ok(), family != Family::PreferV6, "{family:?}: {outcome:?}");
        let proxies = &source.network().route.proxies[0];
        assert_eq!(proxies.len(), 1, "{proxies:?}");
        assert_eq!(proxies[0].name, format!("http://{kind}:{}", proxy.port()));
    }
}

#[test]
fn a_silent_name_server_is_asked_so_often_and_for_so_long() {
    let objects = objects(1);
    let (proxy, _folder) = serve(&objects);
    let mut asked = Vec::new();
    for retries in [0, 3] {
        let names = NameServer::start(60, &[]);
        let rig = Rig::new();
        let mut servers = servers(&names, &proxy);
        (servers.dns.timeout, servers.dns.retries) = (Duration::from_millis(200), retries);
        servers.dns.family = Family::OnlyV4;
        let began = Instant::now();
        let error =
            bytes(&rig.store(connect(&rig.engine, servers).unwrap()), &objects[0].wanted).unwrap_err();
        assert!(matches!(error.cause(), esker_store::Cause::Unresolved { .. }), "{error}");
        assert!(began.elapsed() >= Duration::from_millis(200), "{:?}", began.elapsed());
        asked.push(names.asked.load(Ordering::SeqCst));
    }
    assert!(asked[0] >= 1 && asked[1] > asked[0], "{asked:?}");
}

/// Nobody can be asked before the proxy has an address.
#[test]
fn which_server_is_near_is_found_out_once_the_proxys_name_is_known() {
    let objects = objects(1);
    let (proxy, _folder) = serve(&objects);
    proxy.put("/repo/api/v1.0/geo/here/one.invalid,two.invalid", "2,1\n");
    proxy.put("/repo/.cvmfspublished", "anything");
    for (order, question, times) in [(Order::Geo, "/geo/", 1), (Order::RoundTrip, ".cvmfspublished", 4)] {
        let names = NameServer::start(3600, &[]);
        let rig = Rig::new();
        let mut servers = servers(&names, &proxy);
        servers.urls = ["one", "two"].map(|name| format!("http://{name}.invalid/repo")).into();
        (servers.order, servers.geo_name) = (order, Some("here".into()));
        servers.dns.timeout = Duration::from_millis(200);
        (servers.dns.retries, servers.dns.least_ttl) = (0, Duration::ZERO);
        let source = connect(&rig.engine, servers).unwrap();
        let store = rig.store(source.clone());
        let error = bytes(&store, &objects[0].wanted).unwrap_err();
        assert!(matches!(error.cause(), esker_store::Cause::Unresolved { .. }), "{error}");
        *names.told.lock().unwrap() = vec![Ipv4Addr::LOCALHOST];
        let deadline = Instant::now() + Duration::from_secs(60);
        while bytes(&store, &objects[0].wanted).is_err() {
            assert!(Instant::now() < deadline, "{:?}", source.network().route);
        }
        while proxy.count(|path| path.contains(question)) < times {
            assert!(Instant::now() < deadline, "{order:?}: nobody was asked");
            std::thread::yield_now();
        }
    }
}
