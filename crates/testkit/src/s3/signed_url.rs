//! Checks requests with signed URLs (AWS Signature Version 4): a client with the URL sends what was signed, and nothing else.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::{SystemTime, UNIX_EPOCH};

use esker_format::time::UnixTime;
use hmac::{Hmac, Mac as _};
use sha2::{Digest as _, Sha256};

use super::buckets::hex;
use super::message::S3Request;

/// Secret of the key that URLs are signed with.
const SECRET: &str = "secret";

/// Returns whether a request has a signed URL.
pub(super) fn is_one(request: &S3Request) -> bool {
    request.asks("X-Amz-Signature")
}

/// Fails with the code of an error if the URL was signed for another request, or for an earlier time.
pub(super) fn check(request: &S3Request) -> Result<(), &'static str> {
    let part =
        |name: &str| request.query.get(name).map(String::as_str).ok_or("AuthorizationQueryParametersError");
    let stamp = part("X-Amz-Date")?;
    let valid: i64 = part("X-Amz-Expires")?.parse().map_err(|_| "AuthorizationQueryParametersError")?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_secs();
    let oldest = UnixTime(i64::try_from(now).expect("a time") - valid).to_string();
    let digits = |text: &str| text.chars().filter(char::is_ascii_digit).collect::<String>();
    if digits(stamp) < digits(&oldest) {
        return Err("AccessDenied");
    }
    let credential = part("X-Amz-Credential")?;
    let (_, scope) = credential.split_once('/').ok_or("AuthorizationQueryParametersError")?;
    let names = part("X-Amz-SignedHeaders")?;
    let mut lines = String::new();
    for name in names.split(';') {
        lines.push_str(&format!("{name}:{}\n", request.field(name).ok_or("AccessDenied")?));
    }
    let others = request.query.iter().filter(|(name, _)| *name != "X-Amz-Signature");
    let query: Vec<String> =
        others.map(|(name, value)| format!("{}={}", escaped(name, false), escaped(value, false))).collect();
    let path = escaped(&format!("/{}/{}", request.bucket, request.key), true);
    let canonical =
        format!("{}\n{path}\n{}\n{lines}\n{names}\nUNSIGNED-PAYLOAD", request.method, query.join("&"));
    let text = format!("AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{}", hex(&Sha256::digest(canonical)));
    let first = format!("AWS4{SECRET}").into_bytes();
    let key = scope.split('/').fold(first, |key, part| code(&key, part));
    if hex(&code(&key, &text)) == part("X-Amz-Signature")? { Ok(()) } else { Err("SignatureDoesNotMatch") }
}

/// Puts a body to a URL with these fields; returns the status of the answer.
pub fn put_signed(url: &str, fields: &[(String, String)], body: &[u8]) -> u16 {
    let (host, path) = url.strip_prefix("http://").and_then(|rest| rest.split_once('/')).expect("a URL");
    let mut head = format!("PUT /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    for (name, value) in fields.iter().filter(|(name, _)| name != "content-length") {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
    let mut stream = TcpStream::connect(host).expect("connecting");
    stream.write_all(&[head.as_bytes(), body].concat()).expect("sending");
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).expect("an answer");
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status")
}

fn code(key: &[u8], text: &str) -> Vec<u8> {
    let mut code = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length");
    code.update(text.as_bytes());
    code.finalize().into_bytes().to_vec()
}

fn escaped(text: &str, is_path: bool) -> String {
    let is_plain =
        |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || (is_path && byte == b'/');
    let escape = |byte: u8| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}
