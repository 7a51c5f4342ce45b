//! The two messages a server writes most, without a [`Builder`](crate::Builder).
//!
//! Both are of a fixed shape, so they are laid out at once.

use core::net::SocketAddr;

use crate::attribute::{AttributeType, XOR_ADDRESS_MAX, xor_address};
use crate::fingerprint;
use crate::header::{HEADER_LEN, header_bytes};
use crate::message::TLV_HEADER_LEN;
use crate::{Class, Method, TransactionId};

/// Bytes of the largest Binding response [`binding_success`] writes.
pub const BINDING_SUCCESS_MAX: usize = FIXED_MAX + TLV_HEADER_LEN + fingerprint::LEN;

/// Bytes of the largest header [`data_indication_header`] and [`send_indication_header`] write.
pub const INDICATION_HEADER_MAX: usize = FIXED_MAX + TLV_HEADER_LEN;

/// Header and one XORed IPv6 address.
const FIXED_MAX: usize = HEADER_LEN + TLV_HEADER_LEN + XOR_ADDRESS_MAX;

/// Writes a Binding success response with XOR-MAPPED-ADDRESS, and FINGERPRINT if wanted (RFC 8489 §6.3.1.1). Returns
/// its length in bytes: 32 for IPv4, 44 for IPv6, 8 more with FINGERPRINT.
#[must_use]
pub fn binding_success(
    out: &mut [u8; BINDING_SUCCESS_MAX],
    transaction_id: &TransactionId,
    mapped: &SocketAddr,
    fingerprint: bool,
) -> usize {
    let (value, value_len) = xor_address(mapped, transaction_id);
    let end = HEADER_LEN + TLV_HEADER_LEN + value_len;
    let total = if fingerprint {
        end + TLV_HEADER_LEN + fingerprint::LEN
    } else {
        end
    };
    let length = (total - HEADER_LEN) as u16;
    let header = header_bytes(Class::Success, Method::BINDING, length, transaction_id);
    lay_out(
        out,
        &header,
        AttributeType::XOR_MAPPED_ADDRESS,
        &value,
        value_len,
    );
    if fingerprint {
        let crc = fingerprint::of(&out[..end]);
        put_tlv(
            out,
            end,
            AttributeType::FINGERPRINT,
            fingerprint::LEN as u16,
        );
        out[end + TLV_HEADER_LEN..total].copy_from_slice(&crc.to_be_bytes());
    }
    total
}

/// Writes the part of a Data indication before the payload, so that the payload need not be copied. Returns its
/// length: 36 bytes for an IPv4 peer, 48 for an IPv6 peer (RFC 8656 §11.3).
///
/// ```text
/// | header | XOR-PEER-ADDRESS | DATA type, length |  payload, in place  | 0 to 3 zero bytes |
/// '----------- out, len bytes --------------------'                     '- not written here-'
/// ```
///
/// The payload and [`padding`] zero bytes must follow. `None` if the payload is too long for a message.
#[inline]
#[must_use]
pub fn data_indication_header(
    out: &mut [u8; INDICATION_HEADER_MAX],
    transaction_id: &TransactionId,
    peer: &SocketAddr,
    payload_len: usize,
) -> Option<usize> {
    indication_header(out, Method::DATA, transaction_id, peer, payload_len)
}

/// As [`data_indication_header`], for the Send indication of a client (RFC 8656 §11.1).
#[inline]
#[must_use]
pub fn send_indication_header(
    out: &mut [u8; INDICATION_HEADER_MAX],
    transaction_id: &TransactionId,
    peer: &SocketAddr,
    payload_len: usize,
) -> Option<usize> {
    indication_header(out, Method::SEND, transaction_id, peer, payload_len)
}

/// How many zero bytes follow an attribute value of this length (RFC 8489 §14): 0 to 3. The same number follows a
/// ChannelData payload of this length on a stream (RFC 8656 §12.5).
#[inline]
#[must_use]
pub const fn padding(value_len: usize) -> usize {
    value_len.wrapping_neg() & 3
}

fn indication_header(
    out: &mut [u8; INDICATION_HEADER_MAX],
    method: Method,
    transaction_id: &TransactionId,
    peer: &SocketAddr,
    payload_len: usize,
) -> Option<usize> {
    let data_len = u16::try_from(payload_len).ok()?;
    let (value, value_len) = xor_address(peer, transaction_id);
    let data = HEADER_LEN + TLV_HEADER_LEN + value_len;
    let total = data + TLV_HEADER_LEN + payload_len.next_multiple_of(4);
    let length = u16::try_from(total - HEADER_LEN).ok()?;
    let header = header_bytes(Class::Indication, method, length, transaction_id);
    lay_out(
        out,
        &header,
        AttributeType::XOR_PEER_ADDRESS,
        &value,
        value_len,
    );
    put_tlv(out, data, AttributeType::DATA, data_len);
    Some(data + TLV_HEADER_LEN)
}

/// Writes the header and the address; for IPv4 the rest of the value's place is overwritten later or not used.
#[inline]
fn lay_out<const N: usize>(
    out: &mut [u8; N],
    header: &[u8; HEADER_LEN],
    attribute_type: AttributeType,
    value: &[u8; XOR_ADDRESS_MAX],
    value_len: usize,
) {
    const { assert!(N >= FIXED_MAX) };
    out[..HEADER_LEN].copy_from_slice(header);
    put_tlv(out, HEADER_LEN, attribute_type, value_len as u16);
    out[HEADER_LEN + TLV_HEADER_LEN..FIXED_MAX].copy_from_slice(value);
}

#[inline]
fn put_tlv(out: &mut [u8], at: usize, attribute_type: AttributeType, length: u16) {
    let [t0, t1] = attribute_type.0.to_be_bytes();
    let [l0, l1] = length.to_be_bytes();
    out[at..at + TLV_HEADER_LEN].copy_from_slice(&[t0, t1, l0, l1]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Builder, Data, FingerprintState, Message, XorMappedAddress, XorPeerAddress};

    const ID: TransactionId = TransactionId(*b"fixed shapes");

    fn addresses() -> [SocketAddr; 2] {
        [
            SocketAddr::from(([203, 0, 113, 9], 40_000)),
            SocketAddr::from(([0x2001, 0xDB8, 0, 0, 0, 0, 0, 7], 1)),
        ]
    }

    #[test]
    fn a_binding_response_is_what_the_builder_writes() {
        for mapped in addresses() {
            for fingerprint in [false, true] {
                let mut out = [0xEE; BINDING_SUCCESS_MAX];
                let len = binding_success(&mut out, &ID, &mapped, fingerprint);
                let mut buffer = [0; 64];
                let mut builder =
                    Builder::new(&mut buffer, Class::Success, Method::BINDING, &ID).expect("room");
                builder.push(&XorMappedAddress(mapped)).expect("room");
                if fingerprint {
                    builder.fingerprint().expect("room");
                }
                assert_eq!(out[..len], *builder.finish());
                let state = Message::parse(&out[..len])
                    .expect("well-formed")
                    .fingerprint();
                let expected = if fingerprint {
                    FingerprintState::Valid
                } else {
                    FingerprintState::Absent
                };
                assert_eq!(state, expected);
            }
        }
    }

    #[test]
    fn an_indication_is_what_the_builder_writes() {
        for peer in addresses() {
            for payload_len in [0, 1, 2, 3, 4, 5, 1200] {
                let payload = vec![0xAB; payload_len];
                let mut out = [0xEE; INDICATION_HEADER_MAX];
                let len = data_indication_header(&mut out, &ID, &peer, payload_len)
                    .expect("not too long");
                let written = [&out[..len], &payload, &[0; 3][..padding(payload_len)]].concat();
                let mut buffer = [0xCC; 1300];
                let mut builder =
                    Builder::new(&mut buffer, Class::Indication, Method::DATA, &ID).expect("room");
                builder
                    .push(&XorPeerAddress(peer))
                    .expect("room")
                    .push(&Data(&payload))
                    .expect("room");
                assert_eq!(written, builder.finish());
            }
        }
    }

    #[test]
    fn a_payload_beyond_the_length_field_is_refused() {
        let [v4, v6] = addresses();
        let mut out = [0; INDICATION_HEADER_MAX];
        // 65,532 bytes of attributes at most: 12 or 24 for the peer, 4 for the header of DATA.
        assert_eq!(data_indication_header(&mut out, &ID, &v4, 65_516), Some(36));
        assert_eq!(data_indication_header(&mut out, &ID, &v4, 65_517), None);
        assert_eq!(send_indication_header(&mut out, &ID, &v6, 65_504), Some(48));
        assert_eq!(send_indication_header(&mut out, &ID, &v6, 65_505), None);
        assert_eq!(
            send_indication_header(&mut out, &ID, &v6, usize::from(u16::MAX) + 1),
            None
        );
    }
}
