//! Real web servers and proxies, and certificates for them; each in its own folder, at free ports.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::waiting::until;

/// Time limit for a program to start listening.
const PATIENCE: Duration = Duration::from_secs(60);
/// Path of a last request, whose reply shows that all earlier requests were answered.
const LAST: &str = "/the-last-of-all";

/// A running nginx, Apache, squid or Varnish.
pub struct Web {
    folder: TempDir,
    ports: Vec<u16>,
    child: Child,
    is_nginx: bool,
    /// True if it has child processes, which a killed parent would leave.
    has_children: bool,
}

impl Web {
    /// Starts an nginx with these servers: the text between `http {` and `}`, made from its folder and some free
    /// ports.
    pub fn nginx(ports: usize, servers: impl Fn(&Path, &[u16]) -> String) -> Web {
        Web::start("nginx", ports, |folder, ports| {
            let own = folder.display();
            let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
            let temporary: String = temporary.iter().fold(String::new(), |mut text, name| {
                write!(text, "{name}_temp_path {own}/{name}; ").expect("writing to a string");
                text
            });
            format!(
                "daemon off; master_process off; pid {own}/pid; error_log {own}/error.log;\n\
                 events {{ worker_connections 256; }}\n\
                 http {{ access_log {own}/access.log; {temporary}\n{} }}\n",
                servers(folder, ports)
            )
        })
    }

    /// Starts a squid that forwards to any server, at the first port with http; `more` is added to its configuration.
    pub fn squid(ports: usize, more: impl Fn(&Path, &[u16]) -> String) -> Web {
        Web::squid_that(ports, |_| "http_access allow all".to_owned(), more)
    }

    /// Starts a squid that forwards only for this user and password.
    pub fn squid_for(user: &str, password: &str) -> Web {
        let hash = Command::new(find("openssl")).args(["passwd", "-apr1", password]).output();
        let hash = String::from_utf8(hash.expect("running openssl").stdout).expect("a hash");
        let line = format!("{user}:{hash}");
        let access = move |folder: &Path| {
            let users = folder.join("users");
            fs::write(&users, &line).expect("a file of users");
            let check = squid_helper("basic_ncsa_auth");
            format!(
                "auth_param basic program {} {}\nauth_param basic children 1\nacl known proxy_auth REQUIRED\n\
                 http_access allow known\nhttp_access deny all",
                check.display(),
                users.display()
            )
        };
        Web::squid_that(1, access, |_, _| String::new())
    }

    /// Starts a squid whose configuration begins with the result of `config`, for a folder and free ports.
    pub fn squid_with(config: impl Fn(&Path, &[u16]) -> String) -> Web {
        Web::start("squid", 1, |folder, ports| {
            let own = folder.display();
            format!(
                "{}\naccess_log stdio:{own}/access.log\ncache_log {own}/error.log\npid_filename {own}/pid\n\
                 visible_hostname web\npinger_enable off\nnetdb_filename none\n",
                config(folder, ports)
            )
        })
    }

    /// Starts an Apache with the modules of Debian and these hosts, made from some free ports.
    pub fn apache(ports: usize, hosts: impl Fn(&[u16]) -> String) -> Web {
        Web::start("apache2", ports, |folder, ports| {
            let own = folder.display();
            let modules = ["mpm_event", "authz_core", "authz_host", "alias", "headers", "rewrite", "mime"];
            let modules: String = modules.iter().fold(String::new(), |mut text, name| {
                writeln!(text, "LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so")
                    .expect("writing to a string");
                text
            });
            // Started by root, its workers run as this user; otherwise the lines count for nothing.
            format!(
                "ServerRoot {own}\nDefaultRuntimeDir {own}\nPidFile {own}/pid\nServerName localhost\n\
                 ErrorLog {own}/error.log\nMutex pthread\nUser nobody\nGroup nogroup\n{modules}\
                 TypesConfig /dev/null\n<Directory />\nRequire all denied\nAllowOverride None\n</Directory>\n{}\n",
                hosts(ports)
            )
        })
    }

    /// Starts a Varnish with this configuration.
    pub fn varnish(config: impl Fn(&Path) -> String) -> Web {
        Web::start("varnishd", 1, |folder, _| config(folder))
    }

    /// Returns true if a program is installed.
    pub fn has(program: &str) -> bool {
        place_of(program).is_some()
    }

    fn squid_that(
        ports: usize,
        access: impl Fn(&Path) -> String,
        more: impl Fn(&Path, &[u16]) -> String,
    ) -> Web {
        Web::start("squid", ports, |folder, ports| {
            let own = folder.display();
            format!(
                "http_port 127.0.0.1:{}\n{}\ncache_mem 8 MB\naccess_log stdio:{own}/access.log\n\
                 cache_log {own}/error.log\npid_filename {own}/pid\ncoredump_dir {own}\nvisible_hostname web\n\
                 pinger_enable off\nnetdb_filename none\nmax_filedescriptors 1024\nshutdown_lifetime 0 seconds\n{}\n",
                ports[0],
                access(folder),
                more(folder, ports)
            )
        })
    }

    fn start(program: &str, count: usize, config: impl Fn(&Path, &[u16]) -> String) -> Web {
        let folder = tempfile::tempdir().expect("a folder");
        // Programs that drop root's rights read from it.
        open_to_all(folder.path());
        let free: Vec<TcpListener> =
            (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port")).collect();
        let port = |listener: &TcpListener| listener.local_addr().expect("its address").port();
        let ports: Vec<u16> = free.iter().map(port).collect();
        drop(free);
        let file = folder.path().join("config");
        fs::write(&file, config(folder.path(), &ports)).expect("a configuration");
        let name = squid_name(&ports);
        let (own, at) = (folder.path().join("own"), format!("127.0.0.1:{}", ports.first().unwrap_or(&0)));
        let own = own.to_str().expect("a path of text");
        let arguments: &[&str] = match program {
            "squid" => &["-N", "-n", &name, "-f"],
            "apache2" => &["-DFOREGROUND", "-f"],
            "varnishd" => &["-F", "-j", "none", "-n", own, "-a", &at, "-s", "malloc,64M", "-f"],
            _ => &["-p", ".", "-e", "error.log", "-c"],
        };
        let mut command = Command::new(find(program));
        command.args(arguments).arg(&file).current_dir(folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap_or_else(|error| panic!("{program}: {error}"));
        let has_children = ["apache2", "varnishd"].contains(&program);
        let mut web = Web { folder, ports, child, is_nginx: program == "nginx", has_children };
        web.wait(program);
        web
    }

    /// Waits until the server accepts a connection: it doesn't report that it listens.
    fn wait(&mut self, program: &str) {
        for port in &self.ports {
            let said = || fs::read_to_string(self.folder.path().join("error.log")).unwrap_or_default();
            let listens = until(PATIENCE, || {
                let ended = self.child.try_wait().expect("its state");
                assert!(ended.is_none(), "{program} ended: {ended:?}\n{}", said());
                TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, *port))).is_ok()
            });
            assert!(listens, "{program} does not listen\n{}", said());
        }
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the ports.
    pub fn ports(&self) -> &[u16] {
        &self.ports
    }

    /// Returns the access log. An nginx has logged all requests that were answered before; a squid logs later
    /// than it replies.
    pub fn log(&self) -> String {
        if self.is_nginx {
            self.answer_what_came();
        }
        let log = fs::read_to_string(self.folder.path().join("access.log")).unwrap_or_default();
        log.lines().filter(|line| !line.contains(LAST)).map(|line| format!("{line}\n")).collect()
    }

    /// Waits until a sequential nginx has answered one more request; with TLS by an error.
    fn answer_what_came(&self) {
        let address =
            SocketAddr::from((Ipv4Addr::LOCALHOST, self.ports.first().copied().unwrap_or_default()));
        let Ok(mut stream) = TcpStream::connect(address) else { return };
        stream.set_read_timeout(Some(PATIENCE)).expect("a deadline");
        // It may close before it has read all.
        let _ = stream.write_all(format!("GET {LAST} HTTP/1.0\r\n\r\n").as_bytes());
        let _ = stream.read_to_end(&mut Vec::new());
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        // A killed parent would leave its children; it may have ended by itself.
        let pid = self.has_children.then(|| Pid::from_child(&self.child));
        let _ = match pid {
            Some(pid) => kill_process(pid, Signal::TERM).map_err(Into::into),
            None => self.child.kill(),
        };
        let _ = self.child.wait();
        // Files that a killed squid leaves.
        let name = format!("{}-", squid_name(&self.ports));
        for entry in fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&name) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn open_to_all(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).expect("permissions");
}

/// Returns a name of letters and digits, which is unique on the machine while the program runs.
fn squid_name(ports: &[u16]) -> String {
    format!("esker{}p{}", std::process::id(), ports.first().copied().unwrap_or_default())
}

/// Returns the path of a program, if it is installed.
fn place_of(program: &str) -> Option<PathBuf> {
    let places = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    places.iter().map(|place| Path::new(place).join(program)).find(|path| path.exists())
}

/// Finds a program also in folders of administrators, which are not on every user's path.
fn find(program: &str) -> PathBuf {
    place_of(program).unwrap_or_else(|| panic!("{program} is not installed; scripts/needs.sh says how"))
}

/// Finds a helper program of squid, near its other files.
fn squid_helper(program: &str) -> PathBuf {
    let places = ["/usr/lib/squid", "/usr/lib64/squid", "/usr/libexec/squid"];
    let found = places.iter().map(|place| Path::new(place).join(program)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("squid has no {program}"))
}

/// A certificate authority made by `openssl`.
pub struct Authority {
    folder: TempDir,
}

impl Authority {
    /// Creates an authority that no client trusts yet.
    pub fn new() -> Authority {
        let folder = tempfile::tempdir().expect("a folder");
        open_to_all(folder.path());
        let authority = Authority { folder };
        let made = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=Test -days 2";
        authority.openssl(&format!("{made} -keyout ca.key -out ca.pem"));
        authority
    }

    /// Returns the certificate of the authority.
    pub fn certificate(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Makes a certificate for these names (`DNS:…`, `IP:…`) and its key, valid from now on for `days` days.
    pub fn sign(&self, names: &str, days: u32) -> (PathBuf, PathBuf) {
        let number = fs::read_dir(self.folder.path()).expect("a folder").count();
        let file = |end: &str| self.folder.path().join(format!("{number}.{end}"));
        fs::write(file("names"), format!("subjectAltName={names}\n")).expect("a file");
        self.openssl(&format!(
            "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=server -keyout {number}.key -out {number}.csr"
        ));
        self.openssl(&format!(
            "x509 -req -in {number}.csr -CA ca.pem -CAkey ca.key -days {days} -extfile {number}.names -out {number}.pem"
        ));
        (file("pem"), file("key"))
    }

    fn openssl(&self, arguments: &str) {
        let mut command = Command::new(find("openssl"));
        command.args(arguments.split(' ')).current_dir(self.folder.path()).stdin(Stdio::null());
        let output = command.output().expect("running openssl");
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}
