//! What nodes share goes through an engine. Redis is one; another one implements the same trait.

use std::fmt;

use super::leases::Request;
use crate::error::StoreError;
use crate::store::Answer;

/// What a node publishes, and what it asks for at the same time.
#[derive(Clone, Debug)]
pub struct Publication {
    /// The name of the node.
    pub name: String,
    /// What it says of itself; `None` to publish nothing: another process has the place of this one.
    pub text: Option<String>,
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
    /// What the engine had under the name of this node before; `None` if there was nothing, or if it has ended.
    pub before: Option<String>,
    /// New messages.
    pub messages: Vec<String>,
    /// The number of the last message.
    pub sequence: u64,
    /// Another text after the engine has lost what it had.
    pub identity: String,
    /// Entries that no node has written, and that the engine has removed.
    pub removed: u64,
}

/// How many units a holder has, or why the engine has rejected the request for one key.
pub type Leased = Result<u32, StoreError>;

/// What nodes share.
pub trait Engine: fmt::Debug + Send + Sync {
    /// Publishes a node, and returns all nodes and new messages.
    fn exchange<'a>(&'a self, own: &'a Publication) -> Answer<'a, Exchanged>;

    /// The node ends.
    fn leave<'a>(&'a self, name: &'a str) -> Answer<'a, ()>;

    /// Leases units to a holder. Returns for each request how many units the holder has now, or why the engine rejects this one.
    fn lease<'a>(&'a self, holder: &'a str, requests: &'a [Request]) -> Answer<'a, Vec<Leased>>;

    /// Keeps a message for all nodes, for a minute.
    fn send<'a>(&'a self, text: &'a str) -> Answer<'a, ()>;
}
