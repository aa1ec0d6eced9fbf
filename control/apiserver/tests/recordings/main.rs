//! Makes recordings again that unit tests compare with: the files of what a real control plane said, each with a recorder here.
//! A test compares what it says now with what is recorded, and fails with the rows that differ; with `UPDATE_RECORDED=1` it
//! writes those rows.
//!
//! The real one is that of the directory that `KUBEBUILDER_ASSETS` names; without it the tests are ignored, and that of an
//! operator also without the operator's folder, which `TEKTON` names. How a row becomes requests is in the unit tests' own
//! files, which are included here.

#![allow(clippy::print_stdout, reason = "a test says what it saw")]

mod autoscaling;
#[path = "../../../controllers/src/horizontal_pod_autoscaler/tests/cases.rs"]
mod autoscaling_cases;
#[path = "../../src/plugin/admission/webhook/tests/exchanges.rs"]
mod exchanges;
mod metrics_server;
mod operators;
mod pod_security;
#[path = "../../src/plugin/admission/pod_security/tests/cases.rs"]
mod pod_security_cases;
mod ratcheting;
mod real_server;
#[path = "../../src/kinds/tests/recorded/mod.rs"]
mod recorded;
mod scheduling;
#[path = "../../../scheduler/src/tests/cases.rs"]
mod scheduling_cases;
mod tables;
mod tekton;
mod tls_server;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use windlass_tests::{
    Testbed,
    cluster::{ControlPlane, Part, assets},
    skip,
};

use real_server::RealServer;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let skipped = assets().is_none();
    if skipped && !arguments.list {
        skip("control-plane", "KUBEBUILDER_ASSETS is not set");
    }
    let trials = vec![
        Trial::test("tables_are_those_of_the_real_server", || with_server(tables::record)),
        Trial::test("pod_security_is_that_of_the_real_server", || with_server(pod_security::record)),
        Trial::test("scheduling_is_that_of_the_real_scheduler", || with_server(scheduling::record)),
        Trial::test("ratcheting_is_that_of_the_real_server", || with_server(ratcheting::record)),
        Trial::test("autoscaling_is_that_of_the_real_controller", || with_server(autoscaling::record)),
    ];
    let mut trials: Vec<Trial> = trials.into_iter().map(|trial| trial.with_ignored_flag(skipped)).collect();
    let without_operator = skipped || tekton::folder().is_none();
    if without_operator && !skipped && !arguments.list {
        skip("judges", &format!("{} is not set", tekton::FOLDER));
    }
    let operators = Trial::test("operators_are_called_as_by_the_real_server", || with_server(operators::record));
    trials.push(operators.with_ignored_flag(without_operator));
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Whether what differs is written.
fn is_recording() -> bool {
    std::env::var_os("UPDATE_RECORDED").is_some()
}

/// What the API of unit tests has, too: few ports of nodes, and tokens that end within a day.
const API_SERVER: [&str; 2] = ["--service-node-port-range=30000-30009", "--service-account-max-token-expiration=24h"];

/// Starts a real API server, and runs `record` with it.
fn with_server(
    record: impl AsyncFnOnce(RealServer, &ControlPlane) -> anyhow::Result<()>,
) -> Result<(), libtest_mimic::Failed> {
    let testbed = Testbed::without_docker();
    let plane = testbed.api_server();
    plane.change(Part::ApiServer, &API_SERVER);
    testbed.enter()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(async { record(RealServer::new(&plane.admin()).await?, plane).await });
    done.map_err(|error| format!("{error:#}").into())
}
