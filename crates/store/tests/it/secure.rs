//! TLS with real servers and proxies.

use std::path::Path;
use std::time::{Duration, Instant};

use esker_store::{Authorities, Cause, Proxies, Servers, StoreError, TlsProblem, connect};
use esker_testkit::mirror::Fault;
use esker_testkit::waiting::until;
use esker_testkit::web::{Authority, Web};

use crate::rig::{Made, PATIENCE, Rig, bytes, engine_with, folder, objects, roomy, serve};

/// An nginx that serves the folder with a certificate.
fn secure(root: &Path, (certificate, key): &(std::path::PathBuf, std::path::PathBuf)) -> Web {
    Web::nginx(1, |_, ports| {
        format!(
            "server {{ listen 127.0.0.1:{} ssl; ssl_certificate {}; ssl_certificate_key {}; root {}; }}",
            ports[0],
            certificate.display(),
            key.display(),
            root.display()
        )
    })
}

fn servers(web: &Web, host: &str, authorities: &[&Path]) -> Servers {
    let mut servers = Servers::direct(format!("https://{host}:{}/repo", web.ports()[0]));
    let paths = authorities.iter().map(|path| path.display().to_string()).collect();
    servers.authorities = Authorities { system: false, paths };
    servers
}

fn read(servers: &Servers, object: &Made) -> Result<(), StoreError> {
    let rig = Rig::new();
    let store = rig.store(connect(&rig.engine, servers.clone()).unwrap());
    bytes(&store, &object.wanted).map(|read| assert_eq!(read, object.plain))
}

fn refused(servers: &Servers, object: &Made) -> (TlsProblem, String) {
    let error = read(servers, object).unwrap_err();
    match error.cause() {
        Cause::Insecure { problem, .. } => (problem.clone(), error.full_text()),
        other => panic!("{other:?}: {error}"),
    }
}

#[test]
fn objects_are_fetched_over_https() {
    let objects = objects(3);
    let folder = folder(&objects);
    let authority = Authority::new();
    let web = secure(folder.path(), &authority.sign("IP:127.0.0.1,DNS:localhost", 1));
    let certificate = authority.certificate();
    // A file, and the folder it is in.
    for place in [certificate.as_path(), certificate.parent().unwrap()] {
        for host in ["127.0.0.1", "localhost"] {
            read(&servers(&web, host, &[place]), &objects[0]).unwrap();
        }
    }
    // None ahead: on a busy machine the server seems far, and those to far ones are opened before they are needed.
    let rig = Rig::with(engine_with(|options| options.http.spare = 0), roomy());
    let source = connect(&rig.engine, servers(&web, "127.0.0.1", &[&certificate])).unwrap();
    let store = rig.store(source.clone());
    for object in &objects {
        assert_eq!(bytes(&store, &object.wanted).unwrap(), object.plain);
    }
    let network = source.network();
    assert_eq!((network.connections, network.requests), (1, 3), "connections are kept: {network:?}");
}

#[test]
fn an_unauthenticated_server_is_refused_with_a_reason() {
    let objects = objects(1);
    let folder = folder(&objects);
    let (authority, other) = (Authority::new(), Authority::new());
    let web = secure(folder.path(), &authority.sign("IP:127.0.0.1", 1));
    let certificate = authority.certificate();
    let (problem, text) = refused(&servers(&web, "127.0.0.1", &[&other.certificate()]), &objects[0]);
    assert_eq!(problem, TlsProblem::UnknownIssuer, "{text}");
    assert!(text.contains("127.0.0.1") && text.contains("no authority that is known"), "{text}");
    assert!(problem.mend().contains("--ca FILE"));

    let (problem, text) = refused(&servers(&web, "localhost", &[&certificate]), &objects[0]);
    assert!(matches!(&problem, TlsProblem::OtherName(names) if names.contains("127.0.0.1")), "{problem:?}");
    assert!(text.contains("localhost"), "{text}");

    let (problem, text) = refused(&servers(&web, "127.0.0.1", &[Path::new("/nowhere/ca.pem")]), &objects[0]);
    assert!(matches!(problem, TlsProblem::NoAuthorities(_)) && text.contains("/nowhere/ca.pem"), "{text}");

    let key = certificate.with_extension("key");
    let own = secure(folder.path(), &(certificate.clone(), key));
    let (problem, text) = refused(&servers(&own, "127.0.0.1", &[&certificate]), &objects[0]);
    assert_eq!(problem, TlsProblem::OfAuthority, "{text}");

    // Valid for no time at all, so it expires as soon as the clock goes on.
    let expired = secure(folder.path(), &authority.sign("IP:127.0.0.1", 0));
    let began = Instant::now();
    while read(&servers(&expired, "127.0.0.1", &[&certificate]), &objects[0]).is_ok() {
        assert!(began.elapsed() < Duration::from_secs(10), "a certificate that is over was taken");
    }
    let (problem, text) = refused(&servers(&expired, "127.0.0.1", &[&certificate]), &objects[0]);
    assert!(matches!(problem, TlsProblem::Expired(_)) && text.contains("expired at 20"), "{text}");

    let plain = Web::nginx(1, |_, ports| format!("server {{ listen 127.0.0.1:{}; }}", ports[0]));
    let (problem, text) = refused(&servers(&plain, "127.0.0.1", &[&certificate]), &objects[0]);
    assert!(matches!(problem, TlsProblem::Other(_)), "{text}");
}

#[test]
fn an_authenticated_server_replaces_one_without_a_valid_certificate() {
    let objects = objects(2);
    let folder = folder(&objects);
    let (authority, other) = (Authority::new(), Authority::new());
    let bad = secure(folder.path(), &other.sign("IP:127.0.0.1", 1));
    let good = secure(folder.path(), &authority.sign("IP:127.0.0.1", 1));
    let mut both = servers(&bad, "127.0.0.1", &[&authority.certificate()]);
    both.urls.extend(servers(&good, "127.0.0.1", &[]).urls);
    let rig = Rig::new();
    let source = connect(&rig.engine, both).unwrap();
    let store = rig.store(source.clone());
    for object in &objects {
        assert_eq!(bytes(&store, &object.wanted).unwrap(), object.plain);
    }
    let route = source.network().route;
    assert!(route.server_failovers == 1 && route.servers[1].active, "{route:?}");
    assert_eq!(good.log().lines().count(), 2);
}

#[test]
fn proxies_tunnel_tls_and_authenticate() {
    let objects = objects(4);
    let folder = folder(&objects);
    let authority = Authority::new();
    let web = secure(folder.path(), &authority.sign("IP:127.0.0.1", 1));
    let plain = Web::nginx(1, |_, ports| {
        format!("server {{ listen 127.0.0.1:{}; root {}; }}", ports[0], folder.path().display())
    });
    let (certificate, key) = authority.sign("IP:127.0.0.1,DNS:localhost", 1);
    let squid = Web::squid(2, |_, ports| {
        let (certificate, key) = (certificate.display(), key.display());
        format!("https_port 127.0.0.1:{} tls-cert={certificate} tls-key={key}", ports[1])
    });
    let [open, closed] = squid.ports() else { panic!("two ports") };
    let open = format!("http://127.0.0.1:{open}");
    let closed = format!("https://localhost:{closed}");
    let known = authority.certificate();
    let far = servers(&web, "127.0.0.1", &[&known]);
    let near = Servers { urls: vec![format!("http://127.0.0.1:{}/repo", plain.ports()[0])], ..far.clone() };
    for (servers, proxy, object) in
        [(&far, &open, 0), (&far, &closed, 1), (&near, &closed, 2), (&near, &open, 3)]
    {
        let through = Servers { proxies: Proxies::parse(proxy, None).unwrap(), ..servers.clone() };
        read(&through, &objects[object]).unwrap_or_else(|error| panic!("{proxy}: {}", error.full_text()));
    }
    let served = |web: &Web| web.log().lines().count();
    assert_eq!((served(&web), served(&plain)), (2, 2));
    // It has passed on what it can't read, and read the rest.
    let count = |word: &str| squid.log().matches(word).count();
    // The log also has the connections that were opened ahead.
    assert!(until(PATIENCE, || count("CONNECT") >= 2 && count(" GET ") >= 2), "{}", squid.log());
    assert_eq!(count(" GET "), 2, "{}", squid.log());

    let unknown =
        Authorities { system: false, paths: vec![Authority::new().certificate().display().to_string()] };
    let through = Servers { proxies: Proxies::parse(&closed, None).unwrap(), authorities: unknown, ..near };
    let (_, text) = refused(&through, &objects[0]);
    assert!(text.contains("localhost"), "the proxy is named: {text}");
}

#[test]
fn http2_is_used_if_enabled_and_offered() {
    let objects = objects(40);
    let folder = folder(&objects);
    let authority = Authority::new();
    let (certificate, key) = authority.sign("IP:127.0.0.1", 1);
    let web = Web::nginx(2, |_, ports| {
        let more = format!(
            "ssl_certificate {}; ssl_certificate_key {}; root {};",
            certificate.display(),
            key.display(),
            folder.path().display()
        );
        let [both, old] = ports else { panic!("two ports") };
        format!(
            "server {{ listen 127.0.0.1:{both} ssl http2; {more} }}\nserver {{ listen 127.0.0.1:{old} ssl; {more} }}"
        )
    });
    let squid = Web::squid(1, |_, _| String::new());
    let known = authority.certificate().display().to_string();
    let mut seen = Vec::new();
    for (wanted, port, proxy) in [(true, 0, false), (true, 0, true), (false, 0, false), (true, 1, false)] {
        let mut servers = Servers::direct(format!("https://127.0.0.1:{}/repo", web.ports()[port]));
        servers.authorities = Authorities { system: false, paths: vec![known.clone()] };
        servers.http2 = wanted;
        if proxy {
            servers.proxies = Proxies::parse(&format!("127.0.0.1:{}", squid.ports()[0]), None).unwrap();
        }
        let rig = Rig::new();
        let source = connect(&rig.engine, servers).unwrap();
        let store = rig.store(source.clone());
        let before = web.log().matches("HTTP/2.0").count();
        std::thread::scope(|scope| {
            for object in &objects {
                scope.spawn(|| assert_eq!(bytes(&store, &object.wanted).unwrap(), object.plain));
            }
        });
        seen.push(web.log().matches("HTTP/2.0").count() - before);
        let network = source.network();
        assert_eq!(network.requests, 40, "{network:?}");
    }
    assert_eq!(seen, [40, 40, 0, 0]);
}

#[test]
fn another_server_replaces_one_that_fails_over_http2() {
    let objects = objects(24);
    let authority = Authority::new();
    let (certificate, key) = authority.sign("IP:127.0.0.1", 1);
    for fault in
        [Fault::Status(503), Fault::NoAnswer, Fault::FlipByte(9), Fault::CloseAfter(7), Fault::StallAfter(7)]
    {
        let ((bad, _bad), (good, _good)) = (serve(&objects), serve(&objects));
        let web = Web::nginx(2, |_, ports| {
            let server = |port: u16, behind: u16| {
                format!(
                    "server {{ listen 127.0.0.1:{port} ssl http2; ssl_certificate {}; ssl_certificate_key {}; \
                     location / {{ proxy_pass http://127.0.0.1:{behind}; proxy_buffering off; }} }}\n",
                    certificate.display(),
                    key.display(),
                )
            };
            server(ports[0], bad.port()) + &server(ports[1], good.port())
        });
        let mut servers = servers(&web, "127.0.0.1", &[&authority.certificate()]);
        servers.urls.push(format!("https://127.0.0.1:{}/repo", web.ports()[1]));
        servers.timings.direct = Some(Duration::from_millis(400));
        let rule = bad.fault(|_| true, fault.clone());
        let rig = Rig::new();
        let source = connect(&rig.engine, servers).unwrap();
        let store = rig.store(source.clone());
        std::thread::scope(|scope| {
            for object in &objects {
                scope.spawn(|| assert_eq!(bytes(&store, &object.wanted).unwrap(), object.plain));
            }
        });
        rule.assert_hit();
        let network = source.network();
        assert!(network.route.servers[1].active, "{fault:?}: {network:?}");
        let log = web.log();
        assert!(log.contains("HTTP/2.0") && !log.contains("HTTP/1.1"), "{fault:?}: {log}");
    }
}

#[test]
fn a_redirect_leads_from_http_to_https() {
    let objects = objects(1);
    let folder = folder(&objects);
    let authority = Authority::new();
    let web = secure(folder.path(), &authority.sign("IP:127.0.0.1", 1));
    let plain = Web::nginx(1, |_, ports| {
        let to = format!("https://127.0.0.1:{}$request_uri", web.ports()[0]);
        format!("server {{ listen 127.0.0.1:{}; return 302 {to}; }}", ports[0])
    });
    let url = format!("http://127.0.0.1:{}/repo", plain.ports()[0]);
    let servers = Servers { urls: vec![url], ..servers(&web, "127.0.0.1", &[&authority.certificate()]) };
    let error = read(&servers, &objects[0]).unwrap_err();
    assert!(matches!(error.cause(), Cause::Redirected { .. }), "{error}");
    read(&Servers { redirects: true, ..servers }, &objects[0]).unwrap();
    assert!(plain.log().contains(" 302 "));
}
