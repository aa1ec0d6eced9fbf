//! `/livez`, `/readyz` and `/healthz`. A disk that refuses writes is no reason to restart the server, so it stays alive
//! and is not ready.

use axum::{
    http::StatusCode,
    response::{IntoResponse as _, Response},
};

use windlass_kit::slis::HealthChecks;

use crate::{apiserver::request::api_request::ApiRequest, store::Health};

const BASES: [&str; 3] = ["healthz", "livez", "readyz"];
const CHECKS: [&str; 2] = ["ping", "store"];

impl ApiRequest {
    /// Serves the health endpoints.
    pub(in crate::apiserver) fn health(&self, path: &str) -> Option<Response> {
        let (base, check) = path.split_once('/').map_or((path, None), |(b, c)| (b, Some(c)));
        let verbose = self.uri.query().is_some_and(|q| q.contains("verbose"));
        let answer = answer(base, check, verbose, &self.store().health(), &self.api.inner.health_checks)?;
        self.api.inner.requests.health(&format!("/{path}"), answer.status().as_u16(), self.received.elapsed());
        Some(answer)
    }
}

/// The answer of one of the three, or of one check of it; `None` for other paths.
fn answer(base: &str, check: Option<&str>, verbose: bool, store: &Health, counted: &HealthChecks) -> Option<Response> {
    let checks: Vec<&str> = CHECKS.into_iter().filter(|c| check.is_none_or(|only| only == *c)).collect();
    let base = BASES.into_iter().find(|known| *known == base).filter(|_| !checks.is_empty())?;
    checks.iter().for_each(|check| counted.record(check, base, works(base, check, store)));
    Some({
        let (healthy, text) = report(base, &checks, verbose, store);
        (if healthy { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR }, text).into_response()
    })
}

/// Makes every check, and counts it.
pub(in crate::apiserver) fn check_all(store: &Health, counted: &HealthChecks) {
    for base in BASES {
        CHECKS.iter().for_each(|check| counted.record(check, base, works(base, check, store)));
    }
}

fn works(base: &str, check: &str, store: &Health) -> bool {
    check != "store"
        || match store {
            Health::Serving => true,
            Health::Failing(_) => base == "livez",
            Health::Ended => false,
        }
}

fn report(base: &str, checks: &[&str], verbose: bool, store: &Health) -> (bool, String) {
    let failed = |check: &str| !works(base, check, store);
    let healthy = !checks.iter().any(|check| failed(check));
    if healthy && !verbose {
        return (true, "ok".to_owned());
    }
    // The reason is in the log only: the endpoint is open to everybody, as upstream's.
    let line = |check: &&str| {
        if failed(check) { format!("[-]{check} failed: reason withheld\n") } else { format!("[+]{check} ok\n") }
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
            let (is, text) = report(base, &CHECKS, true, store);
            assert_eq!(is, healthy, "{base} {store:?}");
            assert!(text.contains(if healthy { "check passed" } else { "check failed" }), "{text}");
            assert!(!text.contains("full"), "{text}");
            assert_eq!(report(base, &["ping"], false, store), (true, "ok".to_owned()), "{base} {store:?}");
            assert_eq!(report(base, &["store"], false, store).0, healthy, "{base} {store:?}");
        }
        assert_eq!(
            report("readyz", &CHECKS, false, &failing).1,
            "[+]ping ok\n[-]store failed: reason withheld\nreadyz check failed\n"
        );
    }

    #[test]
    fn other_paths_are_not_health() {
        for (base, check) in [("version", None), ("livez", Some("etcd")), ("livez", Some("")), ("", None)] {
            let counted = HealthChecks::default();
            assert!(answer(base, check, false, &Health::Serving, &counted).is_none(), "{base} {check:?}");
        }
    }
}
