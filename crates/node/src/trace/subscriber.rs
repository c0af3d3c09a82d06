//! Serves one client of a trace: receives calls from the workers, and writes lines to its socket.

use std::io::{self, BufWriter, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_fuse::{Call, Session, Tracer};
use esker_vfs::Origin;
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

use super::family::{Family, Member};
use super::paths::Paths;
use super::ring::Ring;
use super::wire::{Source, TraceEnd, TraceLine, TraceRequest, TraceScope, TraceStart, TracedCall};
use crate::control::{Response, send};

/// Maximum number of traces of one mount at the same time.
const TRACES_MAX: usize = 8;
/// Time limit for requests in flight to end when the trace does.
const ENDING: Duration = Duration::from_secs(1);

/// Traces of a mount.
#[derive(Default)]
pub(crate) struct Traces {
    state: Mutex<TracesState>,
}

#[derive(Default)]
struct TracesState {
    closed: bool,
    all: Vec<Arc<Subscriber>>,
}

/// A client of a trace.
struct Subscriber {
    client: UnixStream,
    family: Family,
    over: Duration,
    ring: Ring<(Member, Call)>,
}

impl Tracer for Subscriber {
    fn wants(&self, caller: u32) -> bool {
        let wanted = self.family.may_want(caller);
        if wanted {
            self.ring.expect();
        }
        wanted
    }

    fn ended(&self, call: &Call) {
        let is_long = call.ended.saturating_duration_since(call.began) >= self.over;
        let member = if is_long { self.family.find(call.caller) } else { None };
        self.ring.came(member.map(|member| (member, call.clone())));
    }
}

impl Traces {
    /// Serves a trace until its client ends it, or the mount is gone.
    pub(crate) fn serve(
        &self,
        session: &Session,
        request: &TraceRequest,
        mut start: TraceStart,
        client: UnixStream,
    ) -> io::Result<()> {
        let proc = session.proc();
        if proc.is_none() && request.whose != TraceScope::All {
            start.warning = Some("the daemon can't see processes, so no request is traced".to_owned());
        }
        let peer = esker_cache_share::peer::pid(&client).unwrap_or(0);
        if peer == 0 && request.whose == TraceScope::Children {
            start.warning =
                Some("the daemon is in another PID namespace, so no request is traced".to_owned());
        }
        let subscriber = Arc::new(Subscriber {
            client: client.try_clone()?,
            family: Family::new(proc, request.whose, peer),
            over: Duration::from_micros(request.over_us),
            ring: Ring::new(),
        });
        if !self.add(&subscriber) {
            let message = format!("{TRACES_MAX} traces of this mount run already");
            return send(&client, &Response::Failed { message });
        }
        let outcome = subscriber.stream(session, request, start, client);
        self.state.lock().all.retain(|one| !Arc::ptr_eq(one, &subscriber));
        outcome
    }

    fn add(&self, subscriber: &Arc<Subscriber>) -> bool {
        let mut state = self.state.lock();
        let has_room = !state.closed && state.all.len() < TRACES_MAX;
        if has_room {
            state.all.push(subscriber.clone());
        }
        has_room
    }

    /// Ends all traces, because the mount is gone.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        // The thread that waits for the client's end then ends the trace.
        state.all.iter().for_each(|one| _ = one.client.shutdown(Shutdown::Read));
    }
}

impl Subscriber {
    fn stream(
        self: &Arc<Self>,
        session: &Session,
        request: &TraceRequest,
        start: TraceStart,
        mut client: UnixStream,
    ) -> io::Result<()> {
        client.set_read_timeout(None)?;
        if request.every_name {
            session.forget_names();
        }
        let tracer: Arc<dyn Tracer> = self.clone();
        session.add_tracer(tracer.clone());
        let outcome = send(&client, &Response::Tracing(Box::new(start))).and_then(|()| {
            std::thread::scope(|scope| {
                let builder = std::thread::Builder::new().name("trace-writer".into());
                let writer = builder.spawn_scoped(scope, || self.write(session))?;
                // A client that wants the end shuts its half of the connection down; one that is gone has both closed.
                let mut byte = [0];
                let _ = client.read(&mut byte);
                session.remove_tracer(&tracer);
                self.ring.close(ENDING);
                writer.join().unwrap_or_else(|_| Err(io::Error::other("the writer panicked")))
            })
        });
        session.remove_tracer(&tracer);
        outcome
    }

    /// Writes lines until the ring is closed. If the client is gone or too slow, ends the trace.
    fn write(&self, session: &Session) -> io::Result<()> {
        let outcome = self.write_all(session);
        if outcome.is_err() {
            let _ = self.client.shutdown(Shutdown::Both);
        }
        outcome
    }

    fn write_all(&self, session: &Session) -> io::Result<()> {
        let mut out = BufWriter::with_capacity(64 * 1024, &self.client);
        let mut paths = Paths::new(session);
        let clock = MonotonicClock::now();
        let mut calls = 0;
        while let Some(batch) = self.ring.take() {
            for (member, call) in batch {
                calls += 1;
                line(&mut out, &TraceLine::Call(Box::new(traced(&member, &call, &mut paths, &clock))))?;
            }
            out.flush()?;
        }
        line(&mut out, &TraceLine::End(TraceEnd { calls, dropped: self.ring.dropped() }))?;
        out.flush()
    }
}

fn line(out: &mut impl Write, line: &TraceLine) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")
}

/// Relates instants to the monotonic clock, which all processes of the machine share.
struct MonotonicClock {
    instant: Instant,
    nanos: u64,
}

impl MonotonicClock {
    fn now() -> Self {
        Self { instant: Instant::now(), nanos: monotonic_nanos() }
    }

    fn of(&self, instant: Instant) -> u64 {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let later = nanos(instant.saturating_duration_since(self.instant));
        let earlier = nanos(self.instant.saturating_duration_since(instant));
        self.nanos.saturating_add(later).saturating_sub(earlier)
    }
}

/// Returns the time of the monotonic clock in nanoseconds.
pub(crate) fn monotonic_nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let (secs, nanos) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    secs.unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(nanos.unwrap_or(0))
}

fn traced(member: &Member, call: &Call, paths: &mut Paths<'_>, clock: &MonotonicClock) -> TracedCall {
    let (source, place) = match &call.origin {
        Some(Origin::Image(name)) if !call.waits.network.is_zero() => (Source::Network, Some(name)),
        Some(Origin::Server(url)) => (Source::Network, Some(url)),
        Some(Origin::Process(path)) => (Source::Process, Some(path)),
        Some(Origin::Lower(path)) => (Source::Lower, Some(path)),
        Some(Origin::Image(path)) => (Source::Image, Some(path)),
        None if call.from_file => (Source::Cache, None),
        None => (Source::Memory, None),
    };
    let took = call.ended.saturating_duration_since(call.began);
    TracedCall {
        pid: member.pid,
        tid: call.caller,
        command: member.command.to_string(),
        operation: call.kind.into(),
        path: paths.of_call(call.kind, &call.node, call.name.as_deref(), call.found),
        began_ns: clock.of(call.began),
        took_ns: u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
        errno: call.errno,
        offset: call.offset,
        bytes: call.bytes,
        source,
        place: place.map(ToString::to_string),
        waits: call.waits.into(),
    }
}
