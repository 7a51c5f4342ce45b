//! `hairpin sip`: `route` shows a decision of the proxy without sending anything; `state` shows the SIP state of a
//! running server, `trace` messages of a call.

mod ladder;
mod pcap;
mod state;
mod trace;

use std::process::ExitCode;

use anyhow::{Context, Result};
use serde_json::json;

use super::control::refused;
use super::{input, output};
use crate::api_client::Client;
use crate::cli::sip::{Args, Command, Route};
use crate::config;
use crate::control::routing::{Report, RouteQuery, Snapshot};

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Command::Route(args) => route(args),
        Command::Bindings(args) => state::bindings(args),
        Command::Remove(args) => state::remove(args),
        Command::Calls(args) => state::calls(args),
        Command::Trunks(args) => state::trunks(args),
        Command::Trace(args) => trace::trace(args),
    }
}

fn route(args: &Route) -> Result<ExitCode> {
    if let Some(client) = args.remote.client()? {
        return route_of_server(client, args);
    }
    let inputs = input::gather(args.config.as_ref(), Vec::new())?;
    let loaded = config::load(&inputs);
    let Some(config) = &loaded.config else {
        eprint!("{}", loaded.diagnostics(input::colour()));
        return Ok(ExitCode::FAILURE);
    };
    let sip = &config.sip;
    let snapshot = Snapshot {
        sip: super::serve::sip_settings(sip),
        users: config.users.iter().map(|user| user.name.clone()).collect(),
        listeners: [&sip.listen[..], &sip.listen_tls].concat(),
        ..Snapshot::default()
    };
    let query = RouteQuery {
        from: args.from.clone(),
        to: args.to.clone(),
        source: args.source,
        certificate: args.certificate.clone(),
        headers: args.header.clone(),
        method: args.method.clone(),
        call_id: args.call_id.clone(),
    };
    conclude(&snapshot.explain(&query)?, args)
}

/// The decision of a running server, with the routes and aliases of its stores.
fn route_of_server(client: &Client, args: &Route) -> Result<ExitCode> {
    let body = json!({
        "from": args.from,
        "to": args.to,
        "source": args.source,
        "certificate": args.certificate,
        "headers": args.header,
        "method": args.method,
        "call_id": args.call_id,
    });
    match client.call("POST", "/sip/route", &[], Some(&body))? {
        Ok(report) => {
            let read = serde_json::from_value(report);
            let report: Report =
                read.context("the server has sent a decision that cannot be read")?;
            conclude(&report, args)
        }
        Err(refusal) => Ok(refused(&refusal)),
    }
}

fn conclude(report: &Report, args: &Route) -> Result<ExitCode> {
    output::print(&match args.json {
        true => serde_json::to_string_pretty(report)? + "\n",
        false => lines(report),
    })?;
    Ok(match report.code {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
    })
}

fn lines(report: &Report) -> String {
    let mut lines = output::Lines::default();
    for step in &report.steps {
        lines.line("step", step);
    }
    lines.line("result", &report.result);
    for target in &report.targets {
        let trunk = target
            .trunk
            .as_ref()
            .map(|trunk| format!("trunk {trunk}: "));
        let next_hop = target.next_hop.as_ref().map(|hop| format!(" by {hop}"));
        let (trunk, next_hop) = (trunk.unwrap_or_default(), next_hop.unwrap_or_default());
        lines.line("target", format!("{trunk}{}{next_hop}", target.uri));
    }
    lines.finish()
}
