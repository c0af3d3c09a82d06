//! Names of proxies, resolved by a name server of the test.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use esker_store::{Family, Order, Proxies, Servers, connect};
use esker_testkit::mirror::Mirror;
use esker_testkit::name_server::{NameAnswer, NameServer};
use esker_testkit::waiting::until;

use crate::rig::{PATIENCE, Rig, bytes, objects, serve};

const PROXY: &str = "proxy.site.test";

/// A name server that knows these addresses of the proxy's name, and that of this machine for version 6; none for silence.
fn start(ttl: u32, addresses: &[Ipv4Addr]) -> NameServer {
    let names = NameServer::start(ttl);
    names.tell_v6(Some(vec![Ipv6Addr::LOCALHOST]));
    tell(&names, addresses);
    names
}

fn tell(names: &NameServer, addresses: &[Ipv4Addr]) {
    let known = if addresses.is_empty() { NameAnswer::Silence } else { NameAnswer::At(addresses.to_vec()) };
    names.tell(PROXY, known);
}

/// Proxies that listen at one port of several loopback addresses can't be had from a mirror, so one address is good and
/// no process listens at the others.
fn servers(name_server: &NameServer, proxy: &Mirror) -> Servers {
    let mut servers = Servers::direct("http://origin.invalid/repo");
    servers.proxies = Proxies::parse(&format!("http://proxy.site.test:{}", proxy.port()), None).unwrap();
    servers.timings.proxy = Duration::from_secs(5);
    servers.dns.server = Some(name_server.address());
    servers
}

#[test]
fn each_address_of_a_name_is_a_proxy() {
    let objects = objects(3);
    let (proxy, _folder) = serve(&objects);
    let bad = [[127, 0, 0, 2], [127, 0, 0, 3]].map(Ipv4Addr::from);
    let names = start(3600, &[bad[0], Ipv4Addr::LOCALHOST, bad[1]]);
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
    assert_eq!(names.asked(PROXY), 1, "an answer is used as long as it holds");
}

#[test]
fn a_name_is_resolved_again_after_its_ttl() {
    let objects = objects(200);
    let (proxy, _folder) = serve(&objects);
    let names = start(3600, &[[127, 0, 0, 2].into()]);
    let rig = Rig::new();
    let mut servers = servers(&names, &proxy);
    // However long the name server says.
    (servers.dns.least_ttl, servers.dns.longest_ttl) = (Duration::ZERO, Duration::from_millis(10));
    let source = connect(&rig.engine, servers).unwrap();
    let store = rig.store(source.clone());
    assert!(bytes(&store, &objects[0].wanted).is_err(), "no server listens there");
    tell(&names, &[Ipv4Addr::LOCALHOST]);
    let read = objects.iter().position(|object| bytes(&store, &object.wanted).is_ok());
    assert!(read.is_some(), "{:?}", source.network().route);
    assert!(names.asked(PROXY) >= 2);
}

#[test]
fn no_more_addresses_are_used_than_allowed() {
    let objects = objects(1);
    let (proxy, _folder) = serve(&objects);
    let names = start(60, &[Ipv4Addr::LOCALHOST, [127, 0, 0, 1].into(), [127, 0, 0, 5].into()]);
    let rig = Rig::new();
    let mut servers = servers(&names, &proxy);
    servers.dns.addresses_max = 1;
    let source = connect(&rig.engine, servers).unwrap();
    // Whether the one that was picked is the good one is chance.
    let _ = bytes(&rig.store(source.clone()), &objects[0].wanted);
    assert_eq!(source.network().route.proxies[0].len(), 1);
}

#[test]
fn addresses_of_the_preferred_family_are_used() {
    let objects = objects(1);
    let (proxy, _folder) = serve(&objects);
    let names = start(60, &[Ipv4Addr::LOCALHOST]);
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
fn queries_to_a_silent_name_server_are_limited() {
    let objects = objects(1);
    let (proxy, _folder) = serve(&objects);
    let mut asked = Vec::new();
    for retries in [0, 3] {
        let names = start(60, &[]);
        let rig = Rig::new();
        let mut servers = servers(&names, &proxy);
        (servers.dns.timeout, servers.dns.retries) = (Duration::from_millis(200), retries);
        servers.dns.family = Family::OnlyV4;
        let began = Instant::now();
        let error =
            bytes(&rig.store(connect(&rig.engine, servers).unwrap()), &objects[0].wanted).unwrap_err();
        assert!(matches!(error.cause(), esker_store::Cause::Unresolved { .. }), "{error}");
        assert!(began.elapsed() >= Duration::from_millis(200), "{:?}", began.elapsed());
        asked.push(names.asked(PROXY));
    }
    assert!(asked[0] >= 1 && asked[1] > asked[0], "{asked:?}");
}

/// No server can be asked before the proxy has an address.
#[test]
fn the_nearest_server_is_found_once_the_proxys_name_resolves() {
    let objects = objects(1);
    let (proxy, _folder) = serve(&objects);
    proxy.put("/repo/api/v1.0/geo/here/one.invalid,two.invalid", "2,1\n");
    proxy.put("/repo/.cvmfspublished", "anything");
    for (order, question, times) in [(Order::Geo, "/geo/", 1), (Order::RoundTrip, ".cvmfspublished", 4)] {
        let names = start(3600, &[]);
        // With an address of version 6 alone, the proxy would be where no process listens.
        names.tell_v6(Some(Vec::new()));
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
        tell(&names, &[Ipv4Addr::LOCALHOST]);
        let is_read = || bytes(&store, &objects[0].wanted).is_ok();
        assert!(until(PATIENCE, is_read), "{:?}", source.network().route);
        let is_asked = || proxy.count(|path| path.contains(question)) >= times;
        assert!(until(PATIENCE, is_asked), "{order:?}: no name server got a query");
    }
}
