//! CEL with what admission knows: the variables of conditions of webhooks, and of policies. Selectors of devices are compiled
//! here, too.
//!
//! `types` and `compiler` say what expressions can name, `activation` has the values and evaluates, and `match_conditions`
//! decides whether a webhook or policy is for a request. `deferred` and `long_evaluation` say when and on which
//! threads all that is done.
//! `device_selectors` has what selectors can name.
//!
//! Upstream: `k8s.io/apiserver/pkg/admission/plugin/cel`.

mod activation;
mod authorizer;
mod compiler;
mod deferred;
mod device_selectors;
mod long_evaluation;
mod match_conditions;
mod types;

#[cfg(test)]
mod tests;

pub(crate) use activation::{Expression, Inputs, Scope};
pub(crate) use authorizer::UserAuthorizer;
pub(crate) use compiler::{Compiler, Composition, Wanted, compile_condition};
pub(crate) use deferred::Deferred;
pub(crate) use device_selectors::{SelectorError, check_selector};
pub(crate) use long_evaluation::evaluate;
pub(crate) use match_conditions::{Conditions, Matches};
