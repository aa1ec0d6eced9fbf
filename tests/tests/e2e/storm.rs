//! Deployments that change at random while the control plane is killed. `make storm` is the long one.

use std::time::Duration;

use windlass_tests::{Storm, Testbed};

#[test]
fn deployments_converge_after_a_storm() {
    let testbed = Testbed::without_docker();
    let storm = Storm { deployments: 20, time: Duration::from_secs(15), kills: 2, seed: 20_260_101 };
    let weather = storm.run(&testbed).expect("all converge");
    assert!(weather.changes.len() >= 5, "{weather:?}");
}
