//! Records which writes the API has acknowledged.

use std::collections::BTreeMap;

use windlass_tests::{Kubectl, Output};

/// The expected state of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    Is(String),
    Gone,
    /// A write was not acknowledged: both states are accepted.
    Unknown,
}

/// ConfigMaps by name.
#[derive(Debug, Default)]
pub(crate) struct AcknowledgedWrites {
    entries: BTreeMap<String, Entry>,
    pub(crate) acknowledged: usize,
}

impl AcknowledgedWrites {
    /// Those that certainly exist.
    pub(crate) fn names(&self) -> Vec<&String> {
        self.entries.iter().filter(|(_, entry)| matches!(entry, Entry::Is(_))).map(|(name, _)| name).collect()
    }

    fn note(&mut self, name: &str, answer: &Output, entry: Entry) {
        self.acknowledged += usize::from(answer.ok);
        self.entries.insert(name.to_owned(), if answer.ok { entry } else { Entry::Unknown });
    }

    pub(crate) fn wrote(&mut self, name: &str, value: &str, answer: &Output) {
        self.note(name, answer, Entry::Is(value.to_owned()));
    }

    pub(crate) fn deleted(&mut self, name: &str, answer: &Output) {
        self.note(name, answer, Entry::Gone);
    }

    /// Acknowledged writes that are lost.
    pub(crate) fn lost(&self, kubectl: &Kubectl<'_>) -> anyhow::Result<Vec<String>> {
        let list = kubectl.json(&["configmaps"])?;
        let there: BTreeMap<&str, &str> = list["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|map| Some((map["metadata"]["name"].as_str()?, map["data"]["value"].as_str()?)))
            .collect();
        let wrong = |(name, entry): (&String, &Entry)| match (entry, there.get(name.as_str())) {
            (Entry::Is(value), found) if found != Some(&value.as_str()) => {
                Some(format!("{name} was acknowledged as {value:?} and is {found:?}"))
            }
            (Entry::Gone, Some(found)) => Some(format!("{name} was deleted and is {found:?}")),
            _ => None,
        };
        Ok(self.entries.iter().filter_map(wrong).collect())
    }
}
