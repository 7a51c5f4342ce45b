//! The numbers of the attributes (IANA "STUN Attributes").

use core::fmt;

/// The type of an attribute (RFC 8489 §14).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct AttributeType(pub u16);

/// Writes each number once: as a constant and with the name the RFCs print.
macro_rules! attribute_types {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        impl AttributeType {
            $($(#[$doc])* pub const $name: AttributeType = AttributeType($number);)*

            /// The name the RFCs print, for the types they define.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($text),)*
                    _ => None,
                }
            }
        }

        #[cfg(test)]
        const ALL: &[(AttributeType, &str)] = &[$((AttributeType::$name, stringify!($name))),*];
    };
}

attribute_types! {
    /// The reflexive address in clear (RFC 8489 §14.1).
    MAPPED_ADDRESS = 0x0001, "MAPPED-ADDRESS";
    /// Ask for a response from another address or port (RFC 5780 §7.2).
    CHANGE_REQUEST = 0x0003, "CHANGE-REQUEST";
    /// The user name of the sender (RFC 8489 §14.3).
    USERNAME = 0x0006, "USERNAME";
    /// HMAC-SHA1 of the message (RFC 8489 §14.5).
    MESSAGE_INTEGRITY = 0x0008, "MESSAGE-INTEGRITY";
    /// Why a request was refused (RFC 8489 §14.8).
    ERROR_CODE = 0x0009, "ERROR-CODE";
    /// The types that caused a 420 (RFC 8489 §14.13).
    UNKNOWN_ATTRIBUTES = 0x000A, "UNKNOWN-ATTRIBUTES";
    /// The number of a channel (RFC 8656 §18.1).
    CHANNEL_NUMBER = 0x000C, "CHANNEL-NUMBER";
    /// Seconds an allocation has left (RFC 8656 §18.2).
    LIFETIME = 0x000D, "LIFETIME";
    /// A peer's address (RFC 8656 §18.3).
    XOR_PEER_ADDRESS = 0x0012, "XOR-PEER-ADDRESS";
    /// Application data (RFC 8656 §18.4).
    DATA = 0x0013, "DATA";
    /// The realm of the credentials (RFC 8489 §14.9).
    REALM = 0x0014, "REALM";
    /// The server's challenge (RFC 8489 §14.10).
    NONCE = 0x0015, "NONCE";
    /// The relayed transport address (RFC 8656 §18.5).
    XOR_RELAYED_ADDRESS = 0x0016, "XOR-RELAYED-ADDRESS";
    /// IPv4 or IPv6 for the allocation (RFC 8656 §18.6).
    REQUESTED_ADDRESS_FAMILY = 0x0017, "REQUESTED-ADDRESS-FAMILY";
    /// Ask for an even port (RFC 8656 §18.7).
    EVEN_PORT = 0x0018, "EVEN-PORT";
    /// UDP or TCP towards the peers (RFC 8656 §18.8).
    REQUESTED_TRANSPORT = 0x0019, "REQUESTED-TRANSPORT";
    /// Set the DF bit towards the peer (RFC 8656 §18.9).
    DONT_FRAGMENT = 0x001A, "DONT-FRAGMENT";
    /// A token of an authorization server (RFC 7635 §6.2).
    ACCESS_TOKEN = 0x001B, "ACCESS-TOKEN";
    /// HMAC-SHA256 of the message (RFC 8489 §14.6).
    MESSAGE_INTEGRITY_SHA256 = 0x001C, "MESSAGE-INTEGRITY-SHA256";
    /// The algorithm the client chose (RFC 8489 §14.12).
    PASSWORD_ALGORITHM = 0x001D, "PASSWORD-ALGORITHM";
    /// The hash of the user name of the sender (RFC 8489 §14.4).
    USERHASH = 0x001E, "USERHASH";
    /// The reflexive address, XORed (RFC 8489 §14.2).
    XOR_MAPPED_ADDRESS = 0x0020, "XOR-MAPPED-ADDRESS";
    /// Names a reserved relayed address (RFC 8656 §18.10).
    RESERVATION_TOKEN = 0x0022, "RESERVATION-TOKEN";
    /// ICE: the candidate's priority (RFC 8445 §16.1).
    PRIORITY = 0x0024, "PRIORITY";
    /// ICE: nominate this pair (RFC 8445 §16.1).
    USE_CANDIDATE = 0x0025, "USE-CANDIDATE";
    /// Makes a message large (RFC 5780 §7.6).
    PADDING = 0x0026, "PADDING";
    /// The port to answer to (RFC 5780 §7.5).
    RESPONSE_PORT = 0x0027, "RESPONSE-PORT";
    /// Names a TCP connection of a peer (RFC 6062 §6.2.1).
    CONNECTION_ID = 0x002A, "CONNECTION-ID";
    /// Ask for a second address family (RFC 8656 §18.11).
    ADDITIONAL_ADDRESS_FAMILY = 0x8000, "ADDITIONAL-ADDRESS-FAMILY";
    /// Why one of two families was refused (RFC 8656 §18.12).
    ADDRESS_ERROR_CODE = 0x8001, "ADDRESS-ERROR-CODE";
    /// The algorithms the server offers (RFC 8489 §14.11).
    PASSWORD_ALGORITHMS = 0x8002, "PASSWORD-ALGORITHMS";
    /// The name in the alternate server's certificate (RFC 8489 §14.16).
    ALTERNATE_DOMAIN = 0x8003, "ALTERNATE-DOMAIN";
    /// An ICMP error from the direction of a peer (RFC 8656 §18.13).
    ICMP = 0x8004, "ICMP";
    /// The name and version of the sender (RFC 8489 §14.14).
    SOFTWARE = 0x8022, "SOFTWARE";
    /// Another server to try (RFC 8489 §14.15).
    ALTERNATE_SERVER = 0x8023, "ALTERNATE-SERVER";
    /// Seconds a reflexive address may be cached (RFC 5780 §7).
    CACHE_TIMEOUT = 0x8027, "CACHE-TIMEOUT";
    /// CRC-32 of the message (RFC 8489 §14.7).
    FINGERPRINT = 0x8028, "FINGERPRINT";
    /// ICE: the sender is controlled (RFC 8445 §16.1).
    ICE_CONTROLLED = 0x8029, "ICE-CONTROLLED";
    /// ICE: the sender controls (RFC 8445 §16.1).
    ICE_CONTROLLING = 0x802A, "ICE-CONTROLLING";
    /// The address the response comes from (RFC 5780 §7.3).
    RESPONSE_ORIGIN = 0x802B, "RESPONSE-ORIGIN";
    /// The server's other address and port (RFC 5780 §7.4).
    OTHER_ADDRESS = 0x802C, "OTHER-ADDRESS";
    /// The server accepts access tokens (RFC 7635 §6.1).
    THIRD_PARTY_AUTHORIZATION = 0x802E, "THIRD-PARTY-AUTHORIZATION";
    /// The web origin on whose behalf the client asks (draft-ietf-tram-stun-origin).
    ORIGIN = 0x802F, "ORIGIN";
    /// Lets an allocation move to a new 5-tuple (RFC 8016 §3.4).
    MOBILITY_TICKET = 0x8030, "MOBILITY-TICKET";
}

impl AttributeType {
    /// Whether a receiver that does not support this type must refuse the message (RFC 8489 §14).
    #[must_use]
    pub const fn is_comprehension_required(self) -> bool {
        self.0 < 0x8000
    }
}

impl fmt::Debug for AttributeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for AttributeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "attribute {:#06x}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_bear_the_names_of_the_rfcs() {
        for &(attribute_type, constant) in ALL {
            assert_eq!(
                attribute_type.name().map(|name| name.replace('-', "_")),
                Some(constant.to_owned())
            );
            assert_eq!(
                attribute_type.is_comprehension_required(),
                attribute_type.0 < 0x8000
            );
        }
        assert!(
            ALL.is_sorted_by(|a, b| a.0 < b.0),
            "in the order of the registry, each number once"
        );
    }

    #[test]
    fn unknown_types_print_as_numbers() {
        assert_eq!(AttributeType(0xBEEF).to_string(), "attribute 0xbeef");
        assert_eq!(AttributeType::SOFTWARE.to_string(), "SOFTWARE");
    }
}
