//! Whether packets of this namespace may have to be encrypted, or may have to arrive so (IPsec, xfrm).

use std::io;
use std::os::fd::OwnedFd;

use super::exchange;
use super::message::{NLM_F_DUMP, Request};
use crate::sys;

/// A connection to the kernel's IPsec policies, for the namespace that its thread was in when it was opened.
#[derive(Debug)]
pub struct Ipsec {
    socket: OwnedFd,
    sequence: u32,
}

impl Ipsec {
    /// Opens a connection.
    ///
    /// # Errors
    /// EPROTONOSUPPORT where the kernel has no IPsec.
    pub fn open() -> io::Result<Ipsec> {
        Ok(Ipsec {
            socket: sys::netlink::ipsec_socket()?,
            sequence: 0,
        })
    }

    /// Whether there is any policy.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_NET_ADMIN.
    pub fn has_policies(&mut self) -> io::Result<bool> {
        const XFRM_MSG_NEWPOLICY: u16 = 0x13;
        const XFRM_MSG_GETPOLICY: u16 = 0x15;
        /// `struct xfrm_userpolicy_id`.
        const HEADER_BYTES: usize = 64;
        let request = Request::new(XFRM_MSG_GETPOLICY, NLM_F_DUMP, &[0; HEADER_BYTES]);
        let mut any = false;
        self.ask(request, |kind| any |= kind == XFRM_MSG_NEWPOLICY)?;
        Ok(any)
    }

    fn ask(&mut self, request: Request, mut each: impl FnMut(u16)) -> io::Result<()> {
        self.sequence += 1;
        exchange(&self.socket, request, self.sequence, |message| {
            each(message.kind);
        })
    }
}

#[cfg(test)]
mod tests_needs_root {
    use super::*;
    use crate::NetNs;

    /// `struct xfrm_userpolicy_info`: packets to 198.51.100.0/24 are blocked.
    fn block() -> Request {
        const XFRM_MSG_NEWPOLICY: u16 = 0x13;
        const POLICY_OUT: u8 = 1;
        const POLICY_BLOCK: u8 = 1;
        let mut fixed = [0; 168];
        fixed[..4].copy_from_slice(&[198, 51, 100, 0]);
        // Behind two addresses, two ports and their masks.
        fixed[40..42].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        fixed[42] = 24;
        // No limits of its life.
        fixed[56..88].fill(0xff);
        (fixed[160], fixed[161]) = (POLICY_OUT, POLICY_BLOCK);
        Request::new(XFRM_MSG_NEWPOLICY, 0, &fixed)
    }

    #[test]
    fn a_policy_is_noticed() {
        let test = || {
            NetNs::unshare().unwrap_or_else(|error| panic!("this test needs root: {error}"));
            let Ok(mut ipsec) = Ipsec::open() else {
                // Not every kernel has it.
                return;
            };
            assert!(!ipsec.has_policies().unwrap());
            ipsec.ask(block(), |_| ()).unwrap();
            assert!(ipsec.has_policies().unwrap());
        };
        std::thread::spawn(test).join().unwrap();
    }
}
