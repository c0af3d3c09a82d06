//! A relay between publishers and a gateway that loses requests and answers.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// What the relay does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Passes,
    /// The connection breaks before the gateway gets the request.
    Lost,
    /// The gateway carries the request out, and its answer is lost.
    AnswerLost,
    /// The relay answers with this status.
    Answered(u16, &'static str),
}

/// Decides on a request by its number, its method and its path.
pub(crate) type Decide = Box<dyn FnMut(usize, &str, &str) -> Fate + Send>;

struct State {
    /// The gateway; none while it is away.
    to: Option<SocketAddr>,
    decide: Decide,
    requests: Vec<String>,
    struck: usize,
}

/// A relay. Its threads end with their connections.
pub(crate) struct Relay {
    address: SocketAddr,
    state: Arc<(Mutex<State>, Condvar)>,
}

impl Relay {
    pub(crate) fn new(
        to: SocketAddr,
        decide: impl FnMut(usize, &str, &str) -> Fate + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let decide: Decide = Box::new(decide);
        let state = State { to: Some(to), decide, requests: Vec::new(), struck: 0 };
        let state = Arc::new((Mutex::new(state), Condvar::new()));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, shared) = (stream.unwrap(), shared.clone());
                std::thread::spawn(move || while pass(&stream, &shared).is_some() {});
            }
        });
        Self { address, state }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sets where requests go; none breaks their connections.
    pub(crate) fn set_gateway(&self, to: Option<SocketAddr>) {
        self.state.0.lock().to = to;
    }

    /// Returns the requests so far, as `METHOD PATH`.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.state.0.lock().requests.clone()
    }

    /// Returns how many requests did not pass.
    pub(crate) fn struck(&self) -> usize {
        self.state.0.lock().struck
    }

    /// Waits until so many requests did not pass.
    pub(crate) fn wait_until_struck(&self, count: usize) {
        let (state, changed) = &*self.state;
        changed.wait_while(&mut state.lock(), |state| state.struck < count);
    }
}

/// A request or an answer.
struct Message {
    head: String,
    body: Vec<u8>,
}

fn read(from: &mut BufReader<&TcpStream>) -> Option<Message> {
    let (mut head, mut len) = (String::new(), 0);
    while !head.ends_with("\r\n\r\n") {
        let start = head.len();
        if from.read_line(&mut head).ok()? == 0 {
            return None;
        }
        let line = head[start..].to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            len = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; len];
    from.read_exact(&mut body).ok()?;
    Some(Message { head, body })
}

/// Passes one request on; none if its connection ends.
fn pass(stream: &TcpStream, shared: &(Mutex<State>, Condvar)) -> Option<()> {
    let request = read(&mut BufReader::new(stream))?;
    let mut words = request.head.split(' ');
    let (method, path) = (words.next()?, words.next()?);
    let (fate, to) = {
        let (state, changed) = shared;
        let mut state = state.lock();
        let number = state.requests.len();
        state.requests.push(format!("{method} {path}"));
        let fate = (state.decide)(number, method, path);
        let fate = if state.to.is_none() { Fate::Lost } else { fate };
        state.struck += usize::from(fate != Fate::Passes);
        changed.notify_all();
        (fate, state.to)
    };
    match fate {
        Fate::Lost => return None,
        Fate::Answered(status, text) => {
            let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{text}", text.len());
            return { stream }.write_all(answer.as_bytes()).ok();
        }
        Fate::Passes | Fate::AnswerLost => {}
    }
    let gateway = TcpStream::connect(to?).ok()?;
    { &gateway }.write_all(&[request.head.as_bytes(), &request.body].concat()).ok()?;
    let answer = read(&mut BufReader::new(&gateway))?;
    if fate == Fate::AnswerLost {
        return None;
    }
    { stream }.write_all(&[answer.head.as_bytes(), &answer.body].concat()).ok()
}
