//! The thread that sends requests to rtpengine.
//!
//! The requests of one session go out one after the other: if a datagram is lost, a later request must not overtake an
//! earlier one.

use super::bencode::Response;
use super::{LogLimit, MediaOutcome};
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

/// The maximum of requests, including those that wait for an earlier one of their session.
const MAX_REQUESTS: usize = 8192;

/// The maximum of waiting requests of one session. A call requires few, and must not fill the queue of all calls.
const MAX_SESSION_REQUESTS: usize = 16;

/// The maximum of bytes in all requests.
const MAX_WAITING_BYTES: usize = 64 << 20;

/// How many times a request is sent. rtpengine recognizes a repetition by its cookie.
const MAX_SENDS: u32 = 3;

/// The time between two transmissions of a request.
const RETRANSMIT_INTERVAL: Duration = Duration::from_millis(600);

/// The proxy does not wait longer for a session description. So the thread does not send a request that has waited so
/// long for an earlier one.
const MAX_WAIT: Duration = Duration::from_secs(2);

/// The longest datagram.
const MAX_DATAGRAM_BYTES: usize = 65_535;

/// The longest request over IPv4: 65,535 bytes without the headers of IP and UDP.
const MAX_REQUEST_BYTES: usize = 65_507;

/// Pause after a receive error, so that a permanent error uses little processor time.
const ERROR_PAUSE: Duration = Duration::from_millis(10);

/// The maximum length of a reason in the log.
const MAX_REASON_BYTES: usize = 200;

/// The length of a cookie.
pub(super) const COOKIE_BYTES: usize = 32;

/// Gives the outcome of a request to its caller.
pub(super) type MediaReply = Box<dyn FnOnce(MediaOutcome) + Send>;

/// A request to rtpengine.
pub(super) struct RtpengineRequest {
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
    pub(super) reply: MediaReply,
}

impl fmt::Debug for RtpengineRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RtpengineRequest")
            .field(&self.address)
            .finish()
    }
}

/// Random bytes that name a request. Only a program that can read the requests can make a response.
type Cookie = [u8; COOKIE_BYTES];

/// The waiting tasks by cookie. Each has whether its response must have a session description.
type OpenRequests = HashMap<Cookie, (bool, oneshot::Sender<MediaOutcome>)>;

/// Begins the thread. It ends when the last sender of requests is dropped.
pub(super) fn spawn(requests: mpsc::Receiver<RtpengineRequest>) -> io::Result<()> {
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

async fn serve(mut requests: mpsc::Receiver<RtpengineRequest>) {
    // During a reload, workers may still have the earlier address. The newest one is last.
    let mut clients = RunningClients::default();
    while let Some(request) = requests.recv().await {
        match clients.client_for(request.address) {
            Some(client) => client.accept(request),
            None => (request.reply)(MediaOutcome::NoAnswer),
        }
    }
}

/// The clients of the two latest addresses, the newest one last.
#[derive(Default)]
struct RunningClients {
    clients: VecDeque<RunningClient>,
    failures: LogLimit,
}

impl RunningClients {
    /// The client of the rtpengine at this address.
    fn client_for(&mut self, address: SocketAddr) -> Option<Rc<RtpengineClient>> {
        let mut clients = self.clients.iter();
        if let Some(running) = clients.find(|running| running.client.address == address) {
            return Some(Rc::clone(&running.client));
        }
        match RunningClient::new(address) {
            Ok(running) => {
                let client = Rc::clone(&running.client);
                self.clients.push_back(running);
                if self.clients.len() > 2 {
                    self.clients.pop_front();
                }
                Some(client)
            }
            Err(error) => {
                // Each request of each call fails in the same way.
                if self.failures.permits() {
                    tracing::warn!(%address, %error, "no socket for rtpengine");
                }
                None
            }
        }
    }
}

/// A socket for one address, and the task that receives from it.
struct RunningClient {
    client: Rc<RtpengineClient>,
    receiver: JoinHandle<()>,
}

impl RunningClient {
    fn new(address: SocketAddr) -> io::Result<RunningClient> {
        let any: SocketAddr = match address.is_ipv4() {
            true => (Ipv4Addr::UNSPECIFIED, 0).into(),
            false => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = std::net::UdpSocket::bind(any)?;
        // The kernel drops datagrams of other addresses from here on.
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
        Ok(RunningClient {
            client,
            receiver: spawn_local(async move { receiving.receive_all().await }),
        })
    }
}

impl Drop for RunningClient {
    fn drop(&mut self) {
        self.receiver.abort();
    }
}

/// The client of one rtpengine, at one address.
struct RtpengineClient {
    address: SocketAddr,
    socket: UdpSocket,
    open: RefCell<OpenRequests>,
    /// Sessions with a request at rtpengine, each with its requests that wait for that one.
    sessions: RefCell<HashMap<Box<[u8]>, VecDeque<RtpengineRequest>>>,
    /// The number of requests, and of their bytes.
    requests: Cell<usize>,
    bytes: Cell<usize>,
    /// The log has a line that rtpengine does not respond, and no later line that it responds again.
    is_down: Cell<bool>,
    /// When the log had this line last.
    down_logged: LogLimit,
    /// When an error of rtpengine was logged.
    warned: LogLimit,
}

impl RtpengineClient {
    /// Sends a request, after the earlier ones of its session.
    fn accept(self: &Rc<Self>, request: RtpengineRequest) {
        let bytes = self.bytes.get() + request.datagram.len();
        if self.requests.get() >= MAX_REQUESTS || bytes > MAX_WAITING_BYTES {
            return (request.reply)(MediaOutcome::Full);
        }
        let mut sessions = self.sessions.borrow_mut();
        let waiting = sessions.get(&request.session).map_or(0, VecDeque::len);
        if waiting >= MAX_SESSION_REQUESTS && !request.ends_session {
            drop(sessions);
            return (request.reply)(MediaOutcome::Full);
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
                self.release(request.datagram.len());
                (request.reply)(MediaOutcome::NoAnswer);
            }
            return;
        }
        sessions.insert(request.session.clone(), VecDeque::new());
        let client = Rc::clone(self);
        spawn_local(async move { client.run_session(request).await });
    }

    /// Sends the requests of one session, until none is left.
    async fn run_session(&self, first: RtpengineRequest) {
        let session = first.session.clone();
        let mut next = Some(first);
        while let Some(request) = next {
            let len = request.datagram.len();
            self.run(request).await;
            self.release(len);
            let mut sessions = self.sessions.borrow_mut();
            next = sessions.get_mut(&session).and_then(VecDeque::pop_front);
            if next.is_none() {
                sessions.remove(&session);
            }
        }
    }

    /// Subtracts a request that has ended.
    fn release(&self, bytes: usize) {
        self.requests.set(self.requests.get() - 1);
        self.bytes.set(self.bytes.get() - bytes);
    }

    /// Sends a request until there is a response or a timeout.
    async fn run(&self, mut request: RtpengineRequest) {
        let is_late = request.has_sdp && request.since.elapsed() >= MAX_WAIT;
        let outcome = match cookie().filter(|_| !is_late) {
            Some(cookie) => {
                request.datagram[..COOKIE_BYTES].copy_from_slice(&cookie);
                let (sender, mut receiver) = oneshot::channel();
                let open = (request.has_sdp, sender);
                self.open.borrow_mut().insert(cookie, open);
                let outcome = self.exchange(&request.datagram, &mut receiver).await;
                self.open.borrow_mut().remove(&cookie);
                self.log_state_change(&outcome);
                outcome
            }
            None => MediaOutcome::NoAnswer,
        };
        (request.reply)(outcome);
    }

    async fn exchange(
        &self,
        datagram: &[u8],
        receiver: &mut oneshot::Receiver<MediaOutcome>,
    ) -> MediaOutcome {
        // A retransmission would fail, too.
        if datagram.len() > MAX_REQUEST_BYTES {
            tracing::debug!(address = %self.address, "a request to rtpengine is too long for a datagram");
            return MediaOutcome::NotSent;
        }
        for _ in 0..MAX_SENDS {
            // The network may be down for a moment.
            if let Err(error) = self.send(datagram).await {
                tracing::debug!(%error, address = %self.address, "a request to rtpengine was not sent");
            }
            if let Ok(outcome) = timeout(RETRANSMIT_INTERVAL, &mut *receiver).await {
                return outcome.unwrap_or(MediaOutcome::NoAnswer);
            }
        }
        MediaOutcome::NoAnswer
    }

    async fn send(&self, datagram: &[u8]) -> io::Result<usize> {
        match self.socket.send(datagram).await {
            // The error is an ICMP error for an earlier datagram. This datagram was not sent.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                self.socket.send(datagram).await
            }
            sent => sent,
        }
    }

    /// Gives each response to its waiting task.
    async fn receive_all(&self) {
        let mut buffer = vec![0; MAX_DATAGRAM_BYTES];
        loop {
            match self.socket.recv(&mut buffer).await {
                Ok(len) => self.receive(buffer.get(..len).unwrap_or_default()),
                // An ICMP error says that no program listens. rtpengine may restart just now, so retransmissions
                // continue.
                Err(error) => {
                    tracing::debug!(%error, address = %self.address, "rtpengine does not listen");
                    tokio::time::sleep(ERROR_PAUSE).await;
                }
            }
        }
    }

    fn receive(&self, datagram: &[u8]) {
        let Some((cookie, rest)) = datagram.split_first_chunk::<COOKIE_BYTES>() else {
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
            }) if !sdp.is_empty() => MediaOutcome::Done(sdp.into()),
            Some(Response { result: b"ok", .. }) if !has_sdp => MediaOutcome::Done(Box::default()),
            Some(response) => {
                self.log_error(response.reason.unwrap_or(response.result));
                MediaOutcome::Refused
            }
            None => {
                self.log_error(b"malformed response");
                MediaOutcome::Refused
            }
        };
        let _ = sender.send(outcome);
    }

    /// Logs that rtpengine has stopped to respond, or responds again.
    fn log_state_change(&self, outcome: &MediaOutcome) {
        match (outcome, self.is_down.get()) {
            (MediaOutcome::NoAnswer, false) if self.down_logged.permits() => {
                self.is_down.set(true);
                tracing::warn!(address = %self.address, "rtpengine does not respond");
            }
            (MediaOutcome::Done(_) | MediaOutcome::Refused, true) => {
                self.is_down.set(false);
                tracing::info!(address = %self.address, "rtpengine responds again");
            }
            _ => {}
        }
    }

    /// Logs an error of rtpengine, unless one was logged just now.
    fn log_error(&self, reason: &[u8]) {
        if !self.warned.permits() {
            return;
        }
        let reason = reason.get(..MAX_REASON_BYTES).unwrap_or(reason);
        let reason = String::from_utf8_lossy(reason);
        tracing::warn!(address = %self.address, ?reason, "rtpengine has refused a request");
    }
}

fn cookie() -> Option<Cookie> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut random = [0_u8; COOKIE_BYTES / 2];
    getrandom::fill(&mut random).ok()?;
    let mut cookie = [b'0'; COOKIE_BYTES];
    for (digits, byte) in cookie.chunks_exact_mut(2).zip(random) {
        digits[0] = DIGITS[usize::from(byte >> 4)];
        digits[1] = DIGITS[usize::from(byte & 15)];
    }
    Some(cookie)
}

#[cfg(test)]
#[path = "thread_tests.rs"]
mod tests;
