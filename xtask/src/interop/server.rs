//! The server under test: started on free ports of the loopback addresses, with known credentials, its output in a log.
//!
//! hairpin logs one line for each allocation that opens and one for each that closes. [`Server::wait_until_closed`]
//! counts these lines, and the descriptors that the process has open. So it knows when all allocations are closed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::ops::RangeInclusive;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use clap::ValueEnum;
use hmac::{Hmac, KeyInit as _, Mac as _};

use super::certificate::Certificate;
use super::stun;
use crate::process::{self, Ended, Process};

/// The program of a server.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// The server that the suite tests.
    #[default]
    Hairpin,
    /// coturn's turnserver. It shows that the drivers themselves are right.
    Coturn,
}

/// A name and its password.
pub(crate) struct Credentials {
    pub(crate) user: String,
    pub(crate) password: String,
}

/// A running server, and its address and credentials.
pub(crate) struct Server {
    kind: Kind,
    process: Process,
    /// How many descriptors it had open before the first client.
    idle_descriptors: usize,
    pub(crate) port: u16,
    /// The shared secret of the time-limited credentials: see [`Server::rest_credentials`].
    pub(crate) secret: &'static str,
}

const SECRET: &str = "a secret of the interop tests only";
const USER: &str = "alice";
const PASSWORD: &str = "wonderland";
const REALM: &str = "hairpin.example";
/// The keys that are built into uclient (`-J`): the bytes of each that its algorithm uses.
const TOKEN_KEYS: [&str; 3] = [
    "north:MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
    "union:MTIzNDU2Nzg5MDEyMzQ1Ng==:A128GCM",
    "oldempire:MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTI=",
];
/// The realm that uclient's option `-o` with [`ORIGIN`] chooses.
pub(crate) const ORIGIN_REALM: &str = "origin.example";
pub(crate) const ORIGIN: &str = "https://origin.example";
const LOOPBACKS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];

/// The configuration of one server.
pub(crate) struct ServerSetup {
    pub(crate) name: String,
    /// The default lifetime of an allocation and the longest.
    pub(crate) lifetime: Duration,
    /// Ports to relay from. Above Linux's ephemeral ports, so that no listener, client or peer takes one of them.
    pub(crate) relay_ports: RangeInclusive<u16>,
    /// The value of `--offload`.
    pub(crate) offload: Option<&'static str>,
    pub(crate) certificate: Rc<Certificate>,
}

impl Server {
    /// Starts the server and waits until it answers on both families.
    pub(crate) fn start(
        kind: Kind,
        binary: &Path,
        logs: &Path,
        setup: &ServerSetup,
    ) -> Result<Server> {
        let port = free_ports(1)?;
        let log = logs.join(format!("{}.log", setup.name));
        let mut command = process::command(binary);
        match kind {
            Kind::Hairpin => command
                .args(hairpin_arguments(port, setup))
                .arg(realms_argument(logs, &setup.name)?),
            Kind::Coturn => command
                .args(coturn_arguments(port, setup))
                .arg(format!("--pidfile={}.pid", log.display())),
        };
        let process = Process::start("the server", command, log)?;
        let mut server = Server {
            kind,
            process,
            idle_descriptors: 0,
            port,
            secret: SECRET,
        };
        server.assert_alive(Duration::from_secs(10))?;
        server.wait_for_banner(Duration::from_secs(10))?;
        server.idle_descriptors = server.process.descriptors()?;
        Ok(server)
    }

    pub(crate) fn address(&self, family: IpAddr) -> SocketAddr {
        SocketAddr::new(family, self.port)
    }

    /// Credentials that do not expire. coturn accepts one kind of credentials only, and runs with a shared secret here.
    /// So its credentials are time-limited.
    pub(crate) fn static_credentials(&self) -> Result<Credentials> {
        match self.kind {
            Kind::Hairpin => Ok(Credentials {
                user: USER.to_owned(),
                password: PASSWORD.to_owned(),
            }),
            Kind::Coturn => self.rest_credentials(),
        }
    }

    /// A time-limited name and its password, valid for an hour, as a web application makes them from the shared secret.
    pub(crate) fn rest_credentials(&self) -> Result<Credentials> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .context("the clock is before 1970")?
            .as_secs();
        let user = format!("{}:{USER}", now + 3600);
        let mut mac = Hmac::<sha1::Sha1>::new_from_slice(self.secret.as_bytes())?;
        mac.update(user.as_bytes());
        let password =
            base64::engine::general_purpose::STANDARD.encode(mac.finalize().into_bytes());
        Ok(Credentials { user, password })
    }

    /// Fails unless the process runs and answers a Binding request on both families, each within `limit`.
    pub(crate) fn assert_alive(&mut self, limit: Duration) -> Result<()> {
        for family in LOOPBACKS {
            let answered = stun::wait_until_answered(self.address(family), limit);
            self.process.assert_running()?;
            answered.with_context(|| {
                format!("the server is deaf; its output: {}", self.process.tail())
            })?;
        }
        Ok(())
    }

    /// Waits until hairpin has printed its banner. Workers answer earlier, before the process has opened all of its
    /// descriptors.
    fn wait_for_banner(&mut self, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        while self.kind == Kind::Hairpin && !self.process.output().contains("Stop with Ctrl-C") {
            ensure!(Instant::now() < deadline, "the server prints no banner");
            sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Waits until every allocation is closed, and no more descriptors are open than before the first client. Returns
    /// the counts as text.
    pub(crate) fn wait_until_closed(&mut self, limit: Duration) -> Result<String> {
        // coturn frees a session seconds after it has said so, and keeps descriptors.
        ensure!(
            self.kind == Kind::Hairpin,
            "only hairpin says what it has open"
        );
        let deadline = Instant::now() + limit;
        loop {
            let output = self.process.output();
            let [opened, closed] =
                ["allocation opened", "allocation closed"].map(|text| output.matches(text).count());
            let (descriptors, idle) = (self.process.descriptors()?, self.idle_descriptors);
            // Fewer descriptors are right, too: a descriptor of the startup may have been open when they were counted.
            if opened > 0 && opened == closed && descriptors <= idle {
                return Ok(format!(
                    "{opened} allocations opened and closed, {descriptors} descriptors open, {idle} at start"
                ));
            }
            ensure!(
                Instant::now() < deadline,
                "after {limit:?}: {opened} allocations opened, {closed} closed; {descriptors} descriptors open, {idle} at start"
            );
            sleep(Duration::from_millis(100));
        }
    }

    /// What the server has printed until now.
    pub(crate) fn output(&self) -> String {
        self.process.output()
    }

    pub(crate) fn is_hairpin(&self) -> bool {
        self.kind == Kind::Hairpin
    }

    /// Stops the server, and checks how it ended.
    pub(crate) fn finish(&mut self) -> Result<String> {
        self.process.assert_running()?;
        let ended = self.process.stop(Duration::from_secs(10))?;
        let Ended::Exited(status) = ended else {
            anyhow::bail!("it did not stop within 10 s of SIGTERM")
        };
        // The exit status of coturn does not show whether it ended normally.
        ensure!(
            status.success() || self.kind == Kind::Coturn,
            "it ended with {status}: {}",
            self.process.tail()
        );
        ensure!(
            !self.process.output().contains("panicked at"),
            "a thread panicked: {}",
            self.process.log().display()
        );
        Ok(format!("{status}"))
    }
}

/// Writes a configuration file with the realm [`ORIGIN_REALM`]. Returns the argument that names the file.
fn realms_argument(logs: &Path, name: &str) -> Result<String> {
    let file = logs.join(format!("{name}.toml"));
    let realm = format!(
        "[[auth.realms]]\nname = \"{ORIGIN_REALM}\"\norigins = [\"{ORIGIN}\"]\nsecrets = [\"{SECRET}\"]\n"
    );
    std::fs::write(&file, realm).with_context(|| file.display().to_string())?;
    Ok(format!("--config={}", file.display()))
}

fn hairpin_arguments(port: u16, setup: &ServerSetup) -> Vec<String> {
    let mut arguments = vec!["serve".to_owned(), "--dev".to_owned()];
    for address in LOOPBACKS {
        arguments.push(format!("--listen={}", SocketAddr::new(address, port)));
        arguments.push(format!("--relay-address={address}"));
    }
    arguments.push(format!("--realm={REALM}"));
    arguments.push(format!("--secret={SECRET}"));
    arguments.push(format!(
        "--port-range={}-{}",
        setup.relay_ports.start(),
        setup.relay_ports.end()
    ));
    arguments.push(format!("--user={USER}:{PASSWORD}"));
    if let Some(mode) = setup.offload {
        arguments.push(format!("--offload={mode}"));
    }
    // Of several `--set` of a key, the last one applies.
    arguments.push(format!("--set=auth.token_keys={}", TOKEN_KEYS.join(",")));
    let Certificate { chain, key, .. } = &*setup.certificate;
    arguments.push(format!(
        "--set=tls.certificates={}:{}",
        chain.display(),
        key.display()
    ));
    for key in ["lifetime_default", "lifetime_max"] {
        arguments.push(format!("--set=limits.{key}={}s", setup.lifetime.as_secs()));
    }
    arguments
}

fn coturn_arguments(port: u16, setup: &ServerSetup) -> Vec<String> {
    let mut arguments: Vec<String> = [
        "-n",
        "--allow-loopback-peers",
        "--no-cli",
        "--log-file=stdout",
        "--verbose",
    ]
    .map(str::to_owned)
    .to_vec();
    for address in LOOPBACKS {
        arguments.push(format!("--listening-ip={address}"));
        arguments.push(format!("--relay-ip={address}"));
    }
    // One port for all transports: coturn tells them apart by the first bytes.
    arguments.push(format!("--listening-port={port}"));
    arguments.push(format!("--cert={}", setup.certificate.chain.display()));
    arguments.push(format!("--pkey={}", setup.certificate.key.display()));
    arguments.push(format!("--realm={REALM}"));
    arguments.push(format!("--min-port={}", setup.relay_ports.start()));
    arguments.push(format!("--max-port={}", setup.relay_ports.end()));
    arguments.push("--use-auth-secret".to_owned());
    arguments.push(format!("--static-auth-secret={SECRET}"));
    arguments
}

/// Ports for servers and clients of these tests. The kernel gives higher ports to connections (32768 and above on
/// Linux). So no connection of a test that runs at the same time takes one.
const TEST_PORTS: RangeInclusive<u16> = 20_000..=29_999;

/// Returns the first of `count` consecutive ports of [`TEST_PORTS`]; it is even. The ports are free for UDP and TCP on
/// both loopback addresses. This process gets them again only after it has got all of [`TEST_PORTS`].
pub(crate) fn free_ports(count: u16) -> Result<u16> {
    let is_free = |port| {
        LOOPBACKS.iter().all(|&address| {
            UdpSocket::bind((address, port)).is_ok() && TcpListener::bind((address, port)).is_ok()
        })
    };
    for _ in TEST_PORTS.step_by(2) {
        let port = next_ports(count);
        if (port..port + count).all(is_free) {
            return Ok(port);
        }
    }
    anyhow::bail!("no {count} free UDP and TCP ports in a row in {TEST_PORTS:?} on {LOOPBACKS:?}")
}

/// Returns the first of the next `count` ports of [`TEST_PORTS`], which may be in use. Each process begins at a port
/// that depends on its process ID.
fn next_ports(count: u16) -> u16 {
    static NEXT_PORT: Mutex<Option<u16>> = Mutex::new(None);
    let pairs = TEST_PORTS.end().abs_diff(*TEST_PORTS.start()) / 2;
    let mut next = NEXT_PORT.lock().unwrap_or_else(PoisonError::into_inner);
    let first_pair = u16::try_from(std::process::id() % u32::from(pairs)).unwrap_or_default();
    let port = next.unwrap_or(TEST_PORTS.start() + 2 * first_pair);
    let fits = TEST_PORTS.contains(&port) && TEST_PORTS.contains(&(port + count));
    let port = if fits { port } else { *TEST_PORTS.start() };
    *next = Some(port + count.next_multiple_of(2));
    port
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_are_even_and_can_be_bound() {
        let port = free_ports(2).unwrap();
        assert_eq!(port % 2, 0);
        assert!(UdpSocket::bind((Ipv4Addr::LOCALHOST, port + 1)).is_ok());
        assert_ne!(free_ports(2).unwrap(), port);
    }
}
