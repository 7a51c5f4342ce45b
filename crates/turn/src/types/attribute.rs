//! Which attributes both sides understand.

use stun::AttributeType;

/// The comprehension-required attributes of RFC 8489, RFC 8656 and RFC 6062. Where one is not expected, it is ignored
/// (RFC 8489 §6.3).
#[must_use]
pub fn is_known(attribute: AttributeType) -> bool {
    matches!(
        attribute,
        AttributeType::MAPPED_ADDRESS
            | AttributeType::USERNAME
            | AttributeType::MESSAGE_INTEGRITY
            | AttributeType::ERROR_CODE
            | AttributeType::UNKNOWN_ATTRIBUTES
            | AttributeType::CHANNEL_NUMBER
            | AttributeType::LIFETIME
            | AttributeType::XOR_PEER_ADDRESS
            | AttributeType::DATA
            | AttributeType::REALM
            | AttributeType::NONCE
            | AttributeType::XOR_RELAYED_ADDRESS
            | AttributeType::REQUESTED_ADDRESS_FAMILY
            | AttributeType::EVEN_PORT
            | AttributeType::REQUESTED_TRANSPORT
            | AttributeType::DONT_FRAGMENT
            | AttributeType::MESSAGE_INTEGRITY_SHA256
            | AttributeType::PASSWORD_ALGORITHM
            | AttributeType::USERHASH
            | AttributeType::XOR_MAPPED_ADDRESS
            | AttributeType::RESERVATION_TOKEN
            | AttributeType::CONNECTION_ID
    )
}
