//! Manifest, whitelist, certificate, history and reflog.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rsa::pkcs8::DecodePublicKey;
use rsa::{Pkcs1v15Sign, RsaPublicKey};
use sha1::{Digest, Sha1};
use x509_cert::Certificate;
use x509_cert::der::{DecodePem, Encode};

use crate::contents;
use crate::object::Algorithm;

use super::Findings;
use super::objects::Objects;

/// Fields of the manifest.
pub(super) struct Head {
    pub(super) name: String,
    pub(super) root: String,
    pub(super) root_size: u64,
    pub(super) revision: u64,
    pub(super) ttl: u64,
    history: Option<String>,
    certificate: String,
    metainfo: Option<String>,
    reflog: Option<String>,
}

/// Text, printed hash and signature of a signed file.
fn letter<'b>(what: &str, bytes: &'b [u8], findings: &mut Findings) -> Option<(&'b str, String, &'b [u8])> {
    let Some(end) = bytes.windows(4).position(|window| window == b"\n--\n") else {
        findings.problem(format!("{what} is not signed"));
        return None;
    };
    let text = std::str::from_utf8(&bytes[..end + 1]).ok()?;
    let rest = &bytes[end + 4..];
    let line = rest.iter().position(|byte| *byte == b'\n')?;
    let printed = String::from_utf8(rest[..line].to_vec()).ok()?;
    let actual = Algorithm::of_text(&printed).hash(text.as_bytes());
    if actual != printed {
        findings.problem(format!("{what} has the hash {actual}, the signed one is {printed}"));
    }
    Some((text, printed, &rest[line + 1..]))
}

fn read(repository: &Path, name: &str, findings: &mut Findings) -> Option<Vec<u8>> {
    std::fs::read(repository.join(name)).map_err(|error| findings.problem(format!("{name}: {error}"))).ok()
}

pub(super) fn check(
    repository: &Path,
    name: &str,
    public_key: &str,
    findings: &mut Findings,
) -> Option<Head> {
    let manifest = read(repository, ".cvmfspublished", findings)?;
    let (text, printed, signature) = letter("the manifest", &manifest, findings)?;
    let field = |key: char| text.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned);
    let order: String = text.lines().filter_map(|line| line.chars().next()).collect();
    let expected: String = "CBRDSGALNXHTMYZ".chars().filter(|key| order.contains(*key)).collect();
    if order != expected {
        findings.problem(format!("the manifest has its fields in the order {order}"));
    }
    let number = |key: char| field(key).and_then(|value| value.parse::<u64>().ok());
    let head = Head {
        name: field('N')?,
        root: field('C')?,
        root_size: number('B')?,
        revision: number('S')?,
        ttl: number('D')?,
        history: field('H'),
        certificate: field('X')?,
        metainfo: field('M'),
        reflog: field('Y'),
    };
    findings.revision = head.revision;
    if head.name != name {
        findings.problem(format!("the manifest is for {}", head.name));
    }
    if field('R').as_deref() != Some("d41d8cd98f00b204e9800998ecf8427e") {
        findings.problem("the manifest is not for the root path");
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_secs();
    if number('T').is_none_or(|time| time == 0 || time > now + 3600) {
        findings.problem("the manifest has no believable time");
    }
    let objects = Objects::new(repository, Algorithm::of_text(&head.root));
    let pem = objects.plain(&head.certificate, "X", 0, findings)?;
    let certificate =
        Certificate::from_pem(&pem).map_err(|e| findings.problem(format!("certificate: {e}"))).ok()?;
    let spki = certificate.tbs_certificate.subject_public_key_info.to_der().ok()?;
    let key = RsaPublicKey::from_public_key_der(&spki).ok()?;
    if key.verify(Pkcs1v15Sign::new::<Sha1>(), &Sha1::digest(printed.as_bytes()), signature).is_err() {
        findings.problem("the signature of the manifest is wrong");
    }
    if let Some(metainfo) = &head.metainfo {
        let json = objects.plain(metainfo, "M", 0, findings)?;
        if serde_json::from_slice::<serde_json::Value>(&json).is_err() {
            findings.problem("the metainfo is no JSON");
        }
    }
    check_whitelist(repository, &head, &certificate, public_key, findings);
    Some(head)
}

fn check_whitelist(
    repository: &Path,
    head: &Head,
    certificate: &Certificate,
    public_key: &str,
    findings: &mut Findings,
) {
    let Some(bytes) = read(repository, ".cvmfswhitelist", findings) else { return };
    let Some((text, printed, signature)) = letter("the whitelist", &bytes, findings) else { return };
    let key = RsaPublicKey::from_public_key_pem(public_key).expect("a public key");
    if key.verify(Pkcs1v15Sign::new_unprefixed(), printed.as_bytes(), signature).is_err() {
        findings.problem("the signature of the whitelist is wrong");
    }
    let lines: Vec<&str> = text.lines().collect();
    let is_time = |text: &str| text.len() == 14 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !lines.first().is_some_and(|line| is_time(line)) {
        findings.problem("the whitelist does not start with a time");
    }
    let expiry = lines.get(1).and_then(|line| line.strip_prefix('E')).filter(|time| is_time(time));
    if expiry.is_none() || expiry <= lines.first().copied() {
        findings.problem("the whitelist has no sensible expiry");
    }
    if lines.get(2) != Some(&format!("N{}", head.name).as_str()) {
        findings.problem("the whitelist is for another repository");
    }
    let der = certificate.to_der().expect("a certificate that was parsed");
    let listed = lines.iter().skip(3).any(|line| {
        let fingerprint: String =
            line.split([' ', '\t', '#']).next().unwrap_or_default().replace(':', "").to_lowercase();
        matches!(fingerprint.len(), 40 | 47 | 49)
            && Algorithm::of_text(&fingerprint).hash(&der) == fingerprint
    });
    if !listed {
        findings.problem("the certificate is not on the whitelist");
    }
}

pub(super) fn check_history(head: &Head, objects: &Objects, findings: &mut Findings) {
    let Some(history) = &head.history else { return };
    let Some(bytes) = objects.plain(history, "H", 0, findings) else { return };
    let (_file, database) = contents::open(&bytes);
    integrity("the history", &database, findings);
    let text = |sql: &str| database.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap_or_default();
    for (key, value) in [("schema", "1.0"), ("schema_revision", "3"), ("fqrn", head.name.as_str())] {
        let found = text(&format!("SELECT value FROM properties WHERE key = '{key}'"));
        if found != value {
            findings.problem(format!("the history has {key} {found:?}"));
        }
    }
    let mut tags = database.prepare("SELECT name, revision, hash, branch, size FROM tags").expect("tags");
    let rows = tags.query_map([], |row| {
        Ok((
            row.get::<_, String>(0)?,
            row.get::<_, u64>(1)?,
            row.get::<_, String>(2)?,
            row.get::<_, String>(3)?,
            row.get::<_, u64>(4)?,
        ))
    });
    for (name, revision, hash, branch, size) in rows.expect("tags").map(|row| row.expect("a tag")) {
        match objects.plain(&hash, "C", 0, findings) {
            Some(catalog) if catalog.len() as u64 == size => {}
            _ => findings.problem(format!("tag {name} leads to no catalog of {size} bytes")),
        }
        if name == "trunk" && (revision != head.revision || hash != head.root) {
            findings.problem("trunk is not the head");
        }
        let known: i64 = database
            .query_row("SELECT count(*) FROM branches WHERE branch = ?1", [&branch], |row| row.get(0))
            .expect("branches");
        if known != 1 {
            findings.problem(format!("tag {name} is on a branch that is not there"));
        }
        findings.tags.insert(name, revision);
    }
}

pub(super) fn check_reflog(repository: &Path, head: &Head, findings: &mut Findings) {
    let Some(bytes) = read(repository, ".cvmfsreflog", findings) else { return };
    let hash = Algorithm::of_text(&head.root).hash(&bytes);
    if head.reflog.as_deref() != Some(&hash) {
        findings.problem(super::OTHER_REFLOG);
    }
    let (_file, database) = contents::open(&bytes);
    integrity("the reflog", &database, findings);
    let wanted = [
        (Some(&head.root), 0),
        (Some(&head.certificate), 1),
        (head.history.as_ref(), 2),
        (head.metainfo.as_ref(), 3),
    ];
    for (hash, kind) in wanted {
        let Some(hash) = hash else { continue };
        let found: i64 = database
            .query_row(
                "SELECT count(*) FROM refs WHERE hash = ?1 AND type = ?2",
                rusqlite::params![hash, kind],
                |row| row.get(0),
            )
            .expect("references");
        if found != 1 {
            findings.problem(format!("the reflog lacks {hash} of type {kind}"));
        }
    }
}

pub(super) fn integrity(what: &str, database: &rusqlite::Connection, findings: &mut Findings) {
    let verdict = database.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0));
    if verdict.as_deref() != Ok("ok") {
        findings.problem(format!("{what} is damaged: {verdict:?}"));
    }
}
