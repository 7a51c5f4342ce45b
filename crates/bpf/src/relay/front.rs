//! One XDP program in front of another one, during an upgrade: both processes relay, each by its own tables.
//!
//! ```text
//!  frame ─▶ program of the new process ─┬─ an entry: relayed
//!                                       └─ none: tail call ─▶ program of the old process, as before
//! ```
//! Both processes have descriptors of one link. Whoever has the program in front replaces the link's program. So no
//! frame passes without a program, and the link ends when both processes have ended.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use aya::programs::Xdp;

use super::{Attached, Relay, element};
use crate::BpfError;
use crate::frame::Mac;
use crate::sys::{self, AttachType, RawMap};

/// The program that is behind is the only one of its array.
const BEHIND: [u8; 4] = [0; 4];

impl Relay {
    /// Another descriptor of the XDP program.
    ///
    /// # Errors
    /// When it is not loaded, or no descriptor is left.
    pub fn xdp_program(&self) -> Result<OwnedFd, BpfError> {
        self.object.own_program("relay_xdp")
    }

    /// Makes this program call another process's XDP program for packets that it does not relay; `None` calls none.
    /// This program must have been loaded by [`Relay::load_in_front`].
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_behind(&self, program: Option<BorrowedFd<'_>>) -> Result<(), BpfError> {
        // SAFETY: `relay_maps.h` has an array of programs, whose keys and values have 4 bytes.
        let map = unsafe { RawMap::<4, 4>::new(self.object.own_map("BEHIND")?, 1) };
        let Some(program) = program else {
            // An error says that there is no entry.
            let _ = map.remove(&BEHIND);
            return Ok(());
        };
        map.set(&BEHIND, &program.as_raw_fd().to_ne_bytes())
            .map_err(|source| element("BEHIND", source))
    }

    /// As [`Relay::attach_xdp`], but replaces the program that another process has attached by this link.
    ///
    /// # Errors
    /// As [`Relay::attach_xdp`].
    pub fn replace_xdp(
        &mut self,
        interface: u32,
        address: Mac,
        link: OwnedFd,
    ) -> Result<Attached, BpfError> {
        self.load_xdp()?;
        self.set_interface(interface, interface, address)?;
        let attached = Attached { link, interface };
        let replaced = self.replace_program(&attached);
        if replaced.is_err() {
            // The first error is returned.
            let _ = self.forget_interface(interface);
        }
        replaced.map(|()| attached)
    }

    /// Makes an XDP link attach this program instead of its current one.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn replace_program(&mut self, attached: &Attached) -> Result<(), BpfError> {
        let program = self.object.program::<Xdp>("relay_xdp")?.fd()?.as_fd();
        sys::update_link(attached.link.as_fd(), program)
            .map_err(|source| BpfError::attach(attached.interface, AttachType::Xdp, source))
    }
}
