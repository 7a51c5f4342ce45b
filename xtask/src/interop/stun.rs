//! A Binding request by hand: enough to know that a server answers, and independent of our own codec.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// RFC 8489 §5: a Binding request without attributes, with the magic cookie and a fixed transaction.
pub(crate) const BINDING_REQUEST: [u8; 20] = *b"\x00\x01\x00\x00\x21\x12\xa4\x42hairpin-live";

/// Waits until `server` answers a Binding request with a success.
pub(crate) fn wait_until_answered(server: SocketAddr, limit: Duration) -> Result<()> {
    let any: SocketAddr = if server.is_ipv4() {
        ([0; 4], 0).into()
    } else {
        ([0; 16], 0).into()
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    let deadline = Instant::now() + limit;
    let mut answer = [0_u8; 1500];
    while Instant::now() < deadline {
        // An error here is an ICMP "port unreachable": the server has not bound its port yet.
        let received = socket
            .send(&BINDING_REQUEST)
            .and_then(|_| socket.recv(&mut answer));
        match received {
            Ok(length) if is_success(&answer[..length]) => return Ok(()),
            Ok(length) => bail!(
                "{server} answers a Binding request with {:02x?}",
                &answer[..length.min(20)]
            ),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    bail!("{server} did not answer a Binding request within {limit:?}")
}

/// RFC 8489 §5: class success, method Binding; the transaction is that of [`BINDING_REQUEST`].
fn is_success(message: &[u8]) -> bool {
    message.len() >= 20 && message[..2] == [0x01, 0x01] && message[8..20] == BINDING_REQUEST[8..]
}

/// Whether the success response is somewhere in these bytes.
pub(crate) fn is_success_in(bytes: &[u8]) -> bool {
    bytes.windows(BINDING_REQUEST.len()).any(is_success)
}
