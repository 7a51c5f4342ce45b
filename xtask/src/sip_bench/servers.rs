//! The servers, each with one worker on one processor unless their workers are what is compared.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::interop::certificate::Certificate;
use crate::process::{self, Process};

/// The processor of a server that has one.
const ONE_CPU: &str = "1";
/// Those of a server that has all.
const ALL_CPUS: &str = "0,1";
/// How long a server may take to answer.
const READY: Duration = Duration::from_secs(10);

/// A server and how it is started.
pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) port: u16,
    cpus: &'static str,
    /// Program and arguments; `{config}` is the file.
    command: Vec<String>,
    config: String,
}

impl Server {
    /// Those whose processor time is compared.
    pub(crate) fn for_cost(binary: &Path) -> Vec<Server> {
        vec![Hairpin::default().build(binary), kamailio(0)]
    }

    /// Those that are compared over connections.
    pub(crate) fn for_transports(binary: &Path, certificate: &Certificate) -> [Secured; 2] {
        [
            secured_hairpin(binary, certificate),
            secured_kamailio(certificate),
        ]
    }

    /// With one worker and with two, neither of which is kept to a processor, and an application that takes so long for each request.
    pub(crate) fn for_workers(binary: &Path, service_time_us: u32) -> [Server; 2] {
        let with = |name, port, workers| Hairpin {
            name,
            port,
            workers,
            service_time_us,
            cpus: ALL_CPUS,
            ..Hairpin::default()
        };
        [
            with("one worker", 5584, 1).build(binary),
            with("two workers", 5585, 2).build(binary),
        ]
    }

    /// Those that are overloaded.
    pub(crate) fn for_overload(binary: &Path, service_time_us: u32) -> Vec<Server> {
        let controlled = Hairpin {
            service_time_us,
            ..Hairpin::default()
        };
        let uncontrolled = Hairpin {
            name: "hairpin, no control",
            port: 5582,
            tolerance_ms: 0,
            ..controlled
        };
        vec![
            controlled.build(binary),
            uncontrolled.build(binary),
            kamailio(service_time_us),
        ]
    }

    /// Starts it and waits until it answers.
    pub(crate) fn start(&self, folder: &Path) -> Result<Process> {
        let stem = self.name.replace([' ', ','], "-");
        let config = folder.join(format!("{stem}.conf"));
        std::fs::write(&config, &self.config)
            .with_context(|| format!("cannot write {}", config.display()))?;
        let mut command = process::command("taskset");
        command.args(["-c", self.cpus]);
        for word in &self.command {
            command.arg(word.replace("{config}", &config.display().to_string()));
        }
        let log = folder.join(format!("{stem}.log"));
        let mut running = Process::start(self.name, command, log)?;
        let deadline = Instant::now() + READY;
        while !answers(self.port)? {
            running.assert_running()?;
            if Instant::now() >= deadline {
                bail!("{} does not answer: {}", self.name, running.tail());
            }
        }
        Ok(running)
    }
}

/// A server that listens over TCP, TLS and perhaps WebSocket.
pub(crate) struct Secured {
    pub(crate) server: Server,
    /// By transport.
    pub(crate) ports: Vec<(&'static str, u16)>,
}

fn secured_hairpin(binary: &Path, certificate: &Certificate) -> Secured {
    let mut server = Hairpin {
        port: 5586,
        ..Hairpin::default()
    }
    .build(binary);
    let (chain, key) = (certificate.chain.display(), certificate.key.display());
    let more = format!(
        "listen_tls = [\"127.0.0.1:5587\"]\nlisten_wss = [\"127.0.0.1:5588\"]\n\
         [tls]\ncertificates = [{{ certificate = \"{chain}\", key = \"{key}\" }}]\n"
    );
    server.config.push_str(&more);
    Secured {
        server,
        ports: vec![("tcp", 5586), ("tls", 5587), ("wss", 5588)],
    }
}

/// Over TCP and TLS. A WebSocket is an event of HTTP there, in modules of their own.
fn secured_kamailio(certificate: &Certificate) -> Secured {
    let mut server = kamailio(0);
    server.port = 5590;
    if let Some(at) = server.command.iter().position(|word| word == "-l") {
        server.command[at + 1] = "udp:127.0.0.1:5590".to_owned();
        let more = ["-l", "tcp:127.0.0.1:5590", "-l", "tls:127.0.0.1:5591"];
        server
            .command
            .splice(at + 2..at + 2, more.map(str::to_owned));
    }
    let (chain, key) = (certificate.chain.display(), certificate.key.display());
    let tls = format!(
        "tcp_children=1\nenable_tls=yes\nloadmodule \"tls.so\"\nmodparam(\"tls\", \"tls_method\", \"TLSv1.2+\")\n\
         modparam(\"tls\", \"certificate\", \"{chain}\")\nmodparam(\"tls\", \"private_key\", \"{key}\")\n"
    );
    server.config = server.config.replace("disable_tcp=yes\n", &tls);
    Secured {
        server,
        ports: vec![("tcp", 5590), ("tls", 5591)],
    }
}

/// One OPTIONS request and a short wait.
fn answers(port: u16) -> Result<bool> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    let here = socket.local_addr()?;
    let request = format!(
        "OPTIONS sip:127.0.0.1:{port} SIP/2.0\r\nVia: SIP/2.0/UDP {here};branch=z9hG4bKready{};rport\r\nMax-Forwards: 70\r\n\
         From: <sip:x@{here}>;tag=1\r\nTo: <sip:127.0.0.1:{port}>\r\nCall-ID: ready@{here}\r\nCSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n",
        here.port()
    );
    // A server that is not there yet refuses; both calls may say so.
    let sent = socket
        .connect(("127.0.0.1", port))
        .and_then(|()| socket.send(request.as_bytes()));
    let answered = sent.and_then(|_| socket.recv(&mut [0; 2048])).is_ok();
    if !answered {
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(answered)
}

/// How hairpin is configured.
#[derive(Clone, Copy)]
struct Hairpin {
    name: &'static str,
    port: u16,
    workers: u32,
    tolerance_ms: u32,
    service_time_us: u32,
    cpus: &'static str,
}

impl Default for Hairpin {
    fn default() -> Hairpin {
        Hairpin {
            name: "hairpin",
            port: 5581,
            workers: 1,
            tolerance_ms: 200,
            service_time_us: 0,
            cpus: ONE_CPU,
        }
    }
}

impl Hairpin {
    fn build(self, binary: &Path) -> Server {
        let Hairpin {
            name,
            port,
            workers,
            tolerance_ms,
            service_time_us,
            cpus,
        } = self;
        let config = format!(
            "[server]\nworkers = {workers}\n[listen]\nudp = [\"127.0.0.1:{turn}\"]\n\
             [auth]\nrealm = \"bench\"\nusers = [{{ name = \"bench\", password = \"bench\" }}]\n[admin]\nlisten = \"off\"\n\
             [sip]\nlisten = [\"127.0.0.1:{port}\"]\ntest_uas = true\ntolerance_ms = {tolerance_ms}\nservice_time_us = {service_time_us}\n\
             transactions = 2000000\n",
            turn = port + 1000
        );
        let binary = binary.display().to_string();
        let words = [&binary, "serve", "--config", "{config}"];
        Server {
            name,
            port,
            cpus,
            command: words.map(str::to_owned).into(),
            config,
        }
    }
}

/// Rounds of an empty loop in Kamailio's script for each microsecond.
const LOOPS_PER_US: u32 = 6;

/// Stateless answers, as a script would have them: the least that Kamailio can do for a transaction; and before each that begins or
/// ends something, a loop that takes about so long.
fn kamailio(service_time_us: u32) -> Server {
    let words = [
        "kamailio",
        "-DD",
        "-E",
        "-x",
        "fm",
        "-X",
        "fm",
        "-m",
        "1024",
        "-M",
        "64",
        "-n",
        "1",
        "-l",
        "udp:127.0.0.1:5583",
        "-f",
        "{config}",
    ];
    let config = r#"
debug=1
max_while_loops=1000000
log_stderror=yes
children=1
disable_tcp=yes
auto_aliases=no
maxbuffer=4194304
loadmodule "sl.so"
loadmodule "pv.so"
loadmodule "kex.so"
loadmodule "textops.so"
loadmodule "usrloc.so"
loadmodule "registrar.so"
modparam("usrloc", "db_mode", 0)
modparam("usrloc", "hash_size", 16)
request_route {
    if (is_method("INVITE|BYE|REGISTER")) {
        $var(left) = LOOPS;
        while ($var(left) > 0) { $var(left) = $var(left) - 1; }
    }
    if (is_method("OPTIONS")) { sl_send_reply("200", "OK"); exit; }
    if (is_method("REGISTER")) { save("location"); exit; }
    if (is_method("INVITE")) {
        sl_send_reply("180", "Ringing");
        append_to_reply("Contact: <sip:uas@127.0.0.1:5583>\r\n");
        sl_send_reply("200", "OK");
        exit;
    }
    if (is_method("ACK")) exit;
    sl_send_reply("200", "OK");
}
"#;
    Server {
        name: "kamailio",
        port: 5583,
        cpus: ONE_CPU,
        command: words.map(str::to_owned).into(),
        config: config.replace("LOOPS", &(service_time_us * LOOPS_PER_US).to_string()),
    }
}
