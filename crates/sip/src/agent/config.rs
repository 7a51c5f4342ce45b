//! The configuration of a user agent.

use super::authenticator::Credentials;
use super::draft::Draft;
use super::reliable::OPTION;
use crate::uri::{SipUri, Uri};
use crate::verdict::{Element, Rules};
use crate::{Host, Method};

/// What a user agent supports: INVITE with re-INVITE, BYE, CANCEL and OPTIONS, bodies of SDP, no extensions. For
/// [`engine::Config::rules`](crate::engine::Config::rules).
pub const RULES: Rules<'static> = Rules {
    element: Element::UserAgent,
    methods: &[
        Method::Invite,
        Method::Ack,
        Method::Bye,
        Method::Cancel,
        Method::Options,
    ],
    schemes: &["sip", "sips"],
    extensions: &[],
    bodies: &["application/sdp"],
};

/// The same with reliable provisional responses (RFC 3262): the extension `100rel`, and PRACK. A re-INVITE of the user
/// agent does not have the extension.
pub const RULES_WITH_100REL: Rules<'static> = Rules {
    methods: &[
        Method::Invite,
        Method::Ack,
        Method::Bye,
        Method::Cancel,
        Method::Options,
        Method::Prack,
    ],
    extensions: &[OPTION],
    ..RULES
};

/// Why a configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A URI is malformed, or not one of SIP.
    #[error("`{0}` is not a SIP URI such as `sip:alice@example.com`")]
    Uri(String),
    /// A text has a line end in it.
    #[error("`{0:?}` has a line end in it")]
    LineEnd(String),
}

/// The configuration of a user agent.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address of record, for From and To of REGISTER: `sip:alice@example.com`.
    pub identity: String,
    /// The name that others see, without quotes; empty for none.
    pub display_name: String,
    /// The URI at which this user agent gets requests: `sip:alice@192.0.2.1:5060`, with `;transport=tcp` if it listens
    /// there only.
    pub contact: String,
    /// Parameters of the Contact of REGISTER, each with its semicolon, such as `;+sip.instance="<urn:uuid:..>"`.
    pub contact_params: String,
    /// User names and passwords for Digest, each for a realm. The first that is for the realm of a challenge is used.
    pub credentials: Vec<Credentials>,
    /// The proxy that requests outside of dialogs go to first, `sip:proxy.example.com;lr` (RFC 3261 §8.1.2). If the
    /// registrar names routes (Service-Route, RFC 3608), they take its place for all but REGISTER.
    pub outbound_proxy: Option<String>,
    /// The registrar; by default the domain of `identity`.
    pub registrar: Option<String>,
    /// Seconds for which the user agent asks to be registered; the registrar decides. Default 3600.
    pub expires: u32,
    /// User-Agent; empty for none.
    pub user_agent: String,
    /// What it supports: the same rules as those of the engine. A request with a method that is not in [`RULES`]
    /// becomes [`Event::Request`](super::Event::Request). Default: [`RULES`].
    pub rules: Rules<'static>,
    /// Calls at a time. Above that, incoming calls get 486, and outgoing ones fail. Default 100.
    pub most_calls: usize,
    /// The first byte of its marks, if several TUs share an engine ([`Mark::of`](crate::engine::Mark::of)). Default 0.
    pub mark_user: u8,
}

impl Config {
    /// The defaults, with this address of record and this contact.
    #[must_use]
    pub fn new(identity: &str, contact: &str) -> Config {
        Config {
            identity: identity.to_owned(),
            display_name: String::new(),
            contact: contact.to_owned(),
            contact_params: String::new(),
            credentials: Vec::new(),
            outbound_proxy: None,
            registrar: None,
            expires: 3600,
            user_agent: String::new(),
            rules: RULES,
            most_calls: 100,
            mark_user: 0,
        }
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let uris = [Some(&self.identity), Some(&self.contact)];
        let others = [self.outbound_proxy.as_ref(), self.registrar.as_ref()];
        for uri in uris.into_iter().chain(others).flatten() {
            let is_sip = matches!(Uri::parse(uri.as_bytes()), Ok(Uri::Sip(_)));
            // `>` would end the URI in a header field.
            if !is_sip || uri.contains(['<', '>', '"', '\r', '\n', ' ']) {
                return Err(ConfigError::Uri(uri.clone()));
            }
        }
        let texts = [&self.display_name, &self.contact_params, &self.user_agent];
        match texts.into_iter().find(|text| text.contains(['\r', '\n'])) {
            Some(text) => Err(ConfigError::LineEnd(text.clone())),
            None => Ok(()),
        }
    }

    /// Whether it sends and acknowledges reliable provisional responses.
    pub(super) fn has_100rel(&self) -> bool {
        self.rules.extensions.contains(&OPTION)
    }

    /// The URI that a REGISTER is for: the registrar, or the domain of the address of record (RFC 3261 §10.2).
    pub(super) fn registrar_uri(&self) -> Vec<u8> {
        if let Some(registrar) = &self.registrar {
            return registrar.clone().into_bytes();
        }
        let identity = Uri::parse(self.identity.as_bytes());
        let Ok(Uri::Sip(SipUri {
            host,
            port,
            is_sips,
            ..
        })) = identity
        else {
            return self.identity.clone().into_bytes();
        };
        let mut uri = if is_sips {
            b"sips:".to_vec()
        } else {
            b"sip:".to_vec()
        };
        uri.extend_from_slice(Host::as_bytes(&host));
        if let Some(port) = port {
            uri.extend_from_slice(format!(":{port}").as_bytes());
        }
        uri
    }

    /// `"Alice" <sip:alice@example.com>`, without a tag.
    pub(super) fn sender_address(&self) -> Vec<u8> {
        name_addr(&self.display_name, &self.identity)
    }

    /// Allow, Supported or nothing of it, User-Agent: what a request or response says of its sender.
    pub(super) fn add_abilities(&self, lines: &mut Vec<u8>) {
        self.add_abilities_with(self.rules.extensions, lines);
    }

    /// The same for a re-INVITE, without reliable provisional responses. This side sends PRACK in early dialogs only.
    /// The peer would repeat its response for 64*T1, and then refuse the re-INVITE.
    pub(super) fn add_abilities_for_reinvite(&self, lines: &mut Vec<u8>) {
        let extensions = self.rules.extensions.iter().copied();
        let others: Vec<_> = extensions.filter(|it| *it != OPTION).collect();
        self.add_abilities_with(&others, lines);
    }

    fn add_abilities_with(&self, extensions: &[&str], lines: &mut Vec<u8>) {
        let methods = self.rules.methods.iter().map(|method| method.as_bytes());
        let methods: Vec<_> = methods.collect();
        lines.extend_from_slice(b"Allow: ");
        lines.extend_from_slice(&methods.join(&b", "[..]));
        lines.extend_from_slice(b"\r\n");
        if !extensions.is_empty() {
            let extensions = extensions.join(", ");
            lines.extend_from_slice(format!("Supported: {extensions}\r\n").as_bytes());
        }
        self.add_user_agent(lines);
    }

    pub(super) fn add_user_agent(&self, lines: &mut Vec<u8>) {
        if !self.user_agent.is_empty() {
            lines.extend_from_slice(format!("User-Agent: {}\r\n", self.user_agent).as_bytes());
        }
    }

    /// RFC 3261 §8.1.1.8: the Contact is a SIPS URI if the Request-URI or the topmost Route is one.
    pub(super) fn is_contact_for(&self, draft: &Draft) -> bool {
        let is_sips = |uri: &[u8]| matches!(Uri::parse(uri), Ok(Uri::Sip(uri)) if uri.is_sips);
        let needs_sips = is_sips(&draft.uri) || is_sips(&draft.next_hop);
        !needs_sips || is_sips(self.contact.as_bytes())
    }

    pub(super) fn add_contact(&self, lines: &mut Vec<u8>) {
        lines.extend_from_slice(format!("Contact: <{}>\r\n", self.contact).as_bytes());
    }

    /// Which bodies are understood: for the answer to OPTIONS (RFC 3261 §11.2).
    pub(super) fn add_accept(&self, lines: &mut Vec<u8>) {
        lines.extend_from_slice(format!("Accept: {}\r\n", self.rules.bodies.join(", ")).as_bytes());
    }
}

/// An address with its display name, which is quoted (RFC 3261 §20.10).
pub(super) fn name_addr(display_name: &str, uri: &str) -> Vec<u8> {
    match display_name {
        "" => format!("<{uri}>").into_bytes(),
        name => {
            let name = name.replace('\\', "\\\\").replace('"', "\\\"");
            format!("\"{name}\" <{uri}>").into_bytes()
        }
    }
}
