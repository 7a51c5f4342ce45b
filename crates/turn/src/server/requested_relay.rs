//! What an Allocate request asks for: steps 3 to 9 of RFC 8656 §7.2, as far as the request alone decides
//! them.

use stun::{
    AdditionalAddressFamily, AddressFamily, AttributeError, AttributeType, Decode, ErrorCode,
    EvenPort, Message, RequestedAddressFamily, RequestedTransport, ReservationToken,
    UnknownAttributes,
};

use super::allocation::Plan;
use super::answer::Refusal;
use super::config::Config;
use super::output::{PortRequest, RelayTransport};
use crate::Transport;

/// ADDITIONAL-ADDRESS-FAMILY in draft-martinsen-tram-ssoda-00, and in coturn's client to this day. IANA has
/// nothing there.
const DRAFT_ADDITIONAL_ADDRESS_FAMILY: AttributeType = AttributeType(0x8032);

/// Which relayed transport addresses are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestedRelay {
    Any(AddressFamily),
    Even(AddressFamily),
    EvenAndReserve(AddressFamily),
    /// Of both families, the IPv6 one as far as the server has any.
    Both {
        v6: bool,
        port: PortRequest,
        draft: bool,
    },
    Reserved([u8; 8]),
    /// One over TCP (RFC 6062).
    Tcp(AddressFamily),
    /// The same, of both families.
    TcpBoth {
        v6: bool,
        draft: bool,
    },
}

/// The sockets that it requires.
pub(super) type RequestedSockets = [Option<(AddressFamily, PortRequest)>; 2];

impl RequestedRelay {
    pub(super) fn read(
        message: &Message<'_>,
        client: Transport,
        config: &Config,
    ) -> Result<RequestedRelay, Refusal> {
        if transport(message, config)? == RelayTransport::Tcp {
            return Ok(RequestedRelay::read_tcp(message, client, config)?);
        }
        // 4: DONT-FRAGMENT is an unknown attribute to a server that cannot do it.
        if message.contains(AttributeType::DONT_FRAGMENT) && !config.dont_fragment {
            let unknown: UnknownAttributes = [AttributeType::DONT_FRAGMENT].into_iter().collect();
            return Err(Refusal::Unknown(Box::new(unknown)));
        }
        let has_family = message.contains(AttributeType::REQUESTED_ADDRESS_FAMILY);
        let additional = additional_type(message, config);
        // 5: a token excludes all that would choose an address. Whether it is valid is seen to later.
        if let Some(token) = message.get::<ReservationToken>().map_err(bad_request)? {
            let chooses =
                has_family || additional.is_some() || message.contains(AttributeType::EVEN_PORT);
            return if chooses {
                Err(ErrorCode::BAD_REQUEST.into())
            } else {
                Ok(RequestedRelay::Reserved(token.0))
            };
        }
        // 6: one family or both.
        if has_family && additional.is_some() {
            return Err(ErrorCode::BAD_REQUEST.into());
        }
        let family = family(message, config)?;
        let even_port = message.get::<EvenPort>().map_err(bad_request)?;
        match additional {
            Some(attribute) => Ok(both(message, config, attribute, even_port)?),
            None => Ok(match even_port {
                Some(EvenPort { reserve: true }) => RequestedRelay::EvenAndReserve(family),
                Some(EvenPort { reserve: false }) => RequestedRelay::Even(family),
                None => RequestedRelay::Any(family),
            }),
        }
    }

    /// RFC 6062 §5.1: what is for UDP only is 400, and so is a client that is not connected.
    fn read_tcp(
        message: &Message<'_>,
        client: Transport,
        config: &Config,
    ) -> Result<RequestedRelay, ErrorCode<'static>> {
        const UDP_ONLY: [AttributeType; 3] = [
            AttributeType::DONT_FRAGMENT,
            AttributeType::EVEN_PORT,
            AttributeType::RESERVATION_TOKEN,
        ];
        if !client.is_stream() || UDP_ONLY.iter().any(|only| message.contains(*only)) {
            return Err(ErrorCode::BAD_REQUEST);
        }
        let additional = additional_type(message, config);
        if additional.is_some() && message.contains(AttributeType::REQUESTED_ADDRESS_FAMILY) {
            return Err(ErrorCode::BAD_REQUEST);
        }
        let family = family(message, config)?;
        let Some(attribute) = additional else {
            return Ok(RequestedRelay::Tcp(family));
        };
        match both(message, config, attribute, None)? {
            RequestedRelay::Both { v6, draft, .. } => Ok(RequestedRelay::TcpBoth { v6, draft }),
            other => Ok(other),
        }
    }

    /// The transport protocol between the server and its peers.
    pub(super) const fn transport(self) -> RelayTransport {
        match self {
            RequestedRelay::Tcp(_) | RequestedRelay::TcpBoth { .. } => RelayTransport::Tcp,
            _ => RelayTransport::Udp,
        }
    }

    pub(super) fn plan(self) -> Plan {
        match self {
            RequestedRelay::Any(_) | RequestedRelay::Even(_) | RequestedRelay::Tcp(_) => {
                Plan::Single
            }
            RequestedRelay::EvenAndReserve(_) => Plan::Pair,
            RequestedRelay::Both { draft, .. } | RequestedRelay::TcpBoth { draft, .. } => {
                Plan::Dual { draft }
            }
            RequestedRelay::Reserved(_) => Plan::Claim,
        }
    }

    pub(super) fn sockets(self) -> RequestedSockets {
        match self {
            RequestedRelay::Any(family) | RequestedRelay::Tcp(family) => {
                [Some((family, PortRequest::Any)), None]
            }
            RequestedRelay::Even(family) => [Some((family, PortRequest::Even)), None],
            RequestedRelay::EvenAndReserve(family) => [
                Some((family, PortRequest::Even)),
                Some((family, PortRequest::Next)),
            ],
            RequestedRelay::Both { v6, port, .. } => [
                Some((AddressFamily::V4, port)),
                v6.then_some((AddressFamily::V6, port)),
            ],
            RequestedRelay::TcpBoth { v6, .. } => [
                Some((AddressFamily::V4, PortRequest::Any)),
                v6.then_some((AddressFamily::V6, PortRequest::Any)),
            ],
            // Its family and port are those that the other worker holds.
            RequestedRelay::Reserved(_) => [Some((AddressFamily::V4, PortRequest::Any)), None],
        }
    }
}

fn bad_request(_: AttributeError) -> ErrorCode<'static> {
    ErrorCode::BAD_REQUEST
}

/// 3: REQUESTED-TRANSPORT must be there, and be UDP, or TCP where that can be had (RFC 6062 §5.1).
fn transport(message: &Message<'_>, config: &Config) -> Result<RelayTransport, ErrorCode<'static>> {
    match message.get::<RequestedTransport>().map_err(bad_request)? {
        Some(RequestedTransport::UDP) => Ok(RelayTransport::Udp),
        Some(RequestedTransport::TCP) if config.tcp_relay => Ok(RelayTransport::Tcp),
        Some(_) => Err(ErrorCode::UNSUPPORTED_TRANSPORT_PROTOCOL),
        None => Err(ErrorCode::BAD_REQUEST),
    }
}

/// Under which number ADDITIONAL-ADDRESS-FAMILY is there, if it is.
fn additional_type(message: &Message<'_>, config: &Config) -> Option<AttributeType> {
    let draft = config
        .draft_dual_allocation
        .then_some(DRAFT_ADDITIONAL_ADDRESS_FAMILY);
    let types = [Some(AttributeType::ADDITIONAL_ADDRESS_FAMILY), draft];
    types
        .into_iter()
        .flatten()
        .find(|attribute| message.contains(*attribute))
}

/// 7: the family asked for, or IPv4; 440 if it cannot be had.
fn family(message: &Message<'_>, config: &Config) -> Result<AddressFamily, ErrorCode<'static>> {
    let family = match message.get::<RequestedAddressFamily>() {
        Ok(requested) => requested.map_or(AddressFamily::V4, |requested| requested.0),
        Err(AttributeError::AddressFamily) => return Err(ErrorCode::ADDRESS_FAMILY_NOT_SUPPORTED),
        Err(_) => return Err(ErrorCode::BAD_REQUEST),
    };
    let supported = match family {
        AddressFamily::V4 => config.relay_v4,
        AddressFamily::V6 => config.relay_v6,
    };
    if supported {
        Ok(family)
    } else {
        Err(ErrorCode::ADDRESS_FAMILY_NOT_SUPPORTED)
    }
}

/// 8 and 9: the additional family is IPv6, the first being IPv4; and a pair of ports in two families is not
/// to be had.
fn both(
    message: &Message<'_>,
    config: &Config,
    attribute: AttributeType,
    even_port: Option<EvenPort>,
) -> Result<RequestedRelay, ErrorCode<'static>> {
    let value = message
        .find(attribute)
        .map(|found| found.value)
        .unwrap_or_default();
    let additional =
        AdditionalAddressFamily::decode(value, &message.transaction_id()).map_err(bad_request)?;
    let reserve = even_port.is_some_and(|even| even.reserve);
    if reserve || additional.0 == AddressFamily::V4 {
        return Err(ErrorCode::BAD_REQUEST);
    }
    Ok(RequestedRelay::Both {
        v6: config.relay_v6,
        port: even_port.map_or(PortRequest::Any, |_| PortRequest::Even),
        draft: attribute == DRAFT_ADDITIONAL_ADDRESS_FAMILY,
    })
}
