//! `sendmsg` and `recvmsg` on Unix stream sockets, with descriptors (SCM_RIGHTS).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, cmsghdr, iovec, msghdr};

use super::check_len;

/// Most descriptors of one message; the kernel allows 253.
pub(crate) const MAX_BATCH: usize = 128;

/// Room for the record with `MAX_BATCH` descriptors, aligned like its header.
#[repr(C, align(8))]
struct Control([u8; CONTROL]);
const HEADER: usize = size_of::<cmsghdr>();
const CONTROL: usize = (HEADER + 4 * MAX_BATCH).next_multiple_of(8);

/// A message of one buffer and a record.
fn message(buffer: &mut iovec, control: &mut Control, length: usize) -> msghdr {
    // SAFETY: all fields are integers and pointers, for which zero is a value.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = buffer;
    message.msg_iovlen = 1;
    if length > 0 {
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = length;
    }
    message
}

/// Sends bytes with at most [`MAX_BATCH`] descriptors, which travel with the first byte. Returns how many bytes were sent.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut control = Control([0; CONTROL]);
    let length = HEADER + 4 * fds.len().min(MAX_BATCH);
    control.0[..8].copy_from_slice(&length.to_ne_bytes());
    control.0[8..12].copy_from_slice(&libc::SOL_SOCKET.to_ne_bytes());
    control.0[12..16].copy_from_slice(&libc::SCM_RIGHTS.to_ne_bytes());
    for (place, fd) in control.0[HEADER..].chunks_exact_mut(4).zip(fds) {
        place.copy_from_slice(&fd.as_raw_fd().to_ne_bytes());
    }
    let used = if fds.is_empty() { 0 } else { length };
    let mut buffer = iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let message = message(&mut buffer, &mut control, used);
    // SAFETY: the kernel reads `bytes` and the record, both of which outlive the call and have the lengths given.
    check_len(unsafe { libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL) })
}

/// Receives bytes, and appends the descriptors that came with them, with close-on-exec. 0 is the end.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut control = Control([0; CONTROL]);
    let mut buffer = iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let mut message = message(&mut buffer, &mut control, CONTROL);
    // SAFETY: the kernel writes at most the lengths given into `bytes` and the record, both of which outlive the call.
    let received = check_len(unsafe {
        libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC)
    })?;
    let mut length = [0; 8];
    length.copy_from_slice(&control.0[..8]);
    // `msg_controllen` counts padding, too.
    let length = usize::from_ne_bytes(length).min(CONTROL);
    let record = &control.0[..length];
    let is_rights = message.msg_controllen >= HEADER
        && length >= HEADER
        && word(&record[8..]) == libc::SOL_SOCKET
        && word(&record[12..]) == libc::SCM_RIGHTS;
    if is_rights {
        for number in record[HEADER..].chunks_exact(4).map(word) {
            // SAFETY: the kernel has just made this descriptor for us and nobody else knows it.
            fds.push(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(io::Error::other("descriptors were lost: too many are open"));
    }
    Ok(received)
}

fn word(bytes: &[u8]) -> c_int {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[..4]);
    c_int::from_ne_bytes(word)
}

const _: () = assert!(HEADER == 16, "the record is written for 64-bit systems");
