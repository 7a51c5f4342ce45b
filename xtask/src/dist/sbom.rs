//! The software bill of materials: every crate in the program, in CycloneDX 1.5.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Package, output, tree};

/// Writes the file.
pub(super) fn make(root: &Path, package: &Package) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    let target = format!("{}-unknown-linux-gnu", package.architecture);
    cargo
        .args([
            "metadata",
            "--format-version=1",
            "--locked",
            "--filter-platform",
            &target,
        ])
        .current_dir(root);
    let metadata: Value = serde_json::from_str(&output(&mut cargo)?)?;
    let linked = linked(&metadata)?;
    let components: Vec<Value> = array(&metadata["packages"])
        .iter()
        .filter(|found| linked.contains(text(&found["id"])))
        .map(component)
        .collect();
    let seconds: i64 = package.time.parse()?;
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": timestamp(seconds)?,
            "component": { "type": "application", "name": "hairpin", "version": package.version },
        },
        "components": components,
    });
    let path = package.out.join(format!(
        "hairpin-{}-{}.cdx.json",
        package.version, package.architecture
    ));
    tree::write(&path, format!("{bill:#}\n").as_bytes())?;
    Ok(path)
}

fn component(package: &Value) -> Value {
    let (name, version) = (text(&package["name"]), text(&package["version"]));
    json!({
        "type": "library",
        "name": name,
        "version": version,
        "purl": format!("pkg:cargo/{name}@{version}"),
        "licenses": [{ "expression": text(&package["license"]) }],
    })
}

/// The packages that the program is linked with: no tests, and nothing that only a build uses.
fn linked(metadata: &Value) -> Result<BTreeSet<&str>> {
    let nodes: BTreeMap<&str, &Value> = array(&metadata["resolve"]["nodes"])
        .iter()
        .map(|node| (text(&node["id"]), node))
        .collect();
    let program = array(&metadata["packages"])
        .iter()
        .find(|package| package["name"] == "hairpin")
        .context("the workspace has no package hairpin")?;
    let mut waiting = vec![text(&program["id"])];
    let mut linked = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if !linked.insert(id) {
            continue;
        }
        let node = nodes.get(id).context("a package without dependencies")?;
        for dependency in array(&node["deps"]) {
            let is_linked = array(&dependency["dep_kinds"])
                .iter()
                .any(|kind| kind["kind"].is_null());
            if is_linked {
                waiting.push(text(&dependency["pkg"]));
            }
        }
    }
    Ok(linked)
}

fn timestamp(seconds: i64) -> Result<String> {
    let mut date = Command::new("date");
    let text = output(
        date.args(["-u", "+%Y-%m-%dT%H:%M:%SZ", "-d"])
            .arg(format!("@{seconds}")),
    )?;
    Ok(text.trim().to_owned())
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
