//! `hairpin probe offload`: what the kernel of this machine can relay by, interface by interface.

use std::process::ExitCode;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use server::offload::{Obstacle, OffloadMethod, OffloadProbe, probe_interfaces};

use super::USAGE;
use crate::cli::probe::Offload;
use crate::commands::output;
use crate::commands::serve::log;
use crate::config::LogFormat;

/// Runs the command. Status 0: the kernel can relay on every interface that was asked about; 1: not on all; 2: there is
/// no such interface.
pub(super) fn run(args: &Offload) -> Result<ExitCode> {
    log::install(LogFormat::Text, args.log_level)?;
    let mut found = probe_interfaces().context("the kernel does not list its interfaces")?;
    let unknown = args
        .interface
        .iter()
        .find(|name| found.iter().all(|one| one.interface != **name));
    if let Some(name) = unknown {
        eprintln!("error: {name}: no interface of this name is up and has an address");
        return Ok(ExitCode::from(USAGE));
    }
    if !args.interface.is_empty() {
        found.retain(|one| args.interface.contains(&one.interface));
    }
    let all = found.iter().all(|one| one.auto != OffloadMethod::User);
    output::print(&if args.json {
        let list: Vec<Value> = found.iter().map(as_json).collect();
        format!("{}\n", json!({ "ok": all, "interfaces": list }))
    } else {
        table(&found)
    })?;
    Ok(if all {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn as_json(of: &OffloadProbe) -> Value {
    let method = |obstacle: &Option<Obstacle>| {
        json!({
            "possible": obstacle.is_none(),
            "reason": obstacle.as_ref().map(Obstacle::name),
            "text": obstacle.as_ref().map(ToString::to_string),
        })
    };
    let mut xdp = method(&of.not_xdp);
    xdp["on_demand"] = of.xdp_on_demand.into();
    let mut tc = method(&of.not_tc);
    tc["clsact"] = of.clsact.into();
    json!({
        "interface": of.interface,
        "auto": of.auto.name(),
        "xdp": xdp,
        "tc": tc,
    })
}

/// Column by column, with the reasons below.
fn table(found: &[OffloadProbe]) -> String {
    let name = found.iter().map(|one| one.interface.len()).max();
    let width = name.unwrap_or(0).max("interface".len());
    let mut text = format!("{:<width$}  auto  xdp    tc\n", "interface");
    for one in found {
        let xdp = match (&one.not_xdp, one.xdp_on_demand) {
            (None, _) => "yes",
            (Some(_), true) => "(yes)",
            (Some(_), false) => "no",
        };
        let tc = match (&one.not_tc, one.clsact) {
            (Some(_), _) => "no",
            (None, true) => "yes (clsact)",
            (None, false) => "yes",
        };
        let interface = output::printable(&one.interface);
        text.push_str(&format!(
            "{interface:<width$}  {:<4}  {xdp:<5}  {tc}\n",
            one.auto.name()
        ));
    }
    text.push('\n');
    for one in found {
        let reasons = [("xdp", &one.not_xdp), ("tc", &one.not_tc)];
        for (method, obstacle) in reasons {
            if let Some(obstacle) = obstacle {
                let line = format!("{}: no {method}: {obstacle}", one.interface);
                text.push_str(&output::printable(&line));
                text.push('\n');
            }
        }
    }
    text.push_str(
        "\n\"auto\" is what `hairpin serve` uses; (yes): only with --offload xdp. Whether a driver really takes a program shows when it starts.\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_in_the_table_and_never_has_xdp() {
        let found = probe_interfaces().unwrap();
        let lo = found.iter().find(|one| one.interface == "lo").unwrap();
        assert!(lo.not_xdp.is_some() && !lo.xdp_on_demand);
        let text = table(&found);
        assert!(text.starts_with("interface"), "{text}");
        assert!(text.contains("\nlo: no xdp: "), "{text}");
        let json = as_json(lo);
        assert_eq!(json["xdp"]["possible"], false);
        assert_eq!(json["tc"]["possible"], lo.not_tc.is_none());
    }
}
