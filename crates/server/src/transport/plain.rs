//! Answers plain requests for files without hyper.
//!
//! Nearly all requests of clients are a GET of an object without a range or a condition. A gate has checked the head by then,
//! so what is left is to open the file and to write: hyper would parse the head again, and make a connection for it. All
//! other requests, and all of a server with an access log, are hyper's.

use std::sync::Arc;

use super::body::{Report, Reported};
use super::chunk;
use super::exchange::Exchange;
use super::gate::Gate;
use crate::answer::Answer;
use crate::metrics::Kind;

/// Length from which the kernel sends a part of a file: below, two calls cost more than copying.
const FILE_MIN: u64 = 16 * 1024;

/// Result of a plain request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Hyper serves the request.
    NotPlain,
    /// The response is sent.
    Sent,
    /// The response is sent, and the connection ends with it.
    Last,
    /// The response is incomplete.
    Broken,
}

/// Answers the request at the gate if it is plain.
pub(super) async fn answer(gate: &mut Gate, exchange: &Arc<Exchange>) -> Outcome {
    let transport = &exchange.transport;
    if transport.counters.has_log() {
        return Outcome::NotPlain;
    }
    let mut report = Report::new(exchange.clone(), None, None);
    let Some(request) = gate.plain() else { return Outcome::NotPlain };
    let Some((kind, answer)) = transport.handler.file(request.target) else { return Outcome::NotPlain };
    let (kind, answer) = match transport.over_rate(exchange.client.ip()) {
        None => (kind, answer),
        Some(wait) => (Kind::Refused, Answer::too_many(wait)),
    };
    report.of(kind);
    report.path(request.target.to_owned());
    let is_last = !request.keep_alive || transport.admission.waits() || transport.stops();
    let version = if request.is_old { "HTTP/1.0" } else { "HTTP/1.1" };
    let connection = match (is_last, request.is_old) {
        (true, _) => Some("close"),
        (false, true) => Some("keep-alive"),
        (false, false) => None,
    };
    let head = answer.head(version, connection);
    gate.consume();
    match send(gate, exchange, &head, answer, report).await {
        None => Outcome::Broken,
        Some(()) if is_last => {
            exchange.end();
            Outcome::Last
        }
        Some(()) => Outcome::Sent,
    }
}

/// Sends a response; `None` if it is incomplete.
async fn send(
    gate: &mut Gate,
    exchange: &Arc<Exchange>,
    head: &[u8],
    answer: Answer,
    report: Report,
) -> Option<()> {
    exchange.set_due(Some(answer.len()));
    let mut reported = Reported::new(report, answer.status);
    let mut pieces = answer.into_pieces();
    let mut head = head;
    // Head and first piece leave together.
    while let Some((file, part)) = pieces.next_part().filter(|(_, part)| part.end - part.start >= FILE_MIN) {
        // A part that the disk has to be read for is read by a thread that may wait.
        if !gate.takes_files() || !chunk::is_at_hand(&file, &part) {
            let piece = pieces.next().await?.ok()?;
            gate.write(head, &piece).await.ok()?;
            head = &[];
            reported.sent(piece.len() as u64);
            continue;
        }
        if !head.is_empty() {
            gate.write_head(head).await.ok()?;
            head = &[];
        }
        gate.send_file(&file, &part).await.ok()?;
        let len = part.end - part.start;
        pieces.skip(len);
        reported.sent(len);
    }
    while let Some(piece) = pieces.next().await {
        let piece = piece.ok()?;
        gate.write(head, &piece).await.ok()?;
        head = &[];
        reported.sent(piece.len() as u64);
    }
    gate.write(head, &[]).await.ok()?;
    gate.flush().await.ok()?;
    reported.finish();
    Some(())
}
