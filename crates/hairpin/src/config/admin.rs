//! The address of metrics, API and live page, and the tokens of the API.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use super::setting::{FromText, Mistake};

/// 20 random base64 characters have 120 bits, which nobody can guess. A shorter text is probably a password that is
/// used elsewhere.
const SHORTEST_TOKEN: usize = 20;
/// Keeps `Authorization` far below the limit of a request's header fields.
const LONGEST_TOKEN: usize = 512;

/// The address of the admin listener, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminListen {
    /// None.
    Off,
    /// [`AdminListen::USUAL`], or none if it is taken.
    Auto,
    /// The admin listener has this address, over TCP.
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

/// A token of the API.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token(pub(crate) String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(***)")
    }
}

impl FromText for Token {
    const EXPECTED: &'static str = "a token as a text";
    const SECRET: bool = true;

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let help = "make one with: openssl rand -hex 24";
        // A wider set than RFC 6750 §2.1 (b64token), but without spaces, which end a token in `Authorization`.
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let message = "a token must have ASCII letters, digits and punctuation only";
            return Err(Mistake::new(message).help(help));
        }
        if !(SHORTEST_TOKEN..=LONGEST_TOKEN).contains(&text.len()) {
            let message =
                format!("a token must have {SHORTEST_TOKEN} to {LONGEST_TOKEN} characters");
            return Err(Mistake::new(message).help(help));
        }
        Ok(Self(text.to_owned()))
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// The tokens of the API.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct AdminTokens {
    /// `admin.tokens`: full access.
    pub(crate) all: Vec<String>,
    /// `admin.credential_tokens`: valid for `/api/v1/ice-servers` only.
    pub(crate) credentials: Vec<String>,
}

impl AdminTokens {
    /// Whether no token is configured.
    pub(crate) const fn is_empty(&self) -> bool {
        self.all.is_empty() && self.credentials.is_empty()
    }
}

impl std::fmt::Debug for AdminTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdminTokens")
            .field("all", &self.all.len())
            .field("credentials", &self.credentials.len())
            .finish()
    }
}
