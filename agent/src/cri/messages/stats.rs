//! Messages about usage. Pure.

use super::{
    messages,
    runtime::{ContainerMetadata, Texts},
};

messages! {
    /// Asks for the usage of one container.
    ContainerStatsRequest { container_id: String = 1 }

    /// The usage of one container.
    ContainerStatsResponse { stats: Option<ContainerStats> = 1 }

    /// Asks for the usage of containers.
    ListContainerStatsRequest { filter: Option<ContainerStatsFilter> = 1 }

    /// Of which containers; an empty field matches all.
    ContainerStatsFilter { id: String = 1, pod_sandbox_id: String = 2, label_selector: Texts = 3 }

    /// The usage of containers.
    ListContainerStatsResponse { stats: Vec<ContainerStats> = 1 }

    /// The usage of a container.
    ContainerStats {
        attributes: Option<ContainerAttributes> = 1,
        cpu: Option<CpuUsage> = 2,
        memory: Option<MemoryUsage> = 3,
        writable_layer: Option<FilesystemUsage> = 4,
        swap: Option<SwapUsage> = 5,
    }

    /// Which container it is the usage of.
    ContainerAttributes {
        id: String = 1,
        metadata: Option<ContainerMetadata> = 2,
        labels: Texts = 3,
        annotations: Texts = 4,
    }

    /// Processor time.
    CpuUsage {
        timestamp: i64 = 1,
        usage_core_nano_seconds: Option<UInt64Value> = 2,
        usage_nano_cores: Option<UInt64Value> = 3,
    }

    /// Memory.
    MemoryUsage {
        timestamp: i64 = 1,
        working_set_bytes: Option<UInt64Value> = 2,
        available_bytes: Option<UInt64Value> = 3,
        usage_bytes: Option<UInt64Value> = 4,
        rss_bytes: Option<UInt64Value> = 5,
        page_faults: Option<UInt64Value> = 6,
        major_page_faults: Option<UInt64Value> = 7,
    }

    /// Swap.
    SwapUsage {
        timestamp: i64 = 1,
        swap_available_bytes: Option<UInt64Value> = 2,
        swap_usage_bytes: Option<UInt64Value> = 3,
    }

    /// A number, where none is another thing than 0.
    UInt64Value { value: u64 = 1 }

    /// Asks for the file systems of images.
    ImageFsInfoRequest {}

    /// The file systems of images and of containers' writable layers.
    ImageFsInfoResponse {
        image_filesystems: Vec<FilesystemUsage> = 1,
        container_filesystems: Vec<FilesystemUsage> = 2,
    }

    /// What is used of a file system.
    FilesystemUsage {
        timestamp: i64 = 1,
        fs_id: Option<FilesystemIdentifier> = 2,
        used_bytes: Option<UInt64Value> = 3,
        inodes_used: Option<UInt64Value> = 4,
    }

    /// A file system.
    FilesystemIdentifier { mountpoint: String = 1 }
}
