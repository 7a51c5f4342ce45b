use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use server::Server;
use server::alternates::{AlternateServer, AlternateSettings};
use server::certificates::Certificates;
use server::offload::{Offload, OffloadMode};
use stores::cluster::{Cluster, NodeInfo};

use super::check::{Family, read};
use super::{Source, page};

const REFERENCE: &str = include_str!("../../../../docs/metrics.md");

/// A server on loopback, over both families.
fn server() -> server::Running {
    let mut offload = Offload::default();
    offload.mode = OffloadMode::Auto;
    let mut alternates = AlternateSettings::default();
    // Port 9 is discard: nobody answers.
    let silent = AlternateServer::new(&["127.0.0.1:9".parse().unwrap()]);
    alternates.servers = vec![Arc::new(silent)];
    let builder = Server::builder()
        .listen("127.0.0.1:0".parse().unwrap())
        .listen_tcp("127.0.0.1:0".parse().unwrap())
        .listen_dtls("127.0.0.1:0".parse().unwrap())
        .certificates(Certificates::self_signed(&["localhost".to_owned()]).unwrap())
        .relay_address("127.0.0.1".parse().unwrap())
        .user("zaphod", "secret")
        .sip_listen("127.0.0.1:0".parse().unwrap())
        .sip(trunk())
        .kernel_relay(offload)
        .alternates(alternates)
        .workers(2);
    builder.start().expect("the server starts")
}

/// A trunk that calls can be sent to.
fn trunk() -> server::sip::SipSettings {
    let mut settings = server::sip::SipSettings::default();
    settings.trunks = vec![server::sip::Trunk {
        name: "carrier".to_owned(),
        to: vec![server::sip::routes::NextHop::new("sip:192.0.2.7").unwrap()],
        register: Some(server::sip::routes::RegisterConfig {
            aor: "sip:office@carrier.example".to_owned(),
            contact: "sip:office@192.0.2.1".to_owned(),
            expires: Duration::from_secs(3600),
        }),
        ..server::sip::Trunk::default()
    }];
    settings
}

/// A sink of events.
fn sink() -> crate::events::SinkStatus {
    crate::events::SinkStatus {
        kind: "file",
        counters: Arc::default(),
    }
}

#[test]
fn the_page_is_what_prometheus_reads() {
    let server = server();
    let source = Source::new(server.observer());
    let families = read(&page(&source));
    assert!(families.len() > 40);
    assert_eq!(
        families["hairpin_io_received_datagrams_total"].labels(),
        BTreeSet::from(["side", "worker"])
    );
    assert_eq!(families["hairpin_workers"].sum(&[]), 2.0);
}

#[test]
fn alternate_servers_are_numbered_and_say_whether_they_answer() {
    let server = server();
    let source = Source::new(server.observer());
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let families = read(&page(&source));
        let of_first = [("alternate", "1")];
        let unanswered = [("alternate", "1"), ("result", "unanswered")];
        if families["hairpin_alternate_up"].sum(&of_first) == 0.0 {
            assert!(families["hairpin_alternate_checks_total"].sum(&unanswered) >= 1.0);
            return;
        }
        assert!(Instant::now() < end, "it counts as up");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn labels_have_few_values_and_no_address_among_them() {
    let server = server();
    let families = read(&page(&Source::new(server.observer())));
    let samples = families.values().flat_map(|family| &family.samples);
    let mut count = 0;
    for (name, labels, _) in samples {
        count += 1;
        for (label, value) in labels {
            assert!(
                !value.contains("127.") && !value.contains("zaphod"),
                "{name} {label}={value}"
            );
        }
    }
    assert!(count < 680, "{count} series for two workers");
}

/// A node whose engine is not there.
fn cluster() -> Cluster {
    let options = stores::Options {
        url: "redis://127.0.0.1:1/".to_owned(),
        ..stores::Options::default()
    };
    let settings = stores::cluster::Settings {
        own: NodeInfo::default(),
        holder: String::new(),
        key: [7; 32],
        engine: stores::cluster::open(&options, "test").expect("it is not asked yet"),
        report: Box::new(|_| {}),
        hear: Box::new(|_| {}),
        bindings: Some(Arc::default()),
    };
    Cluster::start(settings, Arc::default(), || {}).expect("a thread")
}

/// The rows of the tables: name, type, labels.
fn documented() -> Vec<(String, String, BTreeSet<String>)> {
    let is_row = |line: &&str| line.starts_with("| `hairpin_") || line.starts_with("| `process_");
    let lines = REFERENCE.lines().filter(is_row);
    lines
        .map(|line| {
            let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            assert_eq!(cells.len(), 5, "name, type, labels, unit, meaning: {line}");
            let labels = cells[2].split(',').map(str::trim);
            let labels = labels
                .filter(|label| *label != "none")
                .map(|label| label.trim_matches('`').to_owned());
            (
                cells[0].trim_matches('`').to_owned(),
                cells[1].to_owned(),
                labels.collect(),
            )
        })
        .collect()
}

#[test]
fn the_reference_lists_exactly_the_metrics_that_there_are() {
    let server = server();
    let store = crate::config::of_url("file:/nonexistent/users");
    let stores = stores::Stores::start(|| {}, |_| {}).expect("a thread");
    let list = stores.open(vec![store]).expect("it is not read yet");
    let cluster = cluster();
    let source = Source::new(server.observer())
        .with_stores(list.sources().cloned().collect())
        .with_events(vec![sink()])
        .with_telemetry(vec![sink()])
        .with_cluster(Some(cluster.handle()));
    let families = read(&page(&source));
    let described = |name: &str, family: &Family| {
        let labels = family.labels().into_iter().map(str::to_owned);
        (name.to_owned(), family.kind.clone(), labels.collect())
    };
    let shown: BTreeSet<(String, String, BTreeSet<String>)> = families
        .iter()
        .map(|(name, family)| described(name, family))
        .collect();
    let list = documented();
    let documented: BTreeSet<_> = list.iter().cloned().collect();
    assert_eq!(documented.len(), list.len(), "a metric is described twice");
    let missing: Vec<_> = shown.difference(&documented).collect();
    let stale: Vec<_> = documented.difference(&shown).collect();
    assert!(
        missing.is_empty() && stale.is_empty(),
        "not in docs/metrics.md: {missing:#?}\nnot on the page: {stale:#?}"
    );
}

#[test]
fn the_reference_lists_every_reason_to_drop() {
    let server = server();
    let families = read(&page(&Source::new(server.observer())));
    let dropped = &families["hairpin_turn_dropped_packets_total"].samples;
    let reasons: Vec<_> = dropped
        .iter()
        .map(|(_, labels, _)| labels[0].1.clone())
        .collect();
    let (_, section) = REFERENCE
        .split_once("## Why datagrams are dropped")
        .expect("a section");
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let listed: Vec<_> = rows
        .map(|row| row.split('`').next().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(listed, reasons);
}

#[test]
fn alerts_and_dashboard_use_metrics_that_there_are() {
    let known: BTreeSet<String> = documented().into_iter().map(|(name, ..)| name).collect();
    const RULES: &str = include_str!("../../../../deploy/prometheus/alerts.yml");
    const DASHBOARD: &str = include_str!("../../../../deploy/grafana/hairpin.json");
    for (text, least) in [(RULES, 12), (DASHBOARD, 20)] {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let names =
            words.filter(|word| word.starts_with("hairpin_") || word.starts_with("process_"));
        let mut count = 0;
        for name in names {
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|ending| name.strip_suffix(ending))
                .unwrap_or(name);
            assert!(known.contains(family), "{name} is no metric");
            count += 1;
        }
        assert!(count >= least);
    }
}

#[test]
fn a_failed_reload_shows_until_one_goes_well() {
    let server = server();
    let source = Source::new(server.observer());
    let shown = || {
        let families = read(&page(&source));
        families["hairpin_config_last_reload_successful"].sum(&[])
    };
    assert_eq!(shown(), 1.0);
    source.reloads.note(false);
    assert_eq!(shown(), 0.0);
    source.reloads.note(true);
    assert_eq!(shown(), 1.0);
}
