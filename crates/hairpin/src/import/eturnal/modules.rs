//! The mapping `modules`: one line per module and one per option of it.

use super::super::{Imported, Verdict, nearest};
use super::push;
use super::yaml::{self, Entry};

/// Modules with their options.
const MODULES: &[(&str, &[&str])] = &[
    ("mod_log_stun", &["level"]),
    ("mod_stats_influx", &["host", "port"]),
    (
        "mod_stats_prometheus",
        &[
            "ip",
            "port",
            "tls",
            "tls_crt_file",
            "tls_key_file",
            "vm_metrics",
        ],
    ),
];

/// Finds the verdict of each module and of each option.
pub(super) fn read(entry: &Entry<'_>, imported: &mut Imported) {
    if !yaml::is_mapping(&entry.value) {
        let verdict = Verdict::wrong("write modules with their options");
        return push(imported, entry.line, "modules", verdict);
    }
    for module in yaml::children(entry.value.clone()) {
        let verdict = match &*module.name {
            "mod_log_stun" => Verdict::replaced("metrics: packets are not logged"),
            "mod_stats_influx" => Verdict::replaced("metrics for Prometheus (admin.listen)"),
            "mod_stats_prometheus" => prometheus(&module, imported),
            _ => Verdict::unsupported("eturnal has no such module"),
        };
        push(imported, module.line, &module.name, verdict.clone());
        if !yaml::is_mapping(&module.value) {
            let verdict = Verdict::wrong("write options of the module, or {}");
            push(imported, module.line, &module.name, verdict);
        }
        for option in yaml::children(module.value) {
            let name = format!("{}.{}", module.name, option.name);
            let verdict = judge(&module.name, &option, &verdict);
            push(imported, option.line, &name, verdict);
        }
    }
}

/// The verdict about an option of a module, which has a verdict itself.
fn judge(module: &str, option: &Entry<'_>, of_module: &Verdict) -> Verdict {
    let known = MODULES.iter().find(|(name, _)| *name == module);
    let Some((_, known)) = known else {
        return of_module.clone();
    };
    if !known.contains(&&*option.name) {
        return Verdict::wrong(match nearest(&option.name, known.iter().copied()) {
            Some(name) => format!("no option of {module}; did you mean `{name}`?"),
            None => format!("no option of {module}"),
        });
    }
    match (&*option.name, yaml::boolean(&option.value)) {
        ("vm_metrics", _) => Verdict::unnecessary("hairpin has no Erlang machine"),
        ("tls", Some(false)) => Verdict::unnecessary("admin.listen accepts HTTP"),
        ("tls_crt_file" | "tls_key_file", _) => {
            Verdict::unsupported("admin.listen has the certificate of tls.certificates")
        }
        ("port", _) if module == "mod_stats_prometheus" && port_of(option).is_none() => {
            Verdict::wrong("write a port")
        }
        _ => of_module.clone(),
    }
}

fn port_of(option: &Entry<'_>) -> Option<u16> {
    yaml::number(&option.value)?.try_into().ok()
}

fn prometheus(module: &Entry<'_>, imported: &mut Imported) -> Verdict {
    let fields = yaml::children(module.value.clone());
    let text = |name: &str| {
        fields
            .iter()
            .find(|field| field.name == name)
            .and_then(|field| yaml::text(&field.value))
    };
    let port = fields.iter().find(|field| field.name == "port");
    let port = port.and_then(port_of).unwrap_or(8081);
    if text("tls").as_deref() == Some("true") {
        return Verdict::unsupported(
            "the import does not carry over TLS of this module: set admin.listen; it accepts HTTPS with the certificate of tls.certificates",
        );
    }
    match text("ip")
        .as_deref()
        .unwrap_or("any")
        .parse::<std::net::IpAddr>()
    {
        Ok(ip) => {
            imported.draft.set(
                "admin.listen",
                std::net::SocketAddr::new(ip, port).to_string(),
            );
            if !ip.is_loopback() {
                imported.draft.set("admin.allow_remote", true);
            }
            Verdict::carried("admin.listen")
        }
        Err(_) => {
            imported
                .draft
                .set("admin.listen", format!("127.0.0.1:{port}"));
            Verdict::carried(
                "admin.listen on loopback: to serve other hosts, set its address and admin.allow_remote",
            )
        }
    }
}
