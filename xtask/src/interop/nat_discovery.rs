//! NAT behaviour discovery (RFC 5780), both ways: coturn's `turnutils_natdiscovery` and `turnutils_stunclient` ask
//! hairpin, and `hairpin probe nat` asks coturn's server. Each server has two addresses of loopback, so there is no NAT
//! to be found.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::server::free_ports;
use super::stun;
use crate::process::{self, Ended, Process};
use crate::tally::Tally;

/// How long a client may take. That of coturn waits a few seconds for responses that do not arrive.
const RUN_TIMEOUT: Duration = Duration::from_secs(30);
/// The other address; the first one is 127.0.0.1.
const SECOND_ADDRESS: &str = "127.0.0.2";
const FIRST_ADDRESS: &str = "127.0.0.1";

/// Options of `turnutils_natdiscovery`, and texts that its output must have.
const CASES: &[(&str, &str, &[&str])] = &[
    (
        "mapping",
        "-m",
        &[
            "RFC 5780 response 2",
            "NAT with Endpoint Independent Mapping!",
        ],
    ),
    (
        "filtering",
        "-f",
        &["NAT with Endpoint Independent Filtering!"],
    ),
    ("hairpinning", "-H", &["Received a request"]),
    (
        "mapping, padded",
        "-m -P",
        &[
            "RFC 5780 response 2",
            "NAT with Endpoint Independent Mapping!",
        ],
    ),
    (
        "filtering, padded",
        "-f -P",
        &["NAT with Endpoint Independent Filtering!"],
    ),
];

/// The ports of the servers, and the files.
struct NatDiscoveryTest<'a> {
    binary: &'a Path,
    logs: &'a Path,
    /// The first port; the other one is next to it.
    port: u16,
}

pub(crate) fn run(binary: &Path, logs: &Path) -> Result<Tally> {
    let port = free_ports(2)?;
    let test = NatDiscoveryTest { binary, logs, port };
    let mut tally = Tally::default();
    let mut server = test.hairpin()?;
    for (name, flags, expected) in CASES {
        let outcome = test.natdiscovery(name, flags, expected);
        tally.record(&format!("natdiscovery: {name}"), &outcome);
    }
    tally.record("stunclient -f", &test.stun_client());
    server.assert_running()?;
    server.stop(Duration::from_secs(10))?;
    tally.record("hairpin probe nat asks coturn", &test.asks_coturn());
    Ok(tally)
}

impl NatDiscoveryTest<'_> {
    fn hairpin(&self) -> Result<Process> {
        let (port, other) = (self.port, self.port + 1);
        let mut command = process::command(self.binary);
        command.args([
            "serve",
            "--dev",
            "--offload=off",
            "--workers=2",
            "--port-range=64000-65535",
        ]);
        command.arg(format!("--listen={FIRST_ADDRESS}:{port}"));
        command.arg(format!("--relay-address={FIRST_ADDRESS}"));
        command.arg(format!("--set=nat_discovery.udp={SECOND_ADDRESS}:{other}"));
        command.arg("--set=nat_discovery.padding=true");
        let log = self.logs.join("nat-discovery.log");
        let process = Process::start("the server", command, log)?;
        self.wait(process)
    }

    /// Waits until all four addresses respond.
    fn wait(&self, process: Process) -> Result<Process> {
        for ip in [FIRST_ADDRESS, SECOND_ADDRESS] {
            for port in [self.port, self.port + 1] {
                let address = SocketAddr::new(ip.parse()?, port);
                let answered = stun::wait_until_answered(address, Duration::from_secs(10));
                answered.with_context(|| process.tail())?;
            }
        }
        Ok(process)
    }

    fn natdiscovery(&self, name: &str, flags: &str, expected: &[&str]) -> Result<String> {
        let mut command = process::command("turnutils_natdiscovery");
        command.args(flags.split(' '));
        command.args([
            "-p",
            &self.port.to_string(),
            "-L",
            "127.0.0.3",
            FIRST_ADDRESS,
        ]);
        let log = self
            .logs
            .join(format!("natdiscovery-{}.log", name.replace(", ", "-")));
        let text = output(Process::start("turnutils_natdiscovery", command, log)?)?;
        for part in expected {
            ensure!(text.contains(part), "`{part}` is not in its output: {text}");
        }
        Ok(expected.last().unwrap_or(&"").to_string())
    }

    fn stun_client(&self) -> Result<String> {
        let mut command = process::command("turnutils_stunclient");
        command.args(["-f", "-p", &self.port.to_string(), FIRST_ADDRESS]);
        let log = self.logs.join("stunclient-f.log");
        let text = output(Process::start("turnutils_stunclient", command, log)?)?;
        let other = format!("Other addr: : {SECOND_ADDRESS}:{}", self.port + 1);
        ensure!(text.contains("RFC 5780 response"), "no response: {text}");
        ensure!(
            text.contains(&other),
            "`{other}` is not in its output: {text}"
        );
        Ok(other)
    }

    fn asks_coturn(&self) -> Result<String> {
        let mut command = process::command("turnserver");
        command.args([
            "-n",
            "--no-cli",
            "--no-auth",
            "--no-tls",
            "--no-dtls",
            "--log-file=stdout",
        ]);
        command.args([FIRST_ADDRESS, SECOND_ADDRESS].map(|ip| format!("--listening-ip={ip}")));
        command.arg(format!("--relay-ip={FIRST_ADDRESS}"));
        command.arg(format!("--listening-port={}", self.port));
        command.arg(format!("--alt-listening-port={}", self.port + 1));
        let log = self.logs.join("nat-discovery-coturn.log");
        command.arg(format!("--pidfile={}.pid", log.display()));
        let server = self.wait(Process::start("turnserver", command, log)?)?;
        let mut command = process::command(self.binary);
        command.args([
            "probe",
            "nat",
            "--json",
            &format!("{FIRST_ADDRESS}:{}", self.port),
        ]);
        let log = self.logs.join("probe-nat.log");
        let text = output(Process::start("hairpin probe nat", command, log)?)?;
        drop(server);
        for part in ["\"nat\":false", "\"filtering\":\"endpoint-independent\""] {
            ensure!(text.contains(part), "{part} is not in its output: {text}");
        }
        Ok("no NAT, no filter".to_owned())
    }
}

/// The output of a client that ends by itself.
fn output(mut process: Process) -> Result<String> {
    match process.wait(RUN_TIMEOUT)? {
        Ended::Exited(status) if status.success() => Ok(process.output()),
        Ended::Exited(status) => anyhow::bail!("it ended with {status}: {}", process.tail()),
        Ended::Killed => anyhow::bail!("it hung: {}", process.tail()),
    }
}
