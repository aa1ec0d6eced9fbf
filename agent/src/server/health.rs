//! `/healthz`: whether the agent's loops make progress. Docker being down is reported but does not fail the check:
//! restarting the agent would not help.

use std::time::Instant;

use axum::{
    extract::{Path, Query, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use windlass_kit::liveness::StuckLoop;

use super::{ServerState, refuse};
use crate::engine::Health;

/// Upstream's checks.
const CHECKS: [&str; 3] = ["ping", "log", "syncloop"];

#[derive(Debug, serde::Deserialize)]
pub(super) struct Options {
    verbose: Option<String>,
}

pub(super) async fn all(State(state): State<ServerState>, Query(options): Query<Options>) -> Response {
    answer(&state, &CHECKS, options.verbose.is_some())
}

pub(super) async fn one(
    State(state): State<ServerState>,
    Path(check): Path<String>,
    Query(options): Query<Options>,
) -> Response {
    match CHECKS.iter().position(|c| *c == check) {
        Some(at) => answer(&state, &CHECKS[at..=at], options.verbose.is_some()),
        None => refuse(StatusCode::NOT_FOUND, "404 page not found"),
    }
}

/// Makes every check, and counts it.
pub(super) fn check_all(state: &ServerState) {
    count(state, &CHECKS, &state.heartbeats.stuck(Instant::now()));
}

fn count(state: &ServerState, checks: &[&str], stuck: &[StuckLoop]) {
    for check in checks {
        state.health_checks.record(check, "healthz", passes(check, stuck));
    }
}

/// Whether a check passes: only the loops of this process can fail one.
fn passes(check: &str, stuck: &[StuckLoop]) -> bool {
    stuck.is_empty() || check != "syncloop"
}

fn answer(state: &ServerState, checks: &[&str], verbose: bool) -> Response {
    let stuck = state.heartbeats.stuck(Instant::now());
    count(state, checks, &stuck);
    let (healthy, text) = report(checks, &stuck, &state.docker.borrow(), verbose);
    if healthy {
        return text.into_response();
    }
    tracing::warn!(reason = text, "healthz check failed");
    refuse(StatusCode::INTERNAL_SERVER_ERROR, text)
}

/// Whether all checks pass, and the report in upstream's form.
fn report(checks: &[&str], stuck: &[StuckLoop], docker: &Health, verbose: bool) -> (bool, String) {
    let healthy = checks.iter().all(|check| passes(check, stuck));
    if healthy && !verbose {
        return (true, "ok".to_owned());
    }
    let mut text = String::new();
    for check in checks {
        if !passes(check, stuck) {
            let all: Vec<String> = stuck.iter().map(ToString::to_string).collect();
            text.push_str(&format!("[-]{check} failed: {}\n", all.join("; ")));
        } else {
            text.push_str(&format!("[+]{check} ok\n"));
        }
    }
    text.push_str(&match docker {
        Health::Up { version } => format!("[+]docker ok: {version}\n"),
        Health::Unknown => "[ ]docker was not asked yet\n".to_owned(),
        Health::Down { reason } => format!("[ ]docker does not answer, which fails nothing here: {reason}\n"),
    });
    text.push_str(if healthy { "healthz check passed\n" } else { "healthz check failed\n" });
    (healthy, text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_healthy() {
        let stuck = [StuckLoop { name: "pods", instance: String::new(), since_report: Duration::from_secs(301) }];
        let (up, down) = (Health::Up { version: "20".into() }, Health::Down { reason: "no socket".into() });
        let failed = "[+]ping ok\n[+]log ok\n[-]syncloop failed: pods has not moved for 301 s\n";
        for (checks, stuck, docker, verbose, healthy, text) in [
            (&CHECKS[..], &[][..], &up, false, true, "ok".to_owned()),
            // A node whose Docker is down must not be started again for it.
            (&CHECKS, &[], &down, false, true, "ok".into()),
            (
                &CHECKS,
                &[],
                &down,
                true,
                true,
                "[+]ping ok\n[+]log ok\n[+]syncloop ok\n[ ]docker does not answer, which fails nothing here: no socket\nhealthz check passed\n".into(),
            ),
            (&CHECKS, &stuck, &up, false, false, format!("{failed}[+]docker ok: 20\nhealthz check failed\n")),
            (&["ping"], &stuck, &up, false, true, "ok".into()),
            (
                &["syncloop"],
                &stuck,
                &Health::Unknown,
                false,
                false,
                "[-]syncloop failed: pods has not moved for 301 s\n[ ]docker was not asked yet\nhealthz check failed\n".into(),
            ),
        ] {
            assert_eq!(report(checks, stuck, docker, verbose), (healthy, text));
        }
    }
}
