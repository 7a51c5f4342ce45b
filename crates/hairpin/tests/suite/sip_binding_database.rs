//! Registration bindings in a database (`sip.binding_database`), here in a file of SQLite. `cargo xtask stores` tests
//! them with PostgreSQL and MariaDB.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::sip::{SipConfig, SipServer, sip_listener};
use crate::common::{Serve, hairpin};
use crate::sip_client::phone::{Phone, credentials};
use sip::{HeaderKind, Method};

/// Longer than anything here takes, also on a busy machine.
const MAX_WAIT: Duration = Duration::from_secs(60);

const CONFIG: SipConfig<'_> = SipConfig {
    server: "control_socket = \"off\"\nstate_dir = \"FOLDER/state\"\n",
    admin: "",
    sip: "binding_database = \"sqlite:FOLDER/database/bindings.db\"\n",
    domain: "",
    users: &["ann", "bob", "carol"],
    more: "[cluster]\nnode = \"one\"\n",
};

/// A server with a folder for its database.
fn start() -> SipServer {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("database")).unwrap();
    SipServer::start_in(folder, &CONFIG)
}

/// The same server again.
fn start_again(folder: &Path) -> Serve {
    let mut command = hairpin(&["serve", "--config"]);
    command.arg(folder.join("hairpin.toml"));
    Serve::start_command(command)
}

/// Waits until the metrics page has this sample.
fn wait_for(serve: &Serve, sample: &str) {
    let end = Instant::now() + MAX_WAIT;
    while !serve.get("/metrics").contains(&format!("\n{sample}\n")) {
        assert!(
            Instant::now() < end,
            "no `{sample}`: {}",
            serve.get("/metrics")
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until the database has exactly these addresses.
fn wait_for_rows(folder: &Path, expected: &[&str]) {
    let end = Instant::now() + MAX_WAIT;
    loop {
        let found = rows(folder);
        if found == expected {
            return;
        }
        assert!(Instant::now() < end, "{found:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn rows(folder: &Path) -> Vec<String> {
    let file = rusqlite::Connection::open(folder.join("database/bindings.db")).unwrap();
    file.busy_timeout(MAX_WAIT).unwrap();
    let text = "SELECT aor FROM hairpin_sip_binding WHERE node = 'one' ORDER BY aor";
    let mut query = file.prepare(text).unwrap();
    let rows = query.query_map([], |row| row.get(0)).unwrap();
    rows.collect::<Result<_, _>>().unwrap()
}

fn unregister(phone: &mut Phone) {
    let (uri, kind) = ("sip:example.com", HeaderKind::Authorization);
    let request = phone.request("REGISTER", uri, "gone", 1, "Expires: 0\r\n");
    phone.send(&request);
    let challenge = phone.expect("SIP/2.0 401");
    let line = credentials(&challenge, kind, &phone.user, Method::Register, uri);
    let lines = format!("{line}Expires: 0\r\n");
    let request = phone.request("REGISTER", uri, "gone", 2, &lines);
    phone.send(&request);
    phone.expect("SIP/2.0 200");
}

#[test]
fn bindings_survive_kill_9_and_a_stop_saves_all() {
    let server = start();
    let folder = server.folder.path();
    let mut phones = ["ann", "bob"].map(|user| Phone::udp_at(server.sip, user));
    phones.iter_mut().for_each(Phone::register);
    wait_for_rows(folder, &["ann@example.com", "bob@example.com"]);
    server.serve.signal("KILL");
    let serve = start_again(folder);
    wait_for(&serve, "hairpin_sip_bindings 2");
    // A stop writes what waits.
    let sip = sip_listener(&serve);
    Phone::udp_at(sip, "carol").register();
    serve.stop();
    let all = ["ann@example.com", "bob@example.com", "carol@example.com"];
    assert_eq!(rows(folder), all);
    let serve = start_again(folder);
    wait_for(&serve, "hairpin_sip_bindings 3");
    let page = serve.get("/metrics");
    assert!(
        page.contains("\nhairpin_sip_store_failures_total 0\n"),
        "{page}"
    );
}

#[test]
fn a_removed_binding_is_removed_from_the_database() {
    let server = start();
    let folder = server.folder.path();
    let mut ann = Phone::udp_at(server.sip, "ann");
    ann.register();
    wait_for_rows(folder, &["ann@example.com"]);
    unregister(&mut ann);
    wait_for_rows(folder, &[]);
}

#[test]
fn a_database_that_is_away_at_the_start_adds_its_bindings_later() {
    let server = start();
    let folder = server.folder.path();
    let at = |name: &str| folder.join(name);
    let mut phones = ["ann", "bob"].map(|user| Phone::udp_at(server.sip, user));
    phones.iter_mut().for_each(Phone::register);
    server.serve.stop();
    std::fs::rename(at("database"), at("away")).unwrap();
    let serve = start_again(folder);
    wait_for(&serve, "hairpin_sip_bindings 0");
    // Phones register meanwhile: bob with another contact.
    let sip = sip_listener(&serve);
    let mut phones = ["bob", "carol"].map(|user| Phone::udp_at(sip, user));
    phones.iter_mut().for_each(Phone::register);
    wait_for(&serve, "hairpin_sip_bindings 2");
    std::fs::rename(at("away"), at("database")).unwrap();
    wait_for(&serve, "hairpin_sip_bindings 4");
    let all = ["ann@example.com", "bob@example.com", "carol@example.com"];
    wait_for_rows(folder, &all);
    let page = serve.get("/metrics");
    assert!(
        !page.contains("\nhairpin_sip_store_failures_total 0\n"),
        "{page}"
    );
    let log = serve.stop();
    for part in [
        "cannot read registration bindings",
        "loaded late",
        "saved again",
    ] {
        assert!(log.contains(part), "no `{part}` in {log}");
    }
    // The row of bob has both of his bindings.
    let serve = start_again(folder);
    wait_for(&serve, "hairpin_sip_bindings 4");
}

#[test]
fn a_restart_moves_the_bindings_of_the_file_to_the_database() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("database")).unwrap();
    let server = SipServer::start_in(folder, &SipConfig { sip: "", ..CONFIG });
    let folder = server.folder.path();
    Phone::udp_at(server.sip, "ann").register();
    server.serve.stop();
    let config = folder.join("hairpin.toml");
    let without = std::fs::read_to_string(&config).unwrap();
    let key = CONFIG.sip.replace("FOLDER", &folder.display().to_string());
    let with = without.replacen("[sip]\n", &format!("[sip]\n{key}"), 1);
    std::fs::write(&config, with).unwrap();
    let serve = start_again(folder);
    wait_for(&serve, "hairpin_sip_bindings 1");
    assert_eq!(rows(folder), ["ann@example.com"]);
    serve.stop();
    // The file has none any more, so it cannot bring back old ones.
    std::fs::write(&config, without).unwrap();
    let serve = start_again(folder);
    wait_for(&serve, "hairpin_sip_bindings 0");
}
