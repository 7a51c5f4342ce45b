//! Where metrics and health checks are served.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use super::setting::{FromText, Mistake};

/// The address of the admin listener, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminListen {
    /// None.
    Off,
    /// [`AdminListen::USUAL`], or none if it is taken.
    Auto,
    /// This one, over TCP.
    At(SocketAddr),
}

impl AdminListen {
    /// The port that coturn serves its metrics at, so that scrapers find it.
    pub(crate) const USUAL: SocketAddr =
        SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9641));
}

impl FromText for AdminListen {
    const EXPECTED: &'static str =
        "\"auto\", \"off\" or an address with a port, like \"127.0.0.1:9641\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        match text {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            address => SocketAddr::from_text(address).map(Self::At),
        }
    }

    fn to_text(&self) -> String {
        match self {
            Self::Off => "off".to_owned(),
            Self::Auto => "auto".to_owned(),
            Self::At(address) => address.to_string(),
        }
    }
}
