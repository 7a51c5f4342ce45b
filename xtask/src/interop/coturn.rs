//! coturn's own test client, `turnutils_uclient`, through its option matrix against `turnutils_peer`.
//!
//! uclient runs `sessions` of `messages` each and counts what comes back; it checks the order and MESSAGE-INTEGRITY of
//! every success. A case passes when every message came back: the totals are what we asked for, sent equals received,
//! nothing lost, nothing dropped. TLS is the exception: [`lossy`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::DriverContext;
use super::server::{ORIGIN, ORIGIN_REALM, Server, free_ports};
use crate::process::{self, Ended, Process};
use crate::tally::Tally;

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// How long a run may take. uclient requires seconds to begin and to end, and sends a message every 20 ms.
const RUN_TIMEOUT: Duration = Duration::from_secs(45);

/// One run of uclient in which every message must come back.
struct UclientCase {
    name: &'static str,
    /// Options beside the credentials; the peer is given by `peer`.
    flags: &'static str,
    server: IpAddr,
    /// None: the clients of the run send to each other (`-y`), from relay to relay.
    peer: Option<IpAddr>,
    /// How many sessions these flags make uclient open, and so how many times `-n` messages it sends.
    sessions: u32,
    messages: u32,
    /// How many messages uclient itself may lose per session; see [`lossy`].
    lost_by_uclient: u32,
}

const fn echo(
    name: &'static str,
    flags: &'static str,
    server: IpAddr,
    peer: IpAddr,
    sessions: u32,
) -> UclientCase {
    UclientCase {
        name,
        flags,
        server,
        peer: Some(peer),
        sessions,
        messages: 50,
        lost_by_uclient: 0,
    }
}

const fn pair(
    name: &'static str,
    flags: &'static str,
    server: IpAddr,
    sessions: u32,
) -> UclientCase {
    UclientCase {
        name,
        flags,
        server,
        peer: None,
        sessions,
        messages: 50,
        lost_by_uclient: 0,
    }
}

/// Over TLS, uclient takes what one read returns as one message. If two messages share a record, it ignores the second,
/// as it does with coturn's own server. How many share one depends on how busy the machine is. The other clients over
/// TLS must get every message.
const fn lossy(case: UclientCase) -> UclientCase {
    UclientCase {
        lost_by_uclient: case.messages / 5,
        ..case
    }
}

/// With `-P`, peers connect to clients, and uclient echoes nothing on that side: half of what it sends comes back, also
/// from coturn's own server.
const fn passive(case: UclientCase) -> UclientCase {
    UclientCase {
        lost_by_uclient: case.messages / 2,
        ..case
    }
}

/// `-X`/`-x` request a relay of that family; `-g` requests DONT-FRAGMENT. Without `-c` a second session follows for
/// RTCP, whose port comes from EVEN-PORT and RESERVATION-TOKEN.
const UCLIENT_CASES: &[UclientCase] = &[
    echo("channels, EVEN-PORT and RESERVATION-TOKEN", "-X", V4, V4, 2),
    echo(
        "channels, EVEN-PORT and RESERVATION-TOKEN, IPv6",
        "-x",
        V6,
        V6,
        2,
    ),
    echo("no RTCP (-c)", "-X -c", V4, V4, 1),
    echo("no RTCP (-c), IPv6", "-x -c", V6, V6, 1),
    echo("Send and Data indications (-s)", "-X -s", V4, V4, 2),
    echo("Send and Data indications (-s), IPv6", "-x -s", V6, V6, 2),
    echo("padded ChannelData (-D)", "-X -D", V4, V4, 2),
    echo("padded ChannelData (-D), IPv6", "-x -D", V6, V6, 2),
    echo("extra requests (-G)", "-X -G", V4, V4, 2),
    echo("extra requests (-G), IPv6", "-x -G", V6, V6, 2),
    echo("DONT-FRAGMENT (-g)", "-X -g", V4, V4, 2),
    echo("DONT-FRAGMENT (-g), IPv6", "-x -g", V6, V6, 2),
    echo(
        "DONT-FRAGMENT and indications (-g -s)",
        "-X -g -s -c",
        V4,
        V4,
        1,
    ),
    echo("no family asked for", "", V4, V4, 2),
    echo("IPv6 relay for an IPv4 client (-x)", "-x", V4, V6, 2),
    echo("IPv4 relay for an IPv6 client (-X)", "-X", V6, V4, 2),
    echo("dual allocation (-Z)", "-Z", V4, V4, 1),
    echo("dual allocation (-Z), IPv6", "-Z", V6, V6, 1),
    echo(
        "dual allocation with indications (-Z -s)",
        "-Z -s",
        V4,
        V6,
        1,
    ),
    echo(
        "everything at once (-g -D -G -s)",
        "-X -g -D -G -s",
        V4,
        V4,
        2,
    ),
    // After the Allocate request, each session goes on from a new socket.
    echo("mobility (-M)", "-X -M", V4, V4, 2),
    echo("mobility (-M), IPv6, indications", "-x -M -s", V6, V6, 2),
    echo("mobility (-M), TCP", "-X -M -t -c", V4, V4, 1),
    lossy(echo("mobility (-M), TLS", "-X -M -t -S -c", V4, V4, 1)),
    // With a key at random for each Allocate and Refresh.
    echo("access tokens (-J)", "-X -J -G", V4, V4, 2),
    echo("access tokens (-J), IPv6, TCP", "-x -J -t -c", V6, V6, 1),
    // uclient sends two more origins, which it chooses at random. The realm is `ORIGIN_REALM`.
    echo("ORIGIN (-o)", "-X -c -o https://origin.example", V4, V4, 1),
    echo("long messages (-l 1200)", "-X -l 1200", V4, V4, 2),
    echo("TCP", "-t -X", V4, V4, 2),
    echo("TCP, IPv6", "-t -x", V6, V6, 2),
    echo("TCP, IPv6 relay for an IPv4 client", "-t -x -c", V4, V6, 1),
    echo("TCP, indications", "-t -X -s", V4, V4, 2),
    echo("TCP, indications, IPv6", "-t -x -s -c", V6, V6, 1),
    echo("TCP, padded", "-t -X -D -c", V4, V4, 1),
    echo("TCP, extra requests", "-t -X -G -c", V4, V4, 1),
    echo("TCP, long messages", "-t -X -l 1201", V4, V4, 2),
    echo("TCP, dual allocation", "-t -Z", V4, V4, 1),
    pair("TCP, client to client", "-t -y", V4, 4),
    pair("TCP, client to client, no RTCP", "-t -y -c", V4, 2),
    pair(
        "TCP, client to client, indications, IPv6",
        "-t -y -s -c -x",
        V6,
        2,
    ),
    // uclient also offers TLS 1.0 and 1.1 and DTLS 1.0, at random. They are refused, and it tries again with another
    // version.
    lossy(echo("TLS", "-t -S -X", V4, V4, 2)),
    lossy(echo("TLS, IPv6", "-t -S -x", V6, V6, 2)),
    lossy(echo(
        "TLS, IPv6 relay for an IPv4 client",
        "-t -S -x -c",
        V4,
        V6,
        1,
    )),
    lossy(echo("TLS, indications", "-t -S -X -s", V4, V4, 2)),
    lossy(echo("TLS, indications, IPv6", "-t -S -x -s -c", V6, V6, 1)),
    lossy(echo("TLS, padded", "-t -S -X -D -c", V4, V4, 1)),
    lossy(echo("TLS, extra requests", "-t -S -X -G -c", V4, V4, 1)),
    lossy(echo("TLS, long messages", "-t -S -X -l 1201 -c", V4, V4, 1)),
    lossy(echo("TLS, dual allocation", "-t -S -Z", V4, V4, 1)),
    lossy(pair("TLS, client to client", "-t -S -y", V4, 4)),
    lossy(pair("TLS, client to client, no RTCP", "-t -S -y -c", V4, 2)),
    lossy(pair(
        "TLS, client to client, indications, IPv6",
        "-t -S -y -s -c -x",
        V6,
        2,
    )),
    echo("DTLS", "-S -X", V4, V4, 2),
    echo("DTLS, IPv6", "-S -x", V6, V6, 2),
    echo("DTLS, IPv6 relay for an IPv4 client", "-S -x -c", V4, V6, 1),
    echo("DTLS, indications", "-S -X -s", V4, V4, 2),
    echo("DTLS, indications, IPv6", "-S -x -s -c", V6, V6, 1),
    echo("DTLS, padded", "-S -X -D -c", V4, V4, 1),
    echo("DTLS, extra requests", "-S -X -G -c", V4, V4, 1),
    echo("DTLS, DONT-FRAGMENT", "-S -X -g -c", V4, V4, 1),
    echo("DTLS, long messages", "-S -X -l 1201 -c", V4, V4, 1),
    echo("DTLS, dual allocation", "-S -Z", V4, V4, 1),
    pair("DTLS, client to client", "-S -y", V4, 4),
    pair("DTLS, client to client, no RTCP", "-S -y -c", V4, 2),
    pair(
        "DTLS, client to client, indications, IPv6",
        "-S -y -s -c -x",
        V6,
        2,
    ),
    // RFC 6062: the clients' relays connect to each other.
    pair("TCP allocations (-T)", "-T", V4, 2),
    pair("TCP allocations (-T), IPv6", "-T -x", V6, 2),
    pair("TCP allocations, many (-T -m 12)", "-T -m 12", V4, 12),
    pair("TCP allocations, long messages", "-T -l 1201", V4, 2),
    lossy(pair("TCP allocations over TLS (-T -S)", "-T -S", V4, 2)),
    passive(pair("TCP allocations, the peer connects (-P)", "-P", V4, 2)),
    passive(pair(
        "TCP allocations, the peer connects (-P), IPv6",
        "-P -x",
        V6,
        2,
    )),
    pair("client to client (-y)", "-y", V4, 4),
    pair("client to client (-y), IPv6", "-y -x", V6, 4),
    pair("client to client, no RTCP (-y -c)", "-y -c", V4, 2),
    pair("client to client, no RTCP (-y -c), IPv6", "-y -c -x", V6, 2),
    pair(
        "client to client with indications (-y -s -c)",
        "-y -s -c",
        V4,
        2,
    ),
    UclientCase {
        name: "many clients, fast",
        flags: "-X -c -m 20 -z 5",
        server: V4,
        peer: Some(V4),
        sessions: 20,
        messages: 500,
        lost_by_uclient: 0,
    },
    UclientCase {
        name: "many clients, fast, IPv6",
        flags: "-x -s -m 20 -z 5",
        server: V6,
        peer: Some(V6),
        sessions: 20,
        messages: 500,
        lost_by_uclient: 0,
    },
];

/// How many runs are in parallel. A run mostly waits for the timers of uclient.
const PARALLEL_RUNS: usize = 6;

/// The server and the peer of the runs of uclient.
struct CoturnTest<'a> {
    server: &'a Server,
    peer: Process,
    peer_port: u16,
    logs: &'a Path,
}

/// First the clients that violate the RFC and disappear, then every case in which all datagrams must return. The
/// server must survive the former to pass the latter.
pub(crate) fn run(context: &mut DriverContext) -> Result<Tally> {
    let mut test = CoturnTest::new(context)?;
    let mut tally = Tally::default();
    tally.record("uclient negative tests (-N)", &refused_cleanly(&test));
    tally.record("uclient protocol noise (-R)", &noise(&test));
    tally.record("uclient random disconnects (-B)", &disconnects(&test));
    tally.add(run_matrix(&test));
    tally.record("the realm by ORIGIN", &origin_was_heeded(&test));
    tally.record("stunclient", &stun_client(&test));
    test.peer.assert_running()?;
    drop(test);
    let alive = context.server.assert_alive(Duration::from_secs(5));
    tally.record(
        "the server answers after all that",
        &alive.map(|()| "on both families".to_owned()),
    );
    Ok(tally)
}

fn run_matrix(test: &CoturnTest<'_>) -> Tally {
    let next = AtomicUsize::new(0);
    let tally = Mutex::new(Tally::default());
    std::thread::scope(|scope| {
        for _ in 0..PARALLEL_RUNS {
            scope.spawn(|| {
                while let Some(case) = UCLIENT_CASES.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = all_comes_back(test, case);
                    tally
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .record(&format!("uclient {}", case.name), &outcome);
                }
            });
        }
    });
    tally.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn all_comes_back(test: &CoturnTest<'_>, case: &UclientCase) -> Result<String> {
    let started = Instant::now();
    let mut process = test.start(case, "")?;
    let ended = process.wait(RUN_TIMEOUT)?;
    let judged = match ended {
        Ended::Killed => Err(anyhow::anyhow!("it hung")),
        Ended::Exited(_) => judge(&process.output(), case),
    };
    judged.with_context(|| format!("turnutils_uclient {}: {}", case.flags, process.tail()))?;
    Ok(format!(
        "{} messages in {:.1} s",
        case.sessions * case.messages,
        started.elapsed().as_secs_f32()
    ))
}

/// The session with ORIGIN, for which uclient opens two allocations, has had the realm that ORIGIN chooses, and no
/// other session has.
fn origin_was_heeded(test: &CoturnTest<'_>) -> Result<String> {
    let output = test.server.output();
    let realm = format!("\"realm\":\"{ORIGIN_REALM}\"");
    let opened = output
        .lines()
        .filter(|line| line.contains("allocation opened") && line.contains(&realm))
        .count();
    ensure!(
        (1..=2).contains(&opened),
        "{ORIGIN}: {opened} allocations were opened with {realm}"
    );
    Ok(format!("{opened} allocations with {realm}"))
}

impl CoturnTest<'_> {
    /// Starts a peer on both loopback addresses. It echoes on this port and, for RTCP, on the next one.
    fn new(context: &DriverContext) -> Result<CoturnTest<'_>> {
        let peer_port = free_ports(2)?;
        let mut command = process::command("turnutils_peer");
        command.args([
            "-L",
            &V4.to_string(),
            "-L",
            &V6.to_string(),
            "-p",
            &peer_port.to_string(),
        ]);
        let peer = Process::start("turnutils_peer", command, context.logs.join("peer.log"))?;
        Ok(CoturnTest {
            server: &context.server,
            peer,
            peer_port,
            logs: &context.logs,
        })
    }

    fn start(&self, case: &UclientCase, run: &str) -> Result<Process> {
        let mut command = process::command("turnutils_uclient");
        command.args(case.flags.split_whitespace());
        if let Some(peer) = case.peer {
            command.args(["-e", &peer.to_string(), "-r", &self.peer_port.to_string()]);
        }
        let port = self.server.port.to_string();
        command.args([
            "-n",
            &case.messages.to_string(),
            "-p",
            &port,
            "-u",
            "bob",
            "-W",
            self.server.secret,
        ]);
        command.arg(case.server.to_string());
        let name: String = case
            .name
            .chars()
            .map(|c| if c.is_alphanumeric() { c } else { '-' })
            .collect();
        Process::start(
            "turnutils_uclient",
            command,
            self.logs.join(format!("uclient-{name}{run}.log")),
        )
    }
}

/// Checks the totals of uclient. It exits with 0 even if all messages were lost.
fn judge(output: &str, case: &UclientCase) -> Result<()> {
    let totals = RunTotals::read(output).context("no totals: it gave up before the end")?;
    let expected = case.sessions * case.messages;
    let lost = totals.lost.min(case.sessions * case.lost_by_uclient);
    let size = totals.bytes.0 / u64::from(expected.max(1));
    let all = RunTotals {
        sent: expected,
        received: expected - lost,
        lost,
        dropped: 0,
        bytes: (totals.bytes.0, totals.bytes.0 - u64::from(lost) * size),
    };
    ensure!(totals == all, "{totals:?} instead of {all:?}");
    Ok(())
}

/// How many messages uclient has sent and received in a run.
pub(super) fn counts(output: &str) -> Option<(u32, u32)> {
    let totals = RunTotals::read(output)?;
    Some((totals.sent, totals.received))
}

/// The totals that uclient prints for a run.
#[derive(Debug, PartialEq, Eq)]
struct RunTotals {
    sent: u32,
    received: u32,
    lost: u32,
    dropped: u32,
    /// Sent and received.
    bytes: (u64, u64),
}

impl RunTotals {
    fn read(output: &str) -> Option<RunTotals> {
        // The totals of the run come last; lines with `msz=` are intermediate.
        let after = |mark: &str| -> Option<u64> {
            let line = output
                .lines()
                .rfind(|line| line.contains(mark) && !line.contains("msz="))?;
            let digits = line.split_once(mark)?.1.trim_start();
            digits[..digits
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(digits.len())]
                .parse()
                .ok()
        };
        let count = |mark: &str| after(mark).and_then(|n| u32::try_from(n).ok());
        Some(RunTotals {
            sent: count("tot_send_msgs=")?,
            received: count("tot_recv_msgs=")?,
            lost: count("Total lost packets ")?,
            dropped: count("total send dropped ")?,
            bytes: (after("tot_send_bytes ~ ")?, after("tot_recv_bytes ~ ")?),
        })
    }
}

/// `-N` sends requests that are not allowed, and ends when they are refused.
fn refused_cleanly(test: &CoturnTest<'_>) -> Result<String> {
    for (server, peer, flags) in [(V4, V4, "-N -X"), (V6, V6, "-N -x")] {
        let mut process = test.start(&echo("negative", flags, server, peer, 0), &flags[3..])?;
        ensure!(
            process.wait(RUN_TIMEOUT)? != Ended::Killed,
            "{flags} hung: {}",
            process.tail()
        );
        ensure!(
            process.output().contains("error 400"),
            "{flags} was not refused with 400: {}",
            process.tail()
        );
    }
    Ok("refused with 400".to_owned())
}

/// `-R` changes random bytes of its requests, then waits for responses that never arrive. So there are many short runs,
/// which are killed.
fn noise(test: &CoturnTest<'_>) -> Result<String> {
    const NOISE_RUNS: usize = 32;
    for round in 0..NOISE_RUNS / 8 {
        let mut processes = Vec::new();
        for run in 0..8 {
            let case = if run % 2 == 0 {
                echo("noise", "-R -X -g", V4, V4, 0)
            } else {
                echo("noise", "-R -x -g", V6, V6, 0)
            };
            processes.push(test.start(&case, &format!("{}", round * 8 + run))?);
        }
        std::thread::sleep(Duration::from_secs(3));
    }
    Ok(format!("{NOISE_RUNS} runs"))
}

/// `-B` closes its sockets during a handshake and starts again with new ones. So it leaves allocations behind.
fn disconnects(test: &CoturnTest<'_>) -> Result<String> {
    let mut processes = Vec::new();
    for (server, peer, flags) in [(V4, V4, "-B -X -m 10"), (V6, V6, "-B -x -m 10")] {
        processes.push((
            test.start(&echo("disconnects", flags, server, peer, 10), flags)?,
            flags,
        ));
    }
    for (mut process, flags) in processes {
        ensure!(
            process.wait(RUN_TIMEOUT)? != Ended::Killed,
            "{flags} hung: {}",
            process.tail()
        );
    }
    Ok("two runs of 10 clients".to_owned())
}

fn stun_client(test: &CoturnTest<'_>) -> Result<String> {
    for family in [V4, V6] {
        let mut command: Command = process::command("turnutils_stunclient");
        command.args(["-p", &test.server.port.to_string(), &family.to_string()]);
        let mut process = Process::start(
            "turnutils_stunclient",
            command,
            test.logs.join("stunclient.log"),
        )?;
        ensure!(
            process.wait(RUN_TIMEOUT)? != Ended::Killed,
            "it hung: {}",
            process.tail()
        );
        let output = process.output();
        ensure!(
            output.contains(&format!("reflexive addr: {family}")),
            "no reflexive address: {}",
            process.tail()
        );
    }
    Ok("reflexive address on both families".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD_OUTPUT: &str = "\
        1: : start_mclient: msz=2, tot_send_msgs=0, tot_recv_msgs=0, tot_send_bytes ~ 0, tot_recv_bytes ~ 0\n\
        5: : start_mclient: tot_send_msgs=100, tot_recv_msgs=100\n\
        5: : start_mclient: tot_send_bytes ~ 10000, tot_recv_bytes ~ 10000\n\
        5: : Total transmit time is 5\n\
        5: : Total lost packets 0 (0.000000%), total send dropped 0 (0.000000%)\n";

    #[test]
    fn a_run_in_which_everything_came_back_passes() {
        assert!(judge(GOOD_OUTPUT, &echo("test", "", V4, V4, 2)).is_ok());
    }

    #[test]
    fn a_lost_message_or_a_run_cut_short_fails() {
        let case = echo("test", "", V4, V4, 2);
        assert!(judge(&GOOD_OUTPUT.replace("recv_msgs=100", "recv_msgs=99"), &case).is_err());
        assert!(
            judge(
                &GOOD_OUTPUT.replace("lost packets 0", "lost packets 1"),
                &case
            )
            .is_err()
        );
        assert!(
            judge(
                &GOOD_OUTPUT.replace("recv_bytes ~ 10000", "recv_bytes ~ 9900"),
                &case
            )
            .is_err()
        );
        assert!(judge("0: : channel bind: error 400\n", &case).is_err());
        let two_lost = GOOD_OUTPUT
            .replace("recv_msgs=100", "recv_msgs=98")
            .replace("lost packets 0", "lost packets 2")
            .replace("recv_bytes ~ 10000", "recv_bytes ~ 9800");
        assert!(judge(&two_lost, &case).is_err());
        assert!(judge(&two_lost, &lossy(pair("test", "", V4, 2))).is_ok());
        let strict = UclientCase {
            lost_by_uclient: 0,
            ..lossy(pair("test", "", V4, 2))
        };
        assert!(judge(&two_lost, &strict).is_err());
        assert!(
            judge(
                GOOD_OUTPUT,
                &echo("fewer sessions than asked for", "", V4, V4, 4)
            )
            .is_err()
        );
    }
}
