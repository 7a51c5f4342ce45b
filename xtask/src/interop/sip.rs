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

/// How long one peer may take.
const LIMIT: Duration = Duration::from_secs(30);

/// The server answers a source again within this time after the source's flood.
const RECOVERY: Duration = Duration::from_secs(5);
/// How long anything may take to start.
pub(super) const START: Duration = Duration::from_secs(10);

/// Everything the cases need.
pub(super) struct Bench<'a> {
    binary: &'a Path,
    pub(super) sources: PathBuf,
    pub(super) logs: &'a Path,
    pub(super) server: Process,
    /// Of the server, over UDP and TCP.
    pub(super) port: u16,
}

/// Runs all cases.
pub(crate) fn run(binary: &Path, root: &Path, logs: &Path) -> Result<Tally> {
    // The peers run elsewhere.
    let binary = &binary.canonicalize().context("no such binary")?;
    let mut bench = start(binary, root, logs, "sip-server.log", &[])?;
    let mut tally = Tally::default();
    sipp_calls(&bench, &mut tally);
    sipp_answers(&bench, &mut tally);
    sipsak(&bench, &mut tally);
    kamailio(&bench, &mut tally);
    let outcome = finish(&mut bench);
    tally.record("the SIP server stops when asked", &outcome);
    let digest = [
        "sip.challenge=true",
        // They do not look further than the first challenge.
        "sip.digest_algorithms=MD5",
    ];
    let mut bench = start(binary, root, logs, "sip-digest-server.log", &digest)?;
    digests(&bench, &mut tally);
    tally.record(
        "the server with Digest stops when asked",
        &finish(&mut bench),
    );
    Ok(tally)
}

pub(super) fn start<'a>(
    binary: &'a Path,
    root: &Path,
    logs: &'a Path,
    log: &str,
    more: &[&str],
) -> Result<Bench<'a>> {
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
    let port = server.wait_for(START, |output| {
        let (_, rest) = output.split_once("udp and tcp 127.0.0.1:")?;
        rest.split(':').next()?.parse().ok()
    })?;
    Ok(Bench {
        binary,
        sources: root.join("interop/sip"),
        logs,
        server,
        port,
    })
}

impl Bench<'_> {
    /// Runs a peer to its end, which must be a good one.
    fn peer(&self, name: &str, program: impl AsRef<Path>, arguments: &[&str]) -> Result<String> {
        let mut command = process::command(program.as_ref());
        command.args(arguments).current_dir(self.logs);
        let log = self.logs.join(format!("{}.log", name.replace(' ', "-")));
        let mut process = Process::start(name, command, log)?;
        match process.wait(LIMIT)? {
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

fn sipp_calls(bench: &Bench<'_>, tally: &mut Tally) {
    let cancel = bench.sources.join("cancel.xml");
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
        tally.record(name, &bench.sipp(name, calls, more));
    }
}

fn sipp_answers(bench: &Bench<'_>, tally: &mut Tally) {
    let loss: &[&str] = &["-lost", "5"];
    let cases: [(&str, &str, &[&str], bool); 4] = [
        ("SIPp answers over UDP", "udp", &[], false),
        ("SIPp answers over UDP with loss", "udp", loss, false),
        ("SIPp answers over TCP", "tcp", &["-t", "t1"], false),
        ("SIPp answers through Kamailio with loss", "udp", loss, true),
    ];
    for (name, transport, more, proxied) in cases {
        let outcome = sipp_answers_one(bench, name, transport, more, proxied);
        tally.record(name, &outcome);
    }
}

fn sipp_answers_one(
    bench: &Bench<'_>,
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
        .current_dir(bench.logs);
    let log = bench
        .logs
        .join(format!("{}-uas.log", name.replace(' ', "-")));
    let mut answering = Process::start("SIPp as UAS", command, log)?;
    // It says nothing that could be waited for; the port is taken when it listens.
    let deadline = Instant::now() + START;
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
    let proxy = proxied.then(|| start_kamailio(bench, "kamailio-uas", port));
    let proxy = proxy.transpose()?;
    let next_hop = proxy.as_ref().map_or(port, |(_, port)| *port);
    let uri = format!("sip:test@127.0.0.1:{next_hop};transport={transport}");
    // SIPp forgets a call soon after its BYE; when its answer is lost, nobody is there any more to repeat it.
    let most_lost = if more.contains(&"-lost") { "5%" } else { "0%" };
    let outcome = bench.load(name, &uri, "call", most_lost);
    answering.stop(Duration::from_secs(3))?;
    outcome
}

fn sipsak(bench: &Bench<'_>, tally: &mut Tally) {
    let uri = format!("sip:test@{}", bench.target());
    let outcome = bench.peer("sipsak asks", "sipsak", &["-s", &uri]);
    tally.record(
        "sipsak asks for OPTIONS",
        &outcome.map(|_| "200".to_owned()),
    );
    let register = ["-U", "-C", "sip:a@127.0.0.1:9", "-x", "60", "-s", &uri];
    let outcome = bench.peer("sipsak registers", "sipsak", &register);
    tally.record("sipsak registers", &outcome.map(|_| "200".to_owned()));
    // It never ends by itself.
    let flood = ["1", "sipsak", "-F", "-s", &uri];
    let outcome = bench.peer("sipsak floods", "timeout", &flood);
    // A source that has just flooded may get a 503 for a moment.
    let after = within(RECOVERY, || {
        bench.peer("sipsak asks again", "sipsak", &["-vv", "-s", &uri])
    });
    let outcome = match outcome {
        Err(error) if error.to_string().contains("exit status: 124") => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Ok(()),
    };
    let outcome = outcome.and(after).map(|_| "well afterwards".to_owned());
    tally.record("sipsak floods for a second", &outcome);
}

/// Repeats what fails, until it succeeds or the time is over.
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
fn digests(bench: &Bench<'_>, tally: &mut Tally) {
    let scenario = bench.sources.join("register.xml");
    let scenario = scenario.to_string_lossy();
    let outcome = bench.sipp("SIPp registers with a digest", 100, &["-sf", &scenario]);
    tally.record("SIPp registers with a digest", &outcome);
    let uri = format!("sip:alice@{}", bench.target());
    let register = |name: &str, password: &str| {
        let contact = ["-U", "-C", "sip:alice@127.0.0.1:9", "-x", "60", "-s", &uri];
        let mut arguments = contact.to_vec();
        arguments.extend(["-u", "alice", "-a", password]);
        bench.peer(name, "sipsak", &arguments)
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
    let outcome = bench.load_with(name, &uri, "register", "0%", &user);
    tally.record(name, &outcome);
}

fn kamailio(bench: &Bench<'_>, tally: &mut Tally) {
    let (mut proxy, port) = match start_kamailio(bench, "kamailio", bench.port) {
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
        tally.record(name, &bench.load(name, &uri, workload, "0%"));
    }
    for (name, more) in [
        ("SIPp calls through Kamailio", &[][..]),
        ("SIPp calls through Kamailio with loss", &["-lost", "5"]),
    ] {
        let arguments = [&["-sn", "uac"], more].concat();
        tally.record(name, &bench.sipp_to(port, name, 100, &arguments));
    }
    for transport in ["udp", "tcp"] {
        let name = format!("our registrations with Kamailio's digest over {transport}");
        tally.record(&name, &digest(bench, &name, port, transport, false));
        let name = format!("nonces of Kamailio answered again over {transport}");
        tally.record(&name, &digest(bench, &name, port, transport, true));
    }
    let stopped = proxy
        .stop(Duration::from_secs(5))
        .map(|_| "it did".to_owned());
    tally.record("Kamailio stops", &stopped);
}

/// Registrations of our UAC with Kamailio, whose nonces are good for two seconds. In four, all 20 AORs are challenged
/// once more: without `stale=true`, which Kamailio does not say.
fn digest(
    bench: &Bench<'_>,
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
    let output = bench.load_output(name, &uri, "register", "0%", &more)?;
    let challenges = output.split("challenges ").nth(1);
    let challenges = challenges.context("nothing was challenged")?;
    let digits = challenges.split(|end: char| !end.is_ascii_digit()).next();
    let count: u32 = digits.unwrap_or_default().parse()?;
    let expected = if again { 30..=200 } else { 95..=100 };
    ensure!(expected.contains(&count), "{count} challenges: {output}");
    Ok(format!("{count} challenges"))
}

/// Starts Kamailio in front of what listens on port `next`.
fn start_kamailio(bench: &Bench<'_>, name: &str, next: u16) -> Result<(Process, u16)> {
    let port = free_port()?;
    let template = bench.sources.join("kamailio.cfg");
    let text = std::fs::read_to_string(&template)
        .with_context(|| format!("cannot read {}", template.display()))?;
    let text = text
        .replace("PORT", &port.to_string())
        .replace("NEXT", &next.to_string());
    let file = bench.logs.join(format!("{name}.cfg"));
    std::fs::write(&file, text)?;
    let run = bench.logs.join(format!("{name}-run"));
    std::fs::create_dir_all(&run)?;
    let mut command = process::command("kamailio");
    command.args(["-DD", "-E", "-m", "32", "-M", "4", "-f"]);
    command.arg(&file).arg("-Y").arg(&run);
    let mut proxy = Process::start("Kamailio", command, bench.logs.join(format!("{name}.log")))?;
    // It listens over TCP when all its children are there.
    let deadline = Instant::now() + START;
    while std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        proxy.assert_running()?;
        ensure!(Instant::now() < deadline, "it is deaf: {}", proxy.tail());
        sleep(Duration::from_millis(50));
    }
    Ok((proxy, port))
}

pub(super) fn finish(bench: &mut Bench<'_>) -> Result<String> {
    bench.server.assert_running()?;
    let ended = bench.server.stop(START)?;
    let Ended::Exited(status) = ended else {
        anyhow::bail!("it did not stop within {START:?} of SIGTERM")
    };
    ensure!(status.success(), "{status}: {}", bench.server.tail());
    ensure!(
        !bench.server.output().contains("panicked at"),
        "a thread panicked: {}",
        bench.server.log().display()
    );
    Ok(status.to_string())
}

/// Whether somebody listens there.
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
