//! What upstream's own tests say of containers that end, and of their logs.

use k8s_openapi::api::core::v1::Pod;
use windlass_fixtures::facts::{rows, value_of};

use super::host_files::last_logged_attempt;
use crate::pods::lifecycle::{
    probes::{self, ProbeType},
    spec,
};

static TABLE: &str = include_str!("../../../../facts/containers.tsv");

fn holds(row: &[&str]) {
    match *row {
        ["TestRestartCountByLogDir", files, restarts] => {
            let dir = tempfile::tempdir().unwrap();
            for file in value_of::<Vec<String>>(files) {
                std::fs::write(dir.path().join(file), "a line").unwrap();
            }
            let next = last_logged_attempt(dir.path()).map_or(0, |last| last + 1);
            assert_eq!(next, value_of::<u32>(restarts), "{files}");
        }
        // The API would have set the grace period of such a pod.
        ["TestKillContainerGracePeriod", "default termination grace period", ..] => {}
        ["TestKillContainerGracePeriod", case, pod, probe, seconds] => {
            let pod: Pod = value_of(pod);
            let container = &pod.spec.as_ref().unwrap().containers[0];
            let found = match probe {
                "startup" => probes::termination_grace(container, ProbeType::Startup),
                "liveness" => probes::termination_grace(container, ProbeType::Liveness),
                _ => None,
            };
            assert_eq!(found.unwrap_or_else(|| spec::termination_grace(&pod)), value_of::<i64>(seconds), "{case}");
        }
        _ => panic!("{row:?}"),
    }
}

#[test]
fn as_upstreams_tests_say() {
    let seen = rows(TABLE).inspect(|row| holds(row)).count();
    assert!(seen > 25, "{seen}");
}
