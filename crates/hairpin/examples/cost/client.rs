//! What clients send.

use crate::Outcome;
use std::net::SocketAddr;
use stun::{
    BuildError, Builder, ChannelNumber, Class, Data, ErrorCode, HmacKey, Lifetime, Message, Method,
    Nonce, PasswordAlgorithm, Realm, RequestedTransport, TransactionId, Username, XorPeerAddress,
    XorRelayedAddress, channel_data,
};

pub(crate) const REALM: &str = "example.org";
pub(crate) const USER: &str = "ann";
pub(crate) const PASSWORD: &str = "correct horse battery staple";

/// What adds attributes to a request.
type Attributes<'a> = &'a dyn Fn(&mut Builder<'_>) -> Result<(), BuildError>;

/// Writes one client's requests.
pub(crate) struct Client {
    key: HmacKey,
    nonce: Vec<u8>,
    next_id: u64,
}

impl Client {
    pub(crate) fn new(number: u32) -> Outcome<Client> {
        let key = stun::long_term_key(PasswordAlgorithm::Md5, USER, REALM, PASSWORD)?;
        Ok(Client {
            key: key.hmac_sha1(),
            nonce: Vec::new(),
            next_id: u64::from(number) << 32,
        })
    }

    /// Takes the nonce out of a 401.
    pub(crate) fn learn(&mut self, answer: &[u8]) -> Outcome<()> {
        let message = Message::parse(answer)?;
        let nonce: Nonce<'_> = message.get()?.ok_or("a challenge without a nonce")?;
        self.nonce = nonce.0.to_vec();
        Ok(())
    }

    pub(crate) fn binding(&mut self) -> Outcome<Vec<u8>> {
        self.write(Method::BINDING, &|_| Ok(()), false)
    }

    /// An Allocate request that will be answered with 401.
    pub(crate) fn stranger(&mut self) -> Outcome<Vec<u8>> {
        self.write(Method::ALLOCATE, &udp, false)
    }

    pub(crate) fn allocate(&mut self) -> Outcome<Vec<u8>> {
        self.write(Method::ALLOCATE, &udp, true)
    }

    /// An Allocate request with a nonce that the server did not issue.
    pub(crate) fn forger(&mut self) -> Outcome<Vec<u8>> {
        let genuine = self.nonce.clone();
        let last = self.nonce.last_mut().ok_or("no nonce yet")?;
        *last = if *last == b'A' { b'Q' } else { b'A' };
        let request = self.allocate();
        self.nonce = genuine;
        request
    }

    pub(crate) fn release(&mut self) -> Outcome<Vec<u8>> {
        self.write(
            Method::REFRESH,
            &|request| request.push(&Lifetime(0)).map(drop),
            true,
        )
    }

    pub(crate) fn bind(&mut self, peer: SocketAddr) -> Outcome<Vec<u8>> {
        let attributes = |request: &mut Builder<'_>| {
            request
                .push(&ChannelNumber::MIN)?
                .push(&XorPeerAddress(peer))
                .map(drop)
        };
        self.write(Method::CHANNEL_BIND, &attributes, true)
    }

    fn write(
        &mut self,
        method: Method,
        attributes: Attributes<'_>,
        signed: bool,
    ) -> Outcome<Vec<u8>> {
        self.next_id += 1;
        let mut id = [0; 12];
        id[4..].copy_from_slice(&self.next_id.to_be_bytes());
        let mut buffer = [0; 512];
        let mut request = Builder::new(&mut buffer, Class::Request, method, &TransactionId(id))?;
        attributes(&mut request)?;
        if signed {
            request.push(&Username(USER))?.push(&Realm(REALM))?;
            request.push(&Nonce(&self.nonce))?.integrity(&self.key)?;
        }
        Ok(request.finish().to_vec())
    }
}

fn udp(request: &mut Builder<'_>) -> Result<(), BuildError> {
    request.push(&RequestedTransport::UDP).map(drop)
}

/// The error code of an answer, 0 for a success.
pub(crate) fn code(answer: &[u8]) -> Outcome<u16> {
    let error: Option<ErrorCode<'_>> = Message::parse(answer)?.get()?;
    Ok(error.map_or(0, |error| error.code))
}

pub(crate) fn relayed(answer: &[u8]) -> Outcome<SocketAddr> {
    let relayed: Option<XorRelayedAddress> = Message::parse(answer)?.get()?;
    Ok(relayed.ok_or("not allocated")?.0)
}

/// ChannelData on the channel that [`Client::bind`] binds.
pub(crate) fn channel_data(payload: &[u8]) -> Outcome<Vec<u8>> {
    let length = u16::try_from(payload.len())?;
    Ok([&channel_data::header(ChannelNumber::MIN, length), payload].concat())
}

pub(crate) fn send_indication(peer: SocketAddr, payload: &[u8]) -> Outcome<Vec<u8>> {
    let mut buffer = [0; 512];
    let id = TransactionId([9; 12]);
    let mut message = Builder::new(&mut buffer, Class::Indication, Method::SEND, &id)?;
    message.push(&XorPeerAddress(peer))?.push(&Data(payload))?;
    Ok(message.finish().to_vec())
}
