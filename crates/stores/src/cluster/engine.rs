//! What nodes share goes through an engine. Redis is one; another one implements the same trait.

use std::fmt;

use super::leases::Request;
use crate::store::Answer;

/// What a node publishes, and what it asks for at the same time.
#[derive(Clone, Debug)]
pub struct Publication {
    /// The name of the node.
    pub name: String,
    /// What it says of itself.
    pub text: String,
    /// How long that is valid.
    pub ttl_ms: u64,
    /// The last message that it has; `None` if it wants only later ones.
    pub after: Option<u64>,
}

/// What the engine has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exchanged {
    /// What all nodes say of themselves.
    pub nodes: Vec<String>,
    /// New messages.
    pub messages: Vec<String>,
    /// The number of the last message.
    pub sequence: u64,
    /// Another text after the engine has lost what it had.
    pub identity: String,
}

/// What nodes share.
pub trait Engine: fmt::Debug + Send + Sync {
    /// Publishes a node, and returns all nodes and new messages.
    fn exchange<'a>(&'a self, own: &'a Publication) -> Answer<'a, Exchanged>;

    /// The node ends.
    fn leave<'a>(&'a self, name: &'a str) -> Answer<'a, ()>;

    /// Leases units to a holder. Returns for each request how many units the holder has now.
    fn lease<'a>(&'a self, holder: &'a str, requests: &'a [Request]) -> Answer<'a, Vec<u32>>;

    /// Keeps a message for all nodes, for a minute.
    fn send<'a>(&'a self, text: &'a str) -> Answer<'a, ()>;
}
