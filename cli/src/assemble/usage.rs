//! Passes cadvisor's samples to the metrics API of the control plane.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_cadvisor::{
    Usage,
    model::{Sample, Snapshot},
};
use windlass_control::metrics;

/// The readings of each round of cadvisor.
pub(super) fn readings(
    usage: &Usage,
    node: &str,
    shutdown: CancellationToken,
) -> watch::Receiver<Arc<metrics::Readings>> {
    let mut rounds = usage.rounds();
    let (sender, receiver) = watch::channel(Arc::default());
    let node = node.to_owned();
    tokio::spawn(async move {
        loop {
            let round = Arc::clone(&rounds.borrow_and_update());
            sender.send_replace(Arc::new(reading(&node, &round)));
            tokio::select! {
                () = shutdown.cancelled() => return,
                changed = rounds.changed() => if changed.is_err() { return },
            }
        }
    });
    receiver
}

fn reading(node: &str, round: &Snapshot) -> metrics::Readings {
    let of = |sample: &Sample| metrics::Reading {
        at: sample.at,
        cpu_ns: sample.cpu.usage_ns,
        memory_bytes: sample.memory.working_set_bytes(),
    };
    let of_pods = round.rows.iter().filter(|row| !row.subject.pod_uid.is_empty() && !row.subject.is_sandbox());
    metrics::Readings {
        node: node.to_owned(),
        machine: Some(of(&round.node.sample)),
        containers: of_pods
            .map(|row| metrics::ContainerReading {
                id: row.subject.container_id.clone(),
                namespace: row.subject.pod_namespace.clone(),
                pod: row.subject.pod_name.clone(),
                name: row.subject.container_name.clone(),
                reading: of(&row.sample),
            })
            .collect(),
    }
}
