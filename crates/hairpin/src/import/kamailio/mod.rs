//! Kamailio's default configuration with its `#!define`s: parameters, modules and their parameters, and the routing
//! blocks.

mod directives;
mod parameters;
mod statements;

#[cfg(test)]
mod tests;

use super::{Imported, JudgedLine, Verdict};
use statements::{Kind, Script, Statement};

/// Whether the text is a script of Kamailio.
pub(super) fn is_recognized(text: &str) -> bool {
    let marks = ["#!KAMAILIO", "#!define", "request_route", "loadmodule"];
    let starts = |line: &str| marks.iter().any(|mark| line.trim_start().starts_with(mark));
    text.lines().filter(|line| starts(line)).count() >= 2
}

/// The routing blocks of the default configuration.
const BLOCKS: &[&str] = &[
    "request_route",
    "route[RELAY]",
    "route[REQINIT]",
    "route[WITHINDLG]",
    "route[REGISTRAR]",
    "route[LOCATION]",
    "route[PRESENCE]",
    "route[AUTH]",
    "route[NATDETECT]",
    "route[NATMANAGE]",
    "route[DLGURI]",
    "route[SIPOUT]",
    "route[PSTN]",
    "route[JSONRPC]",
    "route[XMLRPC]",
    "route[TOVOICEMAIL]",
    "branch_route[MANAGE_BRANCH]",
    "onreply_route",
    "onreply_route[MANAGE_REPLY]",
    "reply_route",
    "reply_route[MANAGE_REPLY]",
    "failure_route[MANAGE_FAILURE]",
    "event_route[xhttp:request]",
    "event_route[sl:local-response]",
];

/// Finds the verdict of every statement that the `#!define`s select, and makes the configuration.
pub(super) fn read(text: &str, _has_database: bool, imported: &mut Imported) {
    let script = statements::read(text);
    for statement in &script.statements {
        let verdict = judge(statement, &script, imported);
        imported.lines.push(JudgedLine {
            line: statement.line,
            name: statement.shown(),
            verdict,
        });
    }
    imported.lines.sort_by_key(|judged| judged.line);
    parameters::finish(&script.statements, imported);
    imported.notes.extend([
        "hairpin does not run scripts, and the import does not detect changes inside routing blocks: write your changes as sip.route, sip.trunk or other keys".to_owned(),
        "the users are in Kamailio's database: replace the user `placeholder` of [[sip.domain]] with them. Write the column ha1 as ha1s = { MD5 = \"...\" }, and set digest_algorithms = [\"MD5\"]".to_owned(),
    ]);
}

fn judge(statement: &Statement, script: &Script, imported: &mut Imported) -> Verdict {
    match &statement.kind {
        Kind::Define(name, value) => match parameters::define(name, value, &script.statements) {
            Verdict::NotUnderstood(_) if script.used.contains(name) => {
                Verdict::unnecessary("only other lines of the file use it")
            }
            verdict => verdict,
        },
        Kind::Substitution(_) => Verdict::unnecessary("the import has replaced the word"),
        Kind::NotRead(_, why) => Verdict::wrong(&**why),
        Kind::Set(name, value) => parameters::set(name, value, imported),
        Kind::Module(name) => parameters::module(name),
        Kind::Parameter(module, name, value) => {
            parameters::of_module(module, name, value, imported)
        }
        Kind::Block(name) if BLOCKS.contains(&&**name) => {
            Verdict::replaced("the registrar and the proxy of hairpin")
        }
        Kind::Block(_) => Verdict::unsupported(
            "the default configuration has no such block, and hairpin runs no scripts",
        ),
        Kind::Include(_) => Verdict::unsupported(
            "the import reads one file only: import the included file separately",
        ),
        Kind::Other(_) => Verdict::wrong("the default configuration has no such statement"),
    }
}
