//! The calls about usage.

use windlass_cadvisor::model::Row;

use super::{
    Cri, convert, filter,
    grpc::{Code, Status},
    messages::{
        ContainerAttributes, ContainerFilter, ContainerStats, ContainerStatsRequest, ContainerStatsResponse, CpuUsage,
        FilesystemIdentifier, FilesystemUsage, ListContainerStatsRequest, ListContainerStatsResponse, MemoryUsage,
        SwapUsage, UInt64Value,
    },
};

pub(super) fn number(value: u64) -> Option<UInt64Value> {
    Some(UInt64Value { value })
}

impl Cri {
    pub(super) async fn container_stats(
        &self,
        request: &ContainerStatsRequest,
    ) -> Result<ContainerStatsResponse, Status> {
        let id = self.seen()?.container(&request.container_id)?.id.clone();
        let found = self.stats(&ContainerFilter { id: id.clone(), ..ContainerFilter::default() }).await?.pop();
        let without = || Status::new(Code::NotFound, format!("container {id} has no usage: it does not run"));
        Ok(ContainerStatsResponse { stats: Some(found.ok_or_else(without)?) })
    }

    pub(super) async fn list_container_stats(
        &self,
        request: ListContainerStatsRequest,
    ) -> Result<ListContainerStatsResponse, Status> {
        let wanted = filter::of_stats(request.filter.unwrap_or_default());
        Ok(ListContainerStatsResponse { stats: self.stats(&wanted).await? })
    }

    /// The usage of those that run.
    async fn stats(&self, wanted: &ContainerFilter) -> Result<Vec<ContainerStats>, Status> {
        self.usage.refresh().await;
        let (snapshot, seen) = (self.usage.snapshot(), self.seen()?);
        let matching = seen.matching(wanted);
        let measured = matching.into_iter().filter_map(|(instance, container)| {
            let row = snapshot.rows.iter().find(|row| row.target.container_id == instance.id)?;
            let attributes = ContainerAttributes {
                id: container.id,
                metadata: container.metadata,
                labels: container.labels,
                annotations: container.annotations,
            };
            Some(ContainerStats {
                attributes: Some(attributes),
                writable_layer: self.writable_layer(&instance.id),
                ..usage(row)
            })
        });
        Ok(measured.collect())
    }

    fn writable_layer(&self, id: &str) -> Option<FilesystemUsage> {
        let storage = self.usage.storage();
        let size = storage.containers.get(id)?;
        let layer = size.rootfs?;
        let mountpoint = storage.image_root.as_ref().map(|root| root.display().to_string());
        Some(FilesystemUsage {
            timestamp: convert::nanoseconds(size.at),
            fs_id: mountpoint.map(|mountpoint| FilesystemIdentifier { mountpoint }),
            used_bytes: number(layer.bytes),
            inodes_used: layer.inodes.and_then(number),
        })
    }
}

/// The usage that was sampled of a container.
fn usage(row: &Row) -> ContainerStats {
    let (sample, timestamp) = (&row.sample, convert::nanoseconds(row.sample.moment.wall));
    ContainerStats {
        cpu: Some(CpuUsage {
            timestamp,
            usage_core_nano_seconds: number(sample.cpu.usage_ns),
            usage_nano_cores: row.usage_nano_cores.and_then(number),
        }),
        memory: sample.memory.map(|memory| MemoryUsage {
            timestamp,
            working_set_bytes: number(memory.working_set_bytes()),
            available_bytes: row
                .limits
                .memory_bytes
                .and_then(|limit| number(limit.saturating_sub(memory.working_set_bytes()))),
            usage_bytes: number(memory.usage_bytes),
            rss_bytes: number(memory.rss_bytes),
            page_faults: number(memory.faults),
            major_page_faults: number(memory.major_faults),
        }),
        swap: sample.memory.and_then(|memory| memory.swap_bytes).map(|used| SwapUsage {
            timestamp,
            swap_available_bytes: row.limits.swap_bytes.and_then(|limit| number(limit.saturating_sub(used))),
            swap_usage_bytes: number(used),
        }),
        ..ContainerStats::default()
    }
}
