//! `hairpin load turn`: relaying, allocating, calls, garbage.

use std::process::ExitCode;

use anyhow::anyhow;
use load::generator::{
    self, ChurnOptions, Direction, Framing, MixedOptions, Path, Plan, RelayOptions, Security,
    Stopper, TurnClients,
};
use load::measure::Rate;
use load::probe::Credentials;
use load::uri::Scheme;
use server::AddressFamily;

use super::place::ServerUnderLoad;
use super::run::{DEFAULT_DRAIN_TIME, LoadRun, WARM_UP};
use super::{Fault, check_flags, check_transport, place, stun};
use crate::cli::load::turn::{Args, Credentials as UserArgs, Direction as Way, Family, Workload};
use crate::commands::creds;

/// Datagrams per second, unless said otherwise.
const RELAY_RATE: Rate = Rate(1_000.0);
/// Cycles per second, unless said otherwise.
const ALLOCATE_RATE: Rate = Rate(100.0);
/// Time-limited credentials have to outlive the longest run.
const CREDENTIALS_S: u64 = 86_400;
/// Name in time-limited credentials, unless said otherwise.
const NAME: &str = "load";

/// Runs the command.
pub(super) fn run(args: &Args) -> Result<ExitCode, Fault> {
    let workload = name(args.workload);
    check(workload, args)?;
    let credentials = credentials(&args.credentials)?;
    let place = place::server(&args.to, Scheme::Turn)?;
    check_transport(workload, &place.via, &args.how.course)?;
    let path = path(args)?;
    let order = LoadRun {
        title: format!("{workload} against {}", place.uri("turn")),
        default_rate: match args.workload {
            Workload::Relay => Some(RELAY_RATE),
            Workload::Allocate => Some(ALLOCATE_RATE),
            Workload::Mixed => None,
            Workload::Garbage => Some(stun::GARBAGE_RATE),
        },
        one_sided: args.workload == Workload::Garbage,
        linger: DEFAULT_DRAIN_TIME,
        warm_up: WARM_UP,
        sweep: None,
        how: &args.how,
    };
    order.carry_out(|stopper| plan(args, clients(args, place, credentials), path, stopper))
}

fn name(workload: Workload) -> &'static str {
    match workload {
        Workload::Relay => "relay",
        Workload::Allocate => "allocate",
        Workload::Mixed => "mixed",
        Workload::Garbage => "garbage",
    }
}

fn check(workload: &str, args: &Args) -> Result<(), Fault> {
    const RELAY: &[&str] = &["relay"];
    const OWN_PEERS: &[&str] = &["relay", "mixed"];
    const ALLOCATE: &[&str] = &["allocate"];
    const MIXED: &[&str] = &["mixed"];
    const CLIENTS: &[&str] = &["relay", "allocate", "mixed"];
    let (setup, relay, others) = (&args.setup, &args.relay, &args.others);
    stun::check_garbage(workload, &args.garbage)?;
    check_flags(
        workload,
        &[
            ("--clients", setup.clients.is_some(), RELAY),
            ("--relay-family", setup.relay_family.is_some(), CLIENTS),
            ("--classic", setup.classic, CLIENTS),
            ("--lifetime", setup.lifetime.is_some(), CLIENTS),
            ("--peers", relay.peers.is_some(), RELAY),
            ("--peer", !relay.peer.is_empty(), RELAY),
            ("--reflector", relay.reflector, RELAY),
            ("--pairs", relay.pairs, RELAY),
            ("--direction", relay.direction.is_some(), RELAY),
            ("--indications", relay.indications, RELAY),
            ("--size", relay.size.is_some(), RELAY),
            ("--payload-key", relay.payload_key.is_some(), RELAY),
            ("--peer-ip", relay.peer_ip.is_some(), OWN_PEERS),
            ("--peer-ports", relay.peer_ports.is_some(), OWN_PEERS),
            ("--refreshes", others.refreshes.is_some(), ALLOCATE),
            ("--calls", others.calls.is_some(), MIXED),
            ("--video-share", others.video_share.is_some(), MIXED),
        ],
    )
}

/// The credentials, if there are any.
fn credentials(who: &UserArgs) -> Result<Option<Credentials>, Fault> {
    if let Some(secret) = &who.secret {
        let expires = creds::now_unix_s() + CREDENTIALS_S;
        let name = who.user.as_deref().unwrap_or(NAME);
        let ice = creds::make(secret, name, expires, Vec::new());
        return Ok(Some(Credentials::new(&ice.username, &ice.password)));
    }
    let Some(user) = &who.user else {
        return Ok(None);
    };
    let (name, password) = match (&who.password, user.split_once(':')) {
        (Some(password), _) => (user.as_str(), password.as_str()),
        (None, Some(both)) => both,
        (None, None) => {
            return Err(Fault::Usage(anyhow!(
                "--user: the password is missing: write NAME:PASSWORD, or give --password"
            )));
        }
    };
    Ok(Some(Credentials::new(name, password)))
}

fn clients(args: &Args, place: ServerUnderLoad, credentials: Option<Credentials>) -> TurnClients {
    let setup = &args.setup;
    let mut clients = TurnClients::new(place.target);
    clients.via = place.via;
    clients.credentials = credentials;
    clients.security = if setup.classic {
        Security::Classic
    } else {
        Security::Negotiate
    };
    clients.local = args.to.local;
    clients.family = setup.relay_family.map(|family| match family {
        Family::V4 => AddressFamily::V4,
        Family::V6 => AddressFamily::V6,
    });
    clients.lifetime_s = setup.lifetime;
    clients.in_flight = setup.in_flight.unwrap_or(clients.in_flight);
    clients.timeout = setup.timeout;
    clients
}

/// Ports of the peers in this process: each client needs as many as it has peers, and each receiver reads its own.
fn peer_ports(args: &Args) -> u32 {
    let needed = args
        .relay
        .peers
        .unwrap_or(1)
        .max(args.how.course.receivers.into());
    args.relay.peer_ports.unwrap_or(needed)
}

/// Where relayed data goes.
fn path(args: &Args) -> Result<Path, Fault> {
    let relay = &args.relay;
    let direction = match relay.direction {
        None | Some(Way::Up) => Direction::Up,
        Some(Way::Down) => Direction::Down,
        Some(Way::Both) => Direction::Both,
    };
    if !relay.peer.is_empty() {
        let addresses = relay.peer.iter().flat_map(|list| &list.0);
        let admit = |&address| place::admit(address, args.to.i_own_the_target);
        return Ok(Path::Echo(addresses.map(admit).collect::<Result<_, _>>()?));
    }
    Ok(if relay.pairs {
        Path::Clients { direction }
    } else if relay.reflector {
        Path::Reflector {
            ip: relay.peer_ip,
            threads: args.how.course.receivers.into(),
            ports: peer_ports(args),
        }
    } else {
        Path::Peers {
            direction,
            ip: relay.peer_ip,
            sockets: peer_ports(args),
        }
    })
}

fn plan(args: &Args, clients: TurnClients, path: Path, stopper: &Stopper) -> Result<Plan, Fault> {
    let target = clients.server;
    let mut plan = match args.workload {
        Workload::Relay => generator::relay(&relay(args, clients, path), stopper)?,
        Workload::Allocate => {
            let mut options = ChurnOptions::new(clients);
            options.refreshes = args.others.refreshes.unwrap_or(options.refreshes);
            options.in_flight = args.setup.in_flight.unwrap_or(options.in_flight);
            generator::allocate(&options, stopper)?
        }
        Workload::Mixed => generator::mixed(&mixed(args, clients), stopper)?,
        Workload::Garbage => {
            stun::check_listens(target)?;
            let mut plan = generator::garbage(&stun::garbage(&args.garbage, target))?;
            plan.stopper = stopper.clone();
            plan
        }
    };
    plan.server_pid = args.to.server_pid;
    plan.payload_key = args.relay.payload_key;
    Ok(plan)
}

fn relay(args: &Args, clients: TurnClients, path: Path) -> RelayOptions {
    let mut options = RelayOptions::new(clients);
    options.clients = args.setup.clients.unwrap_or(options.clients);
    options.peers = args.relay.peers.unwrap_or(options.peers);
    options.size = args.relay.size.unwrap_or(options.size);
    options.framing = if args.relay.indications {
        Framing::Indications
    } else {
        Framing::Channels
    };
    options.path = path;
    options
}

fn mixed(args: &Args, clients: TurnClients) -> MixedOptions {
    let mut options = MixedOptions::new(clients);
    options.calls = args.others.calls.unwrap_or(options.calls);
    options.video_share = args.others.video_share.unwrap_or(options.video_share);
    options.ip = args.relay.peer_ip;
    options.sockets = args
        .relay
        .peer_ports
        .unwrap_or(options.sockets.max(args.how.course.receivers.into()));
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(user: Option<&str>, password: Option<&str>, secret: Option<&str>) -> UserArgs {
        UserArgs {
            user: user.map(str::to_owned),
            password: password.map(str::to_owned),
            secret: secret.map(str::to_owned),
        }
    }

    #[test]
    fn credentials_are_taken_in_every_form() {
        let expected = Some(Credentials::new("alice", "s3:cret"));
        let of = |user, password| credentials(&who(user, password, None)).unwrap();
        assert_eq!(of(Some("alice:s3:cret"), None), expected);
        assert_eq!(of(Some("alice"), Some("s3:cret")), expected);
        assert_eq!(of(None, None), None);
        assert!(matches!(
            credentials(&who(Some("alice"), None, None)),
            Err(Fault::Usage(_))
        ));
        let limited = credentials(&who(Some("bob"), None, Some("secret"))).unwrap();
        let limited = format!("{limited:?}");
        assert!(limited.contains(":bob"), "{limited}");
    }
}
