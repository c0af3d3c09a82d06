//! Serves one connection.

use std::io::{self, BufReader};
use std::net::TcpStream;

use super::State;
use super::fault::S3Fault;
use super::message::{Answer, S3Request};

pub(super) fn serve(stream: TcpStream, state: &State) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    while let Some((request, body)) = S3Request::read(&mut reader)? {
        state.log.lock().unwrap().push(request.clone());
        let _under_way = state.under_way.begin();
        let fault = state.rules.striking(&request);
        let refused = match fault {
            Some(S3Fault::Drop) => return Ok(()),
            Some(S3Fault::NoAnswer) => {
                // Until the client or the server leaves.
                std::io::copy(&mut reader, &mut std::io::sink())?;
                return Ok(());
            }
            Some(S3Fault::Delay(time)) => {
                // The delay is the fault that the test asks for.
                std::thread::sleep(time);
                None
            }
            Some(S3Fault::Status(status)) => Some(Answer::error(status, "InjectedFault")),
            Some(S3Fault::SlowDown) => Some(Answer::error(503, "SlowDown")),
            Some(S3Fault::Conflict) => Some(Answer::error(409, "ConditionalRequestConflict")),
            // The version in the answer is no digest of the content, as with keys of a customer.
            Some(S3Fault::LosePut) => Some(Answer::of(200).with("ETag", "\"no-digest\"")),
            Some(S3Fault::DamagePut | S3Fault::ShortenPut | S3Fault::LoseAnswer | S3Fault::Cut) | None => {
                None
            }
        };
        let answer = refused.unwrap_or_else(|| match fault {
            Some(S3Fault::DamagePut | S3Fault::ShortenPut) => state.buckets.misapply(&request, &body, fault),
            _ => state.buckets.answer(&request, &body),
        });
        let is_head = request.method == "HEAD";
        let is_cut = fault == Some(S3Fault::Cut);
        if fault == Some(S3Fault::LoseAnswer) || (is_cut && (is_head || answer.body.len() < 2)) {
            return Ok(());
        }
        answer.send(&mut writer, is_head, is_cut)?;
        if is_cut {
            return Ok(());
        }
    }
    Ok(())
}
