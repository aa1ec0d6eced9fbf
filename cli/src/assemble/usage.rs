//! Passes cadvisor's samples to the metrics API of the control plane: what has changed from one snapshot to the next.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use windlass_cadvisor::{
    Usage,
    model::{Row, Sample, Snapshot},
};
use windlass_control::{ControlPlane, metrics};

/// Passes on each snapshot of cadvisor until `shutdown`.
///
/// # Errors
/// Never; it has the shape of the other tasks.
pub(super) async fn follow(
    usage: Usage,
    node: String,
    plane: ControlPlane,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let mut snapshots = usage.snapshots();
    let mut before: Option<Arc<Snapshot>> = None;
    loop {
        let snapshot = Arc::clone(&snapshots.borrow_and_update());
        plane.record_usage(&readings(&node, &snapshot, before.as_deref()));
        before = Some(snapshot);
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            changed = snapshots.changed() => if changed.is_err() {
                // Only the end of the whole node may end this task.
                shutdown.cancelled().await;
                return Ok(());
            },
        }
    }
}

fn readings(node: &str, snapshot: &Snapshot, before: Option<&Snapshot>) -> metrics::Readings {
    let of_pod = |row: &&Arc<Row>| !row.target.pod_uid.is_empty() && !row.target.is_sandbox();
    let containers = match before {
        None => metrics::Containers::All(snapshot.rows.iter().filter(of_pod).map(container).collect()),
        Some(before) => {
            let (read, gone) = snapshot.rows.since(&before.rows);
            let gone = gone.into_iter().filter(of_pod).map(container);
            metrics::Containers::Changed {
                read: read.into_iter().filter(of_pod).map(container).collect(),
                gone: gone.map(|gone| (gone.pod_uid, gone.name, gone.run)).collect(),
            }
        }
    };
    let machine = (!snapshot.node.stale).then(|| reading(&snapshot.node.sample));
    metrics::Readings { node: node.to_owned(), machine, containers }
}

fn container(row: &Arc<Row>) -> metrics::ContainerReading {
    metrics::ContainerReading {
        pod_uid: row.target.pod_uid.clone(),
        name: row.target.container_name.clone(),
        run: metrics::Run::Id(row.target.container_id.clone()),
        reading: reading(&row.sample),
    }
}

fn reading(sample: &Sample) -> metrics::Reading {
    metrics::Reading {
        at: metrics::SampledAt::Here(sample.moment),
        cpu_ns: sample.cpu.usage_ns,
        // Without the memory controller nothing is known, and nothing is served.
        memory_bytes: sample.memory.map_or(0, |memory| memory.working_set_bytes()),
    }
}
