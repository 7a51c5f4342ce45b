//! The process, its log and its administration.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::{
    Draft, File, Line, Row, Rule, Verdict, flag, replaced, unnecessary, unsupported, value,
};

const UNIT: Rule = replaced("the unit hairpin.service of the package");
const LOG: Rule = replaced("stderr, which systemd writes to the journal");
const LOG_FORMAT: Rule = replaced("log.format");
const CLI: Rule =
    replaced("hairpin status, reload and drain, by the socket of server.control_socket");
const WEB: Rule = replaced("hairpin status, and metrics and the live page at admin.listen");
const PROMETHEUS_TLS: Rule = unsupported(
    "admin.listen has no certificate of its own: it accepts HTTPS with the certificate of tls.certificates",
);

pub(super) const ROWS: &[Row] = &[
    flag("daemon", UNIT),
    value("pidfile", UNIT),
    value("proc-user", UNIT),
    value("proc-group", UNIT),
    value("log-file", LOG),
    flag("no-stdout-log", LOG),
    flag("syslog", LOG),
    value("syslog-facility", LOG),
    flag(
        "simple-log",
        replaced("logrotate or the journal, which rotate files"),
    ),
    flag(
        "new-log-timestamp",
        unnecessary("times are always in ISO 8601"),
    ),
    value("new-log-timestamp-format", LOG_FORMAT),
    value("log-min-level", Rule::Decide(level)),
    flag(
        "verbose",
        unnecessary("the log has a line for each allocation"),
    ),
    flag(
        "Verbose",
        Rule::Decide(|_, _, draft| {
            draft.set("log.level", "debug");
            Verdict::carried("log.level")
        }),
    ),
    flag(
        "version",
        unnecessary("it only prints the version, as hairpin --version does"),
    ),
    flag("cli", CLI),
    flag("no-cli", unnecessary("there is no telnet interface")),
    value("cli-ip", CLI),
    value("cli-port", CLI),
    value("cli-password", CLI),
    value("cli-max-output-sessions", CLI),
    flag("web-admin", WEB),
    value("web-admin-ip", WEB),
    value("web-admin-port", WEB),
    flag("web-admin-listen-on-workers", WEB),
    flag("prometheus", Rule::Decide(prometheus)),
    value("prometheus-port", Rule::Decide(part_of_prometheus)),
    value("prometheus-address", Rule::Decide(part_of_prometheus)),
    value(
        "prometheus-path",
        Rule::Decide(|line, _, _| match line.word() {
            "/metrics" => Verdict::unnecessary("hairpin uses the same path"),
            _ => Verdict::unsupported(
                "the path of hairpin is always /metrics: change the scrape configuration of Prometheus",
            ),
        }),
    ),
    flag(
        "prometheus-username-labels",
        unsupported(
            "the number of time series would have no limit: the log has the traffic of each allocation",
        ),
    ),
    flag("prometheus-tls", PROMETHEUS_TLS),
    value("prometheus-cert", PROMETHEUS_TLS),
    value("prometheus-key", PROMETHEUS_TLS),
];

fn level(line: &Line, _: &File, draft: &mut Draft) -> Verdict {
    let level = match &*line.word().to_ascii_lowercase() {
        "debug" => "debug",
        "info" => "info",
        "warning" | "warn" => "warn",
        "error" => "error",
        _ => return Verdict::wrong("write debug, info, warning or error"),
    };
    draft.set("log.level", level);
    Verdict::carried("log.level")
}

fn prometheus(_: &Line, file: &File, draft: &mut Draft) -> Verdict {
    let port = file.port("prometheus-port", 9641);
    let Some(line) = file.last("prometheus-address") else {
        let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        draft.set("admin.listen", address.to_string());
        return Verdict::carried(
            "admin.listen on loopback: to serve other hosts, set its address and admin.allow_remote",
        );
    };
    let Ok(ip) = line.word().parse::<IpAddr>() else {
        return Verdict::wrong(format!("line {}: write an IP address", line.number));
    };
    draft.set("admin.listen", SocketAddr::new(ip, port).to_string());
    if ip.is_loopback() {
        return Verdict::carried("admin.listen");
    }
    draft.set("admin.allow_remote", true);
    Verdict::carried(
        "admin.listen and admin.allow_remote: metrics require no token, so restrict access with a firewall",
    )
}

fn part_of_prometheus(_: &Line, file: &File, _: &mut Draft) -> Verdict {
    match file.flag("prometheus") {
        true => Verdict::carried("admin.listen"),
        false => Verdict::unnecessary("prometheus is off"),
    }
}
