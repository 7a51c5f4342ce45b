//! Repeats one operation, for counting its instructions:
//!
//! ```text
//! cargo build --release -p hairpin-stun --example hot_path
//! valgrind --tool=callgrind target/release/examples/hot_path parse 1000
//! ```
//!
//! Subtract a run with 0 repetitions. The operations are those a server does per request, per answer and per datagram.

#![expect(clippy::disallowed_methods, reason = "a program reads its arguments")]

use core::hint::black_box;
use core::net::SocketAddr;

use hairpin_stun as stun;
use stun::channel_data::ChannelData;
use stun::nonce::{NonceKeys, SecurityFeatures};
use stun::*;

const ID: TransactionId = TransactionId(*b"transaction!");

/// A CreatePermission request as clients send it: six attributes and their integrity.
fn request<'b>(buffer: &'b mut [u8], key: &HmacKey) -> Result<&'b [u8], BuildError> {
    let mut builder = Builder::new(buffer, Class::Request, Method::CREATE_PERMISSION, &ID)?;
    builder
        .push(&XorPeerAddress(SocketAddr::from(([192, 0, 2, 1], 40_000))))?
        .push(&Username("1790000000:user"))?
        .push(&Realm("example.org"))?
        .push(&Nonce(b"obMatJos2wAAAxxxxxxxxxxxxxxxxxxxxxxx"))?
        .integrity(key)?;
    Ok(builder.finish())
}

/// The attributes a server asks a CreatePermission for.
fn look_up(message: &Message<'_>) -> Result<(), AttributeError> {
    black_box(message.has_integrity());
    black_box(message.get::<Username<'_>>()?);
    black_box(message.get::<Userhash>()?);
    black_box(message.get::<Realm<'_>>()?);
    black_box(message.get::<Nonce<'_>>()?);
    black_box(message.get::<PasswordAlgorithms<'_>>()?);
    black_box(message.get::<PasswordAlgorithm>()?);
    black_box(message.get::<XorPeerAddress>()?);
    black_box(message.unknown_required(|t| t.0 < 0x30).next());
    Ok(())
}

fn answer(buffer: &mut [u8], key: &HmacKey) -> Result<usize, BuildError> {
    let mut builder = Builder::new(buffer, Class::Success, Method::CREATE_PERMISSION, &ID)?;
    builder.push(&Software("hairpin 0.1"))?.integrity(key)?;
    Ok(builder.finish().len())
}

fn challenge(buffer: &mut [u8], nonce: &[u8]) -> Result<usize, BuildError> {
    let mut builder = Builder::new(buffer, Class::Error, Method::ALLOCATE, &ID)?;
    builder
        .push(&ErrorCode::UNAUTHENTICATED)?
        .push(&Realm("example.org"))?
        .push(&Nonce(nonce))?;
    builder.push(&PasswordAlgorithms::SHA256_MD5)?;
    Ok(builder.finish().len())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let operation = std::env::args().nth(1).unwrap_or_default();
    let count: u32 = std::env::args().nth(2).unwrap_or_default().parse()?;
    let key = HmacKey::sha1(b"0123456789abcdef");
    let (mut buffer, mut out) = ([0; 512], [0; 512]);
    let bytes = request(&mut buffer, &key)?;
    let message = Message::parse(bytes)?;
    let client = SocketAddr::from(([203, 0, 113, 9], 50_000));
    let nonces = NonceKeys::new(&[7; 32]);
    let mut nonce = [0; nonce::LEN];
    nonces.issue(SecurityFeatures::default(), 0, client, 1, &mut nonce);
    let mut binding = [0; BINDING_SUCCESS_MAX];
    let mut prefix = [0; INDICATION_HEADER_MAX];
    let datagram = channel_data::header(ChannelNumber::MIN, 0);
    for _ in 0..count {
        match operation.as_str() {
            "parse" => drop(black_box(Message::parse(black_box(bytes)))),
            "look-up" => look_up(black_box(&message))?,
            "verify" => message.verify(black_box(&key))?,
            "answer" => drop(black_box(answer(black_box(&mut out), &key)?)),
            "challenge" => drop(black_box(challenge(black_box(&mut out), &nonce)?)),
            "issue" => nonces.issue(SecurityFeatures::default(), 0, black_box(client), 1, &mut nonce),
            "check" => drop(black_box(nonces.check(black_box(&nonce), client))),
            "binding" => drop(black_box(binding_success(&mut binding, black_box(&ID), &client, false))),
            "indication" => drop(black_box(data_indication_header(&mut prefix, black_box(&ID), &client, 1200))),
            "channel-data" => drop(black_box(ChannelData::parse_datagram(black_box(&datagram)))),
            _ => return Err("one of: parse look-up verify answer challenge issue check binding indication channel-data".into()),
        }
    }
    Ok(())
}
