//! `hairpin upgrade` for a new process without CAP_BPF and CAP_NET_ADMIN: with the steering program of the old process,
//! it takes over and relays in user space; without, it is refused. No allocation is lost.
//!
//! The tests need root (CAP_BPF and CAP_NET_ADMIN) for the old process, and are skipped without.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Command, Output};

use crate::common::controlled::{
    Controlled, eventually, free_port, is_alive, kill, may_load_programs,
};
use crate::common::turn::{Client, PASSWORD, USER};
use crate::common::{fails, hairpin, stderr, stdout};

/// What loading programs and attaching them requires.
const CAPABILITIES: &str = "-bpf,-net_admin,-perfmon,-sys_admin";
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn config(folder: &Path, port: u16, workers: usize) -> String {
    format!(
        "[listen]\nudp = [\"127.0.0.1:{port}\"]\ntcp = []\n[relay]\naddresses = [\"127.0.0.1\"]\n[auth]\nrealm = \"example.org\"\nusers = [{{ name = \"{USER}\", password = \"{PASSWORD}\" }}]\n[peers]\nallow_local = true\n[admin]\nlisten = \"off\"\n[log]\nlevel = \"info\"\n[server]\nworkers = {workers}\ncontrol_socket = {:?}\n",
        Controlled::socket_in(folder)
    )
}

struct Server {
    controlled: Controlled,
    address: SocketAddr,
}

impl Server {
    fn start(workers: usize) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let port = free_port();
        let text = config(folder.path(), port, workers);
        Self {
            controlled: Controlled::start(folder, &text),
            address: (LOCAL, port).into(),
        }
    }

    /// `hairpin upgrade` by a process that has not got the capabilities, and cannot get them.
    fn upgrade_without_capabilities(&self) -> Output {
        let plain = hairpin(&["upgrade", "--socket"]);
        let mut command = Command::new("setpriv");
        command
            .arg(format!("--bounding-set={CAPABILITIES}"))
            .arg(format!("--inh-caps={CAPABILITIES}"))
            .arg(plain.get_program())
            .args(plain.get_args())
            .arg(self.controlled.socket());
        command.output().expect("setpriv runs")
    }

    fn status(&self, field: &str) -> serde_json::Value {
        let status = self.controlled.status();
        status.map_or(serde_json::Value::Null, |status| status[field].clone())
    }

    fn clients(&self, peer: SocketAddr) -> Vec<Client> {
        let client = || {
            let mut client = Client::of(self.address, LOCAL, USER, PASSWORD);
            assert_eq!(client.allocate().code, 0);
            assert_eq!(client.bind_channel(peer).code, 0);
            client
        };
        (0..8).map(|_| client()).collect()
    }
}

/// Sends everything back, until the test ends.
fn echo() -> SocketAddr {
    let socket = UdpSocket::bind((LOCAL, 0)).expect("a port");
    let address = socket.local_addr().expect("bound");
    std::thread::spawn(move || {
        let mut buffer = [0; 1500];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
    address
}

/// Each client's data goes to the peer and back, and its allocation can be refreshed.
fn expect_served(clients: &mut [Client]) {
    for (number, client) in (0..).zip(clients) {
        assert!(client.round_trip(number).is_some(), "client {number}");
        assert_eq!(client.refresh(600).code, 0, "client {number}");
    }
}

/// Since Linux 5.19, a process with the descriptor of a table may write to it without a capability.
fn may_write_tables() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("Linux");
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse().ok());
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (5, 19)
}

fn names_what_is_missing(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    text.contains("cap_bpf") && text.contains("missing")
}

#[test]
fn a_process_without_capabilities_takes_over_and_relays_in_user_space() {
    if !may_load_programs() || !may_write_tables() {
        return eprintln!("skipped: no program can be loaded or handed over");
    }
    let server = Server::start(2);
    let first = server.controlled.pid();
    assert_eq!(server.status("steering"), "bpf");
    let offload = server.status("offload").to_string();
    assert!(offload.contains("the kernel relays"), "{offload}");
    let peer = echo();
    let mut clients = server.clients(peer);
    expect_served(&mut clients);

    let upgraded = server.upgrade_without_capabilities();
    let said = format!("{}{}", stdout(&upgraded), stderr(&upgraded));
    assert!(upgraded.status.success(), "{said}");
    let second = server.controlled.pid();
    assert!(second != first && second != 0, "{said}");
    let offload = server.status("offload").to_string();
    assert!(
        offload.contains("user space relays") && names_what_is_missing(&offload),
        "{offload}"
    );
    // The operator who runs the command sees it, too.
    let line = said
        .lines()
        .find(|line| line.contains("data path of an interface") && names_what_is_missing(line));
    assert!(line.is_some_and(|line| line.contains("user")), "{said}");

    // All clients of the old process are there, in both directions; new ones are the new process's.
    expect_served(&mut clients);
    let mut newcomers = server.clients(peer);
    expect_served(&mut newcomers);
    expect_served(&mut clients);
    eventually("the new process says what each has", || {
        server.status("allocations") == 8 && server.status("predecessor")["allocations"] == 8
    });
    for client in &mut clients {
        assert_eq!(client.refresh(0).code, 0);
    }
    eventually("the old process ends", || !is_alive(first));
    expect_served(&mut newcomers);
    kill(second, "-TERM");
    eventually("the new process ends", || !is_alive(second));
}

#[test]
fn without_a_steering_program_to_take_over_the_upgrade_is_refused_and_nothing_changes() {
    if !may_load_programs() {
        return eprintln!("skipped: this process may not load programs");
    }
    // One worker has no program that tells clients apart.
    let server = Server::start(1);
    let first = server.controlled.pid();
    let peer = echo();
    let mut clients = server.clients(peer);
    let refused = server.upgrade_without_capabilities();
    fails(&refused, 1, "give CAP_BPF and CAP_NET_ADMIN");
    assert!(stderr(&refused).contains("serves as before"));
    eventually("the first process has the control socket", || {
        server.controlled.pid() == first
    });
    expect_served(&mut clients);
    let mut newcomers = server.clients(peer);
    expect_served(&mut newcomers);
    eventually("the first process has all clients", || {
        server.status("allocations") == 16
    });
    // With the capabilities, it works.
    let second = server.controlled.upgrade();
    assert_ne!(second, first);
    expect_served(&mut clients);
    for client in clients.iter_mut().chain(&mut newcomers) {
        assert_eq!(client.refresh(0).code, 0);
    }
    eventually("the old process ends", || !is_alive(first));
    kill(second, "-TERM");
    eventually("the new process ends", || !is_alive(second));
}
