//! The expected datagrams of each flow, at the socket where they arrive.

use std::sync::Arc;

use super::plan::Flows;

/// Memory for the numbers of all flows of a run, in blocks of 520 bytes: 272 MB.
const MAX_BLOCKS: usize = 1 << 19;
/// A flow has at most this many: 1 GB of numbers is more than any run sends.
const MAX_PIECES: usize = 1 << 18;

/// One flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Expected {
    /// Identity of the socket; 0 if nothing of it is measured.
    pub(super) arrives: usize,
    /// Bytes of payload.
    pub(super) length: usize,
}

/// All flows, by their numbers.
pub(super) type ExpectedFlows = Arc<[Expected]>;

impl Flows {
    /// What arrives of each flow, by its number. Call it before the lanes move to their threads.
    pub(super) fn expected_flows(&self) -> ExpectedFlows {
        let mut all = vec![Expected::default(); self.count() as usize];
        for lane in self.streams.iter().flat_map(|stream| &stream.lanes) {
            if let (Some((arrives, length)), Some(one)) =
                (lane.expected(), all.get_mut(lane.flow as usize))
            {
                *one = Expected { arrives, length };
            }
        }
        all.into()
    }
}

/// How many blocks each of this many flows may have.
pub(super) fn memory(flows: usize) -> usize {
    (MAX_BLOCKS / flows.max(1)).min(MAX_PIECES)
}
