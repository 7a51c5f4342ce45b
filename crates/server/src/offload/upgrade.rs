//! The control thread during an upgrade: two processes relay by XDP at one interface (`bpf::relay::Relay::set_behind`).

use super::attach::Attachment;
use super::choice::OffloadMethod;
use super::thread::Thread;
use crate::handover::XdpPrograms;
use std::os::fd::AsFd;
use std::sync::mpsc::Sender;

/// What an upgrade requires of the thread.
#[derive(Debug)]
pub(super) enum UpgradeStep {
    /// Another process wants to put its program in front.
    Offer(Sender<Option<XdpPrograms>>),
    /// The process whose program is in front has ended.
    Resume,
    /// The process whose program is behind has ended.
    ForgetOther,
}

impl Thread {
    pub(super) fn upgrade(&mut self) {
        for step in self.settings.take_upgrade() {
            match step {
                UpgradeStep::Offer(reply) => {
                    // The receiver was dropped if it has timed out.
                    let _ = reply.send(self.offer());
                }
                UpgradeStep::Resume => self.replace_all(),
                UpgradeStep::ForgetOther => {
                    if let Err(error) = self.relay.set_behind(None) {
                        tracing::warn!(%error, "cannot remove the XDP program of the old process from memory");
                    }
                }
            }
        }
    }

    /// Copies of the program and its links.
    fn offer(&self) -> Option<XdpPrograms> {
        let links: Vec<_> = self
            .at(OffloadMethod::Xdp)
            .filter_map(|attachment| match &attachment.attached {
                Some(Attachment::Link(link)) => Some((
                    attachment.about.index,
                    link.as_fd().try_clone_to_owned().ok()?,
                )),
                _ => None,
            })
            .collect();
        // There are at most 64 interfaces.
        (!links.is_empty()).then_some(XdpPrograms {
            program: self.relay.xdp_program().ok()?,
            links,
        })
    }

    fn replace_all(&mut self) {
        let relay = &mut self.relay;
        for attachment in &self.attachments {
            if let (OffloadMethod::Xdp, Some(Attachment::Link(link))) =
                (attachment.about.method, &attachment.attached)
                && let Err(error) = relay.replace_program(link)
            {
                tracing::warn!(interface = attachment.about.name, %error, "cannot attach to this interface: user space relays until a restart");
            }
        }
    }
}
