//! coturn's server on loopback, over UDP, TCP and TLS.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

pub(crate) const USER: &str = "alice";
pub(crate) const PASSWORD: &str = "correct horse";

/// coturn's server; ends with the test.
pub(crate) struct Coturn {
    child: Child,
    /// UDP and TCP.
    pub(crate) address: SocketAddr,
    /// TLS, if there is a certificate.
    #[allow(dead_code, reason = "not every suite speaks TLS")]
    pub(crate) tls: SocketAddr,
}

impl Drop for Coturn {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Coturn {
    #[allow(dead_code, reason = "not every suite watches it")]
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port of loopback that is free for UDP and TCP.
fn free_port() -> SocketAddr {
    for _ in 0..100 {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let address = socket.local_addr().expect("an address");
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no port is free");
}

/// Starts it with these further arguments; `None` if coturn is not installed.
pub(crate) fn start(more: &[String]) -> Option<Coturn> {
    let (address, tls) = (free_port(), free_port());
    let fixed = [
        "-n",
        "--listening-ip=127.0.0.1",
        "--relay-ip=127.0.0.1",
        "--lt-cred-mech",
        "--realm=example.org",
        "--no-dtls",
        "--no-cli",
        "--allow-loopback-peers",
        "--log-file=stdout",
        "--pidfile=/dev/null",
    ];
    let database = format!(
        "--userdb={}/coturn-{}.sqlite",
        env!("CARGO_TARGET_TMPDIR"),
        address.port()
    );
    let mut command = Command::new("turnserver");
    command.args(fixed).args([
        format!("--user={USER}:{PASSWORD}"),
        format!("--listening-port={}", address.port()),
        format!("--tls-listening-port={}", tls.port()),
        database,
    ]);
    let child = command
        .args(more)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    Some(Coturn {
        child,
        address,
        tls,
    })
}

/// Notes for the test command that a test could not run.
pub(crate) fn skipped(suite: &str, reason: &str) {
    eprintln!("skipped: {reason}");
    let list = std::env::var_os("HAIRPIN_TESTS_SKIPPED");
    let file = list.map(|list: std::ffi::OsString| {
        let mut options = std::fs::OpenOptions::new();
        options.append(true).create(true).open(PathBuf::from(list))
    });
    if let Some(Ok(mut file)) = file {
        // Then it has been said on stderr only.
        let _ = file.write_all(format!("{suite}: {reason}\n").as_bytes());
    }
}
