//! The buckets of a server, and its operations.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Bound;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use base64ct::{Base64, Encoding as _};
use md5::{Digest, Md5};
use sha1::Sha1;
use sha2::Sha256;

use super::fault::S3Fault;
use super::message::{Answer, S3Request, elements, escaped};
use super::{Conditions, S3Object, signed_url};

/// Fields of a put that are kept.
const KEPT: [&str; 3] = ["content-type", "cache-control", "x-amz-storage-class"];
/// Minimum size of a part that is not the last.
const PART_MIN: usize = 5 << 20;
/// Time for which a racy put waits for another one.
const RACE: Duration = Duration::from_secs(1);
/// Interval of torn answers.
const TORN: u64 = 7;
const MODIFIED: &str = "Fri, 27 Nov 2026 00:00:00 GMT";

/// The buckets of a server.
#[derive(Debug, Default)]
pub(super) struct Buckets {
    all: Mutex<All>,
    pub(super) options: Mutex<Options>,
    /// Racy puts that have checked their condition.
    racing: Mutex<BTreeMap<String, usize>>,
    raced: Condvar,
}

#[derive(Debug, Default)]
struct All {
    buckets: BTreeMap<String, BTreeMap<String, S3Object>>,
    uploads: BTreeMap<String, Upload>,
    /// Content before the last put, by key.
    before: BTreeMap<String, Vec<u8>>,
    next: u64,
}

#[derive(Debug)]
struct Upload {
    fields: BTreeMap<String, String>,
    parts: BTreeMap<u32, Vec<u8>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) conditions: Conditions,
    pub(super) has_batches: bool,
    pub(super) page: usize,
    /// True if each page of a listing is the first one, and says that more follow.
    pub(super) repeats: bool,
    /// True if the body of a put must have the checksum that it names.
    pub(super) compares_checksums: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            conditions: Conditions::Atomic,
            has_batches: true,
            page: 1000,
            repeats: false,
            compares_checksums: true,
        }
    }
}

impl Buckets {
    pub(super) fn make(&self, name: &str) {
        self.all.lock().unwrap().buckets.entry(name.to_owned()).or_default();
    }

    pub(super) fn all(&self, bucket: &str) -> BTreeMap<String, S3Object> {
        self.all.lock().unwrap().buckets.get(bucket).cloned().unwrap_or_default()
    }

    pub(super) fn get(&self, bucket: &str, key: &str) -> Option<S3Object> {
        self.all.lock().unwrap().buckets.get(bucket)?.get(key).cloned()
    }

    pub(super) fn set(&self, bucket: &str, key: &str, object: S3Object) {
        self.all.lock().unwrap().buckets.entry(bucket.to_owned()).or_default().insert(key.to_owned(), object);
    }

    pub(super) fn remove(&self, bucket: &str, key: &str) {
        self.all.lock().unwrap().buckets.entry(bucket.to_owned()).or_default().remove(key);
    }

    pub(super) fn uploads(&self) -> usize {
        self.all.lock().unwrap().uploads.len()
    }

    /// Applies a request.
    pub(super) fn answer(&self, request: &S3Request, body: &[u8]) -> Answer {
        if signed_url::is_one(request)
            && let Err(code) = signed_url::check(request)
        {
            return Answer::error(403, code);
        }
        let has_field =
            request.field("authorization").is_some_and(|value| value.starts_with("AWS4-HMAC-SHA256"));
        let is_signed = has_field || signed_url::is_one(request);
        let reads_object = matches!(request.method.as_str(), "GET" | "HEAD") && !request.key.is_empty();
        if !is_signed && !reads_object {
            return Answer::error(403, "AccessDenied");
        }
        let checksum = request.field("x-amz-checksum-sha1");
        let compares = self.options.lock().unwrap().compares_checksums;
        if checksum.is_some_and(|checksum| compares && checksum != Base64::encode_string(&Sha1::digest(body)))
        {
            return Answer::error(400, "BadDigest");
        }
        let digest = request.field("x-amz-content-sha256").filter(|digest| digest.len() == 64);
        if digest.is_some_and(|digest| digest != hex(&Sha256::digest(body))) {
            return Answer::error(400, "XAmzContentSHA256Mismatch");
        }
        if !self.all.lock().unwrap().buckets.contains_key(&request.bucket) {
            return Answer::error(404, "NoSuchBucket");
        }
        match (request.method.as_str(), request.key.as_str()) {
            ("GET", "") => self.list(request),
            ("POST", "") if request.asks("delete") => self.delete_batch(request, body),
            ("HEAD", "") => Answer::of(200),
            ("GET" | "HEAD", _) => self.read(request),
            ("PUT", _) if request.asks("partNumber") => self.put_part(request, body),
            ("PUT", _) if request.field("x-amz-copy-source").is_some() => self.copy(request),
            ("PUT", _) => self.put(request, body),
            ("POST", _) if request.asks("uploads") => self.begin_upload(request),
            ("POST", _) if request.asks("uploadId") => self.complete_upload(request, body),
            ("DELETE", _) => self.delete(request),
            _ => Answer::error(405, "MethodNotAllowed"),
        }
    }

    /// Stores other bytes than those of a put.
    pub(super) fn misapply(&self, request: &S3Request, body: &[u8], fault: Option<S3Fault>) -> Answer {
        let mut bytes = body.to_vec();
        if fault == Some(S3Fault::ShortenPut) {
            bytes.pop();
            self.put(request, &bytes);
            return Answer::of(200).with("ETag", "\"no-digest\"");
        }
        bytes.iter_mut().take(1).for_each(|byte| *byte = !*byte);
        self.put(request, &bytes)
    }

    fn read(&self, request: &S3Request) -> Answer {
        let Some(mut object) = self.get(&request.bucket, &request.key) else {
            return Answer::error(404, "NoSuchKey");
        };
        let tag = tag(&object.bytes);
        if self.options.lock().unwrap().conditions == Conditions::Torn {
            let mut all = self.all.lock().unwrap();
            all.next += 1;
            if let Some(before) = all.before.get(&request.key).filter(|_| all.next.is_multiple_of(TORN)) {
                object.bytes.clone_from(before);
            }
        }
        if request.field("if-none-match").is_some_and(|known| known == tag) {
            return Answer::of(304).with("ETag", tag);
        }
        let mut answer = Answer::of(200).with("ETag", tag).with("Last-Modified", MODIFIED);
        for (name, value) in &object.fields {
            answer = answer.with(name, value);
        }
        let total = object.bytes.len();
        match request.field("range").and_then(|range| parse_range(range, total)) {
            Some((first, end)) if first >= end => Answer::error(416, "InvalidRange"),
            Some((first, end)) => {
                answer.status = 206;
                answer.body = object.bytes[first..end].to_vec();
                answer.with("Content-Range", format!("bytes {first}-{}/{total}", end - 1))
            }
            None => {
                answer.body = object.bytes;
                answer
            }
        }
    }

    fn put(&self, request: &S3Request, body: &[u8]) -> Answer {
        let conditions = self.options.lock().unwrap().conditions;
        let object = S3Object { bytes: body.to_vec(), fields: kept(request) };
        let answer = Answer::of(200).with("ETag", tag(body));
        let store = |all: &mut All| {
            let bucket = all.buckets.entry(request.bucket.clone()).or_default();
            if let Some(before) = bucket.insert(request.key.clone(), object.clone()) {
                all.before.insert(request.key.clone(), before.bytes);
            }
        };
        if !request.is_conditional_put() || conditions == Conditions::Ignored {
            store(&mut self.all.lock().unwrap());
            return answer;
        }
        if conditions == Conditions::Refused {
            return Answer::error(501, "NotImplemented");
        }
        let mut all = self.all.lock().unwrap();
        if let Some(refusal) = unmet(&all, request) {
            return refusal;
        }
        if conditions == Conditions::Racy {
            drop(all);
            self.wait_for_race(&request.key);
            all = self.all.lock().unwrap();
        }
        store(&mut all);
        answer
    }

    /// Waits until another put of the same key has checked its condition.
    fn wait_for_race(&self, key: &str) {
        let mut racing = self.racing.lock().unwrap();
        *racing.entry(key.to_owned()).or_default() += 1;
        self.raced.notify_all();
        let alone = |racing: &mut BTreeMap<String, usize>| racing.get(key).is_some_and(|number| *number < 2);
        drop(self.raced.wait_timeout_while(racing, RACE, alone).unwrap());
    }

    fn copy(&self, request: &S3Request) -> Answer {
        let source =
            request.field("x-amz-copy-source").unwrap_or_default().trim_start_matches('/').to_owned();
        let (bucket, key) = source.split_once('/').unwrap_or_default();
        let Some(object) = self.get(bucket, key) else { return Answer::error(404, "NoSuchKey") };
        let tag = escaped(&tag(&object.bytes));
        self.set(&request.bucket, &request.key, object);
        let time = "2026-11-27T00:00:00.000Z";
        Answer::xml(format!(
            "<CopyObjectResult><ETag>{tag}</ETag><LastModified>{time}</LastModified></CopyObjectResult>"
        ))
    }

    fn delete(&self, request: &S3Request) -> Answer {
        match request.query.get("uploadId") {
            Some(upload) => drop(self.all.lock().unwrap().uploads.remove(upload)),
            None => self.remove(&request.bucket, &request.key),
        }
        Answer::of(204)
    }

    fn delete_batch(&self, request: &S3Request, body: &[u8]) -> Answer {
        if !self.options.lock().unwrap().has_batches {
            return Answer::error(501, "NotImplemented");
        }
        let mut result = String::new();
        for key in elements(&String::from_utf8_lossy(body), "Key") {
            self.remove(&request.bucket, &key);
            write!(result, "<Deleted><Key>{}</Key></Deleted>", escaped(&key)).expect("writing to a string");
        }
        Answer::xml(format!("<DeleteResult>{result}</DeleteResult>"))
    }

    fn list(&self, request: &S3Request) -> Answer {
        let part = |name: &str| request.query.get(name).cloned().unwrap_or_default();
        let (prefix, delimiter) = (part("prefix"), part("delimiter"));
        let Options { page, repeats, .. } = *self.options.lock().unwrap();
        let after = part("continuation-token").max(part("start-after"));
        let after = if repeats { String::new() } else { after };
        let all = self.all.lock().unwrap();
        let objects = &all.buckets[&request.bucket];
        let from =
            if after.is_empty() { Bound::Included(prefix.clone()) } else { Bound::Excluded(after.clone()) };
        let mut listed = String::new();
        let (mut number, mut last, mut is_truncated) = (0, String::new(), false);
        let mut folders = std::collections::BTreeSet::new();
        for (key, object) in objects.range((from, Bound::Unbounded)) {
            let Some(rest) = key.strip_prefix(&prefix) else {
                if *key < prefix {
                    continue;
                }
                break;
            };
            if number == page {
                is_truncated = true;
                break;
            }
            last.clone_from(key);
            if let Some((folder, _)) = rest.split_once('/').filter(|_| !delimiter.is_empty()) {
                folders.insert(format!("{prefix}{folder}/"));
                continue;
            }
            number += 1;
            write!(
                listed,
                "<Contents><Key>{}</Key><LastModified>2026-11-27T00:00:00.000Z</LastModified><ETag>{}</ETag>\
                 <Size>{}</Size></Contents>",
                escaped(key),
                escaped(&tag(&object.bytes)),
                object.bytes.len()
            )
            .expect("writing to a string");
        }
        for folder in folders {
            write!(listed, "<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>", escaped(&folder))
                .expect("writing to a string");
        }
        is_truncated |= repeats;
        if is_truncated {
            write!(listed, "<NextContinuationToken>{}</NextContinuationToken>", escaped(&last))
                .expect("writing to a string");
        }
        Answer::xml(format!(
            "<ListBucketResult><Name>{}</Name><IsTruncated>{is_truncated}</IsTruncated>{listed}</ListBucketResult>",
            request.bucket
        ))
    }

    fn begin_upload(&self, request: &S3Request) -> Answer {
        let mut all = self.all.lock().unwrap();
        all.next += 1;
        let id = format!("upload-{}", all.next);
        all.uploads.insert(id.clone(), Upload { fields: kept(request), parts: BTreeMap::new() });
        Answer::xml(format!(
            "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
        ))
    }

    fn put_part(&self, request: &S3Request, body: &[u8]) -> Answer {
        let mut all = self.all.lock().unwrap();
        let number = request.query.get("partNumber").and_then(|number| number.parse().ok());
        let upload = request.query.get("uploadId").and_then(|upload| all.uploads.get_mut(upload));
        let (Some(number), Some(upload)) = (number, upload) else {
            return Answer::error(404, "NoSuchUpload");
        };
        upload.parts.insert(number, body.to_vec());
        Answer::of(200).with("ETag", tag(body))
    }

    fn complete_upload(&self, request: &S3Request, body: &[u8]) -> Answer {
        let mut all = self.all.lock().unwrap();
        let id = &request.query["uploadId"];
        let Some(upload) = all.uploads.get(id) else { return Answer::error(404, "NoSuchUpload") };
        let named = elements(&String::from_utf8_lossy(body), "PartNumber");
        let parts: Option<Vec<&Vec<u8>>> =
            named.iter().map(|number| upload.parts.get(&number.parse().ok()?)).collect();
        let Some(parts) = parts.filter(|parts| !parts.is_empty()) else {
            return Answer::error(400, "InvalidPart");
        };
        if parts[..parts.len() - 1].iter().any(|part| part.len() < PART_MIN) {
            return Answer::error(400, "EntityTooSmall");
        }
        let bytes: Vec<u8> = parts.into_iter().flatten().copied().collect();
        let tag = escaped(&tag(&bytes));
        let object = S3Object { bytes, fields: upload.fields.clone() };
        all.uploads.remove(id);
        all.buckets.entry(request.bucket.clone()).or_default().insert(request.key.clone(), object);
        Answer::xml(format!(
            "<CompleteMultipartUploadResult><ETag>{tag}</ETag></CompleteMultipartUploadResult>"
        ))
    }
}

/// Returns the refusal of a put whose condition is not met.
fn unmet(all: &All, request: &S3Request) -> Option<Answer> {
    let stored = all.buckets.get(&request.bucket).and_then(|bucket| bucket.get(&request.key));
    match (request.field("if-none-match"), request.field("if-match"), stored) {
        (Some("*"), _, Some(_)) => Some(Answer::error(412, "PreconditionFailed")),
        (Some("*"), _, None) => None,
        (Some(_), ..) => Some(Answer::error(501, "NotImplemented")),
        (None, Some(_), None) => Some(Answer::error(404, "NoSuchKey")),
        (None, Some(wanted), Some(stored)) if wanted != tag(&stored.bytes) => {
            Some(Answer::error(412, "PreconditionFailed"))
        }
        _ => None,
    }
}

fn kept(request: &S3Request) -> BTreeMap<String, String> {
    let field = |name: &str| Some((name.to_owned(), request.field(name)?.to_owned()));
    KEPT.into_iter().filter_map(field).collect()
}

fn tag(bytes: &[u8]) -> String {
    format!("\"{}\"", hex(&Md5::digest(bytes)))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the first byte and the end of a range, at most the whole.
fn parse_range(range: &str, total: usize) -> Option<(usize, usize)> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    if first.is_empty() {
        let suffix: usize = last.parse().ok()?;
        return Some((total.saturating_sub(suffix), total));
    }
    let end = if last.is_empty() { total } else { last.parse::<usize>().ok()?.checked_add(1)?.min(total) };
    Some((first.parse().ok()?, end))
}
