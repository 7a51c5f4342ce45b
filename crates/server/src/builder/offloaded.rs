//! What is offloaded: the programs that relay in the kernel, and what the threads keep to feed them.

use super::Builder;
use crate::addresses::RelayAddresses;
use crate::error::StartError;
use crate::handover::TakeOver;
use crate::offload::{OffloadConfig, OffloadMode, Prepared, PublishedStatus};
use crate::ports::PortRange;
use crate::privileges::KeptCapabilities;
use crate::rates::TableSize;
use crate::steering::Tables;
use crate::worker::Worker;
use io::UdpSocket;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

impl Builder {
    /// Attaches the programs, if the kernel is to relay and can.
    pub(super) fn prepare_offload(
        &self,
        listeners: &[SocketAddr],
        relays: &RelayAddresses,
        ports: PortRange,
        rates: TableSize,
        published: &Arc<PublishedStatus>,
    ) -> Result<Option<Prepared>, StartError> {
        let relays: Vec<IpAddr> = relays.iter().map(|relay| relay.local).collect();
        let offer = self.take_over.as_ref().map(TakeOver::offer);
        let may_be_xdp = matches!(self.offload.mode, OffloadMode::Auto | OffloadMode::Xdp);
        let wanted = OffloadConfig {
            offload: self.offload,
            binding: self.settings.answered_by_kernel(&self.discovery),
            listeners,
            relays: &relays,
            ports,
            rates,
            tcx: true,
            other: offer
                .filter(|_| may_be_xdp)
                .and_then(|offer| offer.xdp.as_ref()),
        };
        Prepared::new(&wanted, published)
    }

    /// What the threads keep of their privileges.
    pub(super) fn kept(
        &self,
        workers: &mut [Worker],
        offload: Option<&mut Prepared>,
        tables: &mut Tables,
    ) -> KeptCapabilities {
        if !self.drop_privileges {
            return KeptCapabilities::EVERYTHING;
        }
        // All workers' tables are alike.
        let sip = workers.first_mut().and_then(|worker| worker.sip.as_mut());
        let sip = sip.is_none_or(|sip| sip.can_write_unprivileged());
        let relaying = offload.is_none_or(|offload| offload.can_write_unprivileged());
        KeptCapabilities::needed(sip && relaying && tables.can_write_unprivileged())
    }
}

/// Has datagrams arrive one by one where tc is to see them one by one. Returns whether relays may join theirs.
pub(super) fn separate(
    offload: Option<&Prepared>,
    groups: &[Vec<UdpSocket>],
    relays: &RelayAddresses,
) -> bool {
    let Some(offload) = offload else { return true };
    let at_tc = offload.addresses_at_tc();
    let reaches = |ip: IpAddr| {
        at_tc
            .iter()
            .any(|at| *at == ip || ip.is_unspecified() && ip.is_ipv4() == at.is_ipv4())
    };
    for group in groups
        .iter()
        .filter(|group| reaches(group[0].local_addr().ip()))
    {
        for socket in group {
            // Where it stays on, trains merely take the way through user space.
            let _ = socket.set_gro(false);
        }
    }
    !relays.iter().any(|relay| reaches(relay.local))
}
