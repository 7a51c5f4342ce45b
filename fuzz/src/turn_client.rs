//! What the target of the TURN client does with an input, shared with the test in crates/turn that replays the corpus.
//!
//! The input is a list of steps; the first byte of a step says what it is. Responses fit the latest request of the
//! client: they have its transaction ID and, most of the time, the right key. So inputs get beyond the first checks.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hairpin_stun as stun;
use hairpin_turn as turn;
use stun::{
    Builder, Class, ErrorCode, HmacKey, Lifetime, Message, Method, Nonce, PasswordAlgorithm,
    PasswordAlgorithms, Realm, TransactionId, XorMappedAddress, XorRelayedAddress, long_term_key,
};
use turn::client::{AllocateOptions, Client, ClientConfig};
use turn::{Mono, Now};

const REALM: &str = "example.org";
const USER: &str = "user";
const PASSWORD: &str = "secret";

/// A client that hears nothing any more has at most so many deadlines left: those of its requests and of what it
/// refreshes.
const MAX_DEADLINES: usize = 10_000;

/// Takes bytes off an input; zeros at the end.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((byte, rest)) => {
                self.0 = rest;
                *byte
            }
            None => 0,
        }
    }

    fn bytes(&mut self, length: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    fn peer(&mut self) -> SocketAddr {
        let byte = self.byte();
        let host = byte % 7;
        if byte & 0x80 == 0 {
            SocketAddr::from(([198, 51, 100, host], 700))
        } else {
            SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, host.into()], 700))
        }
    }
}

struct World {
    client: Client,
    now: Now,
    /// The latest request: method and transaction ID.
    request: Option<(Method, TransactionId)>,
    keys: [HmacKey; 2],
}

/// Plays an input.
///
/// # Panics
/// If the client transmits what is no STUN message, does not move its deadline, or never comes to rest.
pub fn client(input: &[u8]) {
    let mut input = Input(input);
    let mut config = ClientConfig::with_credentials(USER, PASSWORD);
    config.fingerprint = input.byte() & 1 == 1;
    let key = |algorithm| long_term_key(algorithm, USER, REALM, PASSWORD).expect("plain ASCII");
    let mut world = World {
        client: Client::new(Arc::new(config), [7; 32]),
        now: Now {
            mono: Mono(1_000_000_000),
            unix_s: 1_700_000_000,
        },
        request: None,
        keys: [
            key(PasswordAlgorithm::Md5).hmac_sha1(),
            key(PasswordAlgorithm::Sha256).hmac_sha256(),
        ],
    };
    while !input.0.is_empty() {
        world.step(&mut input);
        world.drain();
    }
    world.come_to_rest();
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        let now = self.now;
        match input.byte() % 14 {
            0 => drop(self.client.allocate(now, AllocateOptions::default())),
            1 => self.client.binding(now),
            2 => drop(self.client.refresh(now, Some(u32::from(input.byte()) * 10))),
            3 => drop(self.client.release(now, None)),
            4 => drop(self.client.permit(now, &[input.peer().ip()])),
            5 => drop(self.client.bind_channel(now, input.peer())),
            6 => self.pass(u64::from(input.byte()) * 100_000_000),
            7 => self.pass(u64::from(input.byte()) * 10_000_000_000),
            8 => self.client.restart(),
            9 => self.client.handle_unreachable(now),
            10 => {
                let length = input.byte().into();
                let datagram = input.bytes(length);
                drop(self.client.handle_input(now, datagram));
            }
            _ => self.respond(input),
        }
    }

    fn pass(&mut self, nanoseconds: u64) {
        self.now.mono = Mono(self.now.mono.0 + nanoseconds);
        self.now.unix_s += nanoseconds / 1_000_000_000;
        self.client.handle_timeout(self.now);
        assert!(
            self.client
                .poll_timeout()
                .is_none_or(|deadline| deadline > self.now.mono),
            "what was due is done"
        );
    }

    fn drain(&mut self) {
        while let Some(bytes) = self.client.poll_transmit() {
            let message = Message::parse(bytes).expect("a STUN message");
            assert_eq!(message.class(), Class::Request);
            self.request = Some((message.method(), message.transaction_id()));
        }
        while self.client.poll_event().is_some() {}
    }

    /// A response to the latest request.
    fn respond(&mut self, input: &mut Input<'_>) {
        let Some((method, id)) = self.request else {
            return;
        };
        let (what, attributes) = (input.byte(), input.byte());
        let class = if what & 1 == 0 {
            Class::Success
        } else {
            Class::Error
        };
        let mut buffer = [0; 600];
        let Ok(mut response) = Builder::new(&mut buffer, class, method, &id) else {
            return;
        };
        let written = push(&mut response, input, class, attributes);
        let signed = match what >> 1 & 3 {
            0 => Ok(()),
            1 => response.integrity(&self.keys[1]).map(drop),
            _ => response.integrity(&self.keys[0]).map(drop),
        };
        if written.and(signed).is_ok() {
            drop(self.client.handle_input(self.now, response.finish()));
        }
    }

    /// Nobody answers any more: the client gives up, and has no deadline left.
    fn come_to_rest(&mut self) {
        for _ in 0..MAX_DEADLINES {
            let Some(deadline) = self.client.poll_timeout() else {
                return;
            };
            let step = deadline.0.saturating_sub(self.now.mono.0);
            self.pass(step);
            self.drain();
        }
        panic!("the client never comes to rest: {:?}", self.client);
    }
}

/// Writes the attributes that the bits of `attributes` choose.
fn push(
    response: &mut Builder<'_>,
    input: &mut Input<'_>,
    class: Class,
    attributes: u8,
) -> Result<(), stun::BuildError> {
    const CODES: [u16; 10] = [300, 400, 401, 403, 437, 438, 441, 486, 500, 508];
    let has = |bit: u8| attributes & 1 << bit != 0;
    if class == Class::Error {
        let code = CODES[usize::from(input.byte()) % CODES.len()];
        response.push(&ErrorCode { code, reason: "" })?;
    }
    if has(0) {
        let ip = IpAddr::from([192, 0, 2, 15]);
        response.push(&XorRelayedAddress(SocketAddr::new(ip, 50_000)))?;
    }
    if has(1) {
        response.push(&Lifetime(u32::from(input.byte()) * 10))?;
    }
    if has(2) {
        response.push(&XorMappedAddress(input.peer()))?;
    }
    if has(3) {
        response.push(&Realm(REALM))?;
    }
    if has(4) {
        let nonces: [&[u8]; 3] = [
            b"obMatJos2AAAAnonce",
            b"obMatJos2gAAAnonce",
            b"obMatJos2wAAAnonce",
        ];
        response.push(&Nonce(nonces[usize::from(input.byte()) % 3]))?;
    }
    if has(5) {
        response.push(&PasswordAlgorithms::SHA256_MD5)?;
    }
    if has(6) {
        let length = input.byte() % 40;
        response.push_raw(
            stun::AttributeType(u16::from(input.byte()) << 8 | 0x22),
            input.bytes(length.into()),
        )?;
    }
    Ok(())
}
