//! The counters of the registrations of one node.

/// The counters of the registrations of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindingCounters {
    /// Addresses whose bindings were written.
    pub written: u64,
    /// Bindings that the engine has not accepted, because another node has a later REGISTER, or because the address has
    /// too many.
    pub older: u64,
    /// Addresses whose write failed. The node repeats it, unless the engine has rejected only a part of a batch.
    pub failed: u64,
    /// Changes that were lost, because too many waited.
    pub dropped: u64,
    /// Look-ups that were answered by the cache.
    pub cached: u64,
    /// Look-ups that found another node.
    pub found: u64,
    /// Look-ups that found none.
    pub none: u64,
    /// Look-ups without a response of the engine.
    pub unavailable: u64,
    /// Notices to other nodes that they must remove a binding, because its phone has registered here.
    pub notices_sent: u64,
    /// Notices that were dropped after a minute: the engine has not accepted them, or the other node was not alive.
    pub notices_failed: u64,
    /// Notices that were lost, because too many waited.
    pub notices_dropped: u64,
    /// Notices of other nodes.
    pub received: ReceivedNotices,
    /// Bindings that two nodes had.
    pub conflicts: Conflicts,
    /// Addresses whose changes wait (a gauge).
    pub waiting: u64,
}

/// Notices of other nodes that they have a binding now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceivedNotices {
    /// Valid: this node removes the binding.
    pub accepted: u64,
    /// Too old, or the clocks of the two nodes differ too much.
    pub untimely: u64,
    /// For another node. Somebody has copied them.
    pub other_node: u64,
    /// Not sent by a node.
    pub forged: u64,
    /// Valid, but too many bindings waited to be removed.
    pub dropped: u64,
}

/// Bindings that this node has written and that another node had, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conflicts {
    /// The later REGISTER came to another node. So this node removes its binding.
    pub this_node: u64,
    /// The later REGISTER came to this node. So the other node must remove its binding.
    pub other_node: u64,
    /// The text of the other node does not prove which REGISTER is later. So no node removes a binding.
    pub unproven: u64,
    /// This node had to remove its binding, but too many waited to be removed.
    pub dropped: u64,
}
