//! Requests by which others store objects without credentials: URLs that are signed for a time (AWS Signature Version 4).
//!
//! Length and fields of a request are signed, too. Where the hash of an object is SHA-1, the server compares the bytes with it
//! (`x-amz-checksum-sha1`). A probe finds out whether it does; a server that doesn't gets the bytes in a folder of their own, where
//! they are no object yet.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64ct::{Base64, Encoding as _};
use bytes::Bytes;
use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::object::ObjectName;
use esker_format::time::UnixTime;
use esker_store::{Client, SignedPut, StorageProblem};
use hmac::{Hmac, Mac as _};
use hyper::Method;
use object_store::aws::{AwsCredential, AwsCredentialProvider};
use object_store::client::{HttpRequest, HttpRequestBody};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use sha2::{Digest as _, Sha256};

use super::requests::{ReadFailure, Requests};

/// Folder of uploads that the server doesn't check.
const STAGED: &str = ".esker/uploads";
/// Field with the checksum of the bytes.
const CHECKSUM: &str = "x-amz-checksum-sha1";
/// Characters of URLs that a signature has in another form.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Contents for the probe, of the same length.
const PROBED: [&[u8]; 2] = [b"right", b"wrong"];

/// Signs requests for a bucket.
pub(super) struct Signer {
    pub(super) credentials: AwsCredentialProvider,
    pub(super) client: Arc<Client<HttpRequestBody>>,
    /// URL of the repository, without a slash at its end.
    pub(super) base: String,
    pub(super) region: String,
}

impl Signer {
    /// Returns the request by which an object is stored.
    pub(super) async fn put(
        &self,
        requests: &Requests,
        (name, len): (&ObjectName, u64),
        (is_checked, valid): (bool, Duration),
    ) -> Result<SignedPut, StorageProblem> {
        let checksum = Some(&name.hash).filter(|hash| is_checked && hash.algorithm() == HashAlgorithm::Sha1);
        let staged = checksum.is_none().then(|| format!("{STAGED}/{name}"));
        let path = staged.clone().unwrap_or_else(|| name.path());
        self.signed(requests, &path, (checksum, len), valid, staged).await
    }

    async fn signed(
        &self,
        requests: &Requests,
        path: &str,
        (checksum, len): (Option<&ContentHash>, u64),
        valid: Duration,
        staged: Option<String>,
    ) -> Result<SignedPut, StorageProblem> {
        let key = self.credentials.get_credential().await;
        let key = key.map_err(|error| StorageProblem::NoCredentials(error.to_string()))?;
        let mut fields = requests.fields_of_object();
        fields.push(("content-length".to_owned(), len.to_string()));
        if let Some(hash) = checksum {
            fields.push((CHECKSUM.to_owned(), Base64::encode_string(hash.digest())));
        }
        let (scheme, rest) = self.base.split_once("://").unwrap_or(("https", &self.base));
        let (host, folder) = rest.split_once('/').unwrap_or((rest, ""));
        let path = if folder.is_empty() { format!("/{path}") } else { format!("/{folder}/{path}") };
        let signature = Signature { key: &key, region: &self.region, at: SystemTime::now(), valid };
        let target = signature.target(&Method::PUT, host, &path, &fields);
        Ok(SignedPut { url: format!("{scheme}://{host}{target}"), fields, staged })
    }

    /// Finds out whether the server compares bytes with the checksum that a request was signed for.
    pub(super) async fn probe(&self, requests: &Requests) -> Result<bool, StorageProblem> {
        let file = format!(".esker/probe-put-{:016x}", super::probe::random());
        let probed = self.probe_at(requests, &file).await;
        let removed = requests.delete(&[file]).await;
        probed.and_then(|is_checked| removed.map(|()| is_checked))
    }

    async fn probe_at(&self, requests: &Requests, file: &str) -> Result<bool, StorageProblem> {
        let [right, wrong] = PROBED;
        let hash = ContentHash::of(HashAlgorithm::Sha1, right);
        let mut statuses = Vec::new();
        for bytes in [right, wrong] {
            let checked = (Some(&hash), bytes.len() as u64);
            let put = self.signed(requests, file, checked, Duration::from_secs(60), None).await?;
            statuses.push(self.send(put, bytes).await?);
        }
        let is_ok = |status: &u16| (200..300).contains(status);
        if let Some(status) = statuses.first().filter(|status| !is_ok(status)) {
            let text = format!("it answers a request with a signed URL with status {status}");
            return Err(StorageProblem::Unavailable(text));
        }
        let stored = match requests.get(file, 1 << 10).await {
            Ok(stored) => stored.map(|(bytes, _)| bytes),
            Err(ReadFailure::TooLarge) => None,
            Err(ReadFailure::Problem(problem)) => return Err(problem),
        };
        Ok(!statuses.iter().all(is_ok) && stored.as_deref() == Some(right))
    }

    async fn send(&self, put: SignedPut, bytes: &'static [u8]) -> Result<u16, StorageProblem> {
        let mut request = HttpRequest::new(Bytes::from_static(bytes).into());
        *request.method_mut() = Method::PUT;
        let broken = |text: String| StorageProblem::Unavailable(text);
        *request.uri_mut() = put.url.parse().map_err(|error| broken(format!("{}: {error}", put.url)))?;
        for (name, value) in put.fields {
            let name: hyper::header::HeaderName =
                name.parse().map_err(|error| broken(format!("{name}: {error}")))?;
            let value = value.parse().map_err(|error| broken(format!("{name}: {error}")))?;
            request.headers_mut().insert(name, value);
        }
        let answer = self.client.send(request).await.map_err(|cause| broken(cause.to_string()))?;
        Ok(answer.status().as_u16())
    }
}

/// What requests are signed with.
struct Signature<'a> {
    key: &'a AwsCredential,
    region: &'a str,
    at: SystemTime,
    valid: Duration,
}

impl Signature<'_> {
    /// Returns the path of a signed URL with its query. The request must have the fields.
    fn target(&self, method: &Method, host: &str, path: &str, fields: &[(String, String)]) -> String {
        let seconds = self.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let at = UnixTime(i64::try_from(seconds).unwrap_or(i64::MAX)).to_string();
        let digits: String = at.chars().filter(char::is_ascii_digit).collect();
        let (date, time) = digits.split_at_checked(8).unwrap_or_default();
        let stamp = format!("{date}T{time}Z");
        let scope = format!("{date}/{}/s3/aws4_request", self.region);
        let mut signed: Vec<(&str, &str)> =
            fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        signed.push(("host", host));
        signed.sort_unstable();
        let names: Vec<&str> = signed.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let valid = self.valid.as_secs().to_string();
        let credential = format!("{}/{scope}", self.key.key_id);
        let mut query = vec![
            ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
            ("X-Amz-Credential", &credential),
            ("X-Amz-Date", &stamp),
            ("X-Amz-Expires", &valid),
        ];
        query.extend(self.key.token.as_deref().map(|token| ("X-Amz-Security-Token", token)));
        query.push(("X-Amz-SignedHeaders", &names));
        let query: Vec<String> =
            query.iter().map(|(name, value)| format!("{name}={}", escaped(value))).collect();
        let query = query.join("&");
        let path: Vec<String> = path.split('/').map(escaped).collect();
        let path = path.join("/");
        let lines: String = signed.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        let request = format!("{method}\n{path}\n{query}\n{lines}\n{names}\nUNSIGNED-PAYLOAD");
        let text = format!("AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{}", hex(&Sha256::digest(request)));
        let secret = format!("AWS4{}", self.key.secret_key);
        let key = [date, self.region, "s3", "aws4_request"]
            .iter()
            .fold(secret.into_bytes(), |key, part| code(&key, part.as_bytes()));
        format!("{path}?{query}&X-Amz-Signature={}", hex(&code(&key, text.as_bytes())))
    }
}

fn code(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut code = Hmac::<Sha256>::new_from_slice(key).expect("a key of HMAC has any length");
    code.update(text);
    code.finalize().into_bytes().to_vec()
}

fn escaped(text: &str) -> String {
    percent_encode(text.as_bytes(), ESCAPED).to_string()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example in Amazon's documentation of signed URLs.
    #[test]
    fn signatures_are_those_of_amazon() {
        let key = AwsCredential {
            key_id: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
            token: None,
        };
        let at = UNIX_EPOCH + Duration::from_secs(1_369_353_600);
        let signature = Signature { key: &key, region: "us-east-1", at, valid: Duration::from_secs(86_400) };
        let target = signature.target(&Method::GET, "examplebucket.s3.amazonaws.com", "/test.txt", &[]);
        let expected = "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256\
            &X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z\
            &X-Amz-Expires=86400&X-Amz-SignedHeaders=host\
            &X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404";
        assert_eq!(target, expected);
    }
}
