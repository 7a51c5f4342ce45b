//! Messages with descriptors between two processes, over a Unix stream socket.
//!
//! ```text
//!  0      1      2      4        8
//!  | kind | 0    | fds  | length | body ............... | one byte per 128 descriptors
//! ```
//! `fds` is the number of descriptors, `length` that of the body in bytes; both are little endian. Descriptors travel
//! with the bytes behind the body, because one system call takes at most 253.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use crate::sys::passing::{self, MAX_BATCH};

/// Most bytes of a body.
pub const MAX_BODY: usize = 1 << 20;
/// Most descriptors of a message.
pub const MAX_FDS: usize = 8192;

/// A message.
#[derive(Debug, Default)]
pub struct Message {
    /// What kind of message it is: the two processes agree on the meaning.
    pub kind: u8,
    /// Its bytes.
    pub body: Vec<u8>,
    /// Its descriptors, with close-on-exec.
    pub fds: Vec<OwnedFd>,
}

/// Sends a message. Blocks if the socket does.
///
/// # Errors
/// `InvalidInput` for more than [`MAX_BODY`] bytes or [`MAX_FDS`] descriptors; otherwise what `write` or `sendmsg`
/// returns.
pub fn send(stream: &UnixStream, kind: u8, body: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if body.len() > MAX_BODY || fds.len() > MAX_FDS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut bytes = Vec::with_capacity(8 + body.len());
    bytes.extend_from_slice(&[kind, 0]);
    bytes.extend_from_slice(&(fds.len() as u16).to_le_bytes());
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(body);
    let mut writer = stream;
    writer.write_all(&bytes)?;
    for part in fds.chunks(MAX_BATCH) {
        while let Err(error) = passing::send(stream.as_fd(), &[0], part) {
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Receives a message. Blocks if the socket does.
///
/// # Errors
/// `UnexpectedEof` at the end of the stream. `InvalidData` for more than [`MAX_BODY`] bytes or [`MAX_FDS`] descriptors.
/// Otherwise what `read` or `recvmsg` returns.
pub fn receive(stream: &UnixStream) -> io::Result<Message> {
    let mut head = [0; 8];
    let mut reader = stream;
    reader.read_exact(&mut head)?;
    let [kind, _, low, high, length @ ..] = head;
    let count = usize::from(u16::from_le_bytes([low, high]));
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_BODY || count > MAX_FDS {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let mut fds = Vec::with_capacity(count);
    while fds.len() < count {
        match passing::receive(stream.as_fd(), &mut [0], &mut fds) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Message { kind, body, fds })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn bytes_and_descriptors_arrive_as_they_were_sent() {
        let (one, other) = UnixStream::pair().expect("a pair");
        let ends: Vec<_> = (0..300)
            .map(|_| UnixStream::pair().expect("a pair"))
            .collect();
        let fds: Vec<_> = ends.iter().map(|(end, _)| end.as_fd()).collect();
        let body = vec![7; 100_000];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                send(&one, 1, b"before", &[]).expect("sent");
                send(&one, 2, &body, &fds).expect("sent");
                send(&one, 3, b"", &fds[..1]).expect("sent");
            });
            let first = receive(&other).expect("a message");
            assert_eq!(
                (first.kind, &*first.body, first.fds.len()),
                (1, &b"before"[..], 0)
            );
            let second = receive(&other).expect("a message");
            assert_eq!(
                (second.kind, second.body.len(), second.fds.len()),
                (2, 100_000, 300)
            );
            assert_eq!(receive(&other).expect("a message").fds.len(), 1);
            // Each is the descriptor that was sent in its place.
            for (fd, (_, peer)) in second.fds.into_iter().zip(&ends) {
                let mut sender = UnixStream::from(fd);
                sender.write_all(b"x").expect("written");
                let mut byte = [0];
                let mut peer = peer;
                peer.read_exact(&mut byte).expect("read");
            }
        });
        drop(one);
        let end = receive(&other).expect_err("the end");
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_message_that_is_too_long_is_refused() {
        let (one, other) = UnixStream::pair().expect("a pair");
        assert!(send(&one, 1, &vec![0; MAX_BODY + 1], &[]).is_err());
        (&one)
            .write_all(&[1, 0, 0, 0, 255, 255, 255, 255])
            .expect("written");
        let refused = receive(&other).expect_err("too long");
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    }
}
