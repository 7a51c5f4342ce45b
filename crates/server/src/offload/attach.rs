//! Loading the programs and attaching them to interfaces, each by the best means that works there.

use super::choice::{Facts, Means, Obstacle, choose};
use super::chunks::Chunks;
use super::machine::survey;
use super::status::InterfaceOffload;
use super::{BindingExcess, KernelBinding, Offload, OffloadMode};
use crate::error::StartError;
use crate::ports::PortRange;
use crate::privileges;
use bpf::BpfError;
use bpf::relay::{Attached, BindingLimit, Relay, Settings};
use std::net::{IpAddr, SocketAddr};

/// What the kernel is to relay.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) offload: Offload,
    /// `None`: user space answers all Binding requests.
    pub(crate) binding: Option<KernelBinding>,
    /// With the real ports.
    pub(crate) listeners: &'a [SocketAddr],
    /// Addresses that relays are bound to.
    pub(crate) relays: &'a [IpAddr],
    pub(crate) ports: PortRange,
    /// How many allocations may have a rate limit in the kernel, in all.
    pub(crate) allocations: u32,
}

/// An interface, and what is attached there.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) about: InterfaceOffload,
    /// Whoever asked for its means insists on it.
    pub(crate) insists: bool,
    /// What is attached; dropping it detaches.
    pub(crate) attached: Option<Attached>,
}

/// The loaded programs, if any is attached, and every interface.
#[derive(Debug)]
pub(crate) struct Attachments {
    pub(crate) relay: Option<Relay>,
    pub(crate) places: Vec<Place>,
}

/// Most next hops: a program knows them by 16 bits.
const MOST_NEXT_HOPS: u32 = u16::MAX as u32;

/// Most rate limits: 32 bytes each, all of them at once.
const MOST_ALLOCATIONS: u32 = 1 << 20;

impl Wanted<'_> {
    /// How many next hops there can be: two for each channel, which hardly ever differ that much.
    pub(crate) fn next_hops(&self) -> u32 {
        self.channels().saturating_mul(2).min(MOST_NEXT_HOPS)
    }

    /// How many channels there is room for.
    pub(crate) fn channels(&self) -> u32 {
        self.offload
            .channels
            .min(Offload::MOST_CHANNELS)
            .next_multiple_of(Chunks::SIZE)
    }

    /// How many allocations can have a rate limit that the kernel obeys.
    pub(crate) fn allocations(&self) -> u32 {
        self.allocations
            .min(MOST_ALLOCATIONS)
            .next_multiple_of(Chunks::SIZE)
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
            allocations: self.allocations(),
            next_hops: self.next_hops(),
            binding: self.binding.and_then(binding_limit),
        };
        Relay::load(&settings).map_err(|error| Obstacle::Refused(error.to_string()))
    }

    /// Loads and attaches.
    ///
    /// # Errors
    /// [`StartError::Offload`] if an interface cannot have what is insisted on.
    pub(crate) fn attach(&self) -> Result<Attachments, StartError> {
        let mut attachments = Attachments {
            relay: None,
            places: Vec::new(),
        };
        if self.offload.mode == OffloadMode::Off {
            return Ok(attachments);
        }
        let served: Vec<IpAddr> = self.listeners.iter().map(SocketAddr::ip).collect();
        let served = [&served, self.relays].concat();
        let facts = survey(&served).unwrap_or_else(|error| {
            tracing::warn!(%error, "the kernel does not list its interfaces: user space relays");
            Vec::new()
        });
        let mut relay = self.load();
        for facts in &facts {
            let place = place(self.offload.mode, facts, &mut relay);
            if place.insists && place.about.means == Means::User {
                return Err(StartError::Offload {
                    interface: place.about.name.clone(),
                    reason: place
                        .about
                        .reason()
                        .map_or(String::new(), ToString::to_string),
                });
            }
            attachments.places.push(place);
        }
        if attachments
            .places
            .iter()
            .any(|place| place.attached.is_some())
        {
            attachments.relay = relay.ok();
        }
        Ok(attachments)
    }
}

/// What the programs are told; `None` if they are to answer none.
pub(crate) fn binding_limit(binding: KernelBinding) -> Option<BindingLimit> {
    (binding.rate > 0).then(|| BindingLimit {
        per_second: binding.rate,
        burst: binding.rate,
        drop_excess: binding.excess == BindingExcess::Drop,
    })
}

/// Tries what may be tried on one interface.
fn place(mode: OffloadMode, facts: &Facts, relay: &mut Result<Relay, Obstacle>) -> Place {
    let choice = choose(mode, facts);
    let link = &facts.link;
    let mut place = Place {
        about: InterfaceOffload {
            name: link.name.clone(),
            index: link.index,
            means: Means::User,
            not_xdp: choice.xdp,
            not_tc: choice.tc,
        },
        insists: choice.insists,
        attached: None,
    };
    let about = &mut place.about;
    let relay = match relay {
        Ok(relay) => relay,
        Err(obstacle) => {
            about.not_xdp.get_or_insert_with(|| obstacle.clone());
            about.not_tc.get_or_insert_with(|| obstacle.clone());
            return place;
        }
    };
    if about.not_xdp.is_none() {
        match relay.attach_xdp(link.index, link.mac.unwrap_or_default()) {
            Ok(attached) => {
                (about.means, place.attached) = (Means::Xdp, Some(attached));
                // What XDP may be given up for. It can be attached later, but not loaded, by a thread without CAP_BPF.
                if about.not_tc.is_none()
                    && let Err(error) = relay.load_tc()
                {
                    about.not_tc = Some(refused(&error));
                }
                return place;
            }
            Err(error) if error.is_unsupported() => about.not_xdp = Some(Obstacle::NoNativeXdp),
            Err(error) if error.is_busy() => {
                about.not_xdp = Some(Obstacle::ForeignProgram(link.xdp.unwrap_or(0)));
            }
            Err(error) => about.not_xdp = Some(refused(&error)),
        }
    }
    place.attach_tc(relay);
    place
}

impl Place {
    /// Ends what is attached: user space relays from now on.
    pub(crate) fn detach(&mut self, relay: &mut Relay) {
        self.attached = None;
        self.about.means = Means::User;
        // Unless that can be done, an interface whose index is equal modulo 256 goes without XDP, and says so.
        let _ = relay.forget_interface(self.about.index);
    }

    /// Attaches the classifier, if that may be, instead of what is attached.
    pub(crate) fn attach_tc(&mut self, relay: &mut Relay) {
        self.detach(relay);
        if self.about.not_tc.is_some() {
            return;
        }
        match relay.attach_tc(self.about.index) {
            Ok(attached) => (self.about.means, self.attached) = (Means::Tc, Some(attached)),
            Err(error) => self.about.not_tc = Some(refused(&error)),
        }
    }
}

fn refused(error: &BpfError) -> Obstacle {
    Obstacle::Refused(error.to_string())
}
