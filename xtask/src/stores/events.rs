//! Events at a real Redis and a real NATS server: they arrive, and after an outage all of them have arrived.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::databases::{self, Database, DatabaseKind, finish};
use crate::interop::free_ports;
use crate::process::{self, Process};
use crate::tally::Tally;

const USER: &str = "alice";
const PASSWORD: &str = "wonderland";
/// The password of the NATS server.
const NATS_PASSWORD: &str = "nats-secret";
/// The server sends a failed batch again after at most 30 s.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// The text that the server prints when it is ready.
const READY_LINE: &str = "Stop with Ctrl-C";

/// Subjects of the messages that a subscriber has received.
type ReceivedSubjects = Arc<Mutex<Vec<String>>>;

struct EventsTest<'a> {
    binary: &'a Path,
    redis: Database,
    nats: Process,
    subjects: ReceivedSubjects,
    _server: Process,
    port: u16,
}

pub(super) fn run(paths: (&Path, &Path), tally: &mut Tally) {
    let test = match prepare(paths) {
        Ok(test) => test,
        Err(error) => {
            return tally.record("events: hairpin starts with Redis and NATS", &Err(error));
        }
    };
    type Check = fn(&EventsTest<'_>) -> Result<String>;
    let checks: [(&str, Check); 2] = [
        ("an allocation is told to both", arrive),
        ("after an outage, nothing is missing", outage),
    ];
    for (what, check) in checks {
        tally.record(&format!("events: {what}"), &check(&test));
    }
}

fn prepare<'a>((binary, logs): (&'a Path, &Path)) -> Result<EventsTest<'a>> {
    let redis = databases::start_named("events", DatabaseKind::Redis, logs)?;
    let nats_port = free_ports(1)?;
    let mut command = process::command("nats-server");
    command.args([
        "-a",
        "127.0.0.1",
        "-p",
        &nats_port.to_string(),
        "--user",
        "hairpin",
        "--pass",
        NATS_PASSWORD,
    ]);
    let mut nats = Process::start("nats-server", command, logs.join("nats.log"))?;
    let subjects = subscribe(nats_port, &mut nats)?;
    let port = free_ports(2)?;
    let config = logs.join("events.toml");
    let text = format!(
        "[auth]\nrealm = \"hairpin.example\"\nusers = [{{ name = {USER:?}, password = {PASSWORD:?} }}]\n\
         [[events.sinks]]\nurl = {:?}\n[[events.sinks]]\nurl = \"nats://hairpin:{NATS_PASSWORD}@127.0.0.1:{nats_port}\"\n",
        redis.url
    );
    std::fs::write(&config, text)?;
    let config = config.display().to_string();
    let mut command = process::command(binary);
    command.args([
        "serve",
        "--dev",
        "--config",
        &config,
        &format!("--listen=127.0.0.1:{port}"),
        "--relay-address=127.0.0.1",
        // Above the ports of the servers in `checks`.
        "--port-range=65000-65400",
        "--set=admin.listen=off",
        "--set=server.control_socket=off",
        "--offload=off",
        "--workers=2",
    ]);
    let mut server = Process::start("hairpin", command, logs.join("events-server.log"))?;
    let deadline = Instant::now() + MAX_WAIT;
    while !server.output().contains(READY_LINE) {
        server.assert_running()?;
        ensure!(
            Instant::now() < deadline,
            "it prints no banner: {}",
            server.tail()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(EventsTest {
        binary,
        redis,
        nats,
        subjects,
        _server: server,
        port,
    })
}

/// Subscribes to all events. A thread reads them.
fn subscribe(port: u16, nats: &mut Process) -> Result<ReceivedSubjects> {
    let deadline = Instant::now() + MAX_WAIT;
    let mut stream = loop {
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            Ok(stream) => break stream,
            Err(error) if Instant::now() >= deadline => bail!("NATS does not listen: {error}"),
            Err(_) => {
                nats.assert_running()?;
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    };
    let hello = format!(
        "CONNECT {{\"verbose\":false,\"user\":\"hairpin\",\"pass\":\"{NATS_PASSWORD}\"}}\r\nSUB hairpin.events.> 1\r\n"
    );
    stream.write_all(hello.as_bytes())?;
    let subjects = ReceivedSubjects::default();
    let seen = Arc::clone(&subjects);
    let mut writer = stream.try_clone()?;
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            // MSG subject 1 length, then the event.
            if let Some(rest) = line.strip_prefix("MSG ") {
                let subject = rest.split(' ').next().unwrap_or_default().to_owned();
                seen.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(subject);
            } else if line.starts_with("PING") && writer.write_all(b"PONG\r\n").is_err() {
                return;
            }
        }
    });
    Ok(subjects)
}

impl EventsTest<'_> {
    fn allocate(&self) -> Result<()> {
        let target = format!("127.0.0.1:{}", self.port);
        let user = format!("{USER}:{PASSWORD}");
        let mut command = Command::new(self.binary);
        finish(command.args(["probe", "turn", &target, "--user", &user])).map(drop)
    }

    /// Events of this kind that are in the stream of Redis, and those that the subscriber of NATS has.
    fn counts(&self, kind: &str) -> Result<(usize, usize)> {
        let port = self
            .redis
            .url
            .rsplit(':')
            .next()
            .and_then(|rest| rest.split('/').next());
        let mut command = Command::new("redis-cli");
        let stream = finish(
            command
                .args([
                    "-e",
                    "-n",
                    "2",
                    "-p",
                    port.unwrap_or_default(),
                    "XRANGE",
                    "hairpin.events",
                    "-",
                    "+",
                ])
                .env("REDISCLI_AUTH", "turn"),
        )?;
        let of_redis = stream
            .matches(&format!("{{\"kind\":\"{kind}\",\"id\":"))
            .count();
        let subject = format!("hairpin.events.{kind}");
        let subjects = self.subjects.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((
            of_redis,
            subjects.iter().filter(|it| **it == subject).count(),
        ))
    }

    fn wait_for(&self, kind: &str, least: usize) -> Result<(usize, usize)> {
        let deadline = Instant::now() + MAX_WAIT;
        loop {
            let counts = self.counts(kind)?;
            if counts.0 >= least && counts.1 >= least {
                return Ok(counts);
            }
            ensure!(
                Instant::now() < deadline,
                "{kind}: {counts:?} of {least} at Redis and NATS"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn arrive(test: &EventsTest<'_>) -> Result<String> {
    test.allocate()?;
    let opened = test.wait_for("allocation_opened", 1)?;
    test.wait_for("allocation_closed", opened.0)?;
    ensure!(opened.0 == opened.1, "{opened:?} at Redis and NATS");
    Ok(format!("{} allocations at Redis and NATS", opened.0))
}

/// Both stop. Allocations go on meanwhile, and their events come later.
fn outage(test: &EventsTest<'_>) -> Result<String> {
    let before = test.counts("allocation_opened")?.0;
    let redis = test
        .redis
        .process
        .as_ref()
        .context("Redis has no process")?;
    let ids = [redis.id().to_string(), test.nats.id().to_string()];
    finish(Command::new("kill").arg("-STOP").args(&ids))?;
    let allocated = (0..3).try_for_each(|_| test.allocate());
    // Longer than one attempt.
    std::thread::sleep(Duration::from_secs(6));
    finish(Command::new("kill").arg("-CONT").args(&ids))?;
    allocated.context("while both are stopped")?;
    let counts = test.wait_for("allocation_opened", before + before.max(1) * 3)?;
    Ok(format!("{} of {} allocations", counts.0, before * 4))
}
