//! The socket that NOTIFY_SOCKET names.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// A socket of our own, and where messages go.
#[derive(Debug)]
pub(super) struct NotifySocket {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl NotifySocket {
    /// `/a/path`, or `@name` in the abstract namespace.
    ///
    /// # Errors
    /// If it is neither, or no descriptor is left.
    pub(super) fn open(name: &OsStr) -> io::Result<Self> {
        let address = match name.as_bytes() {
            [b'/', ..] => SocketAddr::from_pathname(name)?,
            [b'@', abstract_name @ ..] => SocketAddr::from_abstract_name(abstract_name)?,
            _ => {
                return Err(io::Error::other(
                    "it is neither a path nor an abstract name",
                ));
            }
        };
        let socket = UnixDatagram::unbound()?;
        // systemd reads at once; if it does not, the server must not wait.
        socket.set_nonblocking(true)?;
        Ok(Self { socket, address })
    }

    pub(super) fn send(&self, message: &[u8]) -> io::Result<()> {
        self.socket.send_to_addr(message, &self.address).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abstract_names_and_paths_are_reached_and_others_refused() {
        let name = format!("hairpin-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        let socket = NotifySocket::open(format!("@{name}").as_ref()).unwrap();
        socket.send(b"READY=1").unwrap();
        let mut text = [0; 16];
        assert_eq!(manager.recv(&mut text).unwrap(), 7);
        assert_eq!(&text[..7], b"READY=1");
        for wrong in ["", "notify", "vsock:2:1234"] {
            assert!(NotifySocket::open(wrong.as_ref()).is_err(), "{wrong}");
        }
        let nobody = NotifySocket::open("/nonexistent/notify".as_ref()).unwrap();
        assert!(nobody.send(b"READY=1").is_err());
    }
}
