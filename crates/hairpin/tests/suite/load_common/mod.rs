//! A server in this process, and the generator's side of it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use load::generator::{Plan, Run, Target, TurnClients};
use load::measure::{Rate, Schedule};
use load::report::LoadReport;
use server::quota::QuotaLimits;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A TURN server on loopback with one user.
pub(crate) struct Server(server::Running);

impl Server {
    /// It relays to loopback.
    pub(crate) fn start() -> Server {
        Server::launch(builder().allow_development_peers())
    }

    /// It does not.
    pub(crate) fn strict() -> Server {
        Server::launch(builder())
    }

    /// It grants so many allocations.
    pub(crate) fn limited(allocations: u32) -> Server {
        let quota = QuotaLimits::default().per_user(allocations);
        Server::launch(builder().allow_development_peers().quota(quota))
    }

    /// Its allocations last four seconds unless they are refreshed.
    pub(crate) fn forgetful() -> Server {
        let mut settings = server::Settings::default();
        settings.users = vec![("ann".to_owned(), "secret".to_owned())];
        settings.default_lifetime = Duration::from_secs(4);
        settings.max_lifetime = Duration::from_secs(4);
        let builder = builder().settings(settings).allow_development_peers();
        Server::launch(builder)
    }

    /// It listens and relays on IPv6.
    pub(crate) fn v6() -> Server {
        let ip = IpAddr::V6(std::net::Ipv6Addr::LOCALHOST);
        Server::launch(builder_on(ip).allow_development_peers())
    }

    /// It listens for TCP, TLS and DTLS, too, with a certificate of its own for `localhost`.
    pub(crate) fn streams() -> Server {
        let names = ["localhost".to_owned()];
        let certificates = server::certificates::Certificates::self_signed(&names);
        let any = SocketAddr::new(LOOPBACK, 0);
        let builder = builder().listen_tcp(any).listen_tls(any).listen_dtls(any);
        let builder = builder.certificates(certificates.expect("a certificate"));
        Server::launch(builder.allow_development_peers())
    }

    fn launch(builder: server::Builder) -> Server {
        Server(builder.start().expect("the server starts"))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.listeners()[0]
    }

    /// The server under test, for what the tests know of it.
    pub(crate) fn running(&self) -> &server::Running {
        &self.0
    }

    /// Allocations that exist now; statistics follow what happens a moment later.
    pub(crate) fn allocations(&self) -> u64 {
        let mut last = self.0.stats().allocations();
        let start = Instant::now();
        while last > 0 && start.elapsed() < Duration::from_millis(300) {
            std::thread::sleep(Duration::from_millis(10));
            last = self.0.stats().allocations();
        }
        last
    }
}

fn builder() -> server::Builder {
    builder_on(LOOPBACK)
}

fn builder_on(ip: IpAddr) -> server::Builder {
    server::Server::builder()
        .listen(SocketAddr::new(ip, 0))
        .relay_address(ip)
        .user("ann", "secret")
        .workers(1)
}

pub(crate) fn user(password: &str) -> load::probe::Credentials {
    load::probe::Credentials::new("ann", password)
}

pub(crate) fn target(address: SocketAddr) -> Target {
    Target::admit(address, false).expect("loopback is ours")
}

/// Clients of the server that know the password.
pub(crate) fn clients(server: &Server) -> TurnClients {
    let mut clients = TurnClients::new(target(server.address()));
    clients.credentials = Some(user("secret"));
    clients
}

/// A second at this rate after a short warm-up.
pub(crate) fn paced(mut plan: Plan, rate: f64) -> Plan {
    plan.set_schedule(&Schedule::constant(Rate(rate)));
    plan.warm_up = Duration::from_millis(200);
    plan.duration = Duration::from_secs(1);
    plan.linger = Duration::from_millis(300);
    plan
}

pub(crate) fn run(plan: Plan) -> LoadReport {
    let mut run = Run::start(plan).expect("the plan can run");
    while run.next_second().is_some() {}
    run.finish()
}
