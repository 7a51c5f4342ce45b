//! Sockets that systemd hands over: `LISTEN_FDS`, `LISTEN_FDNAMES`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::common::{Serve, TEST_TIMEOUT, fails, hairpin};
use socket2::{Domain, Protocol, Socket, Type};

/// RFC 8489 §5: a Binding request without attributes.
const BINDING: [u8; 20] = [
    0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
];

/// Children inherit the sockets that they are to get and all others that may be inherited at this moment: one test at a
/// time.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `hairpin serve` with these arguments, and these sockets as systemd hands them over: from descriptor 3 on. A shell
/// moves them there, and says which process they are for.
fn with_sockets(sockets: &[&Socket], names: &str, args: &[&str]) -> Command {
    let plain = hairpin(&[]);
    // First to numbers that are in nobody's way.
    let mut script = String::new();
    for (number, socket) in (100..).zip(sockets) {
        socket.set_cloexec(false).unwrap();
        script += &format!("exec {number}<&{}; ", socket.as_raw_fd());
    }
    for (number, _) in (0..).zip(sockets) {
        let (from, to) = (100 + number, 3 + number);
        script += &format!("exec {to}<&{from}; exec {from}<&-; ");
    }
    script += "export LISTEN_PID=$$; exec \"$0\" \"$@\"";
    let mut command = Command::new("bash");
    command.args(["-c", &script]).arg(plain.get_program());
    command.args(["serve", "--set", "server.control_socket=off"]);
    if !args.contains(&"--admin") {
        command.args(["--admin", "off"]);
    }
    command.args(args);
    for (name, _) in plain.get_envs() {
        command.env_remove(name);
    }
    command
        .env("LISTEN_FDS", sockets.len().to_string())
        .env("LISTEN_FDNAMES", names);
    command
}

fn run(mut command: Command) -> Output {
    command.output().unwrap()
}

/// A UDP socket on loopback, on a free port or on that of another one.
fn udp(of: Option<&Socket>) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
    socket.set_reuse_port(true).unwrap();
    let address = of.map_or(SocketAddr::from(([127, 0, 0, 1], 0)), address);
    socket.bind(&address.into()).unwrap();
    socket
}

fn tcp() -> Socket {
    TcpListener::bind("127.0.0.1:0").unwrap().into()
}

fn address(socket: &Socket) -> SocketAddr {
    socket.local_addr().unwrap().as_socket().unwrap()
}

/// Asks by one datagram, and returns whether a success response came.
fn answers(to: SocketAddr) -> bool {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    socket.send_to(&BINDING, to).unwrap();
    let mut answer = [0; 1500];
    let (_, from) = socket.recv_from(&mut answer).unwrap();
    from == to && answer[..2] == [1, 1]
}

fn answers_over_tcp(to: SocketAddr) -> bool {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream.write_all(&BINDING).unwrap();
    let mut answer = [0; 20];
    stream.read_exact(&mut answer).unwrap();
    answer[..2] == [1, 1]
}

#[test]
fn sockets_become_the_listeners_of_their_address_and_transport() {
    let _alone = alone();
    let (first, stream) = (udp(None), tcp());
    let second = udp(Some(&first));
    let [at, stream_at] = [&first, &stream].map(address);
    // It waits in the socket until the server reads.
    let early = UdpSocket::bind("127.0.0.1:0").unwrap();
    early.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    early.send_to(&BINDING, at).unwrap();
    let listen = at.to_string();
    let tcp_list = format!("listen.tcp={stream_at}");
    let args = ["--listen", &listen, "--workers", "2", "--set", &tcp_list];
    let sockets = [&first, &stream, &second];
    let serve = Serve::start_command(with_sockets(&sockets, "turn:tcp:turn", &args));
    assert_eq!(serve.listeners, [at]);
    let (length, _) = early.recv_from(&mut [0; 1500]).unwrap();
    assert!(length > 20, "what came before the start is answered");
    drop((first, second, stream));
    for _ in 0..16 {
        assert!(answers(at));
        assert!(answers_over_tcp(stream_at));
    }
    serve.signal("TERM");
    let (status, log) = serve.wait();
    assert!(status.success(), "{log}");
}

#[test]
fn workers_without_a_socket_bind_their_own_if_they_may() {
    let _alone = alone();
    let socket = udp(None);
    let at = address(&socket);
    let (listen, tcp) = (at.to_string(), "listen.tcp=");
    let args = ["--listen", &listen, "--workers", "3", "--set", tcp];
    let serve = Serve::start_command(with_sockets(&[&socket], "", &args));
    drop(socket);
    assert!((0..32).all(|_| answers(at)));
    drop(serve);

    let plain: Socket = UdpSocket::bind("127.0.0.1:0").unwrap().into();
    let listen = address(&plain).to_string();
    let args = ["--listen", &listen, "--workers", "3", "--set", tcp];
    let refused = run(with_sockets(&[&plain], "turn", &args));
    fails(&refused, 1, "they do not have SO_REUSEPORT");
    let text = crate::common::stderr(&refused);
    assert!(
        text.contains("repeat ListenDatagram= 3 times with ReusePort=yes"),
        "{text}"
    );
    let args = ["--listen", &listen, "--workers", "1", "--set", tcp];
    let serve = Serve::start_command(with_sockets(&[&plain], "turn", &args));
    assert!(answers(address(&plain)), "one worker needs no more");
    drop(serve);
}

#[test]
fn sip_and_metrics_use_sockets_as_well() {
    let _alone = alone();
    let admin = tcp();
    // A port that is free over UDP may be taken over TCP.
    let (sip_udp, sip_tcp) = loop {
        let udp = udp(None);
        if let Ok(tcp) = TcpListener::bind(address(&udp)) {
            break (udp, Socket::from(tcp));
        }
    };
    let sip_at = address(&sip_udp);
    let [sip, metrics] = [sip_at, address(&admin)].map(|at| at.to_string());
    let sip_list = format!("sip.listen={sip}");
    // A SIP listener must not lie in the relay range: this one is below the ports that the kernel chooses.
    let relay_ports = ["--port-range", "2000-2999"];
    let args = [
        "--listen",
        "127.0.0.1:0",
        "--workers",
        "1",
        "--set",
        &sip_list,
    ];
    let more = ["--admin", &metrics, relay_ports[0], relay_ports[1]];
    let sockets = [&sip_udp, &sip_tcp, &admin];
    let command = with_sockets(&sockets, "", &[&args[..], &more].concat());
    let serve = Serve::start_command(command);
    assert!(serve.value("sip").contains(&sip), "{}", serve.banner);
    assert!(serve.value("admin").contains(&metrics), "{}", serve.banner);
    let mut stream = TcpStream::connect(address(&admin)).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains(" 200 "), "{text}");
    drop(serve);
}

#[test]
fn sockets_that_no_listener_has_are_an_error_with_the_reason() {
    let _alone = alone();
    let (socket, stream) = (udp(None), tcp());
    let at = address(&socket);
    let free = ["--listen", "127.0.0.1:0", "--workers", "1"];
    let unused = run(with_sockets(&[&socket], "turn.socket", &free));
    let expected = format!("socket 3 (turn.socket), udp {at}, is the address of no listener");
    fails(&unused, 1, &expected);
    assert!(crate::common::stderr(&unused).contains("listen.*"));

    // The right address, but another transport.
    let listen = address(&stream).to_string();
    let args = [
        "--listen",
        &listen,
        "--workers",
        "1",
        "--set",
        "listen.tcp=",
    ];
    let unused = run(with_sockets(&[&stream], "", &args));
    fails(&unused, 1, &format!("socket 3 (unknown), tcp {listen}"));

    let listen = at.to_string();
    let more = udp(Some(&socket));
    let args = [
        "--listen",
        &listen,
        "--workers",
        "1",
        "--set",
        "listen.tcp=",
    ];
    let many = run(with_sockets(&[&socket, &more], "", &args));
    fails(&many, 1, "2 inherited sockets for udp");

    let (unix, _other) = UnixDatagram::pair().unwrap();
    let unix = Socket::from(std::os::fd::OwnedFd::from(unix));
    let wrong = run(with_sockets(&[&unix], "", &free));
    fails(&wrong, 1, "neither a UDP socket nor a listening TCP socket");
}

#[test]
fn sockets_of_other_processes_and_malformed_variables_are_distinguished() {
    let _alone = alone();
    let socket = udp(None);
    let args = ["--listen", "127.0.0.1:0", "--workers", "1"];
    let mut wrong = with_sockets(&[&socket], "", &args);
    wrong.env("LISTEN_FDS", "some");
    fails(&run(wrong), 1, "LISTEN_FDS=some is no number");
    let mut closed = with_sockets(&[&socket], "", &args);
    closed.env("LISTEN_FDS", "60");
    fails(&run(closed), 1, "LISTEN_FDS cannot be used");

    let mut other = hairpin(&[
        "serve",
        "--admin",
        "off",
        "--set",
        "server.control_socket=off",
    ]);
    other
        .args(args)
        .env("LISTEN_FDS", "1")
        .env("LISTEN_PID", "1");
    let serve = Serve::start_command(other);
    assert!(answers(serve.address()));
}
