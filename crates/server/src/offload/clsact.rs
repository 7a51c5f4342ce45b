//! Attaching the tc program by clsact, for kernels without TCX (before Linux 6.6), and removing what dead processes
//! have left.
//!
//! A clsact filter outlives its process. Two things keep that harmless:
//! - the filter is a [`Gate`], which passes every packet as soon as its process ends;
//! - the filter's name is that of an abstract Unix socket, which its process holds in the interface's network
//!   namespace. A name that can be bound has no living owner: the next start removes the filter. This works across PID
//!   namespaces.

use super::choice::Obstacle;
use crate::random::Entropy;
use bpf::relay::Gate;
use io::netlink::{Filter, Netlink};
use std::io as std_io;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The names of filters begin like this; 16 hexadecimal digits follow.
const PREFIX: &str = "hairpin-";

/// A filter at an interface's ingress. Dropping it deletes the filter.
#[derive(Debug)]
pub(crate) struct Clsact {
    interface: u32,
    priority: u16,
    handle: u32,
    /// The interface had no clsact before.
    created_qdisc: bool,
    /// Of the interface's network namespace.
    netlink: Netlink,
    // What follows is dropped in this order: without a gate the filter passes everything, and then it has no owner.
    _gate: Gate,
    _owner: UnixDatagram,
}

impl Clsact {
    /// Attaches to an interface of the calling thread's network namespace. Filters that are there run first.
    /// Requires CAP_NET_ADMIN.
    ///
    /// # Errors
    /// [`Obstacle::Refused`], in words.
    pub(super) fn attach(interface: u32, gate: Gate) -> Result<Clsact, Obstacle> {
        let mut entropy = Entropy::new();
        let (high, low) = (entropy.next_u32(), entropy.next_u32());
        let name = format!("{PREFIX}{high:08x}{low:08x}");
        let owner = claim(&name).map_err(|error| refused("its owner's socket", &error))?;
        let mut netlink = Netlink::open().map_err(|error| refused("netlink", &error))?;
        let created_qdisc = netlink
            .add_clsact(interface)
            .map_err(|error| refused("sch_ingress", &error))?;
        let filters = netlink.ingress_filters(interface).unwrap_or_default();
        let mut clsact = Clsact {
            interface,
            priority: last_free(&filters),
            // Random, so that a process that removes a dead filter does not remove this one. Never 0, because then the
            // kernel would choose.
            handle: low.max(1),
            created_qdisc,
            netlink,
            _gate: gate,
            _owner: owner,
        };
        let Clsact {
            priority, handle, ..
        } = clsact;
        let program = clsact._gate.as_fd();
        clsact
            .netlink
            .add_bpf_filter(interface, priority, handle, &name, program)
            .map_err(|error| refused("cls_bpf", &error))?;
        Ok(clsact)
    }
}

impl Drop for Clsact {
    fn drop(&mut self) {
        let deleted = self
            .netlink
            .delete_bpf_filter(self.interface, self.priority, self.handle);
        match deleted {
            Err(error) if error.kind() == std_io::ErrorKind::PermissionDenied => {
                tracing::debug!(interface = self.interface, %error, "a clsact filter is left, which passes everything");
            }
            // Left in place, an empty clsact does nothing.
            _ if self.created_qdisc => {
                let _ = self.netlink.delete_unused_clsact(self.interface);
            }
            _ => {}
        }
    }
}

/// Deletes the filters of hairpin processes that have ended, at an interface of the calling thread's network namespace.
pub(super) fn remove_orphaned(netlink: &mut Netlink, interface: u32) {
    let filters = netlink.ingress_filters(interface).unwrap_or_default();
    for filter in filters.iter().filter(|filter| is_orphaned(filter)) {
        match netlink.delete_bpf_filter(interface, filter.priority, filter.handle) {
            Ok(()) => tracing::info!(
                interface,
                name = filter.name,
                "removed a clsact filter whose process has ended"
            ),
            Err(error) => {
                tracing::debug!(interface, name = filter.name, %error, "clsact filter not removed")
            }
        }
    }
}

/// Whether a filter is one of hairpin's, and no process owns it.
fn is_orphaned(filter: &Filter) -> bool {
    let Some(name) = filter.name.as_deref() else {
        return false;
    };
    let digits = name.strip_prefix(PREFIX).filter(|_| filter.kind == "bpf");
    let is_hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    let is_ours = digits.is_some_and(|digits| digits.len() == 16 && digits.bytes().all(is_hex));
    is_ours && claim(name).is_ok()
}

/// Binds the abstract Unix socket of this name in the calling thread's network namespace.
///
/// # Errors
/// `AddrInUse` while another process has it.
fn claim(name: &str) -> std_io::Result<UnixDatagram> {
    UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

/// The last priority that no filter has.
fn last_free(filters: &[Filter]) -> u16 {
    let is_free = |priority: &u16| filters.iter().all(|filter| filter.priority != *priority);
    (1..=u16::MAX).rev().find(is_free).unwrap_or(u16::MAX)
}

/// What the kernel's answer means when `what` was asked for.
fn refused(what: &str, error: &std_io::Error) -> Obstacle {
    let text = match error.kind() {
        std_io::ErrorKind::NotFound => format!(
            "the kernel has neither TCX nor the module {what}: use Linux 6.6 or later, or install the module (modprobe {what})"
        ),
        std_io::ErrorKind::PermissionDenied => {
            "clsact requires CAP_NET_ADMIN, which is missing".to_owned()
        }
        _ => format!("clsact: {what}: {error}"),
    };
    Obstacle::Refused(text)
}
