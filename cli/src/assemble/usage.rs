//! Passes cadvisor's samples to the metrics API of the control plane.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_cadvisor::{
    Usage,
    model::{Sample, Snapshot},
};
use windlass_control::metrics;

/// The readings of each snapshot of cadvisor.
pub(super) fn readings(
    usage: &Usage,
    node: &str,
    shutdown: CancellationToken,
) -> watch::Receiver<Arc<metrics::Readings>> {
    let mut snapshots = usage.snapshots();
    let (sender, receiver) = watch::channel(Arc::default());
    let node = node.to_owned();
    tokio::spawn(async move {
        loop {
            let snapshot = Arc::clone(&snapshots.borrow_and_update());
            sender.send_replace(Arc::new(reading(&node, &snapshot)));
            tokio::select! {
                () = shutdown.cancelled() => return,
                changed = snapshots.changed() => if changed.is_err() { return },
            }
        }
    });
    receiver
}

fn reading(node: &str, snapshot: &Snapshot) -> metrics::Readings {
    let of = |sample: &Sample| metrics::Reading {
        at: metrics::SampledAt::Here(sample.moment),
        cpu_ns: sample.cpu.usage_ns,
        // Without the memory controller nothing is known, and nothing is served.
        memory_bytes: sample.memory.map_or(0, |memory| memory.working_set_bytes()),
    };
    let of_pods = snapshot.rows.iter().filter(|row| !row.target.pod_uid.is_empty() && !row.target.is_sandbox());
    metrics::Readings {
        node: node.to_owned(),
        machine: (!snapshot.node.stale).then(|| of(&snapshot.node.sample)),
        containers: of_pods
            .map(|row| metrics::ContainerReading {
                pod_uid: row.target.pod_uid.clone(),
                name: row.target.container_name.clone(),
                run: metrics::Run::Id(row.target.container_id.clone()),
                reading: of(&row.sample),
            })
            .collect(),
    }
}
