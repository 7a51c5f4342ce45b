//! A small blocking TURN client, made of the codec alone, so that tests see exactly what the server answers.
#![allow(dead_code, reason = "every test file uses another part")]

pub(crate) mod dtls;
pub(crate) mod local;
pub(crate) mod marked;
pub(crate) mod netns;
pub(crate) mod rates;
pub(crate) mod stream;
pub(crate) mod take_over;

use hairpin_server::{Builder as ServerBuilder, Running, Server};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stun::channel_data::{self, ChannelData};
use stun::{
    AttributeType, BuildError, Builder, ChannelNumber, Class, Data, ErrorCode, HmacKey, Lifetime,
    Message, Method, Nonce, PasswordAlgorithm, Realm, RequestedTransport, ReservationToken,
    TransactionId, Username, XorPeerAddress, XorRelayedAddress,
};

pub(crate) const USER: &str = "ann";
pub(crate) const PASSWORD: &str = "secret";

/// Longer than anything takes on a busy machine, shorter than a hanging test.
const TEST_TIMEOUT: Duration = Duration::from_secs(5);

/// What adds attributes to a request.
pub(crate) type Attributes<'a> = &'a dyn Fn(&mut Builder<'_>) -> Result<(), BuildError>;

/// A server on loopback with one user, peers on loopback admitted.
pub(crate) fn loopback(workers: usize) -> ServerBuilder {
    Server::builder()
        .listen(at("127.0.0.1:0"))
        .relay_address(ip("127.0.0.1"))
        .user(USER, PASSWORD)
        .allow_peers("127.0.0.0/8".parse().expect("a network"))
        .allow_peers("::1/128".parse().expect("a network"))
        .workers(workers)
}

pub(crate) fn start(builder: ServerBuilder) -> Running {
    builder.start().expect("the server starts")
}

pub(crate) fn at(text: &str) -> SocketAddr {
    text.parse().expect("test addresses are well formed")
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().expect("test addresses are well formed")
}

/// A loopback address that no other running test process uses; `last` tells the tests of this one apart.
pub(crate) fn private_loopback(last: u8) -> IpAddr {
    let pid = std::process::id();
    IpAddr::from([127, 64 + (pid >> 8) as u8 % 64, pid as u8, last])
}

pub(crate) fn channel(number: u16) -> ChannelNumber {
    ChannelNumber::new(number).expect("a channel number")
}

/// A socket on loopback that waits for a while.
pub(crate) fn socket(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(at(address)).expect("loopback has free ports");
    socket
        .set_read_timeout(Some(TEST_TIMEOUT))
        .expect("a timeout");
    socket
}

/// Waits until `true`, or fails.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed() < TEST_TIMEOUT, "still waiting: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Tells a thread to stop when it goes out of scope, so that a failing test does not wait for it for ever.
pub(crate) struct StopAtEnd<'a>(pub(crate) &'a std::sync::atomic::AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Tests that measure the memory of the whole process hold this, so that they run one at a time.
pub(crate) fn measure_alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Resident memory of this process, in bytes.
pub(crate) fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = text
        .split(' ')
        .nth(1)
        .and_then(|word| word.parse().ok())
        .expect("a number");
    pages * 4096
}

/// A simple generator (xorshift64*); what is sent only has to be various.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// A complete message from the server.
#[derive(Debug, Clone)]
pub(crate) struct Answer(Vec<u8>);

impl Answer {
    pub(crate) fn message(&self) -> Message<'_> {
        Message::parse(&self.0).expect("the server sends well-formed messages")
    }

    /// The error code, 0 for a success.
    pub(crate) fn code(&self) -> u16 {
        let error: Option<ErrorCode<'_>> = self.message().get().expect("a well-formed error");
        error.map_or(0, |error| error.code)
    }

    pub(crate) fn relayed(&self) -> SocketAddr {
        let relayed: Option<XorRelayedAddress> = self.message().get().expect("well formed");
        relayed.expect("a relayed address").0
    }

    pub(crate) fn token(&self) -> [u8; 8] {
        self.try_token().expect("a reservation token")
    }

    pub(crate) fn try_token(&self) -> Option<[u8; 8]> {
        let token: Option<ReservationToken> = self.message().get().expect("well formed");
        token.map(|token| token.0)
    }
}

/// What arrives at a client outside of transactions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Got {
    Channel(u16, Vec<u8>),
    Data(SocketAddr, Vec<u8>),
}

/// How a client reaches the server.
enum Link {
    Plain(UdpSocket),
    Marked(Box<marked::Marked>),
    Stream(Box<std::cell::RefCell<stream::StreamLink>>),
    Dtls(Box<std::cell::RefCell<dtls::DtlsLink>>),
}

pub(crate) struct Client {
    link: Link,
    last_tos: std::cell::Cell<u8>,
    pub(crate) server: SocketAddr,
    credentials: (String, String),
    challenge: Option<(String, Vec<u8>, HmacKey)>,
    /// Requests are sent again when its own receive buffer has overflowed: what it had dropped the last time.
    flooded: Option<u64>,
    /// Requests are sent again until there is an answer.
    retransmits: bool,
}

impl Client {
    pub(crate) fn new(server: SocketAddr) -> Client {
        let any = if server.is_ipv4() {
            "127.0.0.1:0"
        } else {
            "[::1]:0"
        };
        Client::over(socket(any), server)
    }

    /// A client on a socket that reads with a timeout.
    pub(crate) fn over(socket: UdpSocket, server: SocketAddr) -> Client {
        Client {
            link: Link::Plain(socket),
            last_tos: std::cell::Cell::new(0),
            server,
            credentials: (USER.to_owned(), PASSWORD.to_owned()),
            challenge: None,
            flooded: None,
            retransmits: false,
        }
    }

    /// A client over a connection.
    pub(crate) fn stream(link: stream::StreamLink) -> Client {
        let server = link.socket.peer_addr().expect("connected");
        Client {
            link: Link::Stream(Box::new(link.into())),
            ..Client::new(server)
        }
    }

    /// A client over a DTLS connection.
    pub(crate) fn dtls(link: dtls::DtlsLink) -> Client {
        let server = link.server;
        Client {
            link: Link::Dtls(Box::new(link.into())),
            ..Client::new(server)
        }
    }

    /// The connection of [`Client::dtls`].
    pub(crate) fn dtls_link(&self) -> std::cell::RefMut<'_, dtls::DtlsLink> {
        match &self.link {
            Link::Dtls(link) => link.borrow_mut(),
            _ => panic!("a client over DTLS"),
        }
    }

    /// The connection of [`Client::stream`].
    pub(crate) fn connection(&self) -> std::cell::RefMut<'_, stream::StreamLink> {
        match &self.link {
            Link::Stream(link) => link.borrow_mut(),
            _ => panic!("a client over a connection"),
        }
    }

    /// A client at this address of its own.
    pub(crate) fn from(local: &str, server: SocketAddr) -> Client {
        let link = Link::Plain(socket(local));
        Client {
            link,
            ..Client::new(server)
        }
    }

    /// A client that marks what it sends, and notes the marks of what it receives.
    pub(crate) fn marked(server: SocketAddr, tos: u8) -> Client {
        let any = if server.is_ipv4() {
            at("127.0.0.1:0")
        } else {
            at("[::1]:0")
        };
        let link = Link::Marked(Box::new(marked::Marked::new(any, tos)));
        Client {
            link,
            ..Client::new(server)
        }
    }

    /// A client that its peers send more than its socket can hold, so that answers may be lost with the rest: it
    /// repeats a request, but only if the kernel says that this socket has dropped something. A server that forgets an
    /// answer is found out.
    pub(crate) fn flooded(mut self) -> Client {
        if let Link::Plain(socket) = &self.link {
            let timeout = std::time::Duration::from_millis(500);
            socket.set_read_timeout(Some(timeout)).expect("not zero");
        }
        self.flooded = Some(0);
        self
    }

    /// A client that retransmits, as RFC 8489 §6.2.1 asks, because the server's socket may overflow.
    pub(crate) fn retransmitting(mut self) -> Client {
        self = self.flooded();
        self.retransmits = true;
        self
    }

    /// Datagrams that the kernel has dropped at this client's IPv4 socket.
    fn dropped(&self) -> u64 {
        let port = format!(":{:04X}", self.local().port());
        let table = std::fs::read_to_string("/proc/net/udp").expect("Linux");
        let rows = table
            .lines()
            .map(|row| row.split_whitespace().collect::<Vec<_>>());
        let mine = rows.filter(|row| row.get(1).is_some_and(|local| local.ends_with(&port)));
        mine.filter_map(|row| row.last()?.parse::<u64>().ok()).sum()
    }

    /// The TOS byte of the datagram received last, if the client is a marked one.
    pub(crate) fn last_tos(&self) -> u8 {
        self.last_tos.get()
    }

    pub(crate) fn with_user(mut self, name: &str, password: &str) -> Client {
        self.credentials = (name.to_owned(), password.to_owned());
        self
    }

    pub(crate) fn local(&self) -> SocketAddr {
        match &self.link {
            Link::Plain(socket) => socket.local_addr().expect("bound"),
            Link::Marked(socket) => socket.local(),
            Link::Stream(link) => link.borrow().socket.local_addr().expect("connected"),
            Link::Dtls(link) => link.borrow().socket.local_addr().expect("bound"),
        }
    }

    /// Sends a request, answers the first challenge, and returns the final answer.
    pub(crate) fn request(&mut self, method: Method, attributes: Attributes<'_>) -> Answer {
        let first = self.exchange(method, attributes);
        if !matches!(first.code(), 401 | 438) {
            return first;
        }
        self.heed(&first);
        self.exchange(method, attributes)
    }

    /// Takes over what a challenge says.
    fn heed(&mut self, challenge: &Answer) {
        let message = challenge.message();
        let realm: Option<Realm<'_>> = message.get().expect("well formed");
        let nonce: Option<Nonce<'_>> = message.get().expect("well formed");
        let (realm, nonce) = (realm.expect("a realm").0, nonce.expect("a nonce").0);
        let (user, password) = &self.credentials;
        let key = stun::long_term_key(PasswordAlgorithm::Md5, user, realm, password);
        let key = key.expect("plain ASCII").hmac_sha1();
        self.challenge = Some((realm.to_owned(), nonce.to_vec(), key));
    }

    fn exchange(&mut self, method: Method, attributes: Attributes<'_>) -> Answer {
        let request = self.write(method, attributes);
        let id = Message::parse(&request)
            .expect("just made")
            .transaction_id();
        loop {
            self.transmit(&request);
            while let Some(answer) = self.try_next_answer() {
                if answer.message().transaction_id() == id {
                    return answer;
                }
            }
            if self.retransmits {
                continue;
            }
            let before = self.flooded.expect("an answer in time");
            let dropped = self.dropped();
            assert!(
                dropped > before,
                "an answer in time, as nothing was lost here"
            );
            self.flooded = Some(dropped);
        }
    }

    /// A request with credentials, to be sent as a test likes.
    pub(crate) fn signed(&mut self, method: Method, attributes: Attributes<'_>) -> Vec<u8> {
        if self.challenge.is_none() {
            let challenge = self.exchange(method, attributes);
            assert_eq!(challenge.code(), 401);
            self.heed(&challenge);
        }
        self.write(method, attributes)
    }

    /// A request, with credentials if there was a challenge.
    /// A new request, signed if there was a challenge.
    pub(crate) fn write(&mut self, method: Method, attributes: Attributes<'_>) -> Vec<u8> {
        // Never the same twice in a process, also from a port that was another client's: its answers are still
        // remembered.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut id = [0; 12];
        id[4..].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
        let id = TransactionId(id);
        let mut buffer = [0; 1024];
        let mut builder = Builder::new(&mut buffer, Class::Request, method, &id).expect("room");
        attributes(&mut builder).expect("room");
        if let Some((realm, nonce, key)) = &self.challenge {
            let user = Username(&self.credentials.0);
            builder
                .push(&user)
                .and_then(|b| b.push(&Realm(realm)))
                .expect("room");
            builder
                .push(&Nonce(nonce))
                .and_then(|b| b.integrity(key))
                .expect("room");
        }
        builder.finish().to_vec()
    }

    /// The next answer to whichever request.
    pub(crate) fn next_answer(&self) -> Answer {
        self.try_next_answer().expect("an answer in time")
    }

    fn try_next_answer(&self) -> Option<Answer> {
        loop {
            let datagram = self.try_receive()?;
            let is_answer =
                Message::parse(&datagram).is_ok_and(|message| message.class() != Class::Indication);
            if is_answer {
                return Some(Answer(datagram));
            }
        }
    }

    pub(crate) fn transmit(&self, datagram: &[u8]) {
        match &self.link {
            Link::Plain(socket) => drop(socket.send_to(datagram, self.server).expect("sent")),
            Link::Marked(socket) => socket.send(datagram, self.server),
            Link::Dtls(link) => link.borrow_mut().send(datagram),
            Link::Stream(link) => {
                let padding = &[0; 3][..stun::padding(datagram.len())];
                link.borrow_mut().send(&[datagram, padding].concat());
            }
        }
    }

    /// The next datagram from the server.
    pub(crate) fn receive(&self) -> Vec<u8> {
        self.try_receive().expect("a datagram in time")
    }

    /// The next datagram from the server, if one comes in time.
    fn try_receive(&self) -> Option<Vec<u8>> {
        let (datagram, from) = match &self.link {
            Link::Plain(socket) => {
                let mut buffer = vec![0; 65_536];
                let (length, from) = socket.recv_from(&mut buffer).ok()?;
                buffer.truncate(length);
                (buffer, from)
            }
            Link::Stream(link) => return link.borrow_mut().receive(),
            Link::Dtls(link) => return link.borrow_mut().receive(),
            Link::Marked(socket) => {
                let (datagram, from, tos) = socket.receive();
                self.last_tos.set(tos);
                (datagram, from)
            }
        };
        assert_eq!(
            from, self.server,
            "the answer comes from the address that was asked"
        );
        Some(datagram)
    }

    pub(crate) fn allocate(&mut self) -> SocketAddr {
        let answer = self.try_allocate();
        assert_eq!(answer.code(), 0, "allocated");
        answer.relayed()
    }

    pub(crate) fn try_allocate(&mut self) -> Answer {
        self.allocate_with(&|_| Ok(()))
    }

    pub(crate) fn allocate_with(&mut self, more: Attributes<'_>) -> Answer {
        self.request(Method::ALLOCATE, &|builder| {
            builder.push(&RequestedTransport(RequestedTransport::UDP.0))?;
            more(builder)
        })
    }

    pub(crate) fn release(&mut self) {
        let answer = self.request(Method::REFRESH, &|builder| {
            builder.push(&Lifetime(0)).map(drop)
        });
        // RFC 8656 §8.3: when the first answer was lost, the second says that there is no allocation any more, which
        // will do.
        assert!(answer.code() == 0 || (self.flooded > Some(0) && answer.code() == 437));
    }

    pub(crate) fn permit(&mut self, peer: SocketAddr) -> u16 {
        let attributes = |builder: &mut Builder<'_>| builder.push(&XorPeerAddress(peer)).map(drop);
        self.request(Method::CREATE_PERMISSION, &attributes).code()
    }

    pub(crate) fn bind(&mut self, number: u16, peer: SocketAddr) -> u16 {
        let answer = self.request(Method::CHANNEL_BIND, &|builder| {
            builder
                .push(&channel(number))?
                .push(&XorPeerAddress(peer))
                .map(drop)
        });
        answer.code()
    }

    /// The bytes of a Send indication.
    pub(crate) fn send_indication(&self, peer: SocketAddr, data: &[u8]) -> Vec<u8> {
        self.send_indication_with(peer, data, &|_| Ok(()))
    }

    fn send_indication_with(&self, peer: SocketAddr, data: &[u8], more: Attributes<'_>) -> Vec<u8> {
        let mut buffer = vec![0; data.len() + 128];
        let id = TransactionId([9; 12]);
        let mut builder =
            Builder::new(&mut buffer, Class::Indication, Method::SEND, &id).expect("room");
        builder
            .push(&XorPeerAddress(peer))
            .and_then(|b| b.push(&Data(data)))
            .expect("room");
        more(&mut builder).expect("room");
        builder.finish().to_vec()
    }

    /// Sends a Send indication.
    pub(crate) fn indicate(&self, peer: SocketAddr, data: &[u8]) {
        self.transmit(&self.send_indication(peer, data));
    }

    /// Sends a Send indication with DONT-FRAGMENT.
    pub(crate) fn indicate_whole(&self, peer: SocketAddr, data: &[u8]) {
        let whole = |builder: &mut Builder<'_>| {
            builder
                .push_raw(AttributeType::DONT_FRAGMENT, &[])
                .map(drop)
        };
        self.transmit(&self.send_indication_with(peer, data, &whole));
    }

    /// Sends whole messages of one length (the last may be shorter) as one train; only from a marked client.
    pub(crate) fn send_train(&self, messages: &[Vec<u8>]) {
        match &self.link {
            Link::Marked(socket) => socket.send_train(messages, self.server),
            _ => panic!("not a marked client"),
        }
    }

    /// The socket of a plain client.
    pub(crate) fn socket(&self) -> &UdpSocket {
        match &self.link {
            Link::Plain(socket) => socket,
            _ => panic!("not a plain client"),
        }
    }

    /// Sends ChannelData.
    pub(crate) fn send(&self, number: u16, data: &[u8]) {
        let length = u16::try_from(data.len()).expect("a datagram");
        let mut message = channel_data::header(channel(number), length).to_vec();
        message.extend_from_slice(data);
        self.transmit(&message);
    }

    /// The next data from a peer.
    pub(crate) fn got(&self) -> Got {
        loop {
            let datagram = self.receive();
            if let Ok(data) = ChannelData::parse_datagram(&datagram) {
                return Got::Channel(data.number.get(), data.payload.to_vec());
            }
            let message = Message::parse(&datagram).expect("ChannelData or STUN");
            if message.class() == Class::Indication {
                let peer: Option<XorPeerAddress> = message.get().expect("well formed");
                let data: Option<Data<'_>> = message.get().expect("well formed");
                return Got::Data(peer.expect("a peer").0, data.expect("data").0.to_vec());
            }
        }
    }

    /// Whether nothing arrives for a short while.
    pub(crate) fn hears_nothing(&self) -> bool {
        let socket = self.socket();
        socket
            .set_read_timeout(Some(Duration::from_millis(150)))
            .expect("a timeout");
        let silent = socket.recv_from(&mut [0; 2048]).is_err();
        socket
            .set_read_timeout(Some(TEST_TIMEOUT))
            .expect("a timeout");
        silent
    }
}

/// The number of the worker that serves the allocation which `allocate` makes.
pub(crate) fn worker_that(server: &Running, allocate: impl FnOnce()) -> usize {
    let before = server.stats();
    allocate();
    let after = server.stats();
    let grown = |worker: usize| {
        let opened =
            |stats: &hairpin_server::stats::Stats| stats.workers[worker].engine.allocations_opened;
        opened(&after) > opened(&before)
    };
    (0..server.workers())
        .find(|&worker| grown(worker))
        .expect("some worker made it")
}

/// Clients with an allocation each, on two different workers: (client, relayed address) twice.
pub(crate) fn clients_on_two_workers(server: &Running) -> [(Client, SocketAddr); 2] {
    let mut first: Option<(usize, Client, SocketAddr)> = None;
    loop {
        let mut client = Client::new(server.listeners()[0]);
        let mut relayed = None;
        let worker = worker_that(server, || relayed = Some(client.allocate()));
        let relayed = relayed.expect("allocated");
        match first.take() {
            None => first = Some((worker, client, relayed)),
            Some((other, one, at)) if other != worker => return [(one, at), (client, relayed)],
            kept => {
                first = kept;
                client.release();
            }
        }
    }
}
