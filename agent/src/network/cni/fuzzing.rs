//! Properties of what reads CNI configuration and the answers of plugins, for fuzzers.

use serde_json::Value;

use super::config::{self, ConfList};

/// A list is read as a whole or refused; what was read has plugins whose names are names of files, and is the same after the
/// way over the disk, where an attachment keeps it.
///
/// # Panics
/// When that does not hold.
pub fn configuration(text: &str) {
    let Ok(list) = config::read(text) else { return };
    assert!(!list.name.is_empty());
    for plugin in &list.plugins {
        let program = config::type_of(plugin).expect("a plugin without a type is refused");
        assert!(!program.contains('/') && !program.starts_with('.'), "{program:?} is in another directory");
    }
    assert!(!list.more_in_directory || !(list.name.contains('/') || list.name.starts_with('.')), "{:?}", list.name);
    let _ = (list.at_least(config::CHECK), list.at_least(config::STATUS_AND_GC));
    let kept = serde_json::to_string(&list).expect("a list can be kept");
    assert_eq!(serde_json::from_str::<ConfList>(&kept).expect("a kept list can be read"), list);
    // Its other plugins, of files that are as wild.
    let more = [("10-more.conf".to_owned(), text.to_owned())];
    if let Ok(whole) = list.complete(&more) {
        assert!(whole.plugins.iter().all(|plugin| config::type_of(plugin).is_some()));
    }
}

/// What a plugin prints is a result, an error or nothing, and never ends the agent.
///
/// # Panics
/// When an answer to VERSION names no version.
pub fn answer(output: &[u8]) {
    let _ = config::error(output);
    if let Ok(versions) = config::supported_versions(output) {
        assert!(!versions.is_empty());
    }
    let _ = serde_json::from_slice::<Value>(output).map(|result| config::addresses(&result));
}
