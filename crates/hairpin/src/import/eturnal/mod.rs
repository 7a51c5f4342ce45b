//! eturnal.yml: one row per option of the mapping `eturnal`.

mod listeners;
mod modules;
mod rows;
mod yaml;

#[cfg(test)]
mod tests;

use super::{Imported, JudgedLine, Verdict};
use yaml::Entry;

/// Whether the text is YAML with eturnal's mapping.
pub(super) fn is_recognized(text: &str) -> bool {
    text.lines().any(|line| line.trim_end() == "eturnal:")
}

/// Finds the verdict of every option, and makes the configuration.
pub(super) fn read(text: &str, has_database: bool, imported: &mut Imported) {
    let file = match yaml::file(text) {
        Ok(file) => file,
        Err((line, why)) => {
            let verdict = Verdict::wrong(why);
            let name = "YAML".to_owned();
            imported.lines.push(JudgedLine {
                line,
                name,
                verdict,
            });
            return;
        }
    };
    let entries = file.options;
    for (line, name) in file.others {
        let verdict = Verdict::wrong("the import reads the mapping `eturnal` only");
        push(imported, line, &name, verdict);
    }
    for entry in &entries {
        match &*entry.name {
            "listen" => listeners::read(entry, imported),
            "modules" => modules::read(entry, imported),
            _ => {
                let verdict = judge(entry, &entries, has_database, imported);
                push(imported, entry.line, &entry.name, verdict);
            }
        }
    }
    if !entries.iter().any(|entry| entry.name == "listen") {
        listeners::default(&mut imported.draft);
    }
    finish(&entries, imported);
    imported.lines.sort_by_key(|judged| judged.line);
}

fn push(imported: &mut Imported, line: usize, name: &str, verdict: Verdict) {
    let name = name.to_owned();
    imported.lines.push(JudgedLine {
        line,
        name,
        verdict,
    });
}

fn judge(
    entry: &Entry<'_>,
    all: &[Entry<'_>],
    has_database: bool,
    imported: &mut Imported,
) -> Verdict {
    let Some(row) = rows::ROWS.iter().find(|row| row.name == entry.name) else {
        let names = rows::ROWS
            .iter()
            .map(|row| row.name)
            .chain(["listen", "modules"]);
        return Verdict::wrong(match super::nearest(&entry.name, names) {
            Some(name) => format!("no option of eturnal; did you mean `{name}`?"),
            None => "no option of eturnal".to_owned(),
        });
    };
    match row.rule {
        rows::Rule::Always(fixed) => fixed.into(),
        rows::Rule::Decide(decide) => decide(
            &rows::Context {
                entry,
                all,
                has_database,
            },
            imported,
        ),
    }
}

/// Writes settings for eturnal's defaults that differ from hairpin's.
fn finish(entries: &[Entry<'_>], imported: &mut Imported) {
    let has = |name: &str| entries.iter().any(|entry| entry.name == name);
    let draft = &mut imported.draft;
    if !has("realm") {
        draft.set("auth.realm", "eturnal.net");
    }
    if !has("max_allocations") {
        draft.set("limits.allocations_per_user", 10);
    }
    if !has("max_permissions") {
        draft.set("limits.permissions_per_allocation", 10);
    }
    if !has("secret") && !has("credentials") {
        imported.notes.push("the file has no secret: eturnal reads it from its environment (ETURNAL_SECRET), or makes a random one at each start. Set auth.secrets".to_owned());
    }
    if !has("relay_ipv4_addr") && !has("relay_ipv6_addr") {
        imported.notes.push(
            "eturnal finds its public address by itself; behind a NAT, set relay.external_ip"
                .to_owned(),
        );
    }
}
