//! SIP peers that others wrote, against hairpin's user agent server for tests and against `hairpin load sip`.
//!
//! - SIPp as UAC: calls over UDP, with loss, over one TCP connection and over many; calls cancelled while they ring.
//! - SIPp as UAS: the calls of `hairpin load sip`, over UDP, with loss, over TCP.
//! - sipsak: OPTIONS, a registration, a flood of a second that leaves the server well.
//! - SIPp, sipsak and our UAC: registrations by Digest, of clients that know MD5 alone.
//! - Kamailio between the two: next hop of our UAC, client of our UAS. Calls and registrations through a stateful
//!   proxy, over UDP and TCP.
//! - Kamailio and SIPp with loss: SIPp calls our UAS through Kamailio, our UAC calls SIPp through Kamailio; SIPp loses
//!   5 %.
//! - Kamailio's digest: registrations of our UAC, each challenged, and with nonces that are answered again until they
//!   are too old.
//!
//! All of it takes less than a minute.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::server::free_ports;
use crate::process::{self, Ended, Process};
use crate::tally::Tally;

/// How long one peer program may run.
const PEER_TIMEOUT: Duration = Duration::from_secs(30);

/// After a flood, the server responds to its source again within this time.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a program may take to start.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(10);

/// The SIP server of the cases, and the folders of their files.
pub(super) struct SipTestServer<'a> {
    binary: &'a Path,
    pub(super) sources: PathBuf,
    pub(super) logs: &'a Path,
    pub(super) process: Process,
    /// The port of the server, over UDP and TCP.
    pub(super) port: u16,
}

/// Runs all cases.
pub(crate) fn run(binary: &Path, root: &Path, logs: &Path) -> Result<Tally> {
    // The peers run in another folder.
    let binary = &binary.canonicalize().context("no such binary")?;
    let mut sip_server = start(binary, root, logs, "sip-server.log", &[])?;
    let mut tally = Tally::default();
    sipp_calls(&sip_server, &mut tally);
    sipp_answers(&sip_server, &mut tally);
    sipsak(&sip_server, &mut tally);
    kamailio(&sip_server, &mut tally);
    let outcome = finish(&mut sip_server);
    tally.record("the SIP server stops when asked", &outcome);
    let digest = [
        "sip.challenge=true",
        // They do not look further than the first challenge.
        "sip.digest_algorithms=MD5",
    ];
    let mut sip_server = start(binary, root, logs, "sip-digest-server.log", &digest)?;
    digests(&sip_server, &mut tally);
    tally.record(
        "the server with Digest stops when asked",
        &finish(&mut sip_server),
    );
    Ok(tally)
}

pub(super) fn start<'a>(
    binary: &'a Path,
    root: &Path,
    logs: &'a Path,
    log: &str,
    more: &[&str],
) -> Result<SipTestServer<'a>> {
    let mut command = process::command(binary);
    command.args(["serve", "--dev", "--listen=127.0.0.1:0"]);
    for setting in [
        "relay.addresses=127.0.0.1",
        "server.workers=2",
        "offload.mode=off",
        "sip.listen=127.0.0.1:0",
        "sip.test_uas=true",
    ]
    .iter()
    .chain(more)
    {
        command.args(["--set", setting]);
    }
    command.arg("--user=alice:wonderland");
    let mut server = Process::start("the SIP server", command, logs.join(log))?;
    let port = server.wait_for(START_TIMEOUT, |output| {
        let (_, rest) = output.split_once("udp and tcp 127.0.0.1:")?;
        rest.split(':').next()?.parse().ok()
    })?;
    Ok(SipTestServer {
        binary,
        sources: root.join("interop/sip"),
        logs,
        process: server,
        port,
    })
}

impl SipTestServer<'_> {
    /// Runs a peer to its end, and checks its exit status.
    fn peer(&self, name: &str, program: impl AsRef<Path>, arguments: &[&str]) -> Result<String> {
        let mut command = process::command(program.as_ref());
        command.args(arguments).current_dir(self.logs);
        let log = self.logs.join(format!("{}.log", name.replace(' ', "-")));
        let mut process = Process::start(name, command, log)?;
        match process.wait(PEER_TIMEOUT)? {
            Ended::Exited(status) if status.success() => Ok(process.output()),
            Ended::Exited(status) => anyhow::bail!("it ended with {status}: {}", process.tail()),
            Ended::Killed => anyhow::bail!("it hung: {}", process.tail()),
        }
    }

    fn target(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// SIPp as the calling side. It makes `calls` calls, and none may fail.
    fn sipp(&self, name: &str, calls: u32, more: &[&str]) -> Result<String> {
        self.sipp_to(self.port, name, calls, more)
    }

    /// The same, to a port of this machine.
    fn sipp_to(&self, port: u16, name: &str, calls: u32, more: &[&str]) -> Result<String> {
        let (target, calls) = (format!("127.0.0.1:{port}"), calls.to_string());
        let mut arguments = vec![target.as_str(), "-m", &calls, "-r", "100", "-l", "100"];
        arguments.extend(["-d", "0", "-i", "127.0.0.1", "-nostdin", "-timeout", "25"]);
        arguments.extend(more);
        self.peer(name, "sipp", &arguments)
            .map(|_| format!("{calls} calls"))
    }

    /// Our calling side: units of work, of which no more than a share may fail.
    fn load(&self, name: &str, uri: &str, workload: &str, most_lost: &str) -> Result<String> {
        self.load_with(name, uri, workload, most_lost, &[])
    }

    /// The same, with further arguments.
    pub(super) fn load_with(
        &self,
        name: &str,
        uri: &str,
        workload: &str,
        most_lost: &str,
        more: &[&str],
    ) -> Result<String> {
        let more = [&["--duration", "2s"], more].concat();
        let output = self.load_output(name, uri, workload, most_lost, &more)?;
        let line = output.lines().find(|line| line.contains(" succeeded"));
        Ok(line.unwrap_or_default().trim().to_owned())
    }

    /// All that it prints, for as long as `more` has it.
    fn load_output(
        &self,
        name: &str,
        uri: &str,
        workload: &str,
        most_lost: &str,
        more: &[&str],
    ) -> Result<String> {
        let fail_if = format!("loss>{most_lost}");
        let mut arguments = vec![
            "load",
            "sip",
            uri,
            "--workload",
            workload,
            "--rate",
            "100/s",
            "--warm-up",
            "0s",
            "--linger",
            "8s",
            "--fail-if",
            &fail_if,
        ];
        arguments.extend(more);
        self.peer(name, self.binary, &arguments)
    }
}

fn sipp_calls(sip_server: &SipTestServer<'_>, tally: &mut Tally) {
    let cancel = sip_server.sources.join("cancel.xml");
    let cancel = cancel.to_string_lossy();
    let cases: [(&str, u32, &[&str]); 5] = [
        ("SIPp calls over UDP", 200, &["-sn", "uac"]),
        (
            "SIPp calls over UDP with loss",
            100,
            &["-sn", "uac", "-lost", "5"],
        ),
        (
            "SIPp calls over one TCP connection",
            200,
            &["-sn", "uac", "-t", "t1"],
        ),
        (
            "SIPp calls over many TCP connections",
            100,
            &["-sn", "uac", "-t", "tn", "-max_socket", "150"],
        ),
        ("SIPp cancels calls", 50, &["-sf", &cancel]),
    ];
    for (name, calls, more) in cases {
        tally.record(name, &sip_server.sipp(name, calls, more));
    }
}

fn sipp_answers(sip_server: &SipTestServer<'_>, tally: &mut Tally) {
    let loss: &[&str] = &["-lost", "5"];
    let cases: [(&str, &str, &[&str], bool); 4] = [
        ("SIPp answers over UDP", "udp", &[], false),
        ("SIPp answers over UDP with loss", "udp", loss, false),
        ("SIPp answers over TCP", "tcp", &["-t", "t1"], false),
        ("SIPp answers through Kamailio with loss", "udp", loss, true),
    ];
    for (name, transport, more, proxied) in cases {
        let outcome = sipp_answers_one(sip_server, name, transport, more, proxied);
        tally.record(name, &outcome);
    }
}

fn sipp_answers_one(
    sip_server: &SipTestServer<'_>,
    name: &str,
    transport: &str,
    more: &[&str],
    proxied: bool,
) -> Result<String> {
    let port = free_port()?;
    let text = port.to_string();
    let mut command = process::command("sipp");
    command
        .args(["-sn", "uas", "-i", "127.0.0.1", "-p", &text, "-nostdin"])
        .args(["-timeout", "25"])
        .args(more)
        .current_dir(sip_server.logs);
    let log = sip_server
        .logs
        .join(format!("{}-uas.log", name.replace(' ', "-")));
    let mut answering = Process::start("SIPp as UAS", command, log)?;
    // The program does not print when it is ready. So the test waits until the port is taken.
    let deadline = Instant::now() + START_TIMEOUT;
    while !is_taken(port, transport) {
        answering.assert_running()?;
        ensure!(
            Instant::now() < deadline,
            "it is deaf: {}",
            answering.tail()
        );
        sleep(Duration::from_millis(20));
    }
    // It ends when it is dropped.
    let proxy = proxied.then(|| start_kamailio(sip_server, "kamailio-uas", port));
    let proxy = proxy.transpose()?;
    let next_hop = proxy.as_ref().map_or(port, |(_, port)| *port);
    let uri = format!("sip:test@127.0.0.1:{next_hop};transport={transport}");
    // SIPp forgets a call soon after its BYE; when its answer is lost, nobody is there any more to repeat it.
    let most_lost = if more.contains(&"-lost") { "5%" } else { "0%" };
    let outcome = sip_server.load(name, &uri, "call", most_lost);
    answering.stop(Duration::from_secs(3))?;
    outcome
}

fn sipsak(sip_server: &SipTestServer<'_>, tally: &mut Tally) {
    let uri = format!("sip:test@{}", sip_server.target());
    let outcome = sip_server.peer("sipsak asks", "sipsak", &["-s", &uri]);
    tally.record(
        "sipsak asks for OPTIONS",
        &outcome.map(|_| "200".to_owned()),
    );
    let register = ["-U", "-C", "sip:a@127.0.0.1:9", "-x", "60", "-s", &uri];
    let outcome = sip_server.peer("sipsak registers", "sipsak", &register);
    tally.record("sipsak registers", &outcome.map(|_| "200".to_owned()));
    // It never ends by itself.
    let flood = ["1", "sipsak", "-F", "-s", &uri];
    let outcome = sip_server.peer("sipsak floods", "timeout", &flood);
    // A source that has just flooded may get a 503 for a moment.
    let after = within(RECOVERY_TIMEOUT, || {
        sip_server.peer("sipsak asks again", "sipsak", &["-vv", "-s", &uri])
    });
    let outcome = match outcome {
        Err(error) if error.to_string().contains("exit status: 124") => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Ok(()),
    };
    let outcome = outcome.and(after).map(|_| "well afterwards".to_owned());
    tally.record("sipsak floods for a second", &outcome);
}

/// Repeats `work` until it succeeds, for at most this time.
fn within<T>(limit: Duration, mut work: impl FnMut() -> Result<T>) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        match work() {
            Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(200)),
            outcome => return outcome,
        }
    }
}

/// Registrations at a server that challenges.
fn digests(sip_server: &SipTestServer<'_>, tally: &mut Tally) {
    let scenario = sip_server.sources.join("register.xml");
    let scenario = scenario.to_string_lossy();
    let outcome = sip_server.sipp("SIPp registers with a digest", 100, &["-sf", &scenario]);
    tally.record("SIPp registers with a digest", &outcome);
    let uri = format!("sip:alice@{}", sip_server.target());
    let register = |name: &str, password: &str| {
        let contact = ["-U", "-C", "sip:alice@127.0.0.1:9", "-x", "60", "-s", &uri];
        let mut arguments = contact.to_vec();
        arguments.extend(["-u", "alice", "-a", password]);
        sip_server.peer(name, "sipsak", &arguments)
    };
    let outcome = register("sipsak registers with a digest", "wonderland");
    tally.record(
        "sipsak registers with a digest",
        &outcome.map(|_| "200".to_owned()),
    );
    let outcome = match register("sipsak guesses a password", "guess") {
        Ok(_) => Err(anyhow::anyhow!("it was let in")),
        Err(_) => Ok("401".to_owned()),
    };
    tally.record("sipsak with a wrong password is not let in", &outcome);
    let name = "our registrations with a digest";
    let user = ["--user", "alice:wonderland"];
    let outcome = sip_server.load_with(name, &uri, "register", "0%", &user);
    tally.record(name, &outcome);
}

fn kamailio(sip_server: &SipTestServer<'_>, tally: &mut Tally) {
    let (mut proxy, port) = match start_kamailio(sip_server, "kamailio", sip_server.port) {
        Ok(started) => started,
        Err(error) => return tally.record("Kamailio starts", &Err(error)),
    };
    for (name, transport, workload) in [
        ("calls through Kamailio over UDP", "udp", "call"),
        ("calls through Kamailio over TCP", "tcp", "call"),
        ("registrations through Kamailio over UDP", "udp", "register"),
        ("registrations through Kamailio over TCP", "tcp", "register"),
    ] {
        let uri = format!("sip:test@127.0.0.1:{port};transport={transport}");
        tally.record(name, &sip_server.load(name, &uri, workload, "0%"));
    }
    for (name, more) in [
        ("SIPp calls through Kamailio", &[][..]),
        ("SIPp calls through Kamailio with loss", &["-lost", "5"]),
    ] {
        let arguments = [&["-sn", "uac"], more].concat();
        tally.record(name, &sip_server.sipp_to(port, name, 100, &arguments));
    }
    for transport in ["udp", "tcp"] {
        let name = format!("our registrations with Kamailio's digest over {transport}");
        tally.record(&name, &digest(sip_server, &name, port, transport, false));
        let name = format!("nonces of Kamailio answered again over {transport}");
        tally.record(&name, &digest(sip_server, &name, port, transport, true));
    }
    let stopped = proxy
        .stop(Duration::from_secs(5))
        .map(|_| "it did".to_owned());
    tally.record("Kamailio stops", &stopped);
}

/// Registrations of our UAC with Kamailio, whose nonces are good for two seconds. In four, all 20 AORs are challenged
/// once more: without `stale=true`, which Kamailio does not say.
fn digest(
    sip_server: &SipTestServer<'_>,
    name: &str,
    port: u16,
    transport: &str,
    again: bool,
) -> Result<String> {
    let uri = format!("sip:127.0.0.1:{port};transport={transport}");
    let mut more = vec!["--user", "u{n}:wonderland", "--domain", "digest.test"];
    more.extend(["--aors", "20"]);
    match again {
        true => more.extend(["--reuse-nonce", "--duration", "4s"]),
        false => more.extend(["--duration", "1s"]),
    }
    let output = sip_server.load_output(name, &uri, "register", "0%", &more)?;
    let challenges = output.split("challenges ").nth(1);
    let challenges = challenges.context("nothing was challenged")?;
    let digits = challenges.split(|end: char| !end.is_ascii_digit()).next();
    let count: u32 = digits.unwrap_or_default().parse()?;
    let expected = if again { 30..=200 } else { 95..=100 };
    ensure!(expected.contains(&count), "{count} challenges: {output}");
    Ok(format!("{count} challenges"))
}

/// Starts Kamailio in front of what listens on port `next`.
fn start_kamailio(sip_server: &SipTestServer<'_>, name: &str, next: u16) -> Result<(Process, u16)> {
    let port = free_port()?;
    let template = sip_server.sources.join("kamailio.cfg");
    let text = std::fs::read_to_string(&template)
        .with_context(|| format!("cannot read {}", template.display()))?;
    let text = text
        .replace("PORT", &port.to_string())
        .replace("NEXT", &next.to_string());
    let file = sip_server.logs.join(format!("{name}.cfg"));
    std::fs::write(&file, text)?;
    let run = sip_server.logs.join(format!("{name}-run"));
    std::fs::create_dir_all(&run)?;
    let mut command = process::command("kamailio");
    command.args(["-DD", "-E", "-m", "32", "-M", "4", "-f"]);
    command.arg(&file).arg("-Y").arg(&run);
    let mut proxy = Process::start(
        "Kamailio",
        command,
        sip_server.logs.join(format!("{name}.log")),
    )?;
    // It listens over TCP when all its children are there.
    let deadline = Instant::now() + START_TIMEOUT;
    while std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        proxy.assert_running()?;
        ensure!(Instant::now() < deadline, "it is deaf: {}", proxy.tail());
        sleep(Duration::from_millis(50));
    }
    Ok((proxy, port))
}

pub(super) fn finish(sip_server: &mut SipTestServer<'_>) -> Result<String> {
    sip_server.process.assert_running()?;
    let ended = sip_server.process.stop(START_TIMEOUT)?;
    let Ended::Exited(status) = ended else {
        anyhow::bail!("it did not stop within {START_TIMEOUT:?} of SIGTERM")
    };
    ensure!(status.success(), "{status}: {}", sip_server.process.tail());
    ensure!(
        !sip_server.process.output().contains("panicked at"),
        "a thread panicked: {}",
        sip_server.process.log().display()
    );
    Ok(status.to_string())
}

/// Whether a program listens on this port.
pub(super) fn is_taken(port: u16, transport: &str) -> bool {
    let address = (Ipv4Addr::LOCALHOST, port);
    match transport {
        "tcp" => TcpListener::bind(address).is_err(),
        _ => UdpSocket::bind(address).is_err(),
    }
}

/// A port that was free over UDP and TCP a moment ago.
pub(super) fn free_port() -> Result<u16> {
    for _ in 0..100 {
        let port = free_ports(1)?;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    anyhow::bail!("no port is free over UDP and TCP on loopback")
}
