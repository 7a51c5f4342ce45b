//! What is wrong with a configuration, and how it is shown.
//!
//! No function stops at the first mistake. Readers and checks push into a [`Report`] and continue. The user sees all
//! mistakes at once, sorted by location, each with its line, a caret and the remedy.

use annotate_snippets::{Annotation, AnnotationKind, Group, Level, Renderer, Snippet};

use super::source::{Location, Sources, clamp};

/// A garbage file of a megabyte could yield a hundred thousand complaints; nobody reads more than a screen or two.
const MAX_RENDERED: usize = 100;

/// Whether a diagnostic makes the configuration unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    /// The configuration is refused.
    Error,
    /// Allowed, but hardly what was meant.
    Warning,
}

/// One complaint.
#[derive(Clone, Debug)]
pub(crate) struct Diagnostic {
    /// Error or warning.
    pub(crate) severity: Severity,
    /// One line, lower case, without a full stop.
    pub(crate) message: String,
    /// The place, and a few words beside the caret (may be empty).
    pub(crate) at: Location,
    label: String,
    context: Vec<(Location, String)>,
    help: Vec<String>,
}

impl Diagnostic {
    /// A mistake that makes the configuration unusable.
    pub(crate) fn error(at: &Location, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, at, message)
    }

    /// Something allowed that is hardly what was meant.
    pub(crate) fn warning(at: &Location, message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, at, message)
    }

    fn new(severity: Severity, at: &Location, message: impl Into<String>) -> Self {
        let (label, context, help) = (String::new(), Vec::new(), Vec::new());
        Self {
            severity,
            message: message.into(),
            at: at.clone(),
            label,
            context,
            help,
        }
    }

    /// A few words beside the caret.
    pub(crate) fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// A second place that has to do with it.
    pub(crate) fn see(mut self, at: &Location, label: impl Into<String>) -> Self {
        self.context.push((at.clone(), label.into()));
        self
    }

    /// What to do about it.
    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help.push(help.into());
        self
    }

    /// Like [`Diagnostic::help`], if there is something to say.
    pub(crate) fn help_if(mut self, help: Option<String>) -> Self {
        self.help.extend(help);
        self
    }

    /// One line without the source text, so that it can go to a log: `FILE:LINE:COLUMN: message (help)`.
    pub(crate) fn one_line(&self, sources: &Sources) -> String {
        let help = self
            .help
            .first()
            .map(|help| format!(" ({help})"))
            .unwrap_or_default();
        format!("{}: {}{help}", sources.describe(&self.at), self.message)
    }

    /// The same without a place: `message (help)`.
    pub(crate) fn without_place(&self) -> String {
        match self.help.first() {
            Some(help) => format!("{} ({help})", self.message),
            None => self.message.clone(),
        }
    }

    fn group<'a>(&'a self, sources: &'a Sources) -> Group<'a> {
        let level = match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let mut group = level
            .primary_title(self.message.as_str())
            .element(self.snippet(sources));
        for (at, label) in self
            .context
            .iter()
            .filter(|(at, _)| at.source != self.at.source)
        {
            group = group.element(snippet_of(sources, at).annotation(annotation(
                sources,
                AnnotationKind::Context,
                at,
                label,
            )));
        }
        group.elements(
            self.help
                .iter()
                .map(|help| Level::HELP.message(help.as_str())),
        )
    }

    fn snippet<'a>(&'a self, sources: &'a Sources) -> Snippet<'a, Annotation<'a>> {
        let primary = annotation(sources, AnnotationKind::Primary, &self.at, &self.label);
        let same_text = self
            .context
            .iter()
            .filter(|(at, _)| at.source == self.at.source);
        let context =
            same_text.map(|(at, label)| annotation(sources, AnnotationKind::Context, at, label));
        snippet_of(sources, &self.at)
            .annotation(primary)
            .annotations(context)
    }
}

fn snippet_of<'a>(sources: &'a Sources, at: &Location) -> Snippet<'a, Annotation<'a>> {
    let source = sources.get(at.source);
    Snippet::source(source.text.as_str()).path(source.name.as_str())
}

fn annotation<'a>(
    sources: &'a Sources,
    kind: AnnotationKind,
    at: &Location,
    label: &'a str,
) -> Annotation<'a> {
    let span = clamp(&sources.get(at.source).text, &at.span);
    kind.span(span).label((!label.is_empty()).then_some(label))
}

/// All errors and warnings that were found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    diagnostics: Vec<Diagnostic>,
    is_incomplete: bool,
}

impl Report {
    /// Adds a complaint.
    pub(crate) fn push(&mut self, diagnostic: Diagnostic) {
        self.diagnostics.push(diagnostic);
    }

    /// Notes that a list or table has no end, so that the rest of its file could not be parsed.
    pub(crate) fn set_incomplete(&mut self) {
        self.is_incomplete = true;
    }

    /// Whether the rest of a file could not be parsed. A setting that seems to be missing may be there.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    /// Adds an error.
    pub(crate) fn error(&mut self, at: &Location, message: impl Into<String>) {
        self.push(Diagnostic::error(at, message));
    }

    /// How many errors there are.
    pub(crate) fn errors(&self) -> usize {
        self.diagnostics
            .iter()
            .filter(|d| d.severity == Severity::Error)
            .count()
    }

    /// How many warnings there are.
    pub(crate) fn warnings(&self) -> usize {
        self.diagnostics.len() - self.errors()
    }

    /// In the order of the sources, and of the text in each.
    pub(crate) fn sorted(&self) -> Vec<&Diagnostic> {
        let mut sorted: Vec<_> = self.diagnostics.iter().collect();
        sorted.sort_by_key(|d| (d.at.source, d.at.span.start));
        sorted
    }

    /// The whole report as text, with colours and the width of the terminal if `terminal`.
    pub(crate) fn render(&self, sources: &Sources, colour: bool) -> String {
        let renderer = if colour {
            Renderer::styled()
        } else {
            Renderer::plain()
        };
        let sorted = self.sorted();
        let mut text: String = sorted
            .iter()
            .take(MAX_RENDERED)
            .map(|diagnostic| renderer.render(&[diagnostic.group(sources)]) + "\n\n")
            .collect();
        if sorted.len() > MAX_RENDERED {
            text.push_str(&format!("... and {} more\n\n", sorted.len() - MAX_RENDERED));
        }
        text
    }

    /// `2 errors, 1 warning`.
    pub(crate) fn count(&self) -> String {
        let some = |n, word| (n > 0).then(|| plural(n, word));
        let parts = [
            some(self.errors(), "error"),
            some(self.warnings(), "warning"),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// `1 user`, `2 users`.
pub(crate) fn plural(count: usize, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}
