//! Pipes that bytes of one connection pass through on their way to another, without being copied (`splice`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libc::c_int;

use crate::TcpConnection;
use crate::sys;

/// A pipe between two connections.
#[derive(Debug)]
pub struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    /// Bytes inside.
    held: usize,
}

impl Pipe {
    /// An empty pipe with room for `bytes`, if the system allows it. All pipes of a user share a limit
    /// (`fs.pipe-user-pages-soft`). Above this limit a pipe has room for one or two pages.
    ///
    /// # Errors
    /// What `pipe2` returns: EMFILE and ENFILE when descriptors ran out.
    pub fn new(bytes: usize) -> io::Result<Pipe> {
        let (reader, writer) = sys::pipe::pipe2()?;
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        // A smaller pipe works, too.
        let _ = sys::splice::set_pipe_size(writer.as_fd(), bytes);
        Ok(Pipe {
            reader,
            writer,
            held: 0,
        })
    }

    /// How many bytes are inside.
    #[must_use]
    pub const fn held(&self) -> usize {
        self.held
    }

    /// Moves at most `most` received bytes of a connection into the pipe. 0 is the end: the other side will send
    /// nothing more.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there, or the pipe is full; otherwise what `splice` returns.
    pub fn fill(&mut self, from: &TcpConnection, most: usize) -> io::Result<usize> {
        let bytes = sys::splice::splice(from.as_fd(), self.writer.as_fd(), most)?;
        self.held += bytes;
        Ok(bytes)
    }

    /// Moves what is in the pipe to a connection, as much as there is room for. Returns how many bytes went.
    ///
    /// # Errors
    /// `WouldBlock` when there is no room; otherwise what `splice` returns. A broken connection raises no signal in a
    /// program that leaves SIGPIPE as Rust sets it: ignored.
    pub fn drain(&mut self, to: &TcpConnection) -> io::Result<usize> {
        let bytes = sys::splice::splice(self.reader.as_fd(), to.as_fd(), self.held)?;
        self.held -= bytes.min(self.held);
        Ok(bytes)
    }
}

/// The writing end, which has the higher number.
impl AsFd for Pipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.writer.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::time::Duration;

    use super::*;
    use crate::{Events, Interest, Poller, TcpListener, TcpOptions};

    fn wait_for(source: &impl AsFd, interest: Interest) {
        let poller = Poller::new().unwrap();
        poller.add(source, 0, interest).unwrap();
        let mut events = Events::with_capacity(1);
        let limit = Some(Duration::from_secs(10));
        assert_eq!(poller.wait(&mut events, limit).unwrap(), 1);
    }

    fn pair() -> (TcpConnection, TcpConnection) {
        let local = "127.0.0.1:0".parse().unwrap();
        let listener = TcpListener::bind(local, &TcpOptions::default()).unwrap();
        let near = TcpConnection::connect(listener.local_addr(), None).unwrap();
        wait_for(&listener, Interest::Read);
        let (far, _) = listener.accept().unwrap();
        wait_for(&near, Interest::Write);
        (near, far)
    }

    #[test]
    fn bytes_pass_from_one_connection_to_another_and_so_does_the_end() {
        let ((source, near), (far, sink)) = (pair(), pair());
        let mut pipe = Pipe::new(256 << 10).unwrap();
        let empty = pipe.fill(&near, 1 << 20).unwrap_err();
        assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
        source.write(&[IoSlice::new(b"some bytes")]).unwrap();
        wait_for(&near, Interest::Read);
        assert_eq!(pipe.fill(&near, 4).unwrap(), 4);
        assert_eq!(pipe.fill(&near, 1 << 20).unwrap(), 6);
        assert_eq!(pipe.held(), 10);
        assert_eq!(pipe.drain(&far).unwrap(), 10);
        assert_eq!(pipe.held(), 0);
        wait_for(&sink, Interest::Read);
        let mut bytes = [0; 32];
        assert_eq!(sink.read(&mut bytes).unwrap(), 10);
        assert_eq!(&bytes[..10], b"some bytes");
        source.finish().unwrap();
        wait_for(&near, Interest::Read);
        assert_eq!(pipe.fill(&near, 1 << 20).unwrap(), 0);
    }

    #[test]
    fn a_connection_without_room_leaves_bytes_in_the_pipe() {
        let ((source, near), (far, _sink)) = (pair(), pair());
        let mut pipe = Pipe::new(64 << 10).unwrap();
        let chunk = vec![7; 64 << 10];
        let full = loop {
            let _ = source.write(&[IoSlice::new(&chunk)]);
            if pipe.held() == 0 {
                let _ = pipe.fill(&near, 1 << 20);
            }
            match pipe.drain(&far) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        assert!(pipe.held() > 0);
    }
}
