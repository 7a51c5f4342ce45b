//! The thread that sends requests to rtpengine.
//!
//! The requests of one session go out one after the other: if a datagram is lost, a later request must not overtake an
//! earlier one.

use super::bencode::Response;
use super::{LogLimit, Outcome};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::timeout;

/// Requests at a time, those that wait for an earlier one of their session included.
const MAX_REQUESTS: usize = 8192;

/// At most this many requests of one session wait. A call needs few, and must not fill the queue of all calls.
const MAX_OF_SESSION: usize = 16;

/// Bytes of these requests.
const MAX_BYTES: usize = 64 << 20;

/// How many times a request is sent. rtpengine recognizes a repetition by its cookie.
const SENDS: u32 = 3;

/// The time between two of them.
const REPEAT: Duration = Duration::from_millis(600);

/// The proxy does not wait longer for a session description. A request that has waited so long for an earlier one is
/// not sent.
const LATEST: Duration = Duration::from_secs(2);

/// The longest datagram.
const LONGEST: usize = 65_535;

/// The longest request over IPv4: 65,535 bytes without the headers of IP and UDP.
const LONGEST_REQUEST: usize = 65_507;

/// Pause after a receive error, so that a permanent error uses little processor time.
const PAUSE: Duration = Duration::from_millis(10);

/// Bytes of an error's reason in the log.
const LONGEST_REASON: usize = 200;

/// Octets of a cookie.
pub(super) const COOKIE: usize = 32;

/// Gets the outcome.
pub(super) type Reply = Box<dyn FnOnce(Outcome) + Send>;

/// One request.
pub(super) struct Request {
    pub(super) address: SocketAddr,
    /// The name of its session.
    pub(super) session: Box<[u8]>,
    /// Room for the cookie, and the request.
    pub(super) datagram: Vec<u8>,
    /// The response must have a session description.
    pub(super) has_sdp: bool,
    /// It deletes the whole session.
    pub(super) ends_session: bool,
    pub(super) since: Instant,
    pub(super) reply: Reply,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Request").field(&self.address).finish()
    }
}

/// Random bytes that name a request. Only a program that can read the requests can make a response.
type Cookie = [u8; COOKIE];

/// Who waits for a response, and whether it must have a session description.
type Open = HashMap<Cookie, (bool, oneshot::Sender<Outcome>)>;

/// Begins the thread. It ends when the last sender of requests is dropped.
pub(super) fn spawn(requests: mpsc::Receiver<Request>) -> io::Result<()> {
    let processors = ::io::affinity::available().unwrap_or_default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::Builder::new()
        .name("hairpin-media".to_owned())
        .spawn(move || {
            // A thread inherits the processor of a pinned worker.
            if let Err(error) = ::io::affinity::spread_current_thread(&processors) {
                tracing::debug!(%error, "requests to rtpengine are sent where a worker runs");
            }
            LocalSet::new().block_on(&runtime, serve(requests));
        })
        .map(drop)
}

async fn serve(mut requests: mpsc::Receiver<Request>) {
    // During a reload, workers may still have the earlier address. The newest one is last.
    let mut links = Links::default();
    while let Some(request) = requests.recv().await {
        match links.to(request.address) {
            Some(client) => client.accept(request),
            None => (request.reply)(Outcome::NoAnswer),
        }
    }
}

/// The links to the two latest addresses, the newest one last.
#[derive(Default)]
struct Links {
    links: VecDeque<Link>,
    failures: LogLimit,
}

impl Links {
    /// The client of the rtpengine at this address.
    fn to(&mut self, address: SocketAddr) -> Option<Rc<RtpengineClient>> {
        let mut links = self.links.iter();
        if let Some(link) = links.find(|link| link.client.address == address) {
            return Some(Rc::clone(&link.client));
        }
        match Link::new(address) {
            Ok(link) => {
                let client = Rc::clone(&link.client);
                self.links.push_back(link);
                if self.links.len() > 2 {
                    self.links.pop_front();
                }
                Some(client)
            }
            Err(error) => {
                // Each request of each call fails so.
                if self.failures.permits() {
                    tracing::warn!(%address, %error, "no socket for rtpengine");
                }
                None
            }
        }
    }
}

/// A socket for one address, and the task that receives from it.
struct Link {
    client: Rc<RtpengineClient>,
    receiver: JoinHandle<()>,
}

impl Link {
    fn new(address: SocketAddr) -> io::Result<Link> {
        let any: SocketAddr = match address.is_ipv4() {
            true => (Ipv4Addr::UNSPECIFIED, 0).into(),
            false => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = std::net::UdpSocket::bind(any)?;
        // From here on, the kernel drops what comes from elsewhere.
        socket.connect(address)?;
        socket.set_nonblocking(true)?;
        let client = Rc::new(RtpengineClient {
            address,
            socket: UdpSocket::from_std(socket)?,
            open: RefCell::default(),
            sessions: RefCell::default(),
            requests: Cell::new(0),
            bytes: Cell::new(0),
            is_down: Cell::new(false),
            down_logged: LogLimit::default(),
            warned: LogLimit::default(),
        });
        let receiving = Rc::clone(&client);
        Ok(Link {
            client,
            receiver: spawn_local(async move { receiving.receive_all().await }),
        })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.receiver.abort();
    }
}

/// The client of one rtpengine, at one address.
struct RtpengineClient {
    address: SocketAddr,
    socket: UdpSocket,
    open: RefCell<Open>,
    /// Sessions with a request at rtpengine, and their requests that wait for that one.
    sessions: RefCell<HashMap<Box<[u8]>, VecDeque<Request>>>,
    /// Requests, and their bytes.
    requests: Cell<usize>,
    bytes: Cell<usize>,
    /// The log has a line that rtpengine does not respond, and no later line that it responds again.
    is_down: Cell<bool>,
    /// When the log has said so.
    down_logged: LogLimit,
    /// When an error of rtpengine was logged.
    warned: LogLimit,
}

impl RtpengineClient {
    /// Sends a request, after the earlier ones of its session.
    fn accept(self: &Rc<Self>, request: Request) {
        let bytes = self.bytes.get() + request.datagram.len();
        if self.requests.get() >= MAX_REQUESTS || bytes > MAX_BYTES {
            return (request.reply)(Outcome::Full);
        }
        let mut sessions = self.sessions.borrow_mut();
        let waiting = sessions.get(&request.session).map_or(0, VecDeque::len);
        if waiting >= MAX_OF_SESSION && !request.ends_session {
            drop(sessions);
            return (request.reply)(Outcome::Full);
        }
        self.requests.set(self.requests.get() + 1);
        self.bytes.set(bytes);
        if let Some(queue) = sessions.get_mut(&request.session) {
            let superseded = match request.ends_session {
                true => std::mem::take(queue),
                false => VecDeque::new(),
            };
            queue.push_back(request);
            drop(sessions);
            for request in superseded {
                self.end(request.datagram.len());
                (request.reply)(Outcome::NoAnswer);
            }
            return;
        }
        sessions.insert(request.session.clone(), VecDeque::new());
        let client = Rc::clone(self);
        spawn_local(async move { client.run_session(request).await });
    }

    /// Sends the requests of one session, until none is left.
    async fn run_session(&self, first: Request) {
        let session = first.session.clone();
        let mut next = Some(first);
        while let Some(request) = next {
            let len = request.datagram.len();
            self.run(request).await;
            self.end(len);
            let mut sessions = self.sessions.borrow_mut();
            next = sessions.get_mut(&session).and_then(VecDeque::pop_front);
            if next.is_none() {
                sessions.remove(&session);
            }
        }
    }

    fn end(&self, bytes: usize) {
        self.requests.set(self.requests.get() - 1);
        self.bytes.set(self.bytes.get() - bytes);
    }

    /// Sends a request until there is a response, or its time is over.
    async fn run(&self, mut request: Request) {
        let is_late = request.has_sdp && request.since.elapsed() >= LATEST;
        let outcome = match cookie().filter(|_| !is_late) {
            Some(cookie) => {
                request.datagram[..COOKIE].copy_from_slice(&cookie);
                let (sender, mut receiver) = oneshot::channel();
                let open = (request.has_sdp, sender);
                self.open.borrow_mut().insert(cookie, open);
                let outcome = self.exchange(&request.datagram, &mut receiver).await;
                self.open.borrow_mut().remove(&cookie);
                self.note(&outcome);
                outcome
            }
            None => Outcome::NoAnswer,
        };
        (request.reply)(outcome);
    }

    async fn exchange(
        &self,
        datagram: &[u8],
        receiver: &mut oneshot::Receiver<Outcome>,
    ) -> Outcome {
        // No repetition helps.
        if datagram.len() > LONGEST_REQUEST {
            tracing::debug!(address = %self.address, "a request to rtpengine is too long for a datagram");
            return Outcome::NotSent;
        }
        for _ in 0..SENDS {
            // A network that is down for a moment, for example.
            if let Err(error) = self.send(datagram).await {
                tracing::debug!(%error, address = %self.address, "a request to rtpengine was not sent");
            }
            if let Ok(outcome) = timeout(REPEAT, &mut *receiver).await {
                return outcome.unwrap_or(Outcome::NoAnswer);
            }
        }
        Outcome::NoAnswer
    }

    async fn send(&self, datagram: &[u8]) -> io::Result<usize> {
        match self.socket.send(datagram).await {
            // That is the ICMP error to an earlier datagram. This one was not sent.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                self.socket.send(datagram).await
            }
            sent => sent,
        }
    }

    /// Gives each response to who waits for it.
    async fn receive_all(&self) {
        let mut buffer = vec![0; LONGEST];
        loop {
            match self.socket.recv(&mut buffer).await {
                Ok(len) => self.receive(buffer.get(..len).unwrap_or_default()),
                // An ICMP error says that nothing listens now. rtpengine may just restart, so requests are repeated as
                // usual.
                Err(error) => {
                    tracing::debug!(%error, address = %self.address, "rtpengine does not listen");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn receive(&self, datagram: &[u8]) {
        let Some((cookie, rest)) = datagram.split_first_chunk::<COOKIE>() else {
            return;
        };
        let Some((has_sdp, sender)) = self.open.borrow_mut().remove(cookie) else {
            return;
        };
        let response = rest.strip_prefix(b" ").and_then(Response::read);
        let outcome = match response {
            Some(Response {
                result: b"ok",
                sdp: Some(sdp),
                ..
            }) if !sdp.is_empty() => Outcome::Done(sdp.into()),
            Some(Response { result: b"ok", .. }) if !has_sdp => Outcome::Done(Box::default()),
            Some(response) => {
                self.warn(response.reason.unwrap_or(response.result));
                Outcome::Refused
            }
            None => {
                self.warn(b"malformed response");
                Outcome::Refused
            }
        };
        let _ = sender.send(outcome);
    }

    /// Logs that rtpengine has stopped to respond, or responds again.
    fn note(&self, outcome: &Outcome) {
        match (outcome, self.is_down.get()) {
            (Outcome::NoAnswer, false) if self.down_logged.permits() => {
                self.is_down.set(true);
                tracing::warn!(address = %self.address, "rtpengine does not respond");
            }
            (Outcome::Done(_) | Outcome::Refused, true) => {
                self.is_down.set(false);
                tracing::info!(address = %self.address, "rtpengine responds again");
            }
            _ => {}
        }
    }

    /// Logs an error of rtpengine, unless one was logged just now.
    fn warn(&self, reason: &[u8]) {
        if !self.warned.permits() {
            return;
        }
        let reason = reason.get(..LONGEST_REASON).unwrap_or(reason);
        let reason = String::from_utf8_lossy(reason);
        tracing::warn!(address = %self.address, ?reason, "rtpengine has refused a request");
    }
}

fn cookie() -> Option<Cookie> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut random = [0_u8; COOKIE / 2];
    getrandom::fill(&mut random).ok()?;
    let mut cookie = [b'0'; COOKIE];
    for (digits, byte) in cookie.chunks_exact_mut(2).zip(random) {
        digits[0] = DIGITS[usize::from(byte >> 4)];
        digits[1] = DIGITS[usize::from(byte & 15)];
    }
    Some(cookie)
}

#[cfg(test)]
#[path = "thread_tests.rs"]
mod tests;
