//! Authorizers with the same decision for everybody (upstream: `authorizerfactory`).

use crate::apiserver::{Attributes, Authorizer, Decision, NonResourceRule, ResourceRule, Rules, User};

/// Everybody may do everything.
#[derive(Debug)]
pub(crate) struct AlwaysAllow;

impl Authorizer for AlwaysAllow {
    fn decide(&self, _: &User, _: &Attributes<'_>) -> Decision {
        Decision::Allow
    }

    fn rules(&self, _: &User, _: &str) -> Rules {
        let all = || vec!["*".to_owned()];
        Rules {
            resource: vec![ResourceRule { verbs: all(), groups: all(), resources: all(), names: Vec::new() }],
            non_resource: vec![NonResourceRule { verbs: all(), paths: all() }],
            unresolved: Vec::new(),
        }
    }
}

/// Nobody may do anything by this authorizer; others may allow it.
#[derive(Debug)]
pub(crate) struct AlwaysDeny;

impl Authorizer for AlwaysDeny {
    fn decide(&self, _: &User, _: &Attributes<'_>) -> Decision {
        Decision::NoOpinion("Everything is forbidden.".to_owned())
    }

    fn rules(&self, _: &User, _: &str) -> Rules {
        Rules::default()
    }
}
