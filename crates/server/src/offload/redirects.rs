//! What XDP leaves to user space between two interfaces.
//!
//! XDP sends a frame back by the interface that it came by (`XDP_TX`) with every driver. To redirect it to another
//! interface, the driver there needs `ndo_xdp_xmit`. Before Linux 6.3 nothing reports whether a driver has it, and a
//! frame that it refuses is lost. So user space relays there.

use super::attach::InterfaceAttachment;
use super::choice::{Obstacle, OffloadMethod};
use super::status::InterfaceOffload;
use io::netlink::Drivers;

/// Writes into each interface with XDP whether frames of the others can be redirected to it. Logs what is new.
pub(super) fn note_redirects(
    attachments: &mut [InterfaceAttachment],
    drivers: &mut Option<Drivers>,
) {
    let takes_frames = |index: u32| {
        let drivers = drivers.as_mut()?;
        // A deleted interface accepts none.
        Some(drivers.xdp(index).is_ok_and(|features| features.target))
    };
    let all = attachments.iter_mut().map(|one| &mut one.about);
    note(all.collect(), takes_frames);
}

/// `takes_frames`: of the interface with this index; `None` if the kernel does not report it.
fn note(
    mut interfaces: Vec<&mut InterfaceOffload>,
    mut takes_frames: impl FnMut(u32) -> Option<bool>,
) {
    interfaces.retain(|interface| interface.method == OffloadMethod::Xdp);
    let several = interfaces.len() > 1;
    for interface in interfaces {
        let obstacle = match several.then(|| takes_frames(interface.index)) {
            None | Some(Some(true)) => None,
            Some(Some(false)) => Some(Obstacle::NoXdpTransmit),
            Some(None) => Some(Obstacle::DriversDoNotTell),
        };
        if let Some(reason) = &obstacle
            && interface.not_redirected != obstacle
        {
            tracing::warn!(interface = interface.name, %reason, "user space relays from other interfaces to this one");
        }
        interface.not_redirected = obstacle;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(index: u32, method: OffloadMethod) -> InterfaceOffload {
        InterfaceOffload {
            name: format!("eth{index}"),
            index,
            method,
            clsact: false,
            not_xdp: None,
            not_tc: None,
            not_redirected: None,
        }
    }

    /// What is said of eth0 and eth1, if drivers say so of them.
    fn said(
        method: [OffloadMethod; 2],
        takes_frames: impl Fn(u32) -> Option<bool>,
    ) -> [Option<Obstacle>; 2] {
        let [mut first, mut second] = [interface(0, method[0]), interface(1, method[1])];
        note(vec![&mut first, &mut second], takes_frames);
        [first.not_redirected, second.not_redirected]
    }

    #[test]
    fn two_interfaces_with_xdp_say_what_user_space_relays_between_them() {
        let both = [OffloadMethod::Xdp; 2];
        assert_eq!(said(both, |_| Some(true)), [None, None]);
        let unable = Some(Obstacle::NoXdpTransmit);
        assert_eq!(said(both, |index| Some(index == 0)), [None, unable]);
        let unknown = Some(Obstacle::DriversDoNotTell);
        assert_eq!(said(both, |_| None), [unknown.clone(), unknown]);
    }

    #[test]
    fn a_single_interface_with_xdp_sends_back_with_every_driver() {
        assert_eq!(
            said([OffloadMethod::Xdp, OffloadMethod::Tc], |_| None),
            [None, None]
        );
    }

    #[test]
    fn the_status_names_the_reason_beside_xdp() {
        let mut interface = interface(2, OffloadMethod::Xdp);
        assert_eq!(interface.reason_name(), "none");
        interface.not_redirected = Some(Obstacle::DriversDoNotTell);
        assert_eq!(interface.reason_name(), "drivers_do_not_tell");
        let line = interface.to_string();
        assert!(
            line.contains("by XDP") && line.contains("Linux 6.3"),
            "{line}"
        );
    }
}
