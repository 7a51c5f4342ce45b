//! Filters of traffic control (tc) at an interface's ingress: BPF programs attached by the clsact queueing discipline.
//!
//! TCX (Linux 6.6) needs none of this. A filter outlives the process that adds it, so its name says which program has
//! added it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::Netlink;
use super::answer::{Message, attributes, text, u32_at};
use super::message::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, Request};

const RTM_NEWQDISC: u16 = 36;
const RTM_DELQDISC: u16 = 37;
const RTM_NEWTFILTER: u16 = 44;
const RTM_DELTFILTER: u16 = 45;
const RTM_GETTFILTER: u16 = 46;

const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;

/// `TC_H_CLSACT`: where the queueing discipline is.
const CLSACT: u32 = 0xffff_fff1;
/// The major number of its handle.
const HANDLE: u32 = 0xffff_0000;
/// `TC_H_CLSACT` with `TC_H_MIN_INGRESS`: where its filters for arriving packets are.
const INGRESS: u32 = 0xffff_fff2;
/// `TC_H_CLSACT` with `TC_H_MIN_EGRESS`.
const EGRESS: u32 = 0xffff_fff3;
/// `struct tcmsg`.
const HEADER_BYTES: usize = 20;
/// ETH_P_ALL in network order: packets of every protocol.
const EVERY_PROTOCOL: u16 = 3_u16.to_be();

/// A filter at an interface's ingress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The order of evaluation: low numbers run first. 1 to 65535; tc calls it `pref`.
    pub priority: u16,
    /// Its number among the filters of one priority.
    pub handle: u32,
    /// The kind of classifier, such as `bpf` or `flower`.
    pub kind: String,
    /// Of a BPF filter: the name that its owner gave it.
    pub name: Option<String>,
}

impl Netlink {
    /// Gives an interface the clsact queueing discipline, in which packets do not wait: it only holds filters. Returns
    /// whether it is new; `false` if the interface has it, or the older `ingress`.
    ///
    /// # Errors
    /// ENOENT if the kernel lacks the module `sch_ingress`, `PermissionDenied` without CAP_NET_ADMIN.
    pub fn add_clsact(&mut self, interface: u32) -> io::Result<bool> {
        let fixed = tcmsg(interface, HANDLE, CLSACT, 0);
        let request = Request::new(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, &fixed)
            .attribute(TCA_KIND, b"clsact\0");
        match self.transact(request) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes the clsact queueing discipline from an interface, unless it holds filters. Returns whether it was
    /// removed.
    ///
    /// # Errors
    /// ENOENT or EINVAL if the interface has none, `PermissionDenied` without CAP_NET_ADMIN.
    pub fn delete_unused_clsact(&mut self, interface: u32) -> io::Result<bool> {
        if !self.filters(interface, INGRESS)?.is_empty()
            || !self.filters(interface, EGRESS)?.is_empty()
        {
            return Ok(false);
        }
        let fixed = tcmsg(interface, HANDLE, CLSACT, 0);
        let request = Request::new(RTM_DELQDISC, 0, &fixed).attribute(TCA_KIND, b"clsact\0");
        self.transact(request).map(|()| true)
    }

    /// Adds a filter that is a BPF program, whose verdict is the filter's (`direct-action`). `name` has at most 255
    /// bytes.
    ///
    /// # Errors
    /// ENOENT if the kernel lacks the module `cls_bpf`. EINVAL if the interface has no clsact, or if the priority
    /// belongs to another kind of filter. `AlreadyExists` for a taken handle. `PermissionDenied` without CAP_NET_ADMIN.
    pub fn add_bpf_filter(
        &mut self,
        interface: u32,
        priority: u16,
        handle: u32,
        name: &str,
        program: BorrowedFd<'_>,
    ) -> io::Result<()> {
        const DIRECT_ACTION: u32 = 1;
        let fixed = tcmsg(interface, handle, INGRESS, priority);
        let name = [name.as_bytes(), &[0]].concat();
        let request = Request::new(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL, &fixed)
            .attribute(TCA_KIND, b"bpf\0")
            .nested(TCA_OPTIONS, |options| {
                options
                    .attribute(TCA_BPF_FD, &program.as_raw_fd().to_ne_bytes())
                    .attribute(TCA_BPF_NAME, &name)
                    .attribute(TCA_BPF_FLAGS, &DIRECT_ACTION.to_ne_bytes());
            });
        self.transact(request)
    }

    /// Deletes one filter of ingress.
    ///
    /// # Errors
    /// ENOENT or EINVAL if it is not there (any more), `PermissionDenied` without CAP_NET_ADMIN.
    pub fn delete_bpf_filter(
        &mut self,
        interface: u32,
        priority: u16,
        handle: u32,
    ) -> io::Result<()> {
        let fixed = tcmsg(interface, handle, INGRESS, priority);
        let request = Request::new(RTM_DELTFILTER, 0, &fixed).attribute(TCA_KIND, b"bpf\0");
        self.transact(request)
    }

    /// The filters at an interface's ingress, in the order of evaluation. None if it has no clsact.
    ///
    /// # Errors
    /// What the kernel says; it needs no privileges.
    pub fn ingress_filters(&mut self, interface: u32) -> io::Result<Vec<Filter>> {
        self.filters(interface, INGRESS)
    }

    fn filters(&mut self, interface: u32, parent: u32) -> io::Result<Vec<Filter>> {
        let mut filters = Vec::new();
        let fixed = tcmsg(interface, 0, parent, 0);
        let request = Request::new(RTM_GETTFILTER, NLM_F_DUMP, &fixed);
        self.ask(request, |message| filters.extend(filter(message)))?;
        Ok(filters)
    }
}

/// `struct tcmsg`. With a priority: about packets of every protocol.
fn tcmsg(interface: u32, handle: u32, parent: u32, priority: u16) -> Vec<u8> {
    let info = match priority {
        0 => 0,
        priority => u32::from(priority) << 16 | u32::from(EVERY_PROTOCOL),
    };
    [0, interface, handle, parent, info]
        .map(u32::to_ne_bytes)
        .concat()
}

/// The filter that a message is about. The kernel also lists one without a handle per priority.
fn filter(message: &Message<'_>) -> Option<Filter> {
    if message.kind != RTM_NEWTFILTER {
        return None;
    }
    let mut filter = Filter {
        // The upper half of a word.
        priority: (u32_at(message.body, 16)? >> 16) as u16,
        handle: u32_at(message.body, 8)?,
        kind: String::new(),
        name: None,
    };
    for (kind, value) in attributes(message.body, HEADER_BYTES) {
        match kind {
            TCA_KIND => filter.kind = text(value),
            TCA_OPTIONS => {
                let mut options = attributes(value, 0);
                let name = options.find(|(kind, _)| *kind == TCA_BPF_NAME);
                filter.name = name.map(|(_, value)| text(value));
            }
            _ => {}
        }
    }
    Some(filter)
}
