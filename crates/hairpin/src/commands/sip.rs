//! `hairpin sip`: `route` shows a decision of the proxy without a server; `state` shows the SIP state of a running
//! server, `trace` messages of a call.

mod ladder;
mod pcap;
mod state;
mod trace;

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use server::sip::{Preview, PreviewRequest, Previewed, preview};

use super::{input, output};
use crate::cli::sip::{Args, Command, Route};
use crate::config;

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
    let inputs = input::gather(args.config.as_ref(), Vec::new())?;
    let loaded = config::load(&inputs);
    let Some(config) = &loaded.config else {
        eprint!("{}", loaded.diagnostics(input::colour()));
        return Ok(ExitCode::FAILURE);
    };
    let request = PreviewRequest {
        method: &args.method,
        from: &args.from,
        to: &args.to,
        source: SocketAddr::new(args.source, 5060),
        headers: &args.header,
        call_id: &args.call_id,
        draw: draw()?,
    };
    let sip = &config.sip;
    let listeners = [&sip.listen[..], &sip.listen_tls].concat();
    let settings = super::serve::sip_settings(sip);
    let users: Vec<&str> = config.users.iter().map(|user| &user.name[..]).collect();
    let previewed = preview(&settings, &users, &listeners, &request)?;
    let report = Report::of(&previewed);
    output::print(&match args.json {
        true => serde_json::to_string_pretty(&report)? + "\n",
        false => report.lines(),
    })?;
    Ok(match report.code {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
    })
}

/// For routes that hunt by weight: another number at each run, as each call has.
fn draw() -> Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("no random number: {error}"))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// What is printed.
#[derive(Debug, Serialize)]
struct Report {
    steps: Vec<String>,
    result: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    targets: Vec<Target>,
}

#[derive(Debug, Serialize)]
struct Target {
    uri: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_hop: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trunk: Option<String>,
}

impl Report {
    fn of(previewed: &Previewed) -> Report {
        let mut report = Report {
            steps: previewed.steps.clone(),
            result: String::new(),
            code: None,
            user: previewed.user.clone(),
            targets: Vec::new(),
        };
        let (result, code) = match &previewed.outcome {
            Preview::Own => ("for the server itself".to_owned(), None),
            Preview::Elsewhere(_) | Preview::Pending => {
                let user = previewed.user.as_deref().unwrap_or_default();
                (format!("to the registered phones of {user}"), None)
            }
            Preview::Challenge => ("407".to_owned(), Some(407)),
            Preview::Refused(code, reason) => (
                format!("{code} {reason}").trim_end().to_owned(),
                Some(*code),
            ),
            Preview::Forwarded(targets) => {
                let name = |number: u16| previewed.trunks.get(usize::from(number)).cloned();
                report.targets = targets
                    .iter()
                    .map(|target| Target {
                        uri: target.uri.clone(),
                        next_hop: target.next_hop.clone(),
                        trunk: target.trunk.and_then(name),
                    })
                    .collect();
                ("forwarded".to_owned(), None)
            }
        };
        (report.result, report.code) = (result, code);
        report
    }

    fn lines(&self) -> String {
        let mut lines = output::Lines::default();
        for step in &self.steps {
            lines.line("step", step);
        }
        lines.line("result", &self.result);
        for target in &self.targets {
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
}
