//! Requests and answers.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read, Write};

/// Maximum size of a body.
const BODY_MAX: u64 = 1 << 30;
/// Maximum number of fields.
const FIELDS_MAX: usize = 100;

/// A request, without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Request {
    /// The method.
    pub method: String,
    /// The bucket; empty for none.
    pub bucket: String,
    /// The key; empty for the bucket itself.
    pub key: String,
    /// The parts of the query.
    pub query: BTreeMap<String, String>,
    /// The fields, with names in lower case.
    pub fields: BTreeMap<String, String>,
}

impl S3Request {
    /// Reads a request and its body; none at the end of the connection.
    pub(super) fn read(from: &mut impl BufRead) -> io::Result<Option<(Self, Vec<u8>)>> {
        let bad = || io::Error::from(io::ErrorKind::InvalidData);
        let mut line = String::new();
        if from.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut words = line.split_whitespace();
        let (method, target) = (words.next().ok_or_else(bad)?.to_owned(), words.next().ok_or_else(bad)?);
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let path = unescaped(path);
        let (bucket, key) =
            path.trim_start_matches('/').split_once('/').unwrap_or((path.trim_matches('/'), ""));
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        let query = query.split('&').filter(|part| !part.is_empty()).map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            (unescaped(name), unescaped(&value.replace('+', " ")))
        });
        let query = query.collect();
        let mut fields = BTreeMap::new();
        while fields.len() < FIELDS_MAX {
            let mut line = String::new();
            from.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            fields.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let request = Self { method, bucket, key, query, fields };
        let len = request.field("content-length").map_or(Ok(0), str::parse).map_err(|_| bad())?;
        if len > BODY_MAX {
            return Err(bad());
        }
        let mut body = Vec::new();
        if from.take(len).read_to_end(&mut body)? as u64 != len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Some((request, body)))
    }

    /// Returns a field by its name in lower case.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }

    /// Returns whether the query has a part.
    pub fn asks(&self, name: &str) -> bool {
        self.query.contains_key(name)
    }

    /// Returns whether the request is a put with a condition.
    pub fn is_conditional_put(&self) -> bool {
        self.method == "PUT" && (self.field("if-match").is_some() || self.field("if-none-match").is_some())
    }
}

/// An answer.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) fields: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Answer {
    pub(super) fn of(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    pub(super) fn xml(body: String) -> Self {
        let fields = vec![("Content-Type".to_owned(), "application/xml".to_owned())];
        Self {
            status: 200,
            fields,
            body: format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{body}").into(),
        }
    }

    pub(super) fn error(status: u16, code: &str) -> Self {
        let message = format!("the test server answers {status}");
        let body = format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>");
        Self { status, ..Self::xml(body) }
    }

    pub(super) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.fields.push((name.to_owned(), value.into()));
        self
    }

    /// Sends the answer; `cut` closes the connection after half of the body.
    pub(super) fn send(&self, to: &mut impl Write, is_head: bool, cut: bool) -> io::Result<()> {
        let mut head = format!("HTTP/1.1 {} Answer\r\nServer: testkit\r\n", self.status);
        if !self.fields.iter().any(|(name, _)| name == "Content-Length") {
            head.push_str(&format!("Content-Length: {}\r\n", self.body.len()));
        }
        for (name, value) in &self.fields {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        let body = if is_head { &[][..] } else { &self.body };
        let body = if cut { &body[..body.len() / 2] } else { body };
        // In one write, so that a small answer is one packet.
        let mut all = head.into_bytes();
        all.extend_from_slice(body);
        to.write_all(&all)?;
        to.flush()
    }
}

fn unescaped(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let digits = text.get(at + 1..at + 3).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match digits.filter(|_| bytes[at] == b'%') {
            Some(byte) => {
                plain.push(byte);
                at += 3;
            }
            None => {
                plain.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

/// Returns a text as the content of an XML element.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Returns the contents of all elements with a name.
pub(super) fn elements(xml: &str, name: &str) -> Vec<String> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let parts = xml.split(open.as_str()).skip(1).filter_map(|rest| rest.split_once(close.as_str()));
    let plain = |text: &str| {
        let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
        text.replace("&apos;", "'").replace("&amp;", "&")
    };
    parts.map(|(content, _)| plain(content)).collect()
}
