//! A TURN client over UDP that keeps its nonce.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use server::stun::{
    AlternateServer, BuildError, Builder, Class, ErrorCode, HmacKey, Lifetime, Message, Method,
    Nonce, PasswordAlgorithm, Realm, RequestedTransport, TransactionId, Username, long_term_key,
};

pub(crate) const USER: &str = "ann";
pub(crate) const PASSWORD: &str = "a password of this test";

/// What a server answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// 0 for success.
    pub(crate) code: u16,
    pub(crate) alternate: Option<SocketAddr>,
}

pub(crate) struct Client {
    socket: UdpSocket,
    pub(crate) server: SocketAddr,
    challenge: Option<(String, Vec<u8>, HmacKey)>,
    /// Challenges so far.
    pub(crate) challenges: u32,
    next: u64,
}

impl Client {
    pub(crate) fn new(server: SocketAddr) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let timeout = Some(Duration::from_secs(1));
        socket.set_read_timeout(timeout).expect("an option");
        Self {
            socket,
            server,
            challenge: None,
            challenges: 0,
            next: 1,
        }
    }

    pub(crate) fn allocate(&mut self) -> Answer {
        self.request(Method::ALLOCATE, &|request| {
            request.push(&RequestedTransport::UDP).map(drop)
        })
    }

    pub(crate) fn refresh(&mut self, seconds: u32) -> Answer {
        self.request(Method::REFRESH, &|request| {
            request.push(&Lifetime(seconds)).map(drop)
        })
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

    fn exchange(
        &mut self,
        method: Method,
        attributes: &dyn Fn(&mut Builder<'_>) -> Result<(), BuildError>,
    ) -> Answer {
        let mut id = [0; 12];
        id[4..].copy_from_slice(&self.next.to_be_bytes());
        self.next += 1;
        let id = TransactionId(id);
        let mut buffer = [0; 1024];
        let mut request = Builder::new(&mut buffer, Class::Request, method, &id).expect("room");
        attributes(&mut request).expect("room");
        if let Some((realm, nonce, key)) = &self.challenge {
            let signed = request
                .push(&Username(USER))
                .and_then(|request| request.push(&Realm(realm)))
                .and_then(|request| request.push(&Nonce(nonce)))
                .and_then(|request| request.integrity(key));
            signed.expect("room");
        }
        let request = request.finish().to_vec();
        let mut buffer = [0; 1024];
        for _ in 0..5 {
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
            let key = long_term_key(PasswordAlgorithm::Md5, USER, realm, PASSWORD);
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
