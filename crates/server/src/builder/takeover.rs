//! Taking over from a running server: what happens before this one binds its sockets.

use super::Builder;
use crate::addresses::RelayAddresses;
use crate::error::StartError;
use crate::handover::{HandoverError, Joining, SharedCountFds};
use crate::ports::PortRange;
use crate::quota::{OtherCounts, Quotas, SharedCounts};
use crate::rates::{RateTable, TableSize};
use crate::sip::{self, SipTakeover};
use crate::steering::SteeringTakeover;

/// A server that takes over, before it has bound its sockets.
#[derive(Debug)]
pub(super) struct ServerTakeover {
    pub(super) steering: SteeringTakeover,
    /// Where this one writes how many allocations its rate limits have.
    own_rates: Option<SharedCounts>,
    other_rates: Option<OtherCounts>,
    /// The SIP of both processes, until it is set up.
    pub(super) sip: Option<SipTakeover>,
}

impl ServerTakeover {
    /// The table of rate limits is made: the two processes share their rates from now on.
    pub(super) fn share_rates(&mut self, table: &RateTable) {
        if let Some(own) = self.own_rates.take() {
            table.share(own);
        }
        if let Some(other) = self.other_rates.take() {
            table.share_with(other);
        }
    }
}

impl Builder {
    /// Has the old process hold its clients, if there is one to take over from.
    pub(super) fn begin_take_over(
        &self,
        (workers, most): (usize, usize),
        (relays, ports): (&RelayAddresses, PortRange),
        quotas: &Quotas,
        rates: TableSize,
    ) -> Result<Option<ServerTakeover>, StartError> {
        let Some(taking) = &self.take_over else {
            return Ok(None);
        };
        if self.shared_ports {
            return Err(HandoverError::SharedPorts.into());
        }
        let listeners = self.udp_addresses()?.len() + self.listen_sockets.len();
        let own_rates = rates.shared_counts().map_err(HandoverError::System)?;
        let descriptor = own_rates.as_ref().map(SharedCounts::descriptor).transpose();
        let joining = Joining {
            maps: Vec::new(),
            relays: relays.shared_ports(ports.first()),
            held: SharedCountFds {
                quotas: Some(quotas.share().map_err(HandoverError::System)?),
                rates: descriptor.map_err(HandoverError::System)?,
            },
            // Its workers have no numbers yet.
            sip: None,
        };
        let offer = taking.offer();
        let place_id = sip::place_id(self.state_dir.as_deref(), self.binding_database.as_deref());
        let mut taken_sip = None;
        let begin_sip = |own| {
            let Some(offered) = offer.sip.filter(|_| self.serves_sip()) else {
                return Ok(None);
            };
            let (taking, joining) =
                SipTakeover::begin(offered, offer.numbering(), (own, place_id))?;
            taken_sip = Some(taking);
            Ok(Some(joining))
        };
        let steering =
            SteeringTakeover::begin(taking, workers, listeners, most, joining, begin_sip)?;
        relays.set_foreign(Some(offer.relay_ports()?));
        let [other_quotas, other_rates] = taking.offer().held()?.map()?;
        if let Some(other) = other_quotas {
            quotas.count_other(other);
        }
        Ok(Some(ServerTakeover {
            steering,
            own_rates,
            other_rates,
            sip: taken_sip,
        }))
    }
}
