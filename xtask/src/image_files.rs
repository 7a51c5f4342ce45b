//! The two ways to make the container image must give the same settings: the last stage of `Containerfile`, and the
//! configuration that `build-image.sh` writes.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

const CONTAINERFILE: &str = "deploy/container/Containerfile";
const SCRIPT: &str = "deploy/container/build-image.sh";

/// Checks that the Containerfile and the script of the image make the same image.
pub(crate) fn check(root: &Path) -> Result<String> {
    let read = |name: &str| {
        std::fs::read_to_string(root.join(name)).with_context(|| format!("cannot read {name}"))
    };
    compare(&read(CONTAINERFILE)?, &read(SCRIPT)?)
}

fn compare(containerfile: &str, script: &str) -> Result<String> {
    let (one, other) = (of_stage(containerfile)?, of_script(script)?);
    for key in one.keys().chain(other.keys()) {
        let (one, other) = (one.get(key), other.get(key));
        ensure!(
            one == other,
            "{key} is {one:?} in {CONTAINERFILE}, but {other:?} in {SCRIPT}"
        );
    }
    Ok(format!("{} settings are the same", one.len()))
}

/// The settings of the last stage, in the words of the image format.
fn of_stage(text: &str) -> Result<BTreeMap<String, Value>> {
    let text = text.replace("\\\n", " ");
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let start = lines.iter().rposition(|line| line.starts_with("FROM "));
    let start = start.context("no FROM")?;
    let mut settings = BTreeMap::new();
    for line in lines[start..].iter().copied() {
        let (instruction, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words = || rest.split_whitespace();
        let (name, value) = match instruction {
            "USER" => ("User", json!(rest)),
            "ENV" => ("Env", sorted(words().map(str::to_owned))),
            "EXPOSE" => ("ExposedPorts", sorted(words().map(str::to_owned))),
            "VOLUME" => ("Volumes", sorted(strings(&serde_json::from_str(rest)?))),
            "ENTRYPOINT" => ("Entrypoint", serde_json::from_str(rest)?),
            "CMD" => ("Cmd", serde_json::from_str(rest)?),
            "HEALTHCHECK" => {
                let (options, command) = rest.split_once("CMD ").context("no CMD")?;
                let mut test = vec![json!("CMD")];
                test.extend(serde_json::from_str::<Vec<Value>>(command)?);
                for (option, name) in [("interval", "Interval"), ("timeout", "Timeout")] {
                    let seconds = seconds(options, option)?;
                    settings.insert(
                        format!("Healthcheck.{name}"),
                        json!(seconds * 1_000_000_000),
                    );
                }
                ("Healthcheck.Test", Value::Array(test))
            }
            _ => continue,
        };
        let before = settings.insert(name.to_owned(), value);
        ensure!(before.is_none(), "{CONTAINERFILE} has two lines for {name}");
    }
    Ok(settings)
}

/// `--NAME=SECONDSs` of HEALTHCHECK.
fn seconds(options: &str, name: &str) -> Result<u64> {
    let start = format!("--{name}=");
    let found = options.split_whitespace().find_map(|option| {
        let text = option.strip_prefix(&start)?.strip_suffix('s')?;
        text.parse().ok()
    });
    found.with_context(|| format!("HEALTHCHECK has no --{name} in seconds"))
}

/// The settings that the script writes.
fn of_script(text: &str) -> Result<BTreeMap<String, Value>> {
    let line = text
        .lines()
        .find(|line| line.starts_with("{\"architecture\""));
    let line = line.context("no configuration of the image")?;
    // Variables of the shell are inside of strings; only the output of commands is not.
    let image: Value = serde_json::from_str(&variables(line))?;
    let mut settings = BTreeMap::new();
    for (name, value) in image["config"].as_object().context("no config")? {
        match &**name {
            // The base image of the other file has a PATH of its own.
            "Env" => {
                let list = strings(value).into_iter();
                let list = list.filter(|variable| !variable.starts_with("PATH="));
                settings.insert("Env".to_owned(), sorted(list));
            }
            "ExposedPorts" | "Volumes" => {
                let keys = value.as_object().context("no object")?.keys().cloned();
                settings.insert(name.clone(), sorted(keys));
            }
            "Healthcheck" => {
                for (key, value) in value.as_object().context("no object")? {
                    settings.insert(format!("Healthcheck.{key}"), value.clone());
                }
            }
            _ => drop(settings.insert(name.clone(), value.clone())),
        }
    }
    Ok(settings)
}

/// Replaces `$(command "with quotes")` by a word.
fn variables(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("$(") {
        text.push_str(before);
        text.push_str("output");
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    text + rest
}

fn strings(value: &Value) -> Vec<String> {
    let list = value.as_array().map_or(&[][..], Vec::as_slice);
    list.iter()
        .filter_map(|text| text.as_str().map(str::to_owned))
        .collect()
}

fn sorted(words: impl IntoIterator<Item = String>) -> Value {
    let mut words: Vec<String> = words.into_iter().collect();
    words.sort_unstable();
    json!(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAGE: &str = "FROM a AS build\nENV X=1\nFROM b\nUSER 1:1\nENV R=/run\nVOLUME [\"/run\"]\n\
        HEALTHCHECK --interval=10s --timeout=3s CMD [\"/p\", \"status\"]\nCMD [\"serve\"]\n";
    const IMAGE: &str = "cat << END\n{\"architecture\":\"$a\",\"created\":\"$(date -u -d \"@$epoch\" +%Y)\",\"config\":{\"User\":\"1:1\",\
        \"Env\":[\"PATH=/usr/bin\",\"R=/run\"],\"Cmd\":[\"serve\"],\"Volumes\":{\"/run\":{}},\
        \"Healthcheck\":{\"Test\":[\"CMD\",\"/p\",\"status\"],\"Interval\":10000000000,\"Timeout\":3000000000}}}\nEND\n";

    #[test]
    fn the_same_settings_are_accepted_and_each_difference_is_an_error() {
        assert!(compare(STAGE, IMAGE).is_ok());
        for line in STAGE.lines().skip(3) {
            let without = STAGE.replace(line, "");
            assert!(compare(&without, IMAGE).is_err(), "{line}");
        }
        let more = IMAGE.replace("\"R=/run\"", "\"R=/run\",\"S=1\"");
        assert!(compare(STAGE, &more).is_err());
        let slower = STAGE.replace("10s", "20s");
        assert!(compare(&slower, IMAGE).is_err());
    }
}
