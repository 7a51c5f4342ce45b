//! Runs the commands of a page in a sandbox.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use super::is_run;
use super::pages::{self, Page};

const BEGIN: &str = include_str!("sandbox.sh");

/// Time of one page, in seconds; a page takes at most 10, unless others use the processors.
const PAGE_TIMEOUT_S: &str = "150";

/// What the commands of a page need and do.
pub(super) struct Scene {
    pub(super) page: &'static str,
    /// Lines of bash that make what the page requires. `$PAGE/1.toml` is the first block of TOML, and so on.
    pub(super) setup: &'static str,
    /// Words of the page, and what stands for them in the sandbox.
    pub(super) words: &'static [(&'static str, &'static str)],
    /// Commands that do more than end with status 0. The first rule that fits applies.
    pub(super) rules: &'static [Rule],
}

/// What is special about commands that begin like this.
#[derive(Clone, Copy)]
pub(super) struct Rule {
    command: &'static str,
    before: &'static str,
    appended: &'static str,
    input: &'static str,
    statuses: &'static [i32],
    prints: &'static [&'static str],
    ready: Option<&'static str>,
}

impl Rule {
    pub(super) const fn of(command: &'static str) -> Rule {
        Rule {
            command,
            before: "",
            appended: "",
            input: "",
            statuses: &[0],
            prints: &[],
            ready: None,
        }
    }

    /// Lines of bash before the command. If another test runs the command, they stand for it.
    pub(super) const fn before(self, before: &'static str) -> Rule {
        Rule { before, ..self }
    }

    /// Words at the end of the command.
    pub(super) const fn appends(self, appended: &'static str) -> Rule {
        Rule { appended, ..self }
    }

    /// What is typed after the command.
    pub(super) const fn types(self, input: &'static str) -> Rule {
        Rule { input, ..self }
    }

    /// The command ends with one of these.
    pub(super) const fn statuses(self, statuses: &'static [i32]) -> Rule {
        Rule { statuses, ..self }
    }

    /// The page shows these texts, and the command prints them.
    pub(super) const fn prints(self, prints: &'static [&'static str]) -> Rule {
        Rule { prints, ..self }
    }

    /// The command runs until the page ends. It is ready when this line of bash succeeds.
    pub(super) const fn runs_until(self, ready: &'static str) -> Rule {
        Rule {
            ready: Some(ready),
            ..self
        }
    }
}

impl Scene {
    fn rule(&self, command: &str) -> Rule {
        let mut rules = self.rules.iter();
        let rule = rules.find(|rule| command.starts_with(rule.command));
        *rule.unwrap_or(&Rule::of(""))
    }

    fn in_sandbox(&self, command: &str) -> String {
        let mut words = self.words.iter();
        let replaced = |text: String, (from, to): &(&str, &str)| text.replace(from, to);
        words.by_ref().fold(command.to_owned(), replaced)
    }

    /// What is wrong with the tables: entries that the page does not have, and output that nobody compares.
    pub(super) fn mistakes(&self, page: &Page) -> Vec<String> {
        let mut mistakes = Vec::new();
        let mut mistake =
            |what: &str, word: &str| mistakes.push(format!("{}: {what}: {word}", self.page));
        for (word, _) in self.words {
            let mut commands = page.commands.iter();
            if !commands.any(|command| command.text.contains(word)) {
                mistake("no command has the words", word);
            }
        }
        let mut used = BTreeSet::new();
        for command in &page.commands {
            let rule = self.rule(&command.text);
            used.insert(rule.command);
            if is_run(page, &command.text) && command.shown.is_some() && rule.prints.is_empty() {
                mistake(
                    "the output that the page shows is not compared",
                    &command.text,
                );
            }
            for text in rule
                .prints
                .iter()
                .filter(|text| !page.text.contains(**text))
            {
                mistake("the page does not show", text);
            }
        }
        for rule in self
            .rules
            .iter()
            .filter(|rule| !used.contains(rule.command))
        {
            mistake("no command follows the rule", rule.command);
        }
        mistakes
    }

    /// Runs the commands. Returns how many, and what went wrong.
    pub(super) fn run(&self, page: &Page) -> (usize, Vec<String>) {
        let folder = tempfile::tempdir().expect("a folder");
        let steps = folder.path().join("input");
        std::fs::create_dir(&steps).expect("a folder");
        let mut script = format!(
            "{BEGIN}\ncp \"$FOLDER\"/input/* \"$FOLDER/steps/\"\nset -e\n{}\n",
            self.setup
        );
        let mut run = Vec::new();
        for (number, command) in page.commands.iter().enumerate() {
            let rule = self.rule(&command.text);
            writeln!(script, "{}", rule.before).expect("a text takes all");
            if !is_run(page, &command.text) {
                continue;
            }
            let text = format!("{}{}\n", self.in_sandbox(&command.text), rule.appended);
            std::fs::write(steps.join(format!("{number}.sh")), text).expect("a file");
            std::fs::write(steps.join(format!("{number}.in")), rule.input).expect("a file");
            match rule.ready {
                None => writeln!(script, "step {number}"),
                Some(ready) => writeln!(script, "background {number} {}", quoted(ready)),
            }
            .expect("a text takes all");
            run.push((number, &*command.text, rule));
        }
        let count = run.len();
        let mut faults = Vec::new();
        if let Err(said) = execute(folder.path(), &script, page) {
            faults.push(format!("{}: the script fails: {said}", self.page));
        }
        let steps = folder.path().join("steps");
        faults.extend(run.into_iter().filter_map(|(number, command, rule)| {
            let fault = fault(&steps, number, &rule)?;
            Some(format!("{}: {command}: {fault}", self.page))
        }));
        (count, faults)
    }
}

/// What is wrong with a command that was run.
fn fault(steps: &Path, number: usize, rule: &Rule) -> Option<String> {
    let read =
        |kind: &str| std::fs::read(steps.join(format!("{number}.{kind}"))).unwrap_or_default();
    let output = String::from_utf8_lossy(&read("out")).into_owned();
    let status = String::from_utf8_lossy(&read("status")).trim().to_owned();
    let run = String::from_utf8_lossy(&read("sh")).trim().to_owned();
    if status.is_empty() {
        return Some("it was not run, or did not end".to_owned() + &output);
    }
    if !rule
        .statuses
        .iter()
        .any(|known| known.to_string() == status)
    {
        return Some(format!("status {status} of {run}\n{output}"));
    }
    let missing = rule.prints.iter().find(|text| !output.contains(**text))?;
    Some(format!("it does not print `{missing}`, but\n{output}"))
}

fn quoted(text: &str) -> String {
    shlex::try_quote(text).expect("no NUL").into_owned()
}

/// Runs a script in the sandbox.
fn execute(folder: &Path, script: &str, page: &Page) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt as _;
    // A database runs as another user, and reads files there.
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    let settings = folder.join("page");
    std::fs::create_dir(&settings).expect("a folder");
    for (number, text) in page.settings.iter().enumerate() {
        std::fs::write(settings.join(format!("{}.toml", number + 1)), text).expect("a file");
    }
    let programs = folder.join("bin");
    std::fs::create_dir(&programs).expect("a folder");
    super::programs::make(&programs);
    let file = folder.join("page.sh");
    std::fs::write(&file, script).expect("a file");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("timeout");
    command
        .args([
            "--kill-after=1",
            PAGE_TIMEOUT_S,
            "unshare",
            "--net",
            "--mount",
            "--pid",
        ])
        .args(["--fork", "--kill-child", "--mount-proc", "bash"])
        .arg(&file)
        .current_dir(folder)
        .stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HAIRPIN_") {
            command.env_remove(name);
        }
    }
    command
        .env("PATH", format!("{}:{path}", programs.display()))
        .env("FOLDER", folder)
        .env("PAGE", settings)
        .env("ROOT", pages::root());
    // A pipe would stay open while a process of the sandbox lives.
    let said = folder.join("said");
    let log = std::fs::File::create(&said).expect("a file");
    command.stdout(log.try_clone().expect("a file")).stderr(log);
    let status = command.status().expect("timeout runs");
    let said = std::fs::read_to_string(said).unwrap_or_default();
    if status.success() {
        return Ok(());
    }
    Err(format!("{status}: {said}"))
}
