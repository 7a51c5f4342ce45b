//! A panic of one worker ends the process. Only a child process can show that, so the test runs itself again as one.

use super::*;
use crate::cli::{Cli, Command};
use crate::commands::conclude;
use clap::Parser;
use server::credentials::{Credentials, KeyLookup, KeyQuery};
use server::{Server, Settings};
use std::process;

const TEST: &str =
    "commands::serve::panic_tests::a_panic_of_a_worker_ends_the_process_and_one_line_names_both";
const CHILD: &str = "HAIRPIN_TEST_PANICS";

/// A source of credentials that has the worker panic which is told of it.
#[derive(Debug)]
struct Trap;

impl Credentials for Trap {
    fn find(&self, _: &KeyQuery<'_>) -> KeyLookup {
        KeyLookup::Unknown
    }

    fn knows_userhash(&self) -> bool {
        panic!("the trap has sprung")
    }
}

/// Serves until the worker panics.
fn child() -> Result<ExitCode> {
    let Command::Serve(args) = Cli::parse_from(["hairpin", "serve"]).command else {
        bail!("it is another command");
    };
    let level = log::install(
        config::LogFormat::Json,
        tracing::level_filters::LevelFilter::INFO,
    )?;
    log::report_panics();
    let signals = Signals::install()?;
    let (changes, inbox) = control::channel(&signals)?;
    let running = Server::builder()
        .listen("127.0.0.1:0".parse()?)
        .relay_address("127.0.0.1".parse()?)
        .workers(1)
        .start()?;
    let mut settings = Settings::default();
    settings.credentials.push(Arc::new(Trap));
    running.reload(settings)?;
    let running = RunningServer::of(running, "hairpin");
    let started = read(&args)?;
    let config = started.config.clone().context("the defaults are wrong")?;
    Service {
        external: None,
        endpoints: Endpoints::default(),
        successor: None,
        predecessor: None,
        cluster: None,
        denied: WatchedDenyFiles::of(config),
        started,
        args: &args,
        made_up_secret: None,
        level,
        signals,
        source: Arc::new(Source::new(running.observer())),
        shared: Arc::new(Shared {
            source: Arc::new(Source::new(running.observer())),
            config_file: None,
            sip: None,
            admin: None,
            stopping: AtomicBool::new(false),
            predecessor: Mutex::new(None),
            upgrade: control::upgrade::Upgrade::default(),
            routing: Arc::default(),
            sessions: running.sessions(),
            applied: Mutex::default(),
        }),
        changes,
        inbox,
        manager: Manager::from_environment(),
        running,
        drain: Duration::ZERO,
        uris: Vec::new(),
    }
    .run()
}

#[test]
fn a_panic_of_a_worker_ends_the_process_and_one_line_names_both() {
    if std::env::var_os(CHILD).is_some() {
        let code = conclude(child());
        process::exit(i32::from(code == ExitCode::FAILURE));
    }
    let output = process::Command::new(std::env::current_exe().unwrap())
        .args([TEST, "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.last().copied().unwrap_or_default();
    assert_eq!(
        last,
        "error: worker 0 panicked: the trap has sprung; this is a bug, please report it"
    );
    // The log has the place in the code, in one line as well.
    let logged: Vec<_> = lines
        .iter()
        .filter(|line| line.contains("panic_tests.rs"))
        .collect();
    assert_eq!(logged.len(), 1, "{text}");
    assert!(
        logged[0].contains("hairpin-0") && logged[0].contains("the trap has sprung"),
        "{text}"
    );
}
