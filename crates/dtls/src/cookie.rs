//! Cookies: proof that a client receives at the address that it sends from (RFC 6347 §4.2.1), without state.

use std::net::{IpAddr, SocketAddr};

use aws_lc_rs::hmac;
use timers::Mono;

use crate::Path;
use crate::crypto;
use crate::wire::client_hello::Start;

/// Length of a cookie in bytes. It must keep a HelloVerifyRequest shorter than the ClientHello of usual clients.
pub(crate) const LENGTH: usize = 20;
/// Length of a time slot. A cookie is valid for the rest of its slot and for the next one. Clients return cookies
/// within seconds.
const SLOT_NS: u64 = 30_000_000_000;

/// The key that computes cookies. All workers of a port share it, because a client's second ClientHello may reach
/// another worker.
#[derive(Clone)]
pub struct CookieKey(hmac::Key);

impl std::fmt::Debug for CookieKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CookieKey")
    }
}

impl CookieKey {
    /// Makes a key from random bytes, which must be secret.
    #[must_use]
    pub fn new(bytes: &[u8; 32]) -> CookieKey {
        CookieKey(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// The cookie for a ClientHello received now.
    pub(crate) fn cookie(&self, now: Mono, path: &Path, hello: &Start<'_>) -> [u8; LENGTH] {
        self.of_slot(now.0 / SLOT_NS, path, hello)
    }

    /// Whether this ClientHello has a valid cookie: one for the same parameters and path, from this time slot or the
    /// last one.
    pub(crate) fn is_proven(&self, now: Mono, path: &Path, hello: &Start<'_>) -> bool {
        let slot = now.0 / SLOT_NS;
        hello.cookie.len() == LENGTH
            && [Some(slot), slot.checked_sub(1)]
                .into_iter()
                .flatten()
                .any(|slot| crypto::equal(&self.of_slot(slot, path, hello), hello.cookie))
    }

    /// The input is unambiguous: the parameters contain their lengths, and addresses have a fixed length.
    fn of_slot(&self, slot: u64, path: &Path, hello: &Start<'_>) -> [u8; LENGTH] {
        let mut mac = hmac::Context::with_key(&self.0);
        mac.update(&slot.to_be_bytes());
        for address in [path.local, path.remote] {
            mac.update(&address_bytes(address));
        }
        mac.update(hello.before_cookie);
        mac.update(hello.after_cookie);
        let mut cookie = [0; LENGTH];
        cookie.copy_from_slice(&mac.sign().as_ref()[..LENGTH]);
        cookie
    }
}

/// An IPv4 address in its IPv6 form is another address: this server never gets both from one client.
pub(crate) fn address_bytes(address: SocketAddr) -> [u8; 19] {
    let mut bytes = [0; 19];
    bytes[..2].copy_from_slice(&address.port().to_be_bytes());
    match address.ip() {
        IpAddr::V4(v4) => bytes[3..7].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => {
            bytes[2] = 1;
            bytes[3..].copy_from_slice(&v6.octets());
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Reader;

    fn path(remote: &str) -> Path {
        Path {
            listener: 0,
            local: "192.0.2.1:3478".parse().unwrap(),
            remote: remote.parse().unwrap(),
        }
    }

    fn hello(random: u8, suite: u8, cookie: &[u8]) -> Vec<u8> {
        let mut body = vec![0xfe, 0xfd];
        body.extend_from_slice(&[random; 32]);
        body.extend_from_slice(&[0, cookie.len() as u8]);
        body.extend_from_slice(cookie);
        body.extend_from_slice(&[0, 2, 0xc0, suite, 1, 0]);
        body
    }

    fn start(body: &[u8]) -> Start<'_> {
        Start::take(&mut Reader::new(body)).unwrap()
    }

    #[test]
    fn a_cookie_is_bound_to_addresses_parameters_key_and_time() {
        let key = CookieKey::new(&[1; 32]);
        let mono = |seconds: u64| Mono(seconds * 1_000_000_000);
        let here = path("198.51.100.7:1000");
        let cookie = key.cookie(mono(45), &here, &start(&hello(1, 0x2b, &[])));
        let proven = |key: &CookieKey, seconds, path: &Path, random, suite, cookie: &[u8]| {
            key.is_proven(mono(seconds), path, &start(&hello(random, suite, cookie)))
        };
        assert!(proven(&key, 45, &here, 1, 0x2b, &cookie));
        assert!(proven(&key, 89, &here, 1, 0x2b, &cookie));
        assert!(!proven(&key, 90, &here, 1, 0x2b, &cookie), "too old");
        assert!(!proven(&key, 29, &here, 1, 0x2b, &cookie), "not yet made");
        assert!(!proven(&key, 45, &here, 2, 0x2b, &cookie), "another random");
        assert!(
            !proven(&key, 45, &here, 1, 0x2c, &cookie),
            "other cipher suites"
        );
        assert!(
            !proven(&CookieKey::new(&[2; 32]), 45, &here, 1, 0x2b, &cookie),
            "another key"
        );
        assert!(!proven(&key, 45, &here, 1, 0x2b, &cookie[..19]), "a part");
        assert!(!proven(&key, 45, &here, 1, 0x2b, &[]), "none");
        for other in [
            "198.51.100.7:1001",
            "198.51.100.8:1000",
            "[::ffff:198.51.100.7]:1000",
        ] {
            assert!(!proven(&key, 45, &path(other), 1, 0x2b, &cookie), "{other}");
        }
    }
}
