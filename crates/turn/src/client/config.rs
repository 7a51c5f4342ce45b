//! The configuration of a client. One [`ClientConfig`] in an `Arc` serves any number of clients.

use std::time::Duration;

use crate::Transport;

/// A user name and its password, as the user was given them.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user name; at most 508 bytes of UTF-8 (RFC 8489 §14.3).
    pub username: Box<str>,
    /// The password.
    pub password: Box<str>,
}

impl Credentials {
    /// Credentials of `username`.
    #[must_use]
    pub fn new(username: &str, password: &str) -> Credentials {
        Credentials {
            username: username.into(),
            password: password.into(),
        }
    }
}

impl std::fmt::Debug for Credentials {
    /// Shows the user name; never the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials")
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

/// When a request is sent again and when it is given up (RFC 8489 §6.2.1 and §6.2.2).
///
/// With the defaults requests leave after 0, 0.5, 1.5, 3.5, 7.5, 15.5 and 31.5 seconds, and fail after 39.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retransmission {
    /// The first and smallest retransmission timeout (RTO); 500 ms. A slower path raises it.
    pub timeout: Duration,
    /// How often a request is sent in all (Rc); 7. At least 1.
    pub transmissions: u8,
    /// How many first timeouts to wait after the last transmission (Rm); 16.
    pub last_wait: u8,
    /// How long to wait for a response over a reliable transport (Ti); 39.5 s.
    pub reliable_timeout: Duration,
}

impl Default for Retransmission {
    fn default() -> Retransmission {
        Retransmission {
            timeout: Duration::from_millis(500),
            transmissions: 7,
            last_wait: 16,
            reliable_timeout: Duration::from_millis(39_500),
        }
    }
}

/// How requests are authenticated when the server asks for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Security {
    /// RFC 8489: the strongest password algorithm the server lists, MESSAGE-INTEGRITY-SHA256 with it, and a hashed user
    /// name where the server can look one up.
    #[default]
    Negotiate,
    /// RFC 5389, as most clients in the field do: MD5 key, MESSAGE-INTEGRITY, plain user name, regardless of what the
    /// server offers.
    Classic,
}

/// The settings of a client.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// What to answer to a challenge; without them a 401 is a failure.
    pub credentials: Option<Credentials>,
    /// How to answer it.
    pub security: Security,
    /// The transport between this client and the server.
    pub transport: Transport,
    /// The SOFTWARE attribute of Binding, Allocate and Refresh requests; at most 127 characters, empty to leave it out.
    pub software: Box<str>,
    /// Whether to close every message with a FINGERPRINT.
    pub fingerprint: bool,
    /// When to repeat and when to give up.
    pub retransmission: Retransmission,
    /// Whether to refresh allocation, permissions and channels before they expire. Without it they lapse.
    pub keep_alive: bool,
    /// How many requests may wait for their response at once. RFC 8489 §6.2 advises 10.
    pub outstanding: usize,
}

impl Default for ClientConfig {
    /// UDP, no credentials, everything as the RFCs advise.
    fn default() -> ClientConfig {
        ClientConfig {
            credentials: None,
            security: Security::Negotiate,
            transport: Transport::Udp,
            software: concat!("hairpin ", env!("CARGO_PKG_VERSION")).into(),
            fingerprint: false,
            retransmission: Retransmission::default(),
            keep_alive: true,
            outstanding: 10,
        }
    }
}

impl ClientConfig {
    /// The default settings with these credentials.
    #[must_use]
    pub fn with_credentials(username: &str, password: &str) -> ClientConfig {
        ClientConfig {
            credentials: Some(Credentials::new(username, password)),
            ..ClientConfig::default()
        }
    }
}
