//! What the programs have done, and why they left packets to user space.

/// Names each number once, in the order of `enum total` in `relay_maps.h`.
macro_rules! totals {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What one of the two programs has counted since it was loaded, on all processors. The `pass_*` count packets
        /// that it left to user space unchanged, by reason. Packets of other protocols and ports are not counted.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct PathTotals {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl PathTotals {
            /// How many numbers there are.
            pub(super) const COUNT: usize = [$(stringify!($name)),*].len();

            /// Each number with its name.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }

            /// Adds the numbers of one processor.
            pub(super) fn add(&mut self, numbers: &[u64; PathTotals::COUNT]) {
                let mut numbers = numbers.iter();
                $(self.$name = self.$name.wrapping_add(numbers.next().copied().unwrap_or(0));)*
            }
        }
    };
}

totals! {
    /// Packets relayed from clients to peers.
    to_peer,
    /// Their payload in bytes.
    to_peer_bytes,
    /// Packets relayed from peers to clients.
    to_client,
    /// Their payload in bytes.
    to_client_bytes,
    /// Packets relayed from a client through two relays of this server to another client. Counted in no other
    /// direction.
    relay_to_relay,
    /// Their payload in bytes.
    relay_to_relay_bytes,
    /// Binding requests answered.
    binding,
    /// Binding requests not answered because their source's prefix sent too many.
    binding_over_rate,
    /// Packets dropped because their allocation is over its rate.
    rate_dropped,
    /// No entry: not a bound channel, or not from a peer that has one.
    pass_miss,
    /// The entry's deadline has come.
    pass_expired,
    /// TTL or hop limit of 1 or less.
    pass_ttl,
    /// Too long for the next hop.
    pass_mtu,
    /// IPv4 options.
    pass_options,
    /// A fragment.
    pass_fragment,
    /// Lengths that do not agree.
    pass_length,
    /// No next hop, or one that is no longer valid.
    pass_next_hop,
    /// In XDP only: a partial checksum, which the sender has left to hardware.
    pass_partial,
    /// In tc only: a packet of several datagrams.
    pass_gso,
    /// A wrong IPv4 header checksum, or no UDP checksum where IPv6 needs one.
    pass_checksum,
    /// To a listener, and neither ChannelData nor STUN.
    pass_neither,
    /// STUN for user space: all but plain Binding requests.
    pass_stun,
    /// A VLAN tag.
    pass_vlan,
    /// A frame not to this interface's link-layer address.
    pass_link,
    /// The kernel could not make room in the packet.
    pass_room,
    /// Relaying is switched off.
    pass_off,
    /// The channel is new, and what came before may still wait in user space: see
    /// [`FlowEntry::settles`](super::FlowEntry::settles).
    pass_settling,
    /// In XDP only: a frame from an interface that the program does not have. It is a lower device of one that was.
    pass_interface,
    /// Packets dropped because their flow was removed or changed while they were being rewritten.
    changed_dropped,
}

/// What both programs have counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// In XDP.
    pub xdp: PathTotals,
    /// At tc.
    pub tc: PathTotals,
}
