//! The benchmark without the command line of the `hairpin` binary: `bench [OPTIONS] SIDE...`,
//! `bench generator`, or `bench floor KIND FLOWS` for its own use.
//!
//! Options: `--quick`, `--preferred`, `--sockets`, `--rounds N`, `--step MS`, `--only NAMES`,
//! `--json FILE`, `--html FILE`.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use hairpin_load::bench::{BenchOptions, LoadKind, Programs, Side, floor, generator_speed, run};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some("floor") => floor::main(&arguments[1..])
            .map(|()| ExitCode::SUCCESS)
            .map_err(Into::into),
        Some("generator") => generator(),
        _ => bench(&arguments),
    };
    result.unwrap_or_else(|error| {
        eprintln!("bench: {error}");
        ExitCode::from(1)
    })
}

fn generator() -> Result<ExitCode, Box<dyn Error>> {
    for payload in [120, 1200] {
        let speed = generator_speed(0, 1, payload, Duration::from_millis(500))?;
        println!("{payload} B: {speed:?}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Where the report goes.
#[derive(Default)]
struct Files {
    json: Option<String>,
    html: Option<String>,
}

fn bench(arguments: &[String]) -> Result<ExitCode, Box<dyn Error>> {
    let (options, files) = parse(arguments)?;
    let gate = options.gate;
    let report = run(options)?;
    print!("{}", report.to_table());
    if let Some(path) = files.json {
        std::fs::write(path, report.to_json())?;
    }
    if let Some(path) = files.html {
        std::fs::write(path, report.to_html())?;
    }
    let violations = report.violations();
    for violation in violations.iter().filter(|_| gate) {
        println!("GATE: {violation}");
    }
    Ok(if gate && !violations.is_empty() {
        ExitCode::from(99)
    } else {
        ExitCode::SUCCESS
    })
}

fn parse(arguments: &[String]) -> Result<(BenchOptions, Files), Box<dyn Error>> {
    let own = std::env::current_exe()?;
    let programs = Programs {
        hairpin: std::env::var_os("HAIRPIN")
            .unwrap_or_else(|| "hairpin".into())
            .into(),
        coturn: "turnserver".into(),
        floor: vec![own.to_string_lossy().into_owned(), "floor".to_owned()],
    };
    let mut files = Files::default();
    let mut options = match arguments.iter().any(|word| word == "--quick") {
        true => BenchOptions::quick(Vec::new()),
        false => BenchOptions::new(Vec::new()),
    };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || {
            words
                .next()
                .cloned()
                .ok_or_else(|| format!("{word} takes a value"))
        };
        match word.as_str() {
            "--quick" => {}
            "--preferred" => options.preferred = true,
            "--sockets" => options.load = LoadKind::Sockets,
            "--rounds" => options.rounds = value()?.parse()?,
            "--step" => options.step = Duration::from_millis(value()?.parse()?),
            "--only" => options.select(&value()?)?,
            "--json" => files.json = Some(value()?),
            "--html" => files.html = Some(value()?),
            side => options.sides.push(Side::parse(side, &programs)?),
        }
    }
    options.argv = std::env::args().collect();
    options.progress = |line| eprintln!("{line}");
    Ok((options, files))
}
