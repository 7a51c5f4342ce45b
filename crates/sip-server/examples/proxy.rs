//! A registrar and a stateful proxy with users in memory: sockets around the library.
//!
//! ```text
//! cargo run -p hairpin-sip-server --example proxy -- --listen 127.0.0.1:5060 --domain example.com alice:secret bob:hidden
//! ```

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a program has sockets, threads and a clock"
)]

extern crate hairpin_sip_server as sip_server;

mod sockets;

use sip::verdict::Rules;
use sip_server::location::{Limits, MemoryLocation};
use sip_server::memory_site::MemorySite;
use sip_server::proxy::Proxy;
use sip_server::registrar::{Domain, Domains, Registrar};
use sip_server::registrar_proxy::RegistrarProxy;
use sip_server::users::Users;
use sockets::{Arguments, Failed, Sockets};

const USAGE: &str = "proxy --listen ADDRESS --domain NAME USER:PASSWORD ..";

fn run() -> Result<(), Failed> {
    let arguments = Arguments::read(&["listen", "domain"], USAGE)?;
    let mut sockets = Sockets::bind(arguments.get("listen").ok_or(USAGE)?)?;
    let name = arguments.get("domain").ok_or(USAGE)?.to_owned();
    let key = sockets::random_key()?;
    let mut users = Users::new(&name, key);
    for word in &arguments.words {
        let (user, password) = word.split_once(':').ok_or(USAGE)?;
        users.add(user, password);
    }
    let domains = Domains::new(vec![Domain {
        name,
        ..Domain::default()
    }])?;
    // No two runs share this number: tokens of an earlier one name connections that are gone.
    let run = sockets.now().unix_s as u32;
    let registrar = Registrar::new(
        sip_server::registrar::Config::default(),
        domains.clone(),
        key,
        run.into(),
    )?;
    let proxy = Proxy::new(sip_server::proxy::Config::default(), key, 0, run);
    let location = MemoryLocation::new(key, Limits::default());
    let site = MemorySite {
        domains,
        local: sockets.local,
        users,
        location,
    };
    let mut endpoint = sockets.endpoint(
        Rules::PROXY,
        key,
        RegistrarProxy::new(registrar, proxy, site, run),
    );
    println!("listening on {}", sockets.local);
    loop {
        sockets.turn(&mut endpoint, None);
    }
}

fn main() -> std::process::ExitCode {
    sockets::report(run())
}
