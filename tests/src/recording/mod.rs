//! What a user sees of workloads, as text that two control planes can be compared by: tables of kubectl, statuses and
//! events, without what differs between any two runs (random names, addresses, times).
//!
//! A recording is made under a real control plane and kept as a file; the embedded one has to give the same text.

mod events;
mod normalize;
mod table;

use std::{
    fmt::Write as _,
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    Kubectl,
    cluster::{API, Api},
};
pub use events::lines_of_events;
pub use normalize::{Names, without_times};
pub use table::lines_of_table;

/// The variable that has recordings written instead of compared.
const UPDATE: &str = "UPDATE_RECORDED";
/// Time until what is shown has settled.
const SETTLING: Duration = Duration::from_secs(30);
/// A view counts as settled when it was the same for so long.
const STEADY: Duration = Duration::from_secs(3);

/// A view that is looked at until it stays as it is. One that is as wanted for a moment is not enough: an event too many, a second
/// rollout or a change back comes after it.
#[derive(Debug)]
pub struct Settling {
    wanted: Option<String>,
    last: String,
    since: Instant,
    deadline: Instant,
}

impl Settling {
    /// Nothing was seen yet. Without a wanted view any is, once it stays.
    #[must_use]
    pub fn new(wanted: Option<String>, now: Instant) -> Self {
        Self { wanted, last: String::new(), since: now, deadline: now + SETTLING }
    }

    /// Whether what was seen now is the end: it has been as wanted for a while, or it is too late for that.
    pub fn is_over(&mut self, text: String, now: Instant) -> bool {
        if text != self.last {
            (self.last, self.since) = (text, now);
        }
        let is_wanted = self.wanted.as_ref().is_none_or(|wanted| *wanted == self.last);
        if is_wanted && (self.wanted.is_some() || now < self.deadline) {
            now.duration_since(self.since) > STEADY
        } else {
            now > self.deadline
        }
    }

    /// What was seen last.
    #[must_use]
    pub fn last(&self) -> &str {
        &self.last
    }
}

/// The recording of one test, as it grows.
#[derive(Debug)]
pub struct Recording<'k> {
    kubectl: Kubectl<'k>,
    file: PathBuf,
    /// Sections of the kept file, by their place; `None` while a new one is made.
    kept: Option<Vec<String>>,
    sections: Vec<String>,
    names: Names,
    differences: String,
}

impl<'k> Recording<'k> {
    /// The recording that is kept in `file`, of one namespace.
    ///
    /// # Panics
    /// When a new one is to be made without a real control plane.
    #[must_use]
    pub fn open(kubectl: Kubectl<'k>, namespace: &str, file: PathBuf) -> Self {
        let update = std::env::var_os(UPDATE).is_some();
        assert!(
            !update || Api::from_env() == Api::Cluster,
            "{UPDATE} records what a real control plane does, so it needs {API}=cluster"
        );
        // A test that records nothing has no file.
        let text = fs::read_to_string(&file).unwrap_or_default();
        let sections =
            text.split("\n\n").map(|section| section.trim_end().to_owned()).filter(|section| !section.is_empty());
        let kept = (!update).then(|| sections.collect());
        let names = Names::new(namespace);
        Self { kubectl, file, kept, sections: Vec::new(), names, differences: String::new() }
    }

    /// Runs kubectl and records what it prints.
    pub fn command(&mut self, args: &[&str], stdin: &str) {
        let output = self.kubectl.output(args, stdin);
        self.learn();
        let printed = format!("{}{}", output.out, output.err);
        let shown = args.iter().map(|arg| if arg.contains(' ') { format!("'{arg}'") } else { (*arg).to_owned() });
        let text = format!("$ kubectl {}\n{}", shown.collect::<Vec<_>>().join(" "), self.names.normalize(&printed));
        self.section(text);
    }

    /// Records a sentence that the test has found to be true or false.
    pub fn fact(&mut self, text: &str) {
        let text = self.names.normalize(text);
        self.section(format!("# {text}"));
    }

    /// Records the tables and statuses of these kinds (as for `kubectl get`), once they have settled.
    pub fn show(&mut self, kinds: &[&str]) {
        self.settle(|kubectl, names| {
            let mut text = String::new();
            for kind in kinds {
                let _ = writeln!(text, "$ kubectl get {kind}");
                let all: Vec<&str> = kind.split(' ').collect();
                let table = kubectl.try_run(&[&["get"], &all[..]].concat())?;
                text += &lines_of_table(&table, names);
                let objects = kubectl.json(&all)?;
                let of_object = |object| normalize::lines_of_object(object, names);
                let mut blocks: Vec<String> =
                    objects["items"].as_array().into_iter().flatten().map(of_object).collect();
                blocks.sort();
                text += &table::fold(&blocks);
            }
            Ok(text)
        });
    }

    /// Records the events of objects of these kinds, once they have settled; those of nodes' agents apart.
    pub fn events(&mut self, kinds: &[&str]) {
        self.settle(|kubectl, names| {
            let events = kubectl.json(&["events"])?;
            let lines = lines_of_events(events["items"].as_array().map_or(&[][..], Vec::as_slice), kinds, names);
            Ok(format!("events of {} in {{namespace}}\n{lines}", kinds.join(", ")))
        });
    }

    /// From now on these names are the same word, where upstream takes any of them.
    pub fn alias(&mut self, names: &[&str], word: &'static str) {
        self.names.alias(names, word);
    }

    /// Learns the names of what exists now, to distinguish them from later ones.
    pub fn learn(&mut self) {
        let kinds = "replicationcontrollers,replicasets,deployments,statefulsets,daemonsets,jobs,cronjobs,controllerrevisions,pods";
        if let Ok(objects) = self.kubectl.json(&[kinds]) {
            objects["items"].as_array().into_iter().flatten().for_each(|object| self.names.learn(object));
        }
    }

    /// Takes a view until it has been the kept one, or, to make a new one, any one, for a while.
    fn settle(&mut self, view: impl Fn(&Kubectl<'k>, &Names) -> anyhow::Result<String>) {
        let wanted = self.kept.as_ref().map(|kept| kept.get(self.sections.len()).cloned().unwrap_or_default());
        let mut settling = Settling::new(wanted, Instant::now());
        loop {
            self.learn();
            let text = match view(&self.kubectl, &self.names) {
                Ok(text) => text.trim_end().to_owned(),
                Err(error) => self.names.normalize(&format!("{error:#}")),
            };
            if settling.is_over(text, Instant::now()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(300));
        }
        self.section(settling.last);
    }

    fn section(&mut self, text: String) {
        // An empty line separates sections.
        let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
        let text = lines.join("\n");
        let place = self.sections.len();
        if let Some(kept) = &self.kept {
            let wanted = kept.get(place).map_or("", String::as_str);
            if wanted != text {
                let _ = writeln!(self.differences, "section {}:\n{}", place + 1, difference(wanted, &text));
            }
        }
        self.sections.push(text);
    }

    /// Compares with, or writes, the kept file.
    ///
    /// # Panics
    /// When they differ.
    pub fn finish(self) {
        match &self.kept {
            None if self.sections.is_empty() => {}
            None => fs::write(&self.file, self.sections.join("\n\n") + "\n").expect("the recording can be written"),
            Some(kept) => {
                assert!(
                    self.differences.is_empty(),
                    "differs from {} (-), the recording of a real control plane:\n{}",
                    self.file.display(),
                    self.differences
                );
                assert_eq!(kept.len(), self.sections.len(), "{} has more sections", self.file.display());
            }
        }
    }
}

/// The lines that two texts do not share, in their order: `-` of the first, `+` of the second.
fn difference(wanted: &str, found: &str) -> String {
    let (wanted, found): (Vec<&str>, Vec<&str>) = (wanted.lines().collect(), found.lines().collect());
    // Longest common subsequence; the texts are short.
    let mut common = vec![vec![0; found.len() + 1]; wanted.len() + 1];
    for i in (0..wanted.len()).rev() {
        for j in (0..found.len()).rev() {
            common[i][j] =
                if wanted[i] == found[j] { common[i + 1][j + 1] + 1 } else { common[i + 1][j].max(common[i][j + 1]) };
        }
    }
    let (mut i, mut j, mut text) = (0, 0, String::new());
    while i < wanted.len() || j < found.len() {
        let (line, mark) = if i < wanted.len() && j < found.len() && wanted[i] == found[j] {
            (i, j) = (i + 1, j + 1);
            (wanted[i - 1], ' ')
        } else if j == found.len() || (i < wanted.len() && common[i + 1][j] >= common[i][j + 1]) {
            i += 1;
            (wanted[i - 1], '-')
        } else {
            j += 1;
            (found[j - 1], '+')
        };
        let _ = writeln!(text, "{mark} {line}");
    }
    text
}

/// The text of a JSON value's string, or nothing.
fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
