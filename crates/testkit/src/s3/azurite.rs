//! An emulator of Azure's object storage, with an empty container named [`BUCKET`].

use std::process::Command;

use super::BUCKET;
use super::program::{S3Program, installed};

/// Account of Azurite, and its key, which its documentation names.
pub const AZURITE_ACCOUNT: (&str, &str) = (
    "devstoreaccount1",
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
);

/// Makes the container, by a request that the account's key signs. Arguments: port, account, key, container.
const MAKE_CONTAINER: &str = "
const [port, account, key, container] = process.argv.slice(1);
const date = new Date().toUTCString(), version = '2021-08-06', path = `/${account}/${container}`;
const text = ['PUT', ...Array(11).fill(''), `x-ms-date:${date}`, `x-ms-version:${version}`, `/${account}${path}`,
    'restype:container'].join('\\n');
const signature = require('crypto').createHmac('sha256', Buffer.from(key, 'base64')).update(text).digest('base64');
const headers = { 'x-ms-date': date, 'x-ms-version': version, authorization: `SharedKey ${account}:${signature}` };
const request = { host: '127.0.0.1', port, method: 'PUT', path: `${path}?restype=container`, headers };
require('http').request(request, (answer) => {
    answer.resume();
    process.exitCode = answer.statusCode === 201 ? 0 : 1;
    if (process.exitCode) console.error(answer.statusCode);
}).end();
";

impl S3Program {
    /// Starts Azurite, an emulator of Azure Blob Storage; none if it isn't installed.
    pub fn azurite() -> Option<Self> {
        let program = installed("azurite/node_modules/.bin/azurite-blob")?;
        let server = Self::start(move |port, folder| {
            let mut command = Command::new(&program);
            command.args(["--silent", "--disableTelemetry", "--skipApiVersionCheck", "--blobPort"]);
            command.arg(port.to_string()).arg("--location").arg(folder.join("azurite"));
            command
        });
        let (account, key) = AZURITE_ACCOUNT;
        let mut make = Command::new("node");
        make.args(["-e", MAKE_CONTAINER, "--", &server.port().to_string(), account, key, BUCKET]);
        let output = make.output().expect("running node");
        assert!(output.status.success(), "making a container: {}", String::from_utf8_lossy(&output.stderr));
        Some(server)
    }
}
