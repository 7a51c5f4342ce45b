//! What nodes share goes through an engine. Redis is one; another one implements the same trait.

use std::fmt;

use super::bindings::{Change, SharedBinding};
use super::leases::Request;
use crate::error::StoreError;
use crate::store::StoreFuture;

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
    /// A text that changes when the engine has lost its data.
    pub identity: String,
    /// Entries that no node has written, and that the engine has removed.
    pub removed: u64,
    /// What other nodes have told this one by [`Engine::tell`] since the last exchange.
    pub notices: Vec<String>,
}

/// How many units a holder has, or why the engine has rejected the request for one key.
pub type Leased = Result<u32, StoreError>;

/// The bindings that a node has of an address of record.
#[derive(Clone, Debug)]
pub struct BindRequest {
    /// The address.
    pub aor: Box<[u8]>,
    /// The age of this state, in milliseconds.
    pub age_ms: u64,
    /// The bindings, for the engine.
    pub entries: Vec<BindEntry>,
    pub(super) taken_unix_ms: u64,
    /// The same bindings, as old as they are now.
    pub(super) bindings: Vec<SharedBinding>,
    /// The change that the request was made from.
    pub(super) change: Change,
}

/// One binding.
#[derive(Clone, Debug)]
pub struct BindEntry {
    /// Tells the bindings of an address apart.
    pub field: String,
    /// Tells Call-IDs apart, in hexadecimal digits.
    pub call: String,
    /// CSeq of the REGISTER.
    pub cseq: u32,
    /// How long ago the REGISTER came.
    pub age_ms: u64,
    /// When the binding ends.
    pub ttl_ms: u64,
    /// What other nodes read.
    pub text: String,
}

/// What became of the bindings of one address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BindOutcome {
    /// So many were not accepted: they are older than those of other nodes, or too many.
    pub older: u64,
    /// Bindings that another node had, too.
    pub conflicts: Vec<Conflict>,
}

/// A binding that two nodes had: the phone has registered at both of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Whether the engine has accepted the binding of the request. Otherwise it has kept that of the other node.
    pub is_accepted: bool,
    /// What the other node has written: see [`BindEntry::text`].
    pub text: String,
}

/// What became of the bindings of one address, or why the engine has rejected the request for it.
pub type BindResult = Result<BindOutcome, StoreError>;

/// The texts of the bindings of one address, or why the engine has rejected the request.
pub type Texts = Result<Vec<String>, StoreError>;

/// What nodes share.
pub trait Engine: fmt::Debug + Send + Sync {
    /// Publishes a node, and returns all nodes and new messages.
    fn exchange<'a>(&'a self, own: &'a Publication) -> StoreFuture<'a, Exchanged>;

    /// The node ends.
    fn leave<'a>(&'a self, name: &'a str) -> StoreFuture<'a, ()>;

    /// Leases units to a holder. Returns for each request how many units the holder has now, or why the engine rejects
    /// this one.
    fn lease<'a>(
        &'a self,
        holder: &'a str,
        requests: &'a [Request],
    ) -> StoreFuture<'a, Vec<Leased>>;

    /// Replaces the bindings that the node has of each address by these. If another node has one of them, the new
    /// binding replaces it only under a condition: with the same Call-ID, its CSeq must be greater; with another
    /// Call-ID, its REGISTER must not be older. Each address is changed atomically.
    fn bind<'a>(
        &'a self,
        node: &'a str,
        requests: &'a [BindRequest],
    ) -> StoreFuture<'a, Vec<BindResult>>;

    /// The bindings of each of these addresses.
    fn find_bindings<'a>(&'a self, aors: &'a [Box<[u8]>]) -> StoreFuture<'a, Vec<Texts>>;

    /// Keeps texts for the node of this name until its next exchange, for a minute at most. Each text has a name. A
    /// later text replaces an earlier one with the same name.
    fn tell<'a>(&'a self, node: &'a str, texts: &'a [(String, String)]) -> StoreFuture<'a, ()>;

    /// Keeps a message for all nodes, for a minute.
    fn send<'a>(&'a self, text: &'a str) -> StoreFuture<'a, ()>;
}
