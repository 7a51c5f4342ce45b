//! The servers to compare: how each is started and what it can do.

use std::path::PathBuf;

use bpf::count::Hook;

use super::error::BenchError;
use super::layout;
use super::scenario::{Direction, Scenario, SipWork, Transport};
use crate::sip::Transport as SipTransport;

mod presets;

/// User name and password of the long-term credential that the benchmark uses.
pub(crate) const USERNAME: &str = "bench";
/// See [`USERNAME`].
pub(crate) const PASSWORD: &str = "bench-password";
/// The realm that presets are started with.
pub(crate) const REALM: &str = "bench";

/// What a server can be asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// It is a TURN server: clients allocate and bind channels. Otherwise it gets the layout of flows by its command
    /// line.
    pub turn: bool,
    /// Relays from client to peer.
    pub to_peer: bool,
    /// Relays from peer to client.
    pub to_client: bool,
    /// Answers STUN Binding requests.
    pub binding: bool,
    /// Clients can allocate over TCP.
    pub tcp: bool,
    /// Clients can allocate over TLS at the same port.
    pub tls: bool,
    /// It passes datagrams on as they are: clients send no ChannelData.
    pub raw: bool,
    /// It is measured only in the scenario `spread`; its metrics show the allocations of each worker.
    pub spread: bool,
    /// Answers SIP requests: OPTIONS, and calls as a UAS.
    pub sip: bool,
    /// Asks for a digest in each REGISTER request.
    pub sip_register: bool,
    /// Is a SIP registrar and proxy for the domain of the benchmark.
    pub sip_proxy: bool,
    /// Takes SIP clients over WebSocket with TLS.
    pub wss: bool,
    /// It can add work to each SIP request.
    pub sip_service: bool,
}

impl Abilities {
    /// A TURN server over UDP. It relays in both directions and answers Binding requests.
    pub const TURN: Abilities = Abilities {
        turn: true,
        to_peer: true,
        to_client: true,
        binding: true,
        tcp: false,
        tls: false,
        raw: false,
        spread: false,
        sip: false,
        sip_register: false,
        sip_proxy: false,
        wss: false,
        sip_service: false,
    };
    /// A TURN server that can do the same over TCP and TLS.
    pub const TURN_CONNECTIONS: Abilities = Abilities {
        tcp: true,
        tls: true,
        ..Abilities::TURN
    };
    /// A TURN server that is measured without Binding requests: they need no channel, so they cannot miss one.
    pub const MISS: Abilities = Abilities {
        binding: false,
        ..Abilities::TURN
    };
    /// A bare relay that also answers Binding requests.
    pub const FLOOR: Abilities = Abilities {
        turn: false,
        ..Abilities::TURN
    };
    /// A bare relay that does nothing else.
    pub const BOTH_WAYS: Abilities = Abilities {
        binding: false,
        ..Abilities::FLOOR
    };
    /// A bare relay towards the peer.
    pub const TO_PEER: Abilities = Abilities {
        turn: false,
        to_peer: true,
        to_client: false,
        binding: false,
        ..Abilities::TURN
    };
    /// A middlebox: a bare relay towards the peer without ChannelData.
    pub const MIDDLEBOX: Abilities = Abilities {
        raw: true,
        ..Abilities::TO_PEER
    };
    /// A SIP server that only answers OPTIONS and calls, and forwards nothing.
    pub const SIP_UAS: Abilities = Abilities {
        turn: false,
        to_peer: false,
        to_client: false,
        binding: false,
        sip: true,
        ..Abilities::TURN
    };
    /// A [`SIP_UAS`](Abilities::SIP_UAS) that also challenges each REGISTER. It verifies and keeps nothing.
    pub const SIP_CHALLENGES: Abilities = Abilities {
        sip_register: true,
        ..Abilities::SIP_UAS
    };
    /// A SIP registrar and proxy that also answers calls to itself.
    pub const SIP: Abilities = Abilities {
        sip_register: true,
        sip_proxy: true,
        ..Abilities::SIP_UAS
    };
    /// The server of [`SIP`](Abilities::SIP), also over TCP and TLS. How long it works on a request can be set.
    pub const SIP_CONNECTIONS: Abilities = Abilities {
        tcp: true,
        tls: true,
        sip_service: true,
        ..Abilities::SIP
    };
    /// The server of [`SIP_CONNECTIONS`](Abilities::SIP_CONNECTIONS), also over WebSocket with TLS.
    pub const SIP_ALL: Abilities = Abilities {
        wss: true,
        ..Abilities::SIP_CONNECTIONS
    };
    /// A TURN server with several workers, and metrics over HTTP. It is measured only in the scenario `spread`.
    pub const SPREAD: Abilities = Abilities {
        spread: true,
        to_peer: false,
        to_client: false,
        binding: false,
        ..Abilities::TURN
    };
    /// A bare relay over TCP.
    pub const TCP: Abilities = Abilities {
        tcp: true,
        to_peer: false,
        ..Abilities::TO_PEER
    };
    /// A bare relay over TLS.
    pub const TLS: Abilities = Abilities {
        tls: true,
        to_peer: false,
        ..Abilities::TO_PEER
    };
    /// A STUN server.
    pub const BINDING: Abilities = Abilities {
        turn: false,
        to_peer: false,
        to_client: false,
        binding: true,
        ..Abilities::TURN
    };

    /// Whether a server with these abilities can be measured in a scenario.
    pub fn allow(&self, scenario: &Scenario) -> bool {
        match scenario {
            Scenario::Relay {
                direction: Direction::ClientToPeer,
                ..
            } => self.to_peer,
            Scenario::Relay {
                direction: Direction::PeerToClient,
                ..
            } => self.to_client,
            Scenario::Relay {
                direction: Direction::Both,
                ..
            } => self.to_peer && self.to_client,
            Scenario::Binding { .. } => self.binding,
            Scenario::Connections {
                transport: Transport::Tcp,
                ..
            } => self.tcp && !self.sip,
            Scenario::Connections {
                transport: Transport::Tls,
                ..
            }
            | Scenario::Handshakes { .. } => self.tls && !self.sip,
            Scenario::Churn { .. } | Scenario::Memory { .. } => self.turn && !self.spread,
            Scenario::Spread { .. } => self.spread,
            Scenario::Sip { work, over } => self.supports(*work) && self.carries(*over),
            Scenario::SipOverload { work, service_us } => {
                self.supports(*work) && (*service_us == 0 || self.sip_service)
            }
            Scenario::SipMemory { work, .. } => self.supports(*work) && self.sip_proxy,
        }
    }

    /// Whether it can do this work of SIP.
    fn supports(&self, work: SipWork) -> bool {
        match work {
            SipWork::Options | SipWork::Call => self.sip,
            SipWork::Register => self.sip_register,
            SipWork::ProxiedCall => self.sip_proxy,
        }
    }

    /// Whether it accepts SIP clients over this transport.
    fn carries(&self, over: SipTransport) -> bool {
        match over {
            SipTransport::Udp => self.sip,
            SipTransport::Tcp => self.tcp,
            SipTransport::Tls => self.tls,
            SipTransport::Ws | SipTransport::Wss => self.wss,
        }
    }
}

/// The role of a server in the gates of the quick mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// It must reach its gates and deliver everything unharmed: the presets `hairpin` and `hairpin-spread`.
    Gated,
    /// Others are compared with it: the preset `floor`.
    Floor,
    /// It is only measured.
    Other,
}

/// A server to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    /// Its name in the report.
    pub name: String,
    /// Program and arguments, with placeholders (see [`Side::parse`]).
    pub command: Vec<String>,
    /// What it can do.
    pub abilities: Abilities,
    /// Where the datagrams that it delivers are counted.
    pub sink: Hook,
    /// Its role in the gates.
    pub role: Role,
    /// Whether it is measured on two processors. If no other one is free, the second is that of the generator.
    pub two_processors: bool,
}

/// Programs that presets stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    /// The hairpin binary.
    pub hairpin: PathBuf,
    /// coturn's server.
    pub coturn: PathBuf,
    /// Kamailio.
    pub kamailio: PathBuf,
    /// Program and first arguments that lead to [`floor::main`](super::floor::main).
    pub floor: Vec<String>,
}

impl Side {
    /// Reads a description of a server: a preset, or `[NAME=][KIND:]COMMAND`.
    ///
    /// Presets of hairpin:
    /// - `hairpin`: in user space
    /// - `hairpin-2`: two workers on two processors
    /// - `hairpin-spread`: two workers, to measure how evenly they share allocations
    /// - `hairpin-xdp` and `hairpin-tc`: relaying in the kernel
    /// - `hairpin-xdp-miss` and `hairpin-tc-miss`: the same, with hardly any room for channels in the kernel
    ///
    /// Other presets:
    /// - `coturn`
    /// - `floor`: recvfrom and sendto
    /// - `floor-gro`: GRO and GSO
    /// - `floor-damage` and `floor-repeat`: change or repeat some datagrams, to show that this is reported
    /// - `floor-tcp` and `floor-tls`: TCP and TLS, one read and one write per connection and wake-up
    /// - `floor-stun`: recvmmsg and sendmmsg, STUN only
    /// - `floor-xdp`, `floor-tc` and `floor-stun-xdp`: in the kernel
    /// - `program-xdp` and `program-tc`: the server's own programs over a fixed table
    ///
    /// SIP: `hairpin-sip`, `hairpin-sip-2` (two workers on two processors), `hairpin-sip-uncontrolled` (without
    /// overload control), `kamailio` and `floor-sip`.
    ///
    /// Kinds: `turn` or `cmd` (a TURN server with long-term credentials; the default for a command), `static`,
    /// `middlebox`, `stun` and `sip`. A `static` server has its flows from the start, and relays ChannelData to the
    /// peer. A `middlebox` forwards datagrams unchanged. A `sip` server answers OPTIONS and calls as a UAS.
    ///
    /// Suffixes of a kind:
    /// - `+p2c`: it also relays to the client
    /// - `+stun`: it also answers Binding requests
    /// - `+tcp` and `+tls`: it also accepts clients over TCP or TLS
    /// - `+proxy` and `+wss`, for `sip`: it is a registrar and proxy; it accepts clients over WebSocket with TLS
    /// - `+xdp`: an XDP program counts what arrives, for servers that relay in the kernel
    /// - `+two`: it runs on two processors
    ///
    /// The command is split into words as a POSIX shell does it, without expansions. [`Side::command_line`] replaces
    /// placeholders in the words: `{listen}` (address and port for clients), `{listen-ip}`, `{port}`, `{relay-ip}`,
    /// `{client-ip}`, `{peer-ip}`, `{flows}`, `{user}`, `{password}` and `{realm}`. For SIP, there are `{sip-listen}`,
    /// `{sip-tls-listen}` and `{sip-wss-listen}`. Later, the benchmark replaces `{certificate}` and `{key}` by the
    /// paths of PEM files.
    ///
    /// # Errors
    /// [`BenchError::Spec`].
    pub fn parse(spec: &str, programs: &Programs) -> Result<Side, BenchError> {
        if let Some(side) = Side::preset(spec, programs) {
            return Ok(side);
        }
        let wrong = |reason| BenchError::Spec {
            spec: spec.to_owned(),
            reason,
        };
        let (name, rest) = match spec.split_once('=') {
            Some((name, rest)) if is_name(name) => (Some(name.trim()), rest),
            _ => (None, spec),
        };
        let (kind, command) = match rest.split_once(':') {
            Some((kind, command))
                if kind.starts_with(|c: char| c.is_ascii_lowercase())
                    && !kind.contains([' ', '/']) =>
            {
                (kind, command)
            }
            _ => ("turn", rest),
        };
        let (abilities, sink, two_processors) = parse_kind(kind).ok_or_else(|| {
            wrong(
                "the kind is turn (or cmd), static, middlebox, stun or sip, with +p2c, +stun, +tcp, +tls, +wss, +proxy, +xdp or +two behind it",
            )
        })?;
        let command = shlex::split(command).ok_or_else(|| wrong("a quote is not closed"))?;
        let program = command
            .first()
            .ok_or_else(|| wrong("there is no command"))?;
        let default_name = program.rsplit('/').next().unwrap_or(program).to_owned();
        let name = name.map_or(default_name, str::to_owned);
        Ok(Side {
            name,
            command,
            abilities,
            sink,
            role: Role::Other,
            two_processors,
        })
    }

    /// The command line for a given number of flows. The placeholders `{certificate}` and `{key}` remain: the files
    /// exist only while the benchmark runs.
    pub fn command_line(&self, flows: u16) -> Vec<String> {
        let sip_listen = |over| layout::sip_address_over(over).to_string();
        let values = [
            ("{listen}", layout::server_address().to_string()),
            ("{sip-listen}", layout::sip_address().to_string()),
            ("{sip-tls-listen}", sip_listen(SipTransport::Tls)),
            ("{sip-wss-listen}", sip_listen(SipTransport::Wss)),
            ("{metrics}", layout::metrics_address().to_string()),
            ("{family}", layout::family().to_owned()),
            ("{listen-ip}", layout::server_ip().to_string()),
            ("{port}", layout::SERVER_PORT.to_string()),
            ("{relay-ip}", layout::relay_ip().to_string()),
            ("{client-ip}", layout::client_ip().to_string()),
            ("{peer-ip}", layout::peer_ip().to_string()),
            ("{flows}", flows.to_string()),
            ("{user}", USERNAME.to_owned()),
            ("{password}", PASSWORD.to_owned()),
            ("{realm}", REALM.to_owned()),
        ];
        let fill = |word: &String| {
            values.iter().fold(word.clone(), |word, (name, value)| {
                word.replace(name, value)
            })
        };
        self.command.iter().map(fill).collect()
    }
}

fn is_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || " _.+-/".contains(c);
    !text.trim().is_empty() && text.chars().all(allowed) && !text.contains('/')
}

/// Reads a kind with its suffixes, such as `static+p2c`. Returns the abilities, where delivered datagrams are counted,
/// and whether the server runs on two processors.
fn parse_kind(kind: &str) -> Option<(Abilities, Hook, bool)> {
    let mut words = kind.split('+');
    let mut abilities = match words.next()? {
        "turn" | "cmd" => Abilities::TURN,
        "middlebox" => Abilities::MIDDLEBOX,
        "static" => Abilities::TO_PEER,
        "stun" => Abilities::BINDING,
        "sip" => Abilities::SIP_UAS,
        _ => return None,
    };
    let (mut sink, mut two) = (Hook::Tc, false);
    for word in words {
        match word {
            "p2c" => abilities.to_client = true,
            "stun" => abilities.binding = true,
            "tcp" => abilities.tcp = true,
            "tls" => abilities.tls = true,
            "wss" if abilities.sip => abilities.wss = true,
            "proxy" if abilities.sip => {
                (abilities.sip_register, abilities.sip_proxy) = (true, true);
            }
            "xdp" => sink = Hook::Xdp,
            "two" => two = true,
            _ => return None,
        }
    }
    Some((abilities, sink, two))
}

#[cfg(test)]
mod tests {
    use super::super::scenario::{FlowOrder, Sources};
    use super::*;

    fn programs() -> Programs {
        Programs {
            hairpin: "/bin/hairpin".into(),
            coturn: "turnserver".into(),
            kamailio: "kamailio".into(),
            floor: vec!["/bin/hairpin".into(), "bench-floor".into()],
        }
    }

    fn parse(spec: &str) -> Side {
        Side::parse(spec, &programs()).unwrap()
    }

    #[test]
    fn presets_name_themselves_and_get_their_placeholders_filled() {
        let floor = parse("floor");
        assert_eq!(
            floor.command_line(64),
            ["/bin/hairpin", "bench-floor", "plain", "64", "ipv4"]
        );
        assert!(floor.role == Role::Floor && !floor.abilities.turn && floor.abilities.to_client);
        let coturn = parse("coturn");
        assert!(
            coturn
                .command_line(1)
                .contains(&"--listening-ip=10.99.1.1".to_owned())
        );
        assert!(
            coturn
                .command_line(1)
                .contains(&"--user=bench:bench-password".to_owned())
        );
        assert_eq!(coturn.abilities, Abilities::TURN_CONNECTIONS);
        let kernel = parse("floor-xdp");
        assert_eq!(
            (kernel.abilities, kernel.sink),
            (Abilities::BOTH_WAYS, Hook::Xdp)
        );
        assert_eq!(parse("floor-tc").sink, Hook::Tc);
        for (name, mode, sink) in [
            ("hairpin", "off", Hook::Tc),
            ("hairpin-xdp", "xdp", Hook::Xdp),
            ("hairpin-tc", "tc", Hook::Tc),
            // User space relays, so both are counted alike.
            ("hairpin-xdp-miss", "xdp", Hook::Tc),
        ] {
            let side = parse(name);
            let words = side.command_line(1);
            assert!(words.contains(&format!("--offload={mode}")), "{name}");
            assert_eq!(side.sink, sink, "{name}");
        }
    }

    #[test]
    fn other_servers_are_described_by_name_kind_and_command() {
        let side = parse("bare relay=static:/opt/relay {flows} 1 'a b' \"\"");
        assert_eq!(side.name, "bare relay");
        assert_eq!(side.command_line(7), ["/opt/relay", "7", "1", "a b", ""]);
        assert_eq!((side.abilities, side.sink), (Abilities::TO_PEER, Hook::Tc));
        let side = parse("static+p2c+stun+xdp+two:/opt/relay");
        assert!(side.two_processors && parse("hairpin-2").two_processors);
        assert!(parse("hairpin-sip-2").two_processors && !parse("hairpin-sip").two_processors);
        assert!(!parse("hairpin").two_processors);
        assert_eq!(
            (side.name.as_str(), side.abilities, side.sink),
            ("relay", Abilities::FLOOR, Hook::Xdp)
        );
        let side = parse("/opt/turnserver --listen={listen} --user=a:b");
        assert_eq!(
            (side.name.as_str(), side.abilities),
            ("turnserver", Abilities::TURN)
        );
        assert_eq!(
            side.command_line(1)[1..],
            ["--listen=10.99.1.1:3478", "--user=a:b"]
        );
    }

    #[test]
    fn descriptions_that_make_no_sense_are_refused() {
        let side = parse("cmd:/opt/turnserver -n");
        assert_eq!(side.abilities, Abilities::TURN);
        let side = parse("box=middlebox+p2c:/opt/box {listen}");
        assert!(side.abilities.raw && side.abilities.to_client && !side.abilities.turn);
        assert_eq!(parse("hairpin-spread").abilities, Abilities::SPREAD);
        for spec in [
            "",
            "static:",
            "ftp:/bin/x",
            "static+fast:/bin/x",
            "static:/bin/x 'open",
        ] {
            assert!(Side::parse(spec, &programs()).is_err(), "{spec}");
        }
    }

    #[test]
    fn a_server_is_asked_only_for_what_it_can_do() {
        let relay = |direction| Scenario::Relay {
            flows: 1,
            train: 1,
            order: FlowOrder::InTurn,
            direction,
            payload: 120,
        };
        assert!(Abilities::TO_PEER.allow(&relay(Direction::ClientToPeer)));
        assert!(!Abilities::TO_PEER.allow(&relay(Direction::Both)));
        assert!(!Abilities::FLOOR.allow(&Scenario::Churn { in_flight: 1 }));
        assert!(Abilities::BINDING.allow(&Scenario::Binding {
            clients: 1,
            sources: Sources::OneAddress
        }));
        assert!(!Abilities::BINDING.allow(&relay(Direction::PeerToClient)));
    }
    #[test]
    fn sip_servers_are_asked_for_the_transports_that_they_have() {
        let over = |over| Scenario::Sip {
            work: SipWork::Register,
            over,
        };
        let busy = Scenario::SipOverload {
            work: SipWork::Call,
            service_us: 50,
        };
        let hairpin = parse("hairpin-sip").abilities;
        let kamailio = parse("kamailio").abilities;
        let floor = parse("floor-sip").abilities;
        for all in [SipTransport::Udp, SipTransport::Tcp, SipTransport::Tls] {
            assert!(hairpin.allow(&over(all)) && kamailio.allow(&over(all)));
        }
        assert!(floor.allow(&over(SipTransport::Udp)) && !floor.allow(&over(SipTransport::Tcp)));
        let memory = Scenario::SipMemory {
            work: SipWork::Register,
            count: 1,
        };
        assert!(hairpin.allow(&memory) && !floor.allow(&memory));
        assert!(hairpin.allow(&over(SipTransport::Wss)));
        assert!(!kamailio.allow(&over(SipTransport::Wss)));
        assert!(hairpin.allow(&busy) && kamailio.allow(&busy) && !floor.allow(&busy));
        let tls = Scenario::Handshakes {
            resumed: false,
            in_flight: 1,
        };
        assert!(!hairpin.allow(&tls) && parse("hairpin").abilities.allow(&tls));
        let other = parse("sip+proxy+tcp:/opt/proxy {sip-listen}").abilities;
        assert!(other.allow(&over(SipTransport::Tcp)) && !other.allow(&over(SipTransport::Tls)));
        assert!(Side::parse("turn+wss:/opt/x", &programs()).is_err());
    }
}
