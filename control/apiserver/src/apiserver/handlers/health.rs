//! `/livez`, `/readyz` and `/healthz`. A disk that refuses writes is no reason to restart the server, so it stays alive
//! and is not ready. What is done after a start counts for all three, as upstream.

use std::borrow::Cow;

use axum::{
    http::StatusCode,
    response::{IntoResponse as _, Response},
};

use windlass_kit::slis::HealthChecks;

use crate::{
    apiserver::{Api, request::api_request::ApiRequest},
    store::Health,
};

const BASES: [&str; 3] = ["healthz", "livez", "readyz"];

/// A health check, and whether it succeeds.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Check {
    name: Cow<'static, str>,
    works: bool,
}

impl ApiRequest {
    /// Serves the health endpoints.
    pub(in crate::apiserver) fn health(&self, path: &str) -> Option<Response> {
        let (base, check) = path.split_once('/').map_or((path, None), |(b, c)| (b, Some(c)));
        let base = BASES.into_iter().find(|known| *known == base)?;
        let verbose = self.uri.query().is_some_and(|q| q.contains("verbose"));
        let answer = answer(base, check, verbose, self.api.checks(base), &self.api.inner.health_checks)?;
        self.api.inner.requests.health(&format!("/{path}"), answer.status().as_u16(), self.received.elapsed());
        Some(answer)
    }
}

impl Api {
    /// The checks of one of the three.
    fn checks(&self, base: &str) -> Vec<Check> {
        checks(base, &self.store().health(), self.post_start_hooks().checks())
    }

    /// Makes every check, and counts it.
    pub(in crate::apiserver) fn check_all(&self) {
        for base in BASES {
            count(base, &self.checks(base), &self.inner.health_checks);
        }
    }
}

fn checks(base: &str, store: &Health, hooks: Vec<(String, bool)>) -> Vec<Check> {
    let stores = match store {
        Health::Serving => true,
        Health::Failing(_) => base == "livez",
        Health::Ended => false,
    };
    let own = [("ping", true), ("store", stores)].map(|(name, works)| Check { name: name.into(), works });
    own.into_iter().chain(hooks.into_iter().map(|(name, works)| Check { name: name.into(), works })).collect()
}

fn count(base: &str, checks: &[Check], counted: &HealthChecks) {
    checks.iter().for_each(|check| counted.record(&check.name, base, check.works));
}

/// The answer of one of the three, or of one check of it; `None` if there is no such check.
fn answer(
    base: &str,
    check: Option<&str>,
    verbose: bool,
    mut checks: Vec<Check>,
    counted: &HealthChecks,
) -> Option<Response> {
    checks.retain(|known| check.is_none_or(|only| only == known.name));
    if checks.is_empty() {
        return None;
    }
    count(base, &checks, counted);
    let (healthy, text) = report(base, &checks, verbose);
    Some((if healthy { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR }, text).into_response())
}

fn report(base: &str, checks: &[Check], verbose: bool) -> (bool, String) {
    let healthy = checks.iter().all(|check| check.works);
    if healthy && !verbose {
        return (true, "ok".to_owned());
    }
    // The reason is in the log only: the endpoint is open to everybody, as upstream's.
    let line = |Check { name, works }: &Check| {
        if *works { format!("[+]{name} ok\n") } else { format!("[-]{name} failed: reason withheld\n") }
    };
    let lines: String = checks.iter().map(line).collect();
    (healthy, format!("{lines}{base} check {}\n", if healthy { "passed" } else { "failed" }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_follows_the_store_and_liveness_its_writer() {
        let failing = Health::Failing("the disk is full".to_owned());
        for (base, store, healthy) in [
            ("livez", &Health::Serving, true),
            ("readyz", &Health::Serving, true),
            ("livez", &failing, true),
            ("readyz", &failing, false),
            ("healthz", &failing, false),
            ("livez", &Health::Ended, false),
            ("readyz", &Health::Ended, false),
        ] {
            let all = checks(base, store, Vec::new());
            let (is, text) = report(base, &all, true);
            assert_eq!(is, healthy, "{base} {store:?}");
            assert!(text.contains(if healthy { "check passed" } else { "check failed" }), "{text}");
            assert!(!text.contains("full"), "{text}");
            assert_eq!(report(base, &all[..1], false), (true, "ok".to_owned()), "{base} {store:?}");
            assert_eq!(report(base, &all[1..], false).0, healthy, "{base} {store:?}");
        }
        assert_eq!(
            report("readyz", &checks("readyz", &failing, Vec::new()), false).1,
            "[+]ping ok\n[-]store failed: reason withheld\nreadyz check failed\n"
        );
    }

    #[test]
    fn hooks_count_for_all() {
        for is_done in [true, false] {
            for base in BASES {
                let hooks = vec![("poststarthook/rbac/bootstrap-roles".to_owned(), is_done)];
                let all = checks(base, &Health::Serving, hooks);
                let (healthy, text) = report(base, &all, true);
                let line = if is_done { "[+]poststarthook/rbac/bootstrap-roles ok" } else { "[-]poststarthook/rbac/" };
                assert!(healthy == is_done && text.contains(line), "{base}: {text}");
                let one =
                    answer(base, Some("poststarthook/rbac/bootstrap-roles"), false, all, &HealthChecks::default());
                let code = if is_done { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
                assert_eq!(one.map(|answer| answer.status()), Some(code), "{base}");
            }
        }
    }

    #[test]
    fn other_checks_are_not_there() {
        for check in ["etcd", "", "poststarthook", "poststarthook/none"] {
            let all = checks("livez", &Health::Serving, vec![("poststarthook/a".to_owned(), true)]);
            assert!(answer("livez", Some(check), false, all, &HealthChecks::default()).is_none(), "{check}");
        }
    }
}
