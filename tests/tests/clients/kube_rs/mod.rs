//! kube-rs, as operators in Rust use it.

mod apply;
mod controller;
mod every_type;
mod leases;
mod reflector;

use std::future::Future;

use kube::Client;

use crate::server::Server;

/// A name and a test.
type Test = (&'static str, fn(&Server));

/// All tests.
pub(crate) const TESTS: [Test; 5] = [
    ("every_type", every_type::every_type),
    ("a_reflector_follows_a_type", reflector::a_reflector_follows_a_type),
    ("a_controller_reconciles", controller::a_controller_reconciles),
    ("managers_share_an_object_by_apply", apply::managers_share_an_object_by_apply),
    ("one_of_many_holds_a_lease", leases::one_of_many_holds_a_lease),
];

/// Runs a test with a client, in the network namespace of the server.
fn with_client<F: Future<Output = anyhow::Result<()>>>(server: &Server, test: impl FnOnce(Client) -> F) {
    let run = || {
        server.testbed.enter()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let client = windlass_tests::client(&server.testbed.windlass().kubeconfig()).await?;
            tokio::time::timeout(windlass_tests::DEFAULT_TIMEOUT, test(client)).await?
        })
    };
    if let Err(error) = run() {
        panic!("{error:#}");
    }
}

/// Whether an error is the API's, with this code.
fn has_code<T>(result: &Result<T, kube::Error>, code: u16) -> bool {
    matches!(result, Err(kube::Error::Api(status)) if status.code == code)
}
