//! The commands of the pages that are not tutorials: each of them is run here, or a table says what runs it instead.
//!
//! A command is a line of a block that is marked `sh`, `bash`, `shell` or `console`. A page with such commands has a
//! [`Scene`](sandbox::Scene): what the commands require, which words of the page stand for something else in the
//! sandbox, and what the commands print. All other commands are in [`exceptions`].
//!
//! `HAIRPIN_TEST_PAGE=load.md` runs the commands of pages with this part in their name only.

mod exceptions;
mod pages;
mod programs;
mod sandbox;
mod scenes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Instant;

use crate::tutorials;
use pages::Page;
use sandbox::Scene;

/// How many pages are followed at the same time. Most commands wait for a server, and not for a processor.
const AT_ONCE: usize = 5;

fn is_run(page: &Page, command: &str) -> bool {
    exceptions::find(&page.name, command).is_none()
}

fn scene_of(page: &str) -> Option<&'static Scene> {
    scenes::all().find(|scene| scene.page == page)
}

#[test]
fn every_command_is_run_or_excepted() {
    let mut mistakes = Vec::new();
    let pages = pages::all();
    for page in &pages {
        match scene_of(&page.name) {
            Some(scene) => mistakes.extend(scene.mistakes(page)),
            None => mistakes.extend(
                page.commands
                    .iter()
                    .filter(|command| is_run(page, &command.text))
                    .map(|command| {
                        format!("{}: neither run nor excepted: {}", page.name, command.text)
                    }),
            ),
        }
    }
    let names: BTreeSet<_> = pages.iter().map(|page| &*page.name).collect();
    let unknown = scenes::all().filter(|scene| !names.contains(scene.page));
    mistakes.extend(unknown.map(|scene| format!("{}: not a page of docs/SUMMARY.md", scene.page)));
    mistakes.extend(exceptions::mistakes(&pages));
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    eprintln!("{:?}", counts(&pages));
}

/// How many commands are not run, by reason, and how many are.
fn counts(pages: &[Page]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for page in pages {
        for command in &page.commands {
            let exception = exceptions::find(&page.name, &command.text);
            let name = exception.map_or("run here".to_owned(), |exception| exception.reason.name());
            *counts.entry(name).or_default() += 1;
        }
    }
    counts
}

#[test]
fn the_commands_of_pages_work() {
    if !tutorials::can_run("howto", tutorials::hindrance()) {
        return;
    }
    let missing = programs::missing();
    assert!(
        missing.is_empty(),
        "not installed: {missing:?}; `cargo xtask tools` installs them"
    );
    let pages = pages::all();
    let wanted = std::env::var("HAIRPIN_TEST_PAGE").ok();
    let followed = pages.iter().filter(|page| {
        wanted
            .as_ref()
            .is_none_or(|wanted| page.name.contains(wanted))
    });
    let waiting: Vec<_> = followed
        .filter_map(|page| Some((page, scene_of(&page.name)?)))
        .collect();
    let waiting = Mutex::new(waiting.into_iter());
    let results = Mutex::new((0, Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    // The lock ends with this line.
                    let next = waiting.lock().unwrap().next();
                    let Some((page, scene)) = next else { break };
                    let (count, faults) = follow(page, scene);
                    let mut results = results.lock().unwrap();
                    results.0 += count;
                    results.1.extend(faults);
                }
            });
        }
    });
    let (count, faults) = results.into_inner().unwrap();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    eprintln!("{count} commands");
}

fn follow(page: &Page, scene: &Scene) -> (usize, Vec<String>) {
    let begin = Instant::now();
    let result = scene.run(page);
    eprintln!(
        "{}: {} commands in {:.1} s",
        page.name,
        result.0,
        begin.elapsed().as_secs_f64()
    );
    result
}
