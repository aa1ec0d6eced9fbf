//! The second round of mutating admission: when a webhook or policy has changed an object, the built-in plugins see it once
//! more, and those webhooks and policies that ask for that and were called before the last change.
//!
//! Upstream: `k8s.io/apiserver/pkg/admission/reinvocation.go` and the `reinvocationcontext.go` of webhooks and policies.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use serde_json::Value;

/// What has happened in the rounds of one request.
#[derive(Debug, Default)]
pub struct Reinvocation(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    is_second_round: bool,
    is_requested: bool,
    plugins: BTreeMap<&'static str, PluginState>,
}

/// What has become of the object with the hooks of one plugin.
#[derive(Debug, Default)]
struct PluginState {
    /// The object after the plugin's last turn.
    output: Value,
    /// The hooks that were called and want to be called again after a change.
    called: BTreeSet<String>,
    /// Those of them after which something has changed.
    again: BTreeSet<String>,
}

impl PluginState {
    fn require_called(&mut self) {
        self.again.append(&mut self.called);
    }
}

impl Reinvocation {
    /// Begins the second round, if one was requested in the first.
    pub(super) fn begin_second_round(&self) -> bool {
        let mut state = self.0.lock();
        state.is_second_round = !state.is_second_round && state.is_requested;
        state.is_second_round
    }

    /// Which round it is, from 0.
    pub(crate) fn round(&self) -> u8 {
        u8::from(self.0.lock().is_second_round)
    }

    /// A plugin's turn begins: what others have changed since its last one counts.
    pub(crate) fn begin(&self, plugin: &'static str, object: &Value) {
        let mut state = self.0.lock();
        let is_second_round = state.is_second_round;
        let own = state.plugins.entry(plugin).or_default();
        if is_second_round && own.output != *object {
            own.require_called();
        }
    }

    /// Whether a hook of a plugin has its turn: in the second round, if something has changed since it was called.
    pub(crate) fn has_turn(&self, plugin: &'static str, hook: &str) -> bool {
        let state = self.0.lock();
        !state.is_second_round || state.plugins.get(plugin).is_some_and(|own| own.again.contains(hook))
    }

    /// A hook was called. `is_reinvoked` says that it wants to see later changes, `changed` that it has made one.
    pub(crate) fn called(&self, plugin: &'static str, hook: &str, is_reinvoked: bool, changed: bool) {
        let mut state = self.0.lock();
        state.is_requested |= changed;
        let own = state.plugins.entry(plugin).or_default();
        if changed {
            own.require_called();
        }
        if is_reinvoked {
            own.called.insert(hook.to_owned());
        }
    }

    /// A plugin has patched the object, so that all that want to see changes see it.
    pub(crate) fn changed(&self, plugin: &'static str) {
        let mut state = self.0.lock();
        state.is_requested = true;
        state.plugins.entry(plugin).or_default().require_called();
    }

    /// A plugin's turn is over.
    pub(crate) fn end(&self, plugin: &'static str, object: &Value) {
        self.0.lock().plugins.entry(plugin).or_default().output = object.clone();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PLUGIN: &str = "p";

    #[test]
    fn nothing_is_done_again_without_a_change() {
        let rounds = Reinvocation::default();
        rounds.begin(PLUGIN, &json!(1));
        rounds.called(PLUGIN, "a", true, false);
        rounds.end(PLUGIN, &json!(1));
        assert!(!rounds.begin_second_round());
        assert_eq!(rounds.round(), 0);
    }

    #[test]
    fn those_before_a_change_have_a_second_turn_if_they_want_one() {
        let rounds = Reinvocation::default();
        rounds.begin(PLUGIN, &json!(1));
        for (hook, is_reinvoked, changed) in
            [("a", true, false), ("b", false, false), ("c", true, true), ("d", true, false)]
        {
            assert!(rounds.has_turn(PLUGIN, hook));
            rounds.called(PLUGIN, hook, is_reinvoked, changed);
        }
        rounds.end(PLUGIN, &json!(2));
        assert!(rounds.begin_second_round());
        rounds.begin(PLUGIN, &json!(2));
        let turns = ["a", "b", "c", "d", "e"].map(|hook| rounds.has_turn(PLUGIN, hook));
        assert_eq!(turns, [true, false, false, false, false]);
        assert!(!rounds.begin_second_round(), "there is no third round");
    }

    #[test]
    fn after_a_patch_the_last_one_has_a_second_turn_as_well() {
        let rounds = Reinvocation::default();
        rounds.begin(PLUGIN, &json!(1));
        rounds.called(PLUGIN, "a", true, true);
        rounds.called(PLUGIN, "b", false, false);
        rounds.changed(PLUGIN);
        rounds.end(PLUGIN, &json!(2));
        assert!(rounds.begin_second_round());
        rounds.begin(PLUGIN, &json!(2));
        assert_eq!(["a", "b"].map(|hook| rounds.has_turn(PLUGIN, hook)), [true, false]);
    }

    #[test]
    fn what_other_plugins_change_counts() {
        let rounds = Reinvocation::default();
        rounds.begin(PLUGIN, &json!(1));
        rounds.called(PLUGIN, "a", true, true);
        rounds.end(PLUGIN, &json!(2));
        assert!(rounds.begin_second_round());
        rounds.begin(PLUGIN, &json!(3));
        assert!(rounds.has_turn(PLUGIN, "a"));
    }
}
