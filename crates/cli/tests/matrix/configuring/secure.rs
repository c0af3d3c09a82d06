//! https: certificate authorities of the configuration, the environment, and the command line.

use std::process::Output;

use esker_testkit::web::{Authority, Web};

use super::{Site, configured};
use crate::test_env::words;
use crate::test_user::TestUser;

/// Lists the repository with these variables, with a cache of its own; returns the output.
fn lists(site: &Site, variables: &[(&str, &str)], options: &[&str], cache: usize) -> Output {
    let cache = site.world.path(&format!("home/cache-{cache}")).display().to_string();
    let arguments = [&["ls", "full", "--cache", &cache], options].concat();
    let mut command = configured(&site.world, &arguments);
    command.envs(variables.iter().copied());
    command.output().expect("running esker")
}

/// Configuration, environment and command line name certificate authorities; a server without a trusted one gets no
/// request, and the error has advice.
#[test]
fn authorities_are_those_of_the_configuration_and_the_environment() {
    let site = Site::new(TestUser::ordinary());
    let authority = Authority::new();
    let (certificate, key) = authority.sign("IP:127.0.0.1", 1);
    let root = site.world.repository.document_root().display().to_string();
    let web = Web::nginx(1, |_, ports| {
        format!(
            "server {{ listen 127.0.0.1:{} ssl; ssl_certificate {}; ssl_certificate_key {}; root {root}; }}",
            ports[0],
            certificate.display(),
            key.display()
        )
    });
    let known = authority.certificate().display().to_string();
    let folder = authority.certificate().parent().expect("a folder").display().to_string();
    let local = "/etc/cvmfs/config.d/full.test.local";
    let server = format!(
        "CVMFS_SERVER_URL=https://127.0.0.1:{}/@fqrn@\nCVMFS_HTTP_PROXY=DIRECT\nCVMFS_FALLBACK_PROXY=\n",
        web.ports()[0]
    );
    let configure = |line: &str, own: &str| {
        site.write(local, &format!("{server}{line}\n"));
        site.write("/etc/esker/esker.toml", own);
    };
    configure("", "");
    let output = lists(&site, &[], &[], 0);
    let said = words(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("no secure connection with `127.0.0.1`"), "{said}");
    assert!(said.contains("--ca FILE"), "the next step: {said}");
    type Case<'a> = (String, String, Vec<(&'a str, &'a str)>, Vec<&'a str>);
    let cases: [Case<'_>; 8] = [
        (format!("X509_CERT_BUNDLE={known}"), String::new(), vec![], vec![]),
        (format!("X509_CERT_DIR={folder}"), String::new(), vec![], vec![]),
        (format!("X509_CERT_DIR={folder}\nCVMFS_USE_SSL_SYSTEM_CA=no"), String::new(), vec![], vec![]),
        (String::new(), format!("ca = [\"/absent.pem\", \"{known}\"]\n"), vec![], vec![]),
        (String::new(), format!("x509_cert_bundle = \"{known}\"\n"), vec![], vec![]),
        (String::new(), String::new(), vec![("SSL_CERT_FILE", &known)], vec![]),
        (String::new(), String::new(), vec![("X509_CERT_DIR", &folder)], vec![]),
        (String::new(), String::new(), vec![], vec!["--ca", &known]),
    ];
    for (number, (line, own, variables, options)) in cases.into_iter().enumerate() {
        configure(&line, &own);
        let output = lists(&site, &variables, &options, number + 1);
        assert!(output.status.success(), "{line}{own}{variables:?}{options:?}: {}", words(&output));
    }
    assert!(web.log().lines().filter(|line| line.contains(".cvmfspublished")).count() >= 8, "{}", web.log());
    // A URL in place of the name.
    let url = format!("https://127.0.0.1:{}/full.test", web.ports()[0]);
    let key = site.world.fixture().public_key().display().to_string();
    let output = site.call(&["ls", &url, "--public-key", &key, "--ca", &known]);
    assert!(output.status.success(), "{}", words(&output));
    let output = site.call(&["ls", &url, "--public-key", &key, "--ca", "/absent.pem"]);
    assert!(
        output.status.code() == Some(2) && words(&output).contains("--ca /absent.pem"),
        "{}",
        words(&output)
    );
}
