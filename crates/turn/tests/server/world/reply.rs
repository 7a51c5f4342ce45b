//! A response of the server, and what tests read from it.

use std::net::SocketAddr;

use stun::{Class, Decode, ErrorCode, HmacKey, Message, Method, XorRelayedAddress};

/// A response.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply(pub Vec<u8>);

impl Reply {
    pub fn message(&self) -> Message<'_> {
        Message::parse(&self.0).unwrap()
    }

    pub fn get<'a, A: Decode<'a>>(&'a self) -> Option<A> {
        self.message().get().unwrap()
    }

    /// 0 for success, else the error code.
    pub fn code(&self) -> u16 {
        let error: Option<ErrorCode<'_>> = self.get();
        match self.message().class() {
            Class::Success => {
                assert!(error.is_none());
                0
            }
            Class::Error => error.expect("a code").code,
            class => panic!("not a response: {class:?}"),
        }
    }

    pub fn method(&self) -> Method {
        self.message().method()
    }

    /// The relayed addresses, in their order.
    pub fn relayed(&self) -> Vec<SocketAddr> {
        let id = self.message().transaction_id();
        let found = self
            .message()
            .attributes()
            .filter(|found| found.attribute_type == XorRelayedAddress::TYPE);
        found
            .map(|found| XorRelayedAddress::decode(found.value, &id).unwrap().0)
            .collect()
    }

    /// The lifetime that a successful response grants, in seconds.
    pub fn granted(&self) -> u32 {
        assert_eq!(self.code(), 0);
        self.get::<stun::Lifetime>().expect("a lifetime").0
    }

    pub fn is_signed_with(&self, key: &HmacKey) -> bool {
        self.message().verify(key).is_ok()
    }

    pub fn is_signed(&self) -> bool {
        self.message().has_integrity().is_some()
    }
}
