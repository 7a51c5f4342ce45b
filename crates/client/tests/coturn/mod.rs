//! coturn's server on loopback, over UDP, TCP, TLS and DTLS.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

pub(crate) const USER: &str = "alice";
/// The longest time that a start may take on a busy machine.
const START: Duration = Duration::from_secs(20);
/// A program that runs beside the test may take a port after [`free_port`] has found it free.
const ATTEMPTS: usize = 3;

pub(crate) const PASSWORD: &str = "correct horse";

/// coturn's server; ends with the test.
pub(crate) struct Coturn {
    child: Child,
    /// UDP and TCP.
    #[allow(dead_code, reason = "not every suite speaks UDP or TCP")]
    pub(crate) address: SocketAddr,
    /// TLS and DTLS, if there is a certificate.
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

    /// Waits until it accepts TCP connections on this address; `false` if it does not.
    fn listens_on(&mut self, listener: SocketAddr) -> bool {
        let began = Instant::now();
        while TcpStream::connect(listener).is_err() {
            let is_running = matches!(self.child.try_wait(), Ok(None));
            if !is_running || began.elapsed() > START {
                eprintln!("coturn does not listen on {listener}");
                return false;
            }
            std::thread::sleep(Duration::from_millis(25));
        }
        true
    }

    pub(crate) fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ports below those that the kernel gives to clients and to port 0: no other test's socket gets them by chance.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// The number of ports that [`free_port`] has tried in this process.
static TRIED: AtomicU16 = AtomicU16::new(0);

/// A port of loopback that is free for UDP and TCP. Processes of tests that run side by side begin at different ports.
fn free_port() -> SocketAddr {
    let count = u32::from(PORTS.end - PORTS.start);
    let first = std::process::id().wrapping_mul(97);
    for _ in 0..1000 {
        let tried = u32::from(TRIED.fetch_add(1, Ordering::Relaxed));
        let offset = u16::try_from(first.wrapping_add(tried) % count).expect("below 65,536");
        let address = SocketAddr::from(([127, 0, 0, 1], PORTS.start + offset));
        if UdpSocket::bind(address).is_ok() && TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no port is free");
}

/// Starts it with these further arguments, and waits until it listens; `None` if coturn is not installed.
pub(crate) fn start(more: &[String]) -> Option<Coturn> {
    let has_tls = !more.iter().any(|argument| argument == "--no-tls");
    for _ in 0..ATTEMPTS {
        let mut coturn = spawn(more)?;
        let (address, tls) = (coturn.address, coturn.tls);
        if coturn.listens_on(address) && (!has_tls || coturn.listens_on(tls)) {
            return Some(coturn);
        }
    }
    panic!("coturn did not start {ATTEMPTS} times: {more:?}");
}

/// The process, at ports that were free; `None` if coturn is not installed.
fn spawn(more: &[String]) -> Option<Coturn> {
    let (address, tls) = (free_port(), free_port());
    let fixed = [
        "-n",
        "--listening-ip=127.0.0.1",
        "--relay-ip=127.0.0.1",
        "--lt-cred-mech",
        "--realm=example.org",
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
