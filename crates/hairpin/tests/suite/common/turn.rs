//! A TURN client over UDP that keeps its nonce.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use server::stun::channel_data::{self, ChannelData};
use server::stun::{
    AlternateServer, BuildError, Builder, ChannelNumber, Class, ErrorCode, HmacKey, Lifetime,
    Message, Method, Nonce, Origin, PasswordAlgorithm, Realm, RequestedTransport, TransactionId,
    Username, XorPeerAddress, long_term_key,
};

use super::TEST_TIMEOUT;

pub(crate) const USER: &str = "ann";
pub(crate) const PASSWORD: &str = "a password of this test";

/// What a server answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// 0 for success.
    pub(crate) code: u16,
    pub(crate) alternate: Option<SocketAddr>,
}

/// How long a client waits before it repeats a request.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How often it sends a request.
const SENT: u32 = 10;
/// The last transaction ID. A client may get the port of an earlier one: with its IDs, its requests would be
/// retransmissions of that client.
static LAST_ID: AtomicU64 = AtomicU64::new(0);
/// The channel that it binds.
const CHANNEL: ChannelNumber = ChannelNumber::MIN;

pub(crate) struct Client {
    socket: UdpSocket,
    user: String,
    password: String,
    /// The web origin of its requests, which selects the realm.
    pub(crate) origin: Option<&'static str>,
    pub(crate) server: SocketAddr,
    challenge: Option<(String, Vec<u8>, HmacKey)>,
    /// Challenges so far.
    pub(crate) challenges: u32,
    /// Requests that were sent again, because no response arrived.
    pub(crate) repeats: u32,
}

impl Client {
    /// One of this user, at an address of this machine.
    pub(crate) fn of(server: SocketAddr, local: IpAddr, user: &str, password: &str) -> Self {
        let socket = UdpSocket::bind((local, 0)).expect("a port");
        let timeout = Some(RESPONSE_TIMEOUT);
        socket.set_read_timeout(timeout).expect("an option");
        Self {
            socket,
            user: user.to_owned(),
            password: password.to_owned(),
            origin: None,
            server,
            challenge: None,
            challenges: 0,
            repeats: 0,
        }
    }

    pub(crate) fn allocate(&mut self) -> Answer {
        self.request(Method::ALLOCATE, &|request| {
            request.push(&RequestedTransport::UDP).map(drop)
        })
    }

    /// Whether the server accepts the credentials.
    pub(crate) fn try_allocate(&mut self) -> bool {
        let first = self.allocate_once();
        let last = match first.code {
            401 | 438 => self.allocate_once(),
            _ => first,
        };
        assert!(matches!(last.code, 0 | 401), "{last:?}");
        last.code == 0
    }

    fn allocate_once(&mut self) -> Answer {
        self.exchange(Method::ALLOCATE, &|request| {
            request.push(&RequestedTransport::UDP).map(drop)
        })
    }

    pub(crate) fn refresh(&mut self, seconds: u32) -> Answer {
        self.request(Method::REFRESH, &|request| {
            request.push(&Lifetime(seconds)).map(drop)
        })
    }

    /// Sends data to this peer through a channel from now on.
    pub(crate) fn bind_channel(&mut self, peer: SocketAddr) -> Answer {
        self.request(Method::CHANNEL_BIND, &|request| {
            request
                .push(&CHANNEL)?
                .push(&XorPeerAddress(peer))
                .map(drop)
        })
    }

    /// Sends data to the peer, which sends it back. Returns how long that took; `None` if nothing came.
    pub(crate) fn round_trip(&mut self, number: u32) -> Option<Duration> {
        let payload = number.to_be_bytes();
        let mut datagram = channel_data::header(CHANNEL, 4).to_vec();
        datagram.extend(payload);
        let begun = Instant::now();
        self.socket.send_to(&datagram, self.server).expect("sent");
        let mut buffer = [0; 1024];
        while begun.elapsed() < TEST_TIMEOUT {
            let Ok((length, _)) = self.socket.recv_from(&mut buffer) else {
                continue;
            };
            let data = ChannelData::parse_datagram(&buffer[..length]);
            if data.is_ok_and(|data| data.payload == payload) {
                return Some(begun.elapsed());
            }
        }
        None
    }

    /// Gets a nonce, for [`Client::send_as`].
    pub(crate) fn get_nonce(&mut self) {
        assert_eq!(self.allocate_once().code, 401);
    }

    /// The nonce that it has got.
    pub(crate) fn nonce(&self) -> &[u8] {
        let (_, nonce, _) = self.challenge.as_ref().expect("a challenge");
        nonce
    }

    /// Sends an Allocate request of another user, once.
    pub(crate) fn send_as(&mut self, user: &str) {
        self.user = user.to_owned();
        let (_, request) = self.compose(Method::ALLOCATE, &|request| {
            request.push(&RequestedTransport::UDP).map(drop)
        });
        self.socket.send_to(&request, self.server).expect("sent");
    }

    /// The error code of the next response; `None` if none comes within a second.
    pub(crate) fn next_code(&self) -> Option<u16> {
        let mut buffer = [0; 1024];
        let (length, _) = self.socket.recv_from(&mut buffer).ok()?;
        let message = Message::parse(&buffer[..length]).expect("a message");
        let error: Option<ErrorCode<'_>> = message.get().expect("well formed");
        Some(error.map_or(0, |error| error.code))
    }

    fn request(
        &mut self,
        method: Method,
        attributes: &dyn Fn(&mut Builder<'_>) -> Result<(), BuildError>,
    ) -> Answer {
        for _ in 0..3 {
            let answer = self.exchange(method, attributes);
            match answer.code {
                401 | 438 => self.challenges += 1,
                _ => return answer,
            }
        }
        panic!("the server does not accept the credentials");
    }

    /// A request, with credentials if there is a challenge.
    fn compose(
        &mut self,
        method: Method,
        attributes: &dyn Fn(&mut Builder<'_>) -> Result<(), BuildError>,
    ) -> (TransactionId, Vec<u8>) {
        let mut id = [0; 12];
        let number = LAST_ID.fetch_add(1, Ordering::Relaxed);
        id[4..].copy_from_slice(&number.to_be_bytes());
        let id = TransactionId(id);
        let mut buffer = [0; 1024];
        let mut request = Builder::new(&mut buffer, Class::Request, method, &id).expect("room");
        attributes(&mut request).expect("room");
        if let Some(origin) = self.origin {
            request.push(&Origin(origin)).expect("room");
        }
        if let Some((realm, nonce, key)) = &self.challenge {
            let signed = request
                .push(&Username(&self.user))
                .and_then(|request| request.push(&Realm(realm)))
                .and_then(|request| request.push(&Nonce(nonce)))
                .and_then(|request| request.integrity(key));
            signed.expect("room");
        }
        (id, request.finish().to_vec())
    }

    fn exchange(
        &mut self,
        method: Method,
        attributes: &dyn Fn(&mut Builder<'_>) -> Result<(), BuildError>,
    ) -> Answer {
        let (id, request) = self.compose(method, attributes);
        let mut buffer = [0; 1024];
        for number in 0..SENT {
            self.repeats += u32::from(number > 0);
            self.socket.send_to(&request, self.server).expect("sent");
            while let Ok((length, _)) = self.socket.recv_from(&mut buffer) {
                let Ok(message) = Message::parse(&buffer[..length]) else {
                    continue;
                };
                if message.transaction_id() == id {
                    return self.read(&message);
                }
            }
        }
        panic!("no response from {}", self.server);
    }

    fn read(&mut self, message: &Message<'_>) -> Answer {
        let error: Option<ErrorCode<'_>> = message.get().expect("well formed");
        let code = error.map_or(0, |error| error.code);
        if matches!(code, 401 | 438) {
            let realm: Option<Realm<'_>> = message.get().expect("well formed");
            let nonce: Option<Nonce<'_>> = message.get().expect("well formed");
            let (realm, nonce) = (realm.expect("a realm").0, nonce.expect("a nonce").0);
            let key = long_term_key(PasswordAlgorithm::Md5, &self.user, realm, &self.password);
            let key = key.expect("plain ASCII").hmac_sha1();
            self.challenge = Some((realm.to_owned(), nonce.to_vec(), key));
        }
        let alternate: Option<AlternateServer> = message.get().expect("well formed");
        Answer {
            code,
            alternate: alternate.map(|alternate| alternate.0),
        }
    }
}
