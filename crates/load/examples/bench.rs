//! The benchmark without the command line of the `hairpin` binary: `bench [--quick] [--rounds N] [--only NAMES]
//! [--step MS] [--sockets] [--preferred] [--json F] [--html F] SIDE...`, `bench generator`, or `bench floor KIND FLOWS` for its own use.

use std::process::ExitCode;
use std::time::Duration;

use hairpin_load::bench::{BenchOptions, LoadKind, Programs, Side, floor, generator_speed, run};

fn main() -> ExitCode {
    match start() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::from(1)
        }
    }
}

fn start() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "floor") {
        floor::main(&arguments[1..])?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.first().is_some_and(|first| first == "generator") {
        for payload in [120, 1200] {
            println!(
                "{payload} B: {:?}",
                generator_speed(0, 1, payload, Duration::from_millis(500))?
            );
        }
        return Ok(ExitCode::SUCCESS);
    }
    let own = std::env::current_exe()?;
    let programs = Programs {
        hairpin: std::env::var_os("HAIRPIN")
            .unwrap_or_else(|| "hairpin".into())
            .into(),
        coturn: "turnserver".into(),
        floor: vec![own.to_string_lossy().into_owned(), "floor".to_owned()],
    };
    let mut words = arguments.iter();
    let mut sides = Vec::new();
    let (mut quick, mut rounds, mut only, mut step, mut sockets) = (false, None, None, None, false);
    let mut preferred = false;
    let (mut json, mut html) = (None, None);
    while let Some(word) = words.next() {
        let mut value = || {
            words
                .next()
                .cloned()
                .ok_or_else(|| format!("{word} takes a value"))
        };
        match word.as_str() {
            "--quick" => quick = true,
            "--preferred" => preferred = true,
            "--sockets" => sockets = true,
            "--rounds" => rounds = Some(value()?.parse::<u32>()?),
            "--only" => only = Some(value()?),
            "--step" => step = Some(Duration::from_millis(value()?.parse()?)),
            "--json" => json = Some(value()?),
            "--html" => html = Some(value()?),
            side => sides.push(Side::parse(side, &programs)?),
        }
    }
    let mut options = if quick {
        BenchOptions::quick(sides)
    } else {
        BenchOptions::new(sides)
    };
    options.rounds = rounds.unwrap_or(options.rounds);
    options.step = step.unwrap_or(options.step);
    options.preferred |= preferred;
    if sockets {
        options.load = LoadKind::Sockets;
    }
    if let Some(only) = only {
        options.select(&only)?;
    }
    options.argv = std::env::args().collect();
    options.progress = |line| eprintln!("{line}");
    let gate = options.gate;
    let report = run(options)?;
    print!("{}", report.to_table());
    if let Some(path) = json {
        std::fs::write(path, report.to_json())?;
    }
    if let Some(path) = html {
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
