//! A server that says what a test tells it to say, and the clock.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use stun::{
    Builder, Class, ErrorCode, HmacKey, Lifetime, Message, Method, Nonce, PasswordAlgorithm,
    PasswordAlgorithms, Realm, XorMappedAddress, XorRelayedAddress, long_term_key,
};
use turn::client::{AllocateOptions, Client, ClientConfig, Event, Received};
use turn::{Mono, Now};

pub(crate) const USER: &str = "user";
pub(crate) const PASSWORD: &str = "secret";
pub(crate) const REALM: &str = "example.org";
/// A nonce whose cookie promises nothing.
pub(crate) const NONCE: &[u8] = b"obMatJos2AAAAnonce";
/// A nonce whose cookie promises PASSWORD-ALGORITHMS.
pub(crate) const NONCE_ALGORITHMS: &[u8] = b"obMatJos2gAAAnonce";
/// A nonce whose cookie promises both features.
pub(crate) const NONCE_BOTH: &[u8] = b"obMatJos2wAAAnonce";

pub(crate) fn relayed() -> SocketAddr {
    ([192, 0, 2, 15], 50_000).into()
}

pub(crate) fn relayed_v6() -> SocketAddr {
    ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 15], 50_000).into()
}

pub(crate) fn mapped() -> SocketAddr {
    ([203, 0, 113, 9], 4242).into()
}

pub(crate) fn peer(last: u8, port: u16) -> SocketAddr {
    ([198, 51, 100, last], port).into()
}

/// The key that client and scripted server share.
pub(crate) fn key(algorithm: PasswordAlgorithm) -> stun::LongTermKey {
    long_term_key(algorithm, USER, REALM, PASSWORD).expect("plain ASCII")
}

pub(crate) fn sha1_key() -> HmacKey {
    key(PasswordAlgorithm::Md5).hmac_sha1()
}

pub(crate) fn sha256_key() -> HmacKey {
    key(PasswordAlgorithm::Sha256).hmac_sha256()
}

pub(crate) struct Script {
    pub(crate) client: Client,
    pub(crate) now: Now,
    /// What signs the answers.
    pub(crate) key: Option<HmacKey>,
    /// What became of the last answer.
    pub(crate) received: Option<Received>,
}

impl Script {
    pub(crate) fn new(config: ClientConfig) -> Script {
        Script {
            client: Client::new(Arc::new(config), [7; 32]),
            now: Now {
                mono: Mono(1_000_000_000),
                unix_s: 1_700_000_000,
            },
            key: None,
            received: None,
        }
    }

    pub(crate) fn with_credentials() -> Script {
        Script::new(ClientConfig::with_credentials(USER, PASSWORD))
    }

    /// A client whose Allocate has been challenged and granted by an RFC 5389 server.
    pub(crate) fn allocated() -> Script {
        Script::allocated_with(ClientConfig::with_credentials(USER, PASSWORD))
    }

    pub(crate) fn allocated_with(config: ClientConfig) -> Script {
        let mut script = Script::new(config);
        script.allocate(AllocateOptions::default());
        let event = script.event();
        assert!(matches!(event, Some(Event::Allocated(_))), "{event:?}");
        script
    }

    /// Goes through the challenge and grants whatever is asked for, without looking at it.
    pub(crate) fn allocate(&mut self, options: AllocateOptions) {
        self.client
            .allocate(self.now, options)
            .expect("not allocated");
        let request = self.request();
        self.challenge(&request, 401, NONCE, None);
        self.key = Some(sha1_key());
        let request = self.request();
        self.grant(&request, &[relayed()], 600);
    }

    pub(crate) fn advance(&mut self, duration: Duration) {
        self.now.mono = self.now.mono.plus(duration);
        self.now.unix_s += duration.as_secs();
        self.client.handle_timeout(self.now);
    }

    pub(crate) fn advance_s(&mut self, seconds: u64) {
        self.advance(Duration::from_secs(seconds));
    }

    /// Lets the client's own deadlines pass one by one until `seconds` have gone by; returns what it transmitted
    /// meanwhile.
    pub(crate) fn run_s(&mut self, seconds: u64) -> Vec<Vec<u8>> {
        let end = self.now.mono.plus_secs(seconds);
        let mut sent = Vec::new();
        while let Some(at) = self.client.poll_timeout().filter(|at| *at <= end) {
            let step = at.since(self.now.mono);
            self.advance(step);
            while let Some(request) = self.poll_request() {
                sent.push(request);
            }
        }
        let rest = end.since(self.now.mono);
        self.advance(rest);
        sent
    }

    pub(crate) fn poll_request(&mut self) -> Option<Vec<u8>> {
        self.client.poll_transmit().map(<[u8]>::to_vec)
    }

    /// The one request that is due.
    pub(crate) fn request(&mut self) -> Vec<u8> {
        self.poll_request()
            .expect("the client has nothing to transmit")
    }

    pub(crate) fn no_request(&mut self) {
        let request = self.poll_request();
        assert!(request.is_none(), "unexpected request {request:02x?}");
    }

    pub(crate) fn event(&mut self) -> Option<Event> {
        self.client.poll_event()
    }

    pub(crate) fn input(&mut self, datagram: &[u8]) -> Received {
        self.client.handle_input(self.now, datagram)
    }

    /// Answers with 401 or 438.
    pub(crate) fn challenge(
        &mut self,
        request: &[u8],
        code: u16,
        nonce: &[u8],
        algorithms: Option<PasswordAlgorithms<'_>>,
    ) {
        let answer = answer(request, Class::Error, |response| {
            let error = ErrorCode {
                code,
                reason: "challenge",
            };
            response
                .push(&error)
                .expect("fits")
                .push(&Realm(REALM))
                .expect("fits");
            response.push(&Nonce(nonce)).expect("fits");
            if let Some(list) = algorithms {
                response.push(&list).expect("fits");
            }
        });
        self.received = Some(self.input(&answer));
    }

    /// Answers an Allocate request with these relayed addresses.
    pub(crate) fn grant(&mut self, request: &[u8], relayed: &[SocketAddr], lifetime_s: u32) {
        self.succeed(request, |response| {
            for address in relayed {
                response.push(&XorRelayedAddress(*address)).expect("fits");
            }
            response
                .push(&XorMappedAddress(mapped()))
                .expect("fits")
                .push(&Lifetime(lifetime_s))
                .expect("fits");
        });
    }

    /// Answers with success, signed by `key` if there is one.
    pub(crate) fn succeed(&mut self, request: &[u8], fill: impl FnOnce(&mut Builder<'_>)) {
        let key = self.key.clone();
        let answer = answer(request, Class::Success, |response| {
            fill(response);
            if let Some(key) = &key {
                response.integrity(key).expect("fits");
            }
        });
        self.received = Some(self.input(&answer));
    }

    /// Answers with an error, signed by `key` if there is one.
    pub(crate) fn refuse(&mut self, request: &[u8], code: u16) {
        self.refuse_with(request, code, |_| ());
    }

    pub(crate) fn refuse_with(
        &mut self,
        request: &[u8],
        code: u16,
        fill: impl FnOnce(&mut Builder<'_>),
    ) {
        let key = self.key.clone();
        let answer = answer(request, Class::Error, |response| {
            let error = ErrorCode { code, reason: "no" };
            response.push(&error).expect("fits");
            fill(response);
            if let Some(key) = &key {
                response.integrity(key).expect("fits");
            }
        });
        self.received = Some(self.input(&answer));
    }
}

/// A response to `request`.
pub(crate) fn answer(request: &[u8], class: Class, fill: impl FnOnce(&mut Builder<'_>)) -> Vec<u8> {
    let request = parse(request);
    let mut buffer = [0; 1024];
    let id = request.transaction_id();
    let mut response = Builder::new(&mut buffer, class, request.method(), &id).expect("fits");
    fill(&mut response);
    response.finish().to_vec()
}

pub(crate) fn parse(bytes: &[u8]) -> Message<'_> {
    Message::parse(bytes).expect("the client writes valid messages")
}

pub(crate) fn method(bytes: &[u8]) -> Method {
    let message = parse(bytes);
    assert_eq!(message.class(), Class::Request);
    message.method()
}

/// An attribute that must be there.
pub(crate) fn get<'a, A: stun::Decode<'a>>(bytes: &'a [u8]) -> A {
    parse(bytes).get().expect("well-formed").expect("present")
}

pub(crate) fn has(bytes: &[u8], attribute: stun::AttributeType) -> bool {
    parse(bytes).contains(attribute)
}
