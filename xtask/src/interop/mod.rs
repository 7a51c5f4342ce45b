//! Interoperability: clients that others wrote, against a release build of hairpin.
//!
//! - [`coturn`], with coturn's `turnutils_*` from Debian: the whole option matrix, IPv4 and IPv6, zero loss; abuse is
//!   survived.
//! - [`nat_discovery`], with coturn's `turnutils_natdiscovery` and `turnutils_stunclient -f`, and coturn's server: RFC
//!   5780 in both directions.
//! - [`oauth`], with coturn's `turnutils_oauth`: access tokens (RFC 7635) in both directions.
//! - [`migration`], with coturn's server and `turnutils_uclient`: docs/from-coturn.md, step by step, while clients
//!   send.
//! - [`pion`], with a Go program on pion's client (`interop/pion`): allocate, permissions, channels, relay to relay.
//! - [`acme`], with Pebble, Let's Encrypt's ACME server for tests (`interop/pebble`): certificates are ordered, renewed
//!   and kept.
//! - [`sip`], with SIPp, sipsak and Kamailio from Debian: SIP calls, registrations and floods, as client, server and
//!   next hop.
//! - [`sip_proxy`], with SIPp on both sides of the proxy: calls, also with loss. BYE of either side, CANCEL, second
//!   INVITE, 302, busy, forking.
//! - [`sip_trunk`], with Kamailio as a trunk, SIPp at both ends: calls of users to the trunk, over UDP and TCP.
//! - [`sip_peers`], with Kamailio as a registrar beside hairpin, PJSIP and baresip as their phones: calls both ways,
//!   re-INVITEs and BYE of either side.
//! - [`trunk_states`], with SIPp and Kamailio as trunks: probes with hysteresis, slow start, Retry-After.
//! - [`trunk_wire`], with SIPp as trunks: the same and RFC 7339, by the messages that the trunks have seen.
//! - [`trunk_dies`], with SIPp as a trunk that dies under 200 calls per second: only calls that it had are lost.
//! - [`trunk_line`], with Kamailio as a registrar that wants a digest for everything: hairpin registers there, SIPp
//!   calls in both directions.
//! - [`sip_trace`], with sngrep and tshark: the messages of a call by HEP and pcap.
//! - [`sip_phones`], with baresip: phones that register and call each other, also after a restart, with a second phone
//!   that is dead.
//! - [`desk_phones`], with PJSIP for Python, Linphone and baresip: phones of different projects that call each other:
//!   hold, busy, transfer.
//! - [`roaming_phone`], with PJSIP for Python and baresip: a phone whose address changes in mid-call: one binding, and
//!   requests of both sides.
//! - [`sip_media`], with baresip at both ends, rtpengine from Debian: calls between a phone with ICE and a trunk
//!   without. RTP in both directions.
//! - [`net_sip`], with a Perl program on Net::SIP (`interop/net-sip`): user agents that register and call each other
//!   over UDP and TCP.
//! - [`sip_libraries`], with a Go program on sipgo and a node program on the npm package `sip`: the same.
//! - [`aioice`], with a Python program on aioice's client (`interop/aioice`): echo and relay to relay over TCP and TLS,
//!   certificates verified.
//! - [`wrtc`], with a node program on @roamhq/wrtc (`interop/wrtc`): libwebrtc over UDP and TCP, relay only.
//! - [`openssl`], with OpenSSL's `s_client`: a Binding request over DTLS and TLS; what is refused.
//! - [`sip_tls`], with baresip and Kamailio from Debian, PJSIP for Python, SIP.js in Chromium: SIP over TLS and WSS, in
//!   both directions.
//! - [`browser_phone`], with JsSIP in Chromium (`interop/browser-phone`): phones that register over WSS and call each
//!   other, media by TURN of the same process. SIP.js in Chromium (`interop/sip-js`) and baresip call each other.
//! - [`browser_linphone`], the same with JsSIP and Linphone.
//! - [`live_page`], with the live page in headless Chromium, and axe-core (`interop/live-page`): every view, the end of
//!   a session. The test of the server over UDP, TCP and TLS.
//! - [`browser`], with a page in headless Chromium (`interop/chromium`): two RTCPeerConnections that may only use
//!   relays, over UDP, TCP and TLS.
//!
//! A missing client is a failure, not a skip. `--against coturn` runs the same drivers against coturn's own server:
//! when a case fails, it shows whether the driver or hairpin is at fault. Clients of [`SEPARATE_CLIENTS`] run once. All
//! others run once with relaying in user space, and once with relaying in the kernel, if the machine permits it.

mod acme;
mod aioice;
mod baresip;
mod browser;
mod browser_linphone;
mod browser_phone;
pub(crate) mod certificate;
mod console;
mod coturn;
mod desk_phones;
mod domain;
mod live_page;
mod migration;
mod nat_discovery;
mod net_sip;
mod oauth;
mod openssl;
mod packages;
mod pion;
mod program;
mod roaming_phone;
mod server;
mod sip;
mod sip_libraries;
mod sip_media;
mod sip_peers;
mod sip_phones;
mod sip_proxy;
mod sip_tls;
mod sip_trace;
mod sip_trunk;
mod stun;
mod trunk_dies;
mod trunk_line;
mod trunk_states;
mod trunk_wire;
mod web_server;
mod webdriver;
mod wrtc;

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use crate::cargo;
use crate::tally::Tally;
use crate::tools;
use crate::workspace;
use certificate::Certificate;
pub(crate) use server::free_ports;
use server::{Server, ServerSetup};

/// The options of `cargo xtask interop`.
#[derive(Debug, Default, Args)]
pub(crate) struct Options {
    /// Run only these clients.
    #[arg(long, value_name = "CLIENT")]
    only: Vec<Client>,
    /// The server under test.
    #[arg(long, value_enum, default_value_t, value_name = "SERVER")]
    against: server::Kind,
    /// Use this binary instead of building hairpin.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

/// A project whose client is tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Client {
    Coturn,
    Pion,
    Aioice,
    Wrtc,
    Openssl,
    Browser,
    Sip,
    SipProxy,
    SipTrunk,
    SipPeers,
    TrunkStates,
    TrunkWire,
    TrunkDies,
    TrunkLine,
    SipTrace,
    SipPhones,
    DeskPhones,
    RoamingPhone,
    SipMedia,
    NetSip,
    SipLibraries,
    SipTls,
    BrowserPhone,
    LivePage,
    Acme,
    NatDiscovery,
    Oauth,
    Migration,
}

/// The server that a driver tests, and the folders of its files.
struct DriverContext {
    server: Server,
    certificate: Rc<Certificate>,
    /// `interop/` of the workspace.
    sources: PathBuf,
    /// The folder of the logs.
    logs: PathBuf,
    /// The folder in which packages of other languages are installed, each once.
    tools: PathBuf,
}

/// A data path of the server under test. Each path has its own servers, and every client tests each path.
struct DataPath {
    /// Its name in the page of results.
    name: &'static str,
    /// The value of `--offload`; `None` for a server with one data path.
    offload: Option<&'static str>,
    /// The relay ports of the server for orderly clients, and of the other one.
    relay_ports: [RangeInclusive<u16>; 2],
}

const USER_SPACE_PATH: DataPath = DataPath {
    name: "user space",
    offload: Some("off"),
    relay_ports: [64000..=65535, 62000..=62999],
};

/// The clients are on loopback, which has no XDP.
const TC_PATH: DataPath = DataPath {
    name: "tc",
    offload: Some("tc"),
    relay_ports: [63000..=63999, 61000..=61999],
};

/// The two servers of one data path.
struct PathServers {
    /// For clients that release what they have allocated. RFC 8656 §3.2: an allocation lives ten minutes by default.
    orderly: DriverContext,
    /// For coturn's client. It never releases the allocations that it probes with, and some of its options violate the
    /// RFC or end it without a release. The test must see these allocations end, so they have the shortest lifetime
    /// that hairpin allows.
    disorderly: DriverContext,
}

const ORDERLY_LIFETIME: Duration = Duration::from_secs(600);
const DISORDERLY_LIFETIME: Duration = Duration::from_secs(120);

pub(crate) fn run(root: &Path, options: &Options) -> Result<Tally> {
    let logs = crate::scratch(root, "interop")?;
    let binary = match (&options.binary, options.against) {
        (Some(binary), _) => binary.clone(),
        (None, server::Kind::Hairpin) => cargo::release(root)?,
        (None, server::Kind::Coturn) => PathBuf::from("turnserver"),
    };
    let mut tally = Tally::default();
    let mut pairs = Vec::new();
    let certificate = Rc::new(Certificate::make(&logs.join("certificate"))?);
    let all_apart = !options.only.is_empty() && options.only.iter().all(|client| client.is_apart());
    if !all_apart {
        for path in data_paths(options.against) {
            println!("--- data path: {}", path.name);
            let mut pair = start(path, options.against, &binary, root, &certificate)?;
            drive(&mut pair, options, &mut tally)?;
            pairs.push((path, pair));
        }
    }
    // At the same time, the allocations of coturn's client end. That takes two minutes.
    if options.against == server::Kind::Hairpin {
        let apart = SeparateRun {
            root,
            binary: &binary,
            logs: &logs,
            certificate: &certificate,
        };
        tally.add(apart.run(options));
    }
    for (path, pair) in &mut pairs {
        finish(path.name, pair, options, &mut tally);
    }
    Ok(tally)
}

/// The clients that start their own server, each with its title.
const SEPARATE_CLIENTS: [(Client, &str); 22] = [
    (Client::Sip, "SIP"),
    (Client::SipProxy, "SIP through the proxy"),
    (Client::SipTrunk, "SIP with a trunk"),
    (Client::SipPeers, "SIP beside Kamailio"),
    (Client::TrunkStates, "SIP trunks that come and go"),
    (Client::TrunkWire, "SIP trunks that ask for less"),
    (Client::TrunkDies, "a SIP trunk that dies"),
    (Client::TrunkLine, "a SIP trunk with a registration"),
    (Client::SipTrace, "a SIP call as sngrep and tshark see it"),
    (Client::SipPhones, "phones that call each other"),
    (Client::DeskPhones, "desk phones of three projects"),
    (Client::RoamingPhone, "a phone that changes its network"),
    (Client::SipMedia, "calls through rtpengine"),
    (Client::NetSip, "Net::SIP"),
    (Client::SipLibraries, "SIP libraries of other languages"),
    (Client::SipTls, "SIP over TLS and WSS"),
    (Client::BrowserPhone, "phones in web pages"),
    (Client::LivePage, "the live page"),
    (Client::Acme, "ACME"),
    (Client::NatDiscovery, "NAT behaviour discovery"),
    (Client::Oauth, "access tokens of coturn and of hairpin"),
    (Client::Migration, "from coturn to hairpin, and back"),
];

/// The maximum of clients of [`SEPARATE_CLIENTS`] that run once more after a failure. If more fail, it is no accident.
const MAX_REPEATED: usize = 2;

/// The files for clients of [`SEPARATE_CLIENTS`].
struct SeparateRun<'a> {
    root: &'a Path,
    binary: &'a Path,
    logs: &'a Path,
    certificate: &'a Rc<Certificate>,
}

impl SeparateRun<'_> {
    /// Runs the clients that `options` selects.
    fn run(&self, options: &Options) -> Tally {
        let mut total = Tally::default();
        let mut repeated = 0;
        for (client, title) in SEPARATE_CLIENTS {
            if !options.wants(client) {
                continue;
            }
            println!("--- {title}");
            let mut tally = self.attempt(client);
            if tally.failed > 0 && repeated < MAX_REPEATED {
                repeated += 1;
                println!("--- {title}, once more after a failure");
                tally = self.attempt(client);
                if tally.is_clean() {
                    println!("  UNSTEADY  {title}: failed, and passed when it ran again");
                }
            }
            total.add(tally);
        }
        total
    }

    /// Runs a client. If it cannot continue, it has failed, and the others still run.
    fn attempt(&self, client: Client) -> Tally {
        self.drive(client).unwrap_or_else(|error| {
            println!("  FAIL  {error:#}");
            Tally::FAILURE
        })
    }

    fn drive(&self, client: Client) -> Result<Tally> {
        let SeparateRun {
            root,
            binary,
            logs,
            certificate,
        } = *self;
        let sources = root.join("interop");
        let tools = workspace::target_dir(root).join("tools");
        match client {
            Client::Sip => sip::run(binary, root, logs),
            Client::SipProxy => sip_proxy::run(binary, root, logs),
            Client::SipTrunk => sip_trunk::run(binary, root, logs),
            Client::SipPeers => sip_peers::run(binary, root, logs),
            Client::TrunkStates => trunk_states::run(binary, root, logs),
            Client::TrunkWire => trunk_wire::run(binary, root, logs),
            Client::TrunkDies => trunk_dies::run(binary, root, logs),
            Client::TrunkLine => trunk_line::run(binary, root, logs),
            Client::SipTrace => sip_trace::run(binary, root, logs),
            Client::SipPhones => sip_phones::run(binary, logs),
            Client::DeskPhones => desk_phones::run(binary, root, logs),
            Client::RoamingPhone => roaming_phone::run(binary, root, logs),
            Client::SipMedia => sip_media::run(binary, logs),
            Client::NetSip => net_sip::run(binary, root, logs),
            Client::SipLibraries => sip_libraries::run(binary, root, logs),
            Client::SipTls => {
                let packages = sip_tls::install(&sources, &tools)?;
                sip_tls::run(binary, root, logs, certificate, &packages)
            }
            Client::BrowserPhone => {
                let pages = browser_phone::install(&sources, &tools)?;
                let pjsua2 = packages::python("pjsua2", &sources, &tools)?;
                let sip_js = browser_phone::install_sip_js(&sources, &tools)?;
                let programs = [&*pages, &*pjsua2, &*sip_js];
                browser_phone::run(binary, (root, logs), certificate, programs)
            }
            Client::LivePage => {
                let axe = live_page::install(&sources, &tools)?;
                live_page::run(binary, logs, certificate, axe)
            }
            Client::Acme => acme::run(binary, root, logs),
            Client::NatDiscovery => nat_discovery::run(binary, logs),
            Client::Oauth => oauth::run(binary, logs),
            Client::Migration => migration::run(binary, logs),
            Client::Coturn
            | Client::Pion
            | Client::Aioice
            | Client::Wrtc
            | Client::Openssl
            | Client::Browser => bail!("it has no server of its own"),
        }
    }
}

/// The data paths of the server on this machine.
fn data_paths(against: server::Kind) -> Vec<&'static DataPath> {
    if against == server::Kind::Coturn {
        return vec![&DEFAULT_PATH];
    }
    if tools::is_root() {
        return vec![&USER_SPACE_PATH, &TC_PATH];
    }
    println!("--- not root: the data path tc is left out, as it needs CAP_BPF and CAP_NET_ADMIN");
    vec![&USER_SPACE_PATH]
}

/// The data path of another server.
const DEFAULT_PATH: DataPath = DataPath {
    name: "the only one",
    offload: None,
    ..USER_SPACE_PATH
};

fn start(
    path: &DataPath,
    kind: server::Kind,
    binary: &Path,
    root: &Path,
    certificate: &Rc<Certificate>,
) -> Result<PathServers> {
    let logs = crate::scratch(root, "interop")?;
    let bench = |name: &str, lifetime, ports: usize| -> Result<DriverContext> {
        let setup = ServerSetup {
            name: format!("{name}-{}", path.offload.unwrap_or("server")),
            lifetime,
            relay_ports: path.relay_ports[ports].clone(),
            offload: path.offload,
            certificate: Rc::clone(certificate),
        };
        Ok(DriverContext {
            server: Server::start(kind, binary, &logs, &setup)?,
            certificate: Rc::clone(certificate),
            sources: root.join("interop"),
            logs: logs.clone(),
            tools: workspace::target_dir(root).join("tools"),
        })
    };
    Ok(PathServers {
        orderly: bench("orderly", ORDERLY_LIFETIME, 0)?,
        disorderly: bench("disorderly", DISORDERLY_LIFETIME, 1)?,
    })
}

fn drive(pair: &mut PathServers, options: &Options, tally: &mut Tally) -> Result<()> {
    if options.wants(Client::Coturn) {
        tally.add(coturn::run(&mut pair.disorderly)?);
    }
    if options.wants(Client::Pion) {
        tally.add(pion::run(&pair.orderly)?);
    }
    let orderly = &pair.orderly;
    if options.wants(Client::Aioice) {
        let packages = aioice::install(&orderly.sources, &orderly.tools)?;
        tally.add(aioice::run(orderly, &packages)?);
    }
    if options.wants(Client::Wrtc) {
        let packages = wrtc::install(&orderly.sources, &orderly.tools)?;
        tally.add(wrtc::run(orderly, &packages)?);
    }
    if options.wants(Client::Openssl) {
        tally.add(openssl::run(orderly)?);
    }
    if options.wants(Client::Browser) {
        tally.add(browser::run(orderly));
    }
    Ok(())
}

/// Checks that the clients have left nothing, and that the servers stop on request.
fn finish(path: &str, pair: &mut PathServers, options: &Options, tally: &mut Tally) {
    let mut judge = |server: &mut Server, name: &str, limit| {
        if server.is_hairpin() {
            let outcome = server.wait_until_closed(limit);
            tally.record(
                &format!("{name} ({path}) returns to its baseline"),
                &outcome,
            );
        }
        let outcome = server.finish();
        tally.record(&format!("{name} ({path}) stops when asked"), &outcome);
    };
    if options.only.iter().any(|client| client.is_orderly()) || options.only.is_empty() {
        let limit = Duration::from_secs(5);
        judge(
            &mut pair.orderly.server,
            "the orderly clients' server",
            limit,
        );
    }
    if options.wants(Client::Coturn) {
        let limit = DISORDERLY_LIFETIME + Duration::from_secs(10);
        judge(
            &mut pair.disorderly.server,
            "coturn's client's server",
            limit,
        );
    }
}

impl Options {
    fn wants(&self, client: Client) -> bool {
        self.only.is_empty() || self.only.contains(&client)
    }
}

impl Client {
    fn is_apart(self) -> bool {
        SEPARATE_CLIENTS.iter().any(|(client, _)| *client == self)
    }

    /// Whether it releases all that it allocates.
    fn is_orderly(self) -> bool {
        matches!(
            self,
            Client::Pion | Client::Aioice | Client::Wrtc | Client::Browser
        )
    }
}
