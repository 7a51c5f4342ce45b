//! Thousands of clients of a server that runs on the test's own thread.
//!
//! All of them are one socket: a client is known by both ends of its path, so each talks to another address of the
//! server, which listens on all of them.

use super::{PASSWORD, USER, ip, private_loopback};
use hairpin_server::quota::QuotaLimits;
use hairpin_server::{Builder as ServerBuilder, Local, Server};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};
use stun::{
    Builder, ChannelNumber, Class, HmacKey, Lifetime, Message, Method, Nonce, PasswordAlgorithm,
    Realm, RequestedTransport, TransactionId, Username, XorPeerAddress, XorRelayedAddress,
};

const REALM: &str = "example.org";

/// Longer than an answer takes on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the server, and may look at what that changes.
pub(crate) type Watch<'a> = &'a mut dyn FnMut(&mut dyn FnMut());

pub(crate) struct Crowd {
    pub(crate) server: Local,
    /// The clients, and their peer.
    pub(crate) socket: UdpSocket,
    /// The relay ports of the allocations made so far, in their order.
    ports: Vec<u16>,
    nonce: Vec<u8>,
    key: HmacKey,
    next_id: u64,
}

fn relay_address() -> IpAddr {
    private_loopback(3)
}

impl Crowd {
    /// Clients without allocations.
    pub(crate) fn new() -> Crowd {
        Crowd::of(Server::builder())
    }

    /// The same with a server that begins like this.
    pub(crate) fn of(builder: ServerBuilder) -> Crowd {
        let limits = QuotaLimits::default()
            .per_user(QuotaLimits::UNLIMITED)
            .per_source(QuotaLimits::UNLIMITED)
            .total(QuotaLimits::UNLIMITED);
        let server = builder
            .listen(SocketAddr::new(ip("0.0.0.0"), 0))
            .relay_address(relay_address())
            .realm(REALM)
            .user(USER, PASSWORD)
            .allow_peers("127.0.0.0/8".parse().expect("a network"))
            .quota(limits)
            .start_local()
            .expect("the server starts");
        let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback has free ports");
        socket.set_nonblocking(true).expect("an option");
        let key = stun::long_term_key(PasswordAlgorithm::Md5, USER, REALM, PASSWORD);
        let mut crowd = Crowd {
            server,
            socket,
            ports: Vec::new(),
            nonce: Vec::new(),
            key: key.expect("plain ASCII").hmac_sha1(),
            next_id: 0,
        };
        // A nonce is for the client's own address, which all share.
        let challenge = crowd.ask(0, Method::ALLOCATE, &|_| {}, &mut |turn| turn());
        let message = Message::parse(&challenge).expect("well formed");
        let nonce: Option<Nonce<'_>> = message.get().expect("well formed");
        crowd.nonce = nonce.expect("a nonce").0.to_vec();
        crowd
    }

    /// These clients get an allocation each, with a permission and a channel.
    pub(crate) fn allocate(&mut self, clients: std::ops::Range<usize>, watch: Watch<'_>) {
        let peer = self.socket.local_addr().expect("bound");
        for client in clients {
            self.allocate_only(client, Some(Lifetime(600)), watch);
            let channel = |request: &mut Builder<'_>| {
                let request = request.push(&ChannelNumber::MIN).expect("room");
                request.push(&XorPeerAddress(peer)).expect("room");
            };
            self.succeed(client, Method::CHANNEL_BIND, &channel, watch);
        }
    }

    /// These clients get an allocation each, with a channel to a peer that no other client has. Nobody is there.
    pub(crate) fn allocate_apart(&mut self, clients: std::ops::Range<usize>, watch: Watch<'_>) {
        for client in clients {
            self.allocate_only(client, Some(Lifetime(600)), watch);
            let [high, low] = u16::try_from(client).expect("one of 65,536").to_be_bytes();
            let peer = SocketAddr::from((Ipv4Addr::new(127, 2, high, low), 4000));
            let channel = |request: &mut Builder<'_>| {
                let request = request.push(&ChannelNumber::MIN).expect("room");
                request.push(&XorPeerAddress(peer)).expect("room");
            };
            self.succeed(client, Method::CHANNEL_BIND, &channel, watch);
        }
    }

    /// This client gets an allocation for so long, or for as long as the server likes.
    pub(crate) fn allocate_only(
        &mut self,
        client: usize,
        lifetime: Option<Lifetime>,
        watch: Watch<'_>,
    ) {
        let attributes = |request: &mut Builder<'_>| {
            request.push(&RequestedTransport::UDP).expect("room");
            if let Some(lifetime) = &lifetime {
                request.push(lifetime).expect("room");
            }
        };
        let answer = self.succeed(client, Method::ALLOCATE, &attributes, watch);
        let message = Message::parse(&answer).expect("well formed");
        let relayed: Option<XorRelayedAddress> = message.get().expect("well formed");
        self.ports
            .push(relayed.expect("a relayed address").0.port());
    }

    /// The relayed address of the allocation made as the `number`th.
    pub(crate) fn relayed(&self, number: usize) -> SocketAddr {
        SocketAddr::new(relay_address(), self.ports[number])
    }

    /// These clients give their allocations back.
    pub(crate) fn release(&mut self, clients: std::ops::Range<usize>, watch: Watch<'_>) {
        for client in clients {
            let end = |request: &mut Builder<'_>| {
                request.push(&Lifetime(0)).expect("room");
            };
            self.succeed(client, Method::REFRESH, &end, watch);
        }
    }

    fn succeed(
        &mut self,
        client: usize,
        method: Method,
        attributes: &dyn Fn(&mut Builder<'_>),
        watch: Watch<'_>,
    ) -> Vec<u8> {
        let answer = self.ask(client, method, attributes, watch);
        let class = Message::parse(&answer).expect("well formed").class();
        assert_eq!(class, Class::Success, "client {client}, {method:?}");
        answer
    }

    /// Where this client reaches the server.
    pub(crate) fn server_of(&self, client: usize) -> SocketAddr {
        let number = u16::try_from(client).expect("one of 65,536 clients");
        let [high, low] = number.to_be_bytes();
        let port = self.server.listeners()[0].port();
        SocketAddr::from((Ipv4Addr::new(127, 1, high, low), port))
    }

    /// One request and its answer; signed once there is a nonce.
    fn ask(
        &mut self,
        client: usize,
        method: Method,
        attributes: &dyn Fn(&mut Builder<'_>),
        watch: Watch<'_>,
    ) -> Vec<u8> {
        self.next_id += 1;
        let mut id = [0; 12];
        id[4..].copy_from_slice(&self.next_id.to_be_bytes());
        let mut buffer = [0; 512];
        let id = TransactionId(id);
        let mut request = Builder::new(&mut buffer, Class::Request, method, &id).expect("room");
        attributes(&mut request);
        if !self.nonce.is_empty() {
            request.push(&Username(USER)).expect("room");
            request.push(&Realm(REALM)).expect("room");
            request.push(&Nonce(&self.nonce)).expect("room");
            request.integrity(&self.key).expect("room");
        }
        let to = self.server_of(client);
        self.socket.send_to(request.finish(), to).expect("sent");
        let start = Instant::now();
        loop {
            watch(&mut || self.server.turn(Duration::ZERO).expect("epoll works"));
            let mut answer = [0; 512];
            if let Ok((length, from)) = self.socket.recv_from(&mut answer) {
                assert_eq!(from, to);
                return answer[..length].to_vec();
            }
            assert!(start.elapsed() < TEST_TIMEOUT, "no answer to {method:?}");
        }
    }
}
