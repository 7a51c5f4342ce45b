//! Loading the programs and attaching them to interfaces, each by the best method that works there.

use super::choice::{Facts, Obstacle, OffloadMethod, choose};
use super::clsact::{Clsact, remove_orphaned};
use super::machine::read_interfaces;
use super::status::InterfaceOffload;
use super::{BindingExcess, KernelBinding, Offload, OffloadMode};
use crate::error::StartError;
use crate::handover::XdpPrograms;
use crate::ports::PortRange;
use crate::privileges;
use crate::rates::TableSize;
use crate::verifier;
use bpf::BpfError;
use bpf::relay::{Attached, BindingLimit, Gate, Relay, Settings};
use io::netlink::{Netlink, NetworkInterface};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

/// What the kernel is to relay.
#[derive(Debug)]
pub(crate) struct OffloadConfig<'a> {
    pub(crate) offload: Offload,
    /// `None`: user space answers all Binding requests.
    pub(crate) binding: Option<KernelBinding>,
    /// With the real ports.
    pub(crate) listeners: &'a [SocketAddr],
    /// Addresses that relays are bound to.
    pub(crate) relays: &'a [IpAddr],
    pub(crate) ports: PortRange,
    /// How many rate limits the kernel has room for.
    pub(crate) rates: TableSize,
    /// tc attaches by TCX if the kernel has it, else by clsact; `false`, for tests: always by clsact.
    pub(crate) tcx: bool,
    /// The XDP program of a process that this one takes over from. It stays, behind this process's one.
    pub(crate) other: Option<&'a XdpPrograms>,
}

/// An interface, and what is attached there.
#[derive(Debug)]
pub(crate) struct InterfaceAttachment {
    pub(crate) about: InterfaceOffload,
    /// The setting names this method, so there is no fallback.
    pub(crate) insists: bool,
    /// See [`Facts::indirect`].
    pub(crate) indirect: bool,
    /// What is attached; dropping it detaches.
    pub(crate) attached: Option<Attachment>,
    /// What clsact would attach, where there is no TCX. Made at the start: the control thread, which may have to attach
    /// it, has no CAP_BPF.
    gate: Option<Gate>,
    /// The lower devices, by whose index the XDP program also has this interface.
    pub(crate) lower: Vec<u32>,
}

/// A program at an interface, until this is dropped.
#[derive(Debug)]
pub(crate) enum Attachment {
    /// XDP, or tc by TCX: the kernel detaches it with the last descriptor.
    Link(Attached),
    #[expect(dead_code, reason = "held for what dropping it does")]
    Clsact(Clsact),
}

/// The loaded programs, if any is attached, and every interface.
#[derive(Debug)]
pub(crate) struct Attachments {
    pub(crate) relay: Option<Relay>,
    pub(crate) interfaces: Vec<InterfaceAttachment>,
}

/// Most next hops: a program has them by 16 bits.
const MAX_NEXT_HOPS: u32 = u16::MAX as u32;

impl OffloadConfig<'_> {
    /// How many next hops there can be: two for each channel, which hardly ever differ that much.
    pub(crate) fn next_hops(&self) -> u32 {
        self.channels().saturating_mul(2).min(MAX_NEXT_HOPS)
    }

    /// How many channels there is room for.
    pub(crate) fn channels(&self) -> u32 {
        self.offload.channels.min(Offload::MAX_CHANNELS)
    }

    /// Loads the programs; nothing is attached.
    pub(super) fn load(&self) -> Result<Relay, Obstacle> {
        if let Some(missing) = privileges::missing_for_offload() {
            return Err(Obstacle::Refused(missing));
        }
        let mut ports: Vec<u16> = self.listeners.iter().map(SocketAddr::port).collect();
        ports.sort_unstable();
        ports.dedup();
        let settings = Settings {
            listener_ports: ports,
            relay_ports: self.ports.first()..=self.ports.last(),
            channels: self.channels(),
            buckets: self.rates.buckets(),
            next_hops: self.next_hops(),
            binding: self.binding.and_then(binding_limit),
        };
        let loaded = match self.other {
            Some(other) => Relay::load_in_front(&settings).and_then(|relay| {
                relay.set_behind(Some(other.program.as_fd()))?;
                Ok(relay)
            }),
            None => Relay::load(&settings),
        };
        loaded.map_err(|error| refused(&error))
    }

    /// Loads and attaches.
    ///
    /// # Errors
    /// [`StartError::Offload`] if an interface cannot have what is insisted on.
    pub(crate) fn attach(&self) -> Result<Attachments, StartError> {
        let mut attachments = Attachments {
            relay: None,
            interfaces: Vec::new(),
        };
        if self.offload.mode == OffloadMode::Off {
            return Ok(attachments);
        }
        let served: Vec<IpAddr> = self.listeners.iter().map(SocketAddr::ip).collect();
        let served = [&served, self.relays].concat();
        let mut facts = read_interfaces(&served).unwrap_or_else(|error| {
            tracing::warn!(%error, "the kernel does not list its interfaces: user space relays");
            Vec::new()
        });
        remove_all_orphaned(&facts);
        let mut relay = self.load();
        for facts in &mut facts {
            let link = self
                .other
                .and_then(|other| other.link(facts.interface.index));
            if link.is_some() {
                // It is no foreign program that is there.
                facts.interface.xdp = None;
            }
            let how = AttachOptions {
                mode: self.offload.mode,
                tcx: self.tcx,
                link,
            };
            let attachment = attach_interface(&how, facts, &mut relay);
            if attachment.insists && attachment.about.method == OffloadMethod::User {
                return Err(attachment.required_offload_error());
            }
            attachments.interfaces.push(attachment);
        }
        self.check_indirect(&facts, &attachments.interfaces)?;
        if attachments
            .interfaces
            .iter()
            .any(|attachment| attachment.attached.is_some())
        {
            attachments.relay = relay.ok();
        }
        Ok(attachments)
    }

    /// Packets to an address on `lo` or a dummy interface may arrive on any interface but `lo`. If the mode is not
    /// `Auto`, a program must be attached to at least one of these.
    fn check_indirect(
        &self,
        facts: &[Facts],
        attachments: &[InterfaceAttachment],
    ) -> Result<(), StartError> {
        let all = facts.iter().zip(attachments);
        let mut outside = all
            .filter(|(facts, _)| !facts.interface.loopback)
            .map(|(_, attachment)| attachment);
        let indirect = outside.clone().find(|attachment| attachment.indirect);
        match indirect.filter(|_| self.offload.mode != OffloadMode::Auto) {
            Some(attachment) if outside.all(|one| one.attached.is_none()) => {
                Err(attachment.required_offload_error())
            }
            _ => Ok(()),
        }
    }
}

/// The limit for the programs; `None` if they are to answer none.
pub(crate) fn binding_limit(binding: KernelBinding) -> Option<BindingLimit> {
    (binding.rate > 0).then(|| BindingLimit {
        per_second: binding.rate,
        burst: binding.rate,
        drop_excess: binding.excess == BindingExcess::Drop,
    })
}

/// How programs are attached to an interface.
struct AttachOptions<'a> {
    mode: OffloadMode,
    /// See [`OffloadConfig::tcx`].
    tcx: bool,
    /// By which another process has attached its XDP program.
    link: Option<BorrowedFd<'a>>,
}

/// Tries what may be tried on one interface.
fn attach_interface(
    how: &AttachOptions<'_>,
    facts: &Facts,
    relay: &mut Result<Relay, Obstacle>,
) -> InterfaceAttachment {
    let choice = choose(how.mode, facts);
    let interface = &facts.interface;
    let mut attachment = InterfaceAttachment {
        about: InterfaceOffload {
            name: interface.name.clone(),
            index: interface.index,
            method: OffloadMethod::User,
            clsact: false,
            not_xdp: choice.xdp,
            not_tc: choice.tc,
            not_redirected: None,
        },
        insists: choice.insists,
        indirect: facts.indirect,
        attached: None,
        gate: None,
        lower: Vec::new(),
    };
    let about = &mut attachment.about;
    let relay = match relay {
        Ok(relay) => relay,
        Err(obstacle) => {
            about.not_xdp.get_or_insert_with(|| obstacle.clone());
            about.not_tc.get_or_insert_with(|| obstacle.clone());
            return attachment;
        }
    };
    // Also if XDP is attached, which may be given up for tc later.
    if about.not_tc.is_none() {
        match load_tc(relay, how.tcx) {
            Ok(gate) => attachment.gate = gate,
            Err(error) => about.not_tc = Some(refused(&error)),
        }
    }
    if about.not_xdp.is_none() {
        let attached = attachment.attach_xdp(facts, how.link, relay);
        let about = &mut attachment.about;
        match attached {
            Ok(()) => return attachment,
            Err(error) if error.is_unsupported() => about.not_xdp = Some(Obstacle::NoNativeXdp),
            Err(error) if error.is_busy() => {
                about.not_xdp = Some(Obstacle::ForeignProgram(interface.xdp.unwrap_or(0)));
            }
            Err(error) => about.not_xdp = Some(refused(&error)),
        }
    }
    attachment.attach_tc(relay);
    attachment
}

/// Loads the tc program; with a gate if clsact has to attach it.
pub(super) fn load_tc(relay: &mut Relay, tcx: bool) -> Result<Option<Gate>, BpfError> {
    relay.load_tc()?;
    if tcx && relay.has_tcx()? {
        return Ok(None);
    }
    relay.load_gate().map(Some)
}

/// Attaches the loaded tc program: by clsact if there is a gate.
pub(super) fn attach_tc(
    relay: &mut Relay,
    gate: Option<Gate>,
    interface: u32,
) -> Result<Attachment, Obstacle> {
    match gate {
        Some(gate) => Clsact::attach(interface, gate).map(Attachment::Clsact),
        None => relay
            .attach_tc(interface)
            .map(Attachment::Link)
            .map_err(|error| refused(&error)),
    }
}

/// Removes what dead processes have left at these interfaces.
fn remove_all_orphaned(interfaces: &[Facts]) {
    if let Ok(mut netlink) = Netlink::open() {
        for facts in interfaces {
            remove_orphaned(&mut netlink, facts.interface.index);
        }
    }
}

impl InterfaceAttachment {
    /// What the server does not start for.
    fn required_offload_error(&self) -> StartError {
        let reason = self.about.reason();
        StartError::Offload {
            interface: self.about.name.clone(),
            reason: reason.map_or(String::new(), ToString::to_string),
        }
    }

    /// Attaches the XDP program, by another process's link if there is one, and enters its lower devices.
    fn attach_xdp(
        &mut self,
        facts: &Facts,
        by: Option<BorrowedFd<'_>>,
        relay: &mut Relay,
    ) -> Result<(), BpfError> {
        let interface = &facts.interface;
        let mac = interface.mac.unwrap_or_default();
        let attached = match by.map(|by| by.try_clone_to_owned()).transpose() {
            Ok(None) => relay.attach_xdp(interface.index, mac)?,
            Ok(Some(by)) => relay.replace_xdp(interface.index, mac, by)?,
            Err(error) => return Err(BpfError::Descriptor(error)),
        };
        (self.about.method, self.attached) = (OffloadMethod::Xdp, Some(Attachment::Link(attached)));
        self.set_lower(interface, &facts.lower, relay)
            .inspect_err(|_| self.detach(relay))
    }

    /// Tells the XDP program the devices below the interface: the program of a bond runs on each of them. A backup
    /// device gets a zero link-layer address, which no frame matches. So its frames pass to the stack, which drops
    /// them.
    pub(crate) fn set_lower(
        &mut self,
        interface: &NetworkInterface,
        lower: &[NetworkInterface],
        relay: &mut Relay,
    ) -> Result<(), BpfError> {
        let before = std::mem::take(&mut self.lower);
        self.lower = lower.iter().map(|one| one.index).collect();
        for index in before.iter().filter(|index| !self.lower.contains(index)) {
            relay.forget_interface(*index)?;
        }
        for one in lower {
            let mac = interface.mac.filter(|_| !one.backup).unwrap_or_default();
            relay.set_interface(one.index, interface.index, mac)?;
        }
        Ok(())
    }

    /// Ends what is attached: user space relays from now on.
    pub(crate) fn detach(&mut self, relay: &mut Relay) {
        self.attached = None;
        (self.about.method, self.about.clsact) = (OffloadMethod::User, false);
        self.about.not_redirected = None;
        for index in self.lower.drain(..).chain([self.about.index]) {
            // Unless that can be done, an interface whose index is equal modulo 256 goes without XDP, and says so.
            let _ = relay.forget_interface(index);
        }
    }

    /// Detaches the programs. They are not attached again.
    pub(crate) fn end(&mut self, relay: &mut Relay, why: &Obstacle) {
        self.detach(relay);
        (self.about.not_xdp, self.about.not_tc) = (Some(why.clone()), Some(why.clone()));
    }

    /// Attaches the classifier, if that may be, instead of what is attached.
    pub(crate) fn attach_tc(&mut self, relay: &mut Relay) {
        self.detach(relay);
        if self.about.not_tc.is_some() {
            return;
        }
        match attach_tc(relay, self.gate.take(), self.about.index) {
            Ok(attached) => {
                self.about.method = OffloadMethod::Tc;
                self.about.clsact = matches!(attached, Attachment::Clsact(_));
                self.attached = Some(attached);
            }
            Err(obstacle) => self.about.not_tc = Some(obstacle),
        }
    }
}

/// What the kernel has refused, in words; the verifier's log goes to the log.
pub(super) fn refused(error: &BpfError) -> Obstacle {
    verifier::log_at_debug(error);
    Obstacle::Refused(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(index: u32, backup: bool, master: Option<u32>) -> NetworkInterface {
        NetworkInterface {
            index,
            name: format!("eth{index}"),
            kind: None,
            ethernet: true,
            loopback: false,
            up: true,
            carrier: true,
            mac: Some([2, 0, 0, 0, 0, 1]),
            mtu: 1500,
            below: None,
            master,
            backup,
            xdp: None,
        }
    }

    #[test]
    fn the_program_knows_lower_devices_while_they_are_there() {
        let listeners = ["192.0.2.1:3478".parse().expect("an address")];
        let wanted = OffloadConfig {
            offload: Offload {
                mode: OffloadMode::Xdp,
                channels: 1,
            },
            binding: None,
            listeners: &listeners,
            relays: &[],
            ports: PortRange::DYNAMIC,
            rates: TableSize::default(),
            tcx: true,
            other: None,
        };
        let Ok(mut relay) = wanted.load() else {
            eprintln!("skipped: this process may not load programs");
            return;
        };
        // A synthetic interface with a virtual function below, as on Hyper-V.
        let facts = Facts {
            interface: interface(2, false, None),
            xdp: None,
            strips_tags: false,
            vlan: None,
            lower: vec![interface(3, false, Some(2)), interface(4, true, Some(2))],
            indirect: false,
        };
        let how = AttachOptions {
            mode: OffloadMode::Off,
            tcx: true,
            link: None,
        };
        let mut attachment = attach_interface(&how, &facts, &mut Err(Obstacle::NotWanted));
        let set = attachment.set_lower(&facts.interface, &facts.lower, &mut relay);
        set.expect("slots");
        // A slot that is taken cannot be another device's.
        let mut is_known = |index: u32| relay.set_interface(index + 256, 9, [0; 6]).is_err();
        assert!(is_known(3) && is_known(4) && !is_known(5));
        let gone = attachment.set_lower(&facts.interface, &facts.lower[1..], &mut relay);
        gone.expect("slots");
        let mut is_known = |index: u32| relay.set_interface(index + 256, 9, [0; 6]).is_err();
        assert!(!is_known(3) && is_known(4));
        // Two devices with one slot: the second cannot be entered, and the caller reports it.
        let equal = [interface(4 + 256, false, Some(2))];
        assert!(
            attachment
                .set_lower(&facts.interface, &equal, &mut relay)
                .is_ok()
        );
        let both = [
            interface(4 + 256, false, Some(2)),
            interface(4, false, Some(2)),
        ];
        assert!(
            attachment
                .set_lower(&facts.interface, &both, &mut relay)
                .is_err()
        );
        attachment.detach(&mut relay);
        assert!(attachment.lower.is_empty());
    }
}
