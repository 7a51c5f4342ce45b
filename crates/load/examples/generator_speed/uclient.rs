//! coturn's generator, against coturn's server on another processor, whose peer is a socket that nobody reads.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::{Failure, RECEIVER, sink};

/// Each sends some 12,000 messages a second at most, so together they fill a processor.
const CLIENTS: &str = "32";
/// It reports once a second; the first reports are those of clients that still allocate.
const REPORTS: usize = 8;
const USED: usize = 4;

/// A process that does not outlive its turn.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Messages that it sends per second of its processor time, on the caller's processor.
pub(crate) fn rate() -> Result<f64, Failure> {
    let port = UdpSocket::bind("127.0.0.1:0")?
        .local_addr()?
        .port()
        .to_string();
    let _server = Killed(server(&port)?);
    // Until it listens; it says nothing by itself.
    std::thread::sleep(Duration::from_secs(1));
    let sink = sink(false)?;
    let mut client = Killed(
        // Line by line, or its reports would come all at its end.
        Command::new("stdbuf")
            .args(["-oL", "turnutils_uclient", "-m", CLIENTS, "-n", "50000000"])
            .args([
                "-l", "120", "-z", "0", "-c", "-X", "-g", "-u", "user", "-w", "x",
            ])
            .args([
                "-e",
                "127.0.0.1",
                "-r",
                &sink.local_addr().port().to_string(),
            ])
            .args(["-p", &port, "127.0.0.1"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?,
    );
    let id = client.0.id();
    let output = client.0.stdout.take().ok_or("no output")?;
    let mut seen = Vec::new();
    for line in BufReader::new(output).lines() {
        if let Some(sent) = sent(&line?) {
            seen.push((sent, processor_time_ns(id)?));
        }
        if seen.len() == REPORTS {
            let (first, last) = (seen[REPORTS - 1 - USED], seen[REPORTS - 1]);
            return Ok((last.0 - first.0) as f64 * 1e9 / (last.1 - first.1) as f64);
        }
    }
    Err("turnutils_uclient (Debian: coturn) did not run".into())
}

fn server(port: &str) -> Result<Child, Failure> {
    let processor = RECEIVER.to_string();
    let child = Command::new("taskset")
        .args(["-c", &processor, "turnserver", "-n", "--no-auth"])
        .args(["--listening-ip=127.0.0.1", "--relay-ip=127.0.0.1"])
        .arg(format!("--listening-port={port}"))
        .args(["--relay-threads=1", "--allow-loopback-peers", "--no-cli"])
        .args([
            "--no-tls",
            "--no-dtls",
            "--no-stdout-log",
            "--log-file=/dev/null",
        ])
        .args(["--pidfile=/dev/null", "--userdb=:memory:"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Ok(child)
}

/// The count in a line such as `3: : start_mclient: msz=1, tot_send_msgs=17200, tot_recv_msgs=0, ...`.
fn sent(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once("tot_send_msgs=")?;
    rest.split(',').next()?.parse().ok()
}

/// Of a process with one thread, in nanoseconds.
fn processor_time_ns(id: u32) -> Result<u64, Failure> {
    let text = fs::read_to_string(format!("/proc/{id}/schedstat"))?;
    Ok(text.split(' ').next().unwrap_or_default().parse()?)
}
