//! All settings with their values, by their names in the file, for `windlass config`. Pure.

use serde_json::Value;

use super::{Settings, setting::Setting, settings_table::of_file};

/// A setting of the file and its value.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) setting: &'static Setting,
    /// Null if unset.
    pub(crate) value: Value,
}

impl Entry {
    /// Its name in the file.
    pub(crate) const fn name(&self) -> &'static str {
        self.setting.name
    }
}

/// All settings, in the order of the table.
pub(crate) fn entries(settings: &Settings) -> Vec<Entry> {
    of_file().map(|setting| Entry { setting, value: (setting.shown)(settings) }).collect()
}
