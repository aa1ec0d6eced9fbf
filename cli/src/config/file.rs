//! The configuration file. Names are those of KubeletConfiguration and KubeProxyConfiguration where they mean the same.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use serde_json::Value;

use super::{
    DEFAULT_DIR, DEFAULT_FILE, Problem, Settings,
    problems::{self, Key},
    setting::{Apply, yaml},
    settings_table,
};

/// What a file sets; all else keeps its default.
#[derive(Default)]
pub(crate) struct File(Vec<(&'static str, Apply)>);

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

pub(crate) const API_VERSION: &str = "windlass.io/v1alpha1";
pub(crate) const KIND: &str = "WindlassConfiguration";

/// Reads the named file, or the default one if it exists, and the files of a directory that change it.
pub(super) fn read(named: Option<&Path>, dir: Option<&Path>) -> anyhow::Result<Option<File>> {
    let path = named.unwrap_or_else(|| Path::new(DEFAULT_FILE));
    let dir = dir.map(Path::to_owned).or_else(|| Some(DEFAULT_DIR.into()).filter(|dir: &PathBuf| dir.is_dir()));
    let of_dir = dir.map_or_else(|| Ok(Vec::new()), |dir| super::drop_in::files(&dir))?;
    let mut files = Vec::new();
    for (file, optional) in
        std::iter::once((path.to_owned(), named.is_none())).chain(of_dir.into_iter().map(|f| (f, false)))
    {
        let name = file.display();
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if optional && error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("the configuration {name} could not be read")),
        };
        parse(&text).with_context(|| format!("the configuration {name} cannot be used"))?;
        files.push(text);
    }
    match &files[..] {
        [] => Ok(None),
        [one] => parse(one).map(Some),
        all => {
            let merged = super::drop_in::merged(all).and_then(|merged| File::of_value(&merged));
            merged.map(Some).context("the configuration and the files that change it cannot be used together")
        }
    }
}

/// Parses a file.
pub(crate) fn parse(text: &str) -> anyhow::Result<File> {
    read_text(text).map_err(|problems| {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        anyhow::anyhow!("{}", problems.join("; "))
    })
}

/// All problems of a file, except those of its settings' combination.
pub(super) fn problems(text: &str) -> Vec<Problem> {
    read_text(text).err().unwrap_or_default()
}

/// A file of comments only is an empty document.
fn is_empty(text: &str) -> bool {
    text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'))
}

/// What a file has to say that it is.
const HEADER: [(&str, &str); 2] = [("apiVersion", API_VERSION), ("kind", KIND)];

fn read_text(text: &str) -> Result<File, Vec<Problem>> {
    if is_empty(text) {
        return Ok(File::default());
    }
    let keys = problems::keys(text)?;
    let mut file = File::default();
    // As upstream: a file without apiVersion and kind might be meant for another version, or another program.
    let (mut missing, mut wrong, mut unreadable) = (Vec::new(), Vec::new(), Vec::new());
    for (name, wanted) in HEADER {
        let key = keys.iter().find(|key| key.name == name);
        match key.map(|key| (key, yaml::<String>(&key.text))) {
            None | Some((_, Ok(None))) => {
                missing.push(Problem { line: Some(1), reason: format!("{name} is missing; write {name}: {wanted}") });
            }
            Some((_, Ok(Some(given)))) if given == wanted => {}
            Some((key, Ok(Some(given)))) if name == "kind" => {
                wrong.push(key.found(format!("kind is {given:?}; did you mean {KIND:?}?")));
            }
            Some((key, Ok(Some(given)))) => {
                wrong.push(key.found(format!("{name} is {given:?}; this version of windlass reads {wanted:?}")));
            }
            Some((key, Err(report))) => unreadable.push(key.problem(&report)),
        }
    }
    for key in keys.iter().filter(|key| !HEADER.iter().any(|(name, _)| key.name == *name)) {
        unreadable.extend(file.read(key).err());
    }
    if unreadable.is_empty() && missing.is_empty() && wrong.is_empty() {
        return Ok(file);
    }
    // Of what is no file of ours the first thing to know is which of its settings there are none of.
    let missing = if unreadable.is_empty() { missing } else { Vec::new() };
    Err([missing, wrong, unreadable].concat())
}

impl File {
    /// Reads one key.
    fn read(&mut self, key: &Key) -> Result<(), Problem> {
        let Some(setting) = settings_table::of_file().find(|setting| setting.name == key.name) else {
            return Err(key.unknown());
        };
        let read = (setting.from_yaml)(&key.text).map_err(|report| key.problem(&report))?;
        self.0.extend(read.map(|apply| (setting.name, apply)));
        Ok(())
    }

    /// What files say together that can each be used.
    fn of_value(all: &Value) -> anyhow::Result<Self> {
        let mut file = Self::default();
        for (name, value) in all.as_object().into_iter().flatten() {
            if !HEADER.iter().any(|(header, _)| name == header) {
                file.read(&Key::of_value(name, value)).map_err(|problem| anyhow::anyhow!(problem.reason))?;
            }
        }
        Ok(file)
    }

    /// Sets what the file sets.
    pub(crate) fn apply(self, to: &mut Settings) {
        for (_, apply) in self.0 {
            apply(to);
        }
    }
}
